// Attention over one 128-token segment, and the merging of segments. See SegmentBlock and Partial in kernels.h for the layouts.
//
// The arithmetic per query vector, which is the same however vectors are grouped into blocks: scores by one fused multiply-add chain over
// ascending d, times scale, soft cap; the largest; exp; the sum over 16 lanes; values by one chain over the tokens seen, ascending.
//
// Codes stand for scale * code + zero. Where a scale belongs to a key's channel or to a value's token, the products read the codes as they
// are, as integers: scales multiply the query and the softmax's numerators instead, which are then rounded to 16 bits by one scale a
// vector, and the zeros' share is one number a vector.
#pragma once

#include "code_products.h"
#include "kernels.h"
#include "seal_kernels.h"
#include "tile.h"

namespace {

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

// Scales and zeros of a plane whose codes are read as they are, one for each of `count` channels or tokens.
struct Ranges32 {
  float scales[256], zeros[256];
};

INLINE void load_ranges(Plane plane, const uint8_t* data, int head_dim, int count, Ranges32& out) {
  const Half *scales = (const Half*)(data + code_bytes(plane, head_dim)), *zeros = scales + scale_count(plane, head_dim);
  if (plane.ranges == Ranges::segment) {
    Half shared[2][LANES];
    for (int i = 0; i < LANES; ++i) shared[0][i] = scales[0], shared[1][i] = zeros[0];
    for (int i = 0; i < count; i += LANES) store(out.scales + i, load(shared[0])), store(out.zeros + i, load(shared[1]));
  } else {
    for (int i = 0; i < count; i += LANES) store(out.scales + i, load(scales + i)), store(out.zeros + i, load(zeros + i));
  }
}

INLINE bool folds(Plane plane, Ranges own) {
  return plane.bits <= 8 && plane.coding == Coding::absolute && (plane.ranges == own || plane.ranges == Ranges::segment);
}

// Queries times the scales of their channels, and per query what the zeros add to each score.
INLINE void fold_keys(const SegmentBlock& b, const Ranges32& ranges, float* q, float* bias) {
  for (int i = 0; i < b.count; ++i) {
    Vec sums = broadcast(0.0f);
    for (int d = 0; d < b.head_dim; d += LANES) {
      Vec x = load(b.q + (ptrdiff_t)i * b.head_dim + d);
      store(q + (ptrdiff_t)i * b.head_dim + d, mul(x, load(ranges.scales + d)));
      sums = fma(x, load(ranges.zeros + d), sums);
    }
    bias[i] = sum(sums);
  }
}

// Weights [128] of one vector times the scales of their tokens; returns what the zeros add. What is not seen may have any range.
INLINE float fold_values(float* weights, int low, int high, const Ranges32& ranges) {
  Vec sums = broadcast(0.0f);
  for (int t = low / LANES * LANES; t < high; t += LANES) {
    Vec w = load(weights + t), scales = load(ranges.scales + t), zeros = load(ranges.zeros + t);
    if (t < low || t + LANES > high) {
      int from = low > t ? low - t : 0, to = high - t < LANES ? high - t : LANES;
      float lanes[2][LANES] = {};
      for (int i = from; i < to; ++i) lanes[0][i] = ranges.scales[t + i], lanes[1][i] = ranges.zeros[t + i];
      scales = load(lanes[0]), zeros = load(lanes[1]);
    }
    sums = fma(w, zeros, sums);
    store(weights + t, mul(w, scales));
  }
  return sum(sums);
}

// scores [128] of one vector, dot products in the panels [first, last) -> exp(score - largest), exactly 0 where masked.
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
  *largest_out = largest(top);
  Vec m = broadcast(*largest_out), sums = broadcast(0.0f);
  for (int t = first * LANES; t < last * LANES; t += LANES) {
    Vec e = exp(sub(load(scores + t), m));
    store(scores + t, e);
    sums = add(sums, e);
  }
  *total = sum(sums);
}

// A plane to read panels from, whose rows lie so many elements apart.
template <class T>
struct Rows {
  const T* data;
  ptrdiff_t row;
};

// Adds the weighted values of the tokens [from, to) to rows [row, row + rows) of out.
template <class T>
INLINE void add_values(const SegmentBlock& b, Rows<T> values, const float* weights, float* out, int row, int rows, int from, int to) {
  if (from >= to) return;
  multiply(Product<T>{weights + row * SCORE_ROW + from, SCORE_ROW, values.data, values.row, to - from,
                      out + (ptrdiff_t)row * b.head_dim, b.head_dim, true, from * values.row, row ? Ahead{} : b.next},
           rows, b.head_dim / LANES);
}

// Rows of one tile see ranges that differ at their edges. The common part is one product; at the edges each row goes alone, because a
// weight of zero times a value that the row must not see could still be NaN.
template <class T>
void weigh_values(const SegmentBlock& b, Rows<T> values, const float* weights, float* out) {
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
void score(const SegmentBlock& b, Rows<T> keys, int first, int last, int seen, float* scores) {
  multiply(Product<T>{b.q, b.head_dim, keys.data, keys.row, b.head_dim, scores + first * LANES, SCORE_ROW, false, first * LANES,
                      ahead_of(b.value_plane, b.values, b.head_dim, false, seen)},
           b.count, last - first);
}

// Calls body with the plane as something to read panels from. A single tile of queries reads 16 bits as they are stored;
// for more they are widened first, exactly, once instead of once per tile. Codes whose scales cannot be folded are decoded.
template <class Body>
INLINE void with_plane(const SegmentBlock& b, Plane plane, const uint8_t* data, bool transposed, float* wide, const Body& body) {
  int rows = transposed ? b.head_dim : SEGMENT, columns = transposed ? SEGMENT : b.head_dim;
  ptrdiff_t wide_row = columns % (2 * LANES) ? columns : columns + GAP;
  if (plane.bits == 32) return body(Rows<float>{(const float*)data, columns});
  if (plane.bits == 16) {
    const Half* halves = (const Half*)data;
    if (b.count <= TILE_ROWS) return body(Rows<Half>{halves, columns});
    for (int row = 0; row < rows; ++row)
      for (int i = 0; i < columns; i += LANES) store(wide + row * wide_row + i, load(halves + row * columns + i));
  } else {
    decode_plane(data, transposed, plane, b.head_dim, wide_row, wide);
  }
  body(Rows<float>{wide, wide_row});
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
  ptrdiff_t count = b.count, dim = b.head_dim;
  float *scores = b.scratch, *q = scores + SCORE_ROW * count, *bias = q + count * dim, *factors = bias + (count + 15) / 16 * 16;
  int8_t* rounded = (int8_t*)(factors + (count + 15) / 16 * 16);
  float* wide = (float*)(rounded + 2 * count * (dim > SEGMENT ? dim : SEGMENT));
  // Codes come in blocks of several panels; they are sealed, so that all may be read.
  bool whole = b.key_plane.bits < 16;
  int first = whole ? 0 : low / LANES, last = whole ? SEGMENT / LANES : (high + LANES - 1) / LANES;
  Ranges32 ranges;
  if (folds(b.key_plane, Ranges::channel)) {
    load_ranges(b.key_plane, b.keys, b.head_dim, b.head_dim, ranges);
    fold_keys(b, ranges, q, bias);
    for (ptrdiff_t i = 0; i < count; ++i) factors[i] = round_row(q + i * dim, b.head_dim, rounded + i * 2 * dim);
    CodeProduct product{b.keys, b.head_dim, SEGMENT, rounded, factors, bias, scores, SCORE_ROW,
                        ahead_of(b.value_plane, b.values, b.head_dim, false, high)};
    multiply_codes(b.key_plane.bits, product, b.count, wide);
  } else {
    with_plane(b, b.key_plane, b.keys, true, wide, [&](auto keys) { score(b, keys, first, last, high, scores); });
  }
  for (int i = 0; i < b.count; ++i) {
    if (b.low[i] < b.high[i])
      softmax_numerators(scores + i * SCORE_ROW, first, last, b.low[i], b.high[i], b.scale[i], b.softcap[i], out.largest + i,
                         out.total + i);
    else
      out.total[i] = 0;
  }
  if (folds(b.value_plane, Ranges::token)) {
    load_ranges(b.value_plane, b.values, b.head_dim, SEGMENT, ranges);
    for (ptrdiff_t i = 0; i < count; ++i) {
      float* weights = scores + i * SCORE_ROW;
      for (int t = 0; t < first * LANES; ++t) weights[t] = 0;
      for (int t = last * LANES; t < SEGMENT; ++t) weights[t] = 0;
      bias[i] = fold_values(weights, b.low[i], b.high[i], ranges);
      factors[i] = round_row(weights, SEGMENT, rounded + i * 2 * SEGMENT);
    }
    CodeProduct product{b.values, SEGMENT, b.head_dim, rounded, factors, bias, out.values, dim, b.next};
    return multiply_codes(b.value_plane.bits, product, b.count, wide);
  }
  for (ptrdiff_t i = 0; i < count * dim; ++i) out.values[i] = 0;
  with_plane(b, b.value_plane, b.values, false, wide, [&](auto values) { weigh_values(b, values, scores, out.values); });
}

INLINE void copy_partial(const Partial& state, ptrdiff_t from, int i, int head_dim) {
  state.largest[i] = state.largest[i + from], state.total[i] = state.total[i + from];
  float* to = state.values + (ptrdiff_t)i * head_dim;
  for (int d = 0; d < head_dim; d += LANES) store(to + d, load(to + from + d));
}

// In order, though up to 16 are taken at a time: of two factors one is 1, and the others come from one exp.
void merge(const Partial& state, ptrdiff_t stride, int more, int count, int head_dim) {
  for (int i = 0; i < count; ++i)
    for (int segment = 1; segment <= more;) {
      ptrdiff_t from[LANES];
      float old_factor[LANES], new_factor[LANES], gap[LANES] = {};
      float top = state.largest[i], total = state.total[i];
      int taken = 0;
      for (; segment <= more && taken < LANES; ++segment) {
        ptrdiff_t at = segment * stride;
        float largest = state.largest[i + at];
        if (state.total[i + at] == 0) continue;
        if (total == 0) {
          copy_partial(state, at, i, head_dim);
          top = largest, total = state.total[i];
          continue;
        }
        bool rises = largest > top;
        gap[taken] = rises ? top - largest : largest - top;
        old_factor[taken] = rises, from[taken++] = at;
        top = rises ? largest : top;
      }
      store(gap, exp(load(gap)));
      for (int j = 0; j < taken; ++j) {
        bool rises = old_factor[j] != 0;
        old_factor[j] = rises ? gap[j] : 1, new_factor[j] = rises ? 1 : gap[j];
        total = __builtin_fmaf(state.total[i + from[j]], new_factor[j], total * old_factor[j]);
      }
      state.largest[i] = top, state.total[i] = total;
      float* to = state.values + (ptrdiff_t)i * head_dim;
      for (int d = 0; d < head_dim; d += LANES) {
        Vec sum = load(to + d);
        for (int j = 0; j < taken; ++j)
          sum = fma(load(to + from[j] + d), broadcast(new_factor[j]), mul(sum, broadcast(old_factor[j])));
        store(to + d, sum);
      }
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
