// Attention over one 128-token segment, and the merging of segments. See SegmentBlock and Partial in kernels.h for the layouts.
//
// The arithmetic per query vector, which is the same however vectors are grouped into blocks: scores by one fused multiply-add chain over
// ascending d, times scale, soft cap; the largest; exp; the sum over 16 lanes; values by one chain over the tokens seen, ascending.
#pragma once

#include "kernels.h"
#include "tile.h"
#include "vec.h"

namespace {

constexpr int SEGMENT = 128;
constexpr float MINUS_INFINITY = -__builtin_inff();

template <class T>
INLINE void append_row(const float* k, const float* v, T* keys, T* values, int head_dim, int at) {
  for (int d = 0; d < head_dim; d += LANES) {
    T lanes[LANES];
    store(lanes, load(k + d));
    for (int i = 0; i < LANES; ++i) keys[(ptrdiff_t)(d + i) * SEGMENT + at] = lanes[i];
    store(values + (ptrdiff_t)at * head_dim + d, load(v + d));
  }
}

void append(const float* k, const float* v, void* keys, void* values, bool half, int head_dim, int at) {
  if (half)
    append_row(k, v, (Half*)keys, (Half*)values, head_dim, at);
  else
    append_row(k, v, (float*)keys, (float*)values, head_dim, at);
}

// scores [128] of one vector, raw dot products in the panels [first, last) -> exp(score - largest), exactly 0 where masked.
INLINE void softmax_numerators(float* scores, int first, int last, int low, int high, float scale, float softcap, float* largest_out,
                               float* total) {
  for (int t = first * LANES; t < last * LANES; t += LANES) {
    Vec s = mul(load(scores + t), broadcast(scale));
    if (softcap > 0) s = mul(broadcast(softcap), tanh(div(s, broadcast(softcap))));
    store(scores + t, s);
  }
  // Masking selects: what was computed from unwritten memory is overwritten, whatever it is.
  for (int t = first * LANES; t < low; ++t) scores[t] = MINUS_INFINITY;
  for (int t = high; t < last * LANES; ++t) scores[t] = MINUS_INFINITY;
  Vec top = broadcast(MINUS_INFINITY);
  for (int t = first * LANES; t < last * LANES; t += LANES) top = larger(top, load(scores + t));
  Vec m = broadcast(largest(top)), sums = broadcast(0.0f);
  for (int t = first * LANES; t < last * LANES; t += LANES) {
    Vec e = exp(sub(load(scores + t), m));
    store(scores + t, e);
    sums = add(sums, e);
  }
  *largest_out = largest(top);
  *total = sum(sums);
}

// Adds the weighted values of the tokens [from, to) to rows [row, row + rows) of out.
template <class T>
INLINE void add_values(const SegmentBlock& b, const T* values, const float* weights, float* out, int row, int rows, int from, int to) {
  if (from >= to) return;
  multiply(Product<T>{weights + row * SEGMENT + from, SEGMENT, values + (ptrdiff_t)from * b.head_dim, b.head_dim, LANES, to - from,
                      out + (ptrdiff_t)row * b.head_dim, b.head_dim, true},
           rows, b.head_dim / LANES);
}

// Rows of one tile see ranges that differ at their edges. The common part is one product; at the edges each row goes alone, because a
// weight of zero times a value that the row must not see could still be NaN.
template <class T>
void weigh_values(const SegmentBlock& b, const T* values, const float* weights, float* out) {
  for (int row = 0; row < b.count;) {
    int low = b.low[row], high = b.high[row], rows = 1;
    bool same = true;
    // A run of equal ranges of any length, or else up to a tile of any ranges.
    for (; row + rows < b.count; ++rows) {
      bool equal = b.low[row + rows] == b.low[row] && b.high[row + rows] == b.high[row];
      if ((!equal || !same) && rows >= TILE_ROWS) break;
      same &= equal;
      low = b.low[row + rows] > low ? b.low[row + rows] : low;
      high = b.high[row + rows] < high ? b.high[row + rows] : high;
    }
    if (low >= high) {
      for (int r = row; r < row + rows; ++r) add_values(b, values, weights, out, r, 1, b.low[r], b.high[r]);
    } else {
      for (int r = row; r < row + rows && !same; ++r) add_values(b, values, weights, out, r, 1, b.low[r], low);
      add_values(b, values, weights, out, row, rows, low, high);
      for (int r = row; r < row + rows && !same; ++r) add_values(b, values, weights, out, r, 1, high, b.high[r]);
    }
    row += rows;
  }
}

template <class T>
void attend(const SegmentBlock& b, const T* keys, const T* values, int first, int last, float* scores, const Partial& out) {
  multiply(Product<T>{b.q, b.head_dim, keys + first * LANES, SEGMENT, LANES, b.head_dim, scores + first * LANES, SEGMENT, false}, b.count,
           last - first);
  for (int i = 0; i < b.count; ++i) {
    if (b.low[i] < b.high[i])
      softmax_numerators(scores + i * SEGMENT, first, last, b.low[i], b.high[i], b.scale, b.softcap, out.largest + i, out.total + i);
    else
      out.total[i] = 0;
  }
  for (ptrdiff_t i = 0; i < (ptrdiff_t)b.count * b.head_dim; ++i) out.values[i] = 0;
  weigh_values(b, values, scores, out.values);
}

void attend_segment(const SegmentBlock& b, const Partial& out) {
  int low = SEGMENT, high = 0;
  for (int i = 0; i < b.count; ++i) {
    if (b.low[i] >= b.high[i]) continue;
    low = b.low[i] < low ? b.low[i] : low;
    high = b.high[i] > high ? b.high[i] : high;
  }
  if (low >= high) {
    for (int i = 0; i < b.count; ++i) out.total[i] = 0;
    return;
  }
  int first = low / LANES, last = (high + LANES - 1) / LANES;
  float* scores = b.scratch;
  if (!b.half) return attend(b, (const float*)b.keys, (const float*)b.values, first, last, scores, out);
  const Half *keys = (const Half*)b.keys, *values = (const Half*)b.values;
  if (b.count <= TILE_ROWS) return attend(b, keys, values, first, last, scores, out);
  // More than one tile of queries: convert once, exactly, instead of once per tile.
  float* wide_keys = scores + (ptrdiff_t)SEGMENT * b.count;
  float* wide_values = wide_keys + (ptrdiff_t)SEGMENT * b.head_dim;
  for (int d = 0; d < b.head_dim; ++d)
    for (int t = first * LANES; t < last * LANES; t += LANES) store(wide_keys + d * SEGMENT + t, load(keys + d * SEGMENT + t));
  for (ptrdiff_t i = (ptrdiff_t)low * b.head_dim; i < (ptrdiff_t)high * b.head_dim; i += LANES) store(wide_values + i, load(values + i));
  attend(b, wide_keys, wide_values, first, last, scores, out);
}

INLINE float exp_one(float x) {
  float lanes[LANES];
  store(lanes, exp(broadcast(x)));
  return lanes[0];
}

void merge(const Partial& state, const Partial& next, int count, int head_dim) {
  for (int i = 0; i < count; ++i) {
    if (next.total[i] == 0) continue;
    float *to = state.values + (ptrdiff_t)i * head_dim, *from = next.values + (ptrdiff_t)i * head_dim;
    if (state.total[i] == 0) {
      state.largest[i] = next.largest[i], state.total[i] = next.total[i];
      for (int d = 0; d < head_dim; d += LANES) store(to + d, load(from + d));
      continue;
    }
    float top = state.largest[i] > next.largest[i] ? state.largest[i] : next.largest[i];
    float old_factor = exp_one(state.largest[i] - top), new_factor = exp_one(next.largest[i] - top);
    state.largest[i] = top;
    state.total[i] = __builtin_fmaf(next.total[i], new_factor, state.total[i] * old_factor);
    for (int d = 0; d < head_dim; d += LANES)
      store(to + d, fma(load(from + d), broadcast(new_factor), mul(load(to + d), broadcast(old_factor))));
  }
}

void finish(const Partial& state, int count, int head_dim, float* out, const ptrdiff_t* offsets) {
  for (int i = 0; i < count; ++i)
    for (int d = 0; d < head_dim; d += LANES) {
      Vec v = state.total[i] == 0 ? broadcast(0.0f) : div(load(state.values + (ptrdiff_t)i * head_dim + d), broadcast(state.total[i]));
      store(out + offsets[i] + d, v);
    }
}

}  // namespace
