// A plane of a tail as codes: ops/attention/planes.py, operation by operation, so that the bytes are the same.
#pragma once

#include "codes.h"
#include "planes.h"

namespace {

constexpr int SEGMENT = 128;

struct Coder {
  float* x;        // [rows][columns]
  uint8_t* codes;  // [rows][columns]
  int rows, columns;
  float low[256], high[256];  // least and largest of each range; then its zero and the inverse of its scale, as stored
};

// The least lane, NaN where one is; the largest is -least of -v.
INLINE float least_lane(Vec v) {
  Four part[4];
  __builtin_memcpy(part, &v, sizeof part);
  UNROLL for (int i = 1; i < 4; ++i) part[0] = (part[i] < part[0]) | (part[i] != part[i]) ? part[i] : part[0];
  float r = part[0][0];
  UNROLL for (int i = 1; i < 4; ++i) r = part[0][i] < r || part[0][i] != part[0][i] ? part[0][i] : r;
  return r;
}
INLINE float most_lane(Vec v) { return -least_lane(sub(broadcast(-0.0f), v)); }

// Least and largest of each row, or of each column.
INLINE void find_ranges(Coder& c, bool of_rows) {
  for (int row = 0; row < (of_rows ? c.rows : 0); ++row) {
    const float* x = c.x + row * c.columns;
    Vec low = load(x), high = low;
    for (int i = LANES; i < c.columns; i += LANES) low = least(load(x + i), low), high = most(load(x + i), high);
    c.low[row] = least_lane(low), c.high[row] = most_lane(high);
  }
  for (int i = 0; i < (of_rows ? 0 : c.columns); i += LANES) {
    Vec low = load(c.x + i), high = low;
    for (int row = 1; row < c.rows; ++row) {
      Vec x = load(c.x + row * c.columns + i);
      low = least(x, low), high = most(x, high);
    }
    store(c.low + i, low), store(c.high + i, high);
  }
}

// One range for all, in the place of each row's.
INLINE void share_range(Coder& c) {
  Vec low = load(c.low), high = load(c.high);
  for (int i = LANES; i < c.rows; i += LANES) low = least(load(c.low + i), low), high = most(load(c.high + i), high);
  low = broadcast(least_lane(low)), high = broadcast(most_lane(high));
  for (int i = 0; i < c.rows; i += LANES) store(c.low + i, low), store(c.high + i, high);
}

INLINE Vec inverse(Vec scale) {
  Vec r, whole = div(broadcast(1.0f), scale);
  UNROLL for (int i = 0; i < PARTS; ++i) r.part[i] = scale.part[i] > 0 ? whole.part[i] : Native{};
  return r;
}

INLINE Vec clamp(Vec x, float low, float high) { return smaller(broadcast(high), larger(x, broadcast(low))); }

// Ranges as they are stored: low becomes the zero, high the inverse of the scale. Adding 0 makes zeros of either sign +0.
INLINE void store_ranges(Coder& c, int count, int stored, float levels, Half* scales) {
  Half zeros[256], rounded[256];
  for (int i = 0; i < count; i += LANES) {
    Vec low = add(load(c.low + i), broadcast(0.0f)), high = add(load(c.high + i), broadcast(0.0f));
    store(zeros + i, low), store(rounded + i, div(sub(high, low), broadcast(levels)));
    store(c.low + i, load(zeros + i)), store(c.high + i, inverse(load(rounded + i)));
  }
  for (int i = 0; i < stored; ++i) scales[i] = rounded[i], scales[stored + i] = zeros[i];
}

INLINE void encode_absolute(Coder& c, bool of_rows, float levels) {
  for (int row = 0; row < c.rows; ++row)
    for (int i = 0; i < c.columns; i += LANES) {
      Vec zero = of_rows ? broadcast(c.low[row]) : load(c.low + i), factor = of_rows ? broadcast(c.high[row]) : load(c.high + i);
      Vec code = mul(sub(load(c.x + row * c.columns + i), zero), factor);
      store_bytes(c.codes + row * c.columns + i, round_to_int(clamp(code, 0, levels)));
    }
}

// Differences from row to row, rows being tokens; columns are channels. ranges: one scale, then the channels' zeros.
INLINE void encode_differences(Coder& c, bool closed, Half* ranges) {
  Vec top = broadcast(0.0f);
  for (ptrdiff_t i = c.columns; i < (ptrdiff_t)c.rows * c.columns; i += LANES) {
    Vec step = sub(load(c.x + i), load(c.x + i - c.columns));
    top = most(most(step, sub(broadcast(0.0f), step)), top);
  }
  Half scale[LANES];
  store(scale, broadcast(most_lane(top) / 127));
  ranges[0] = scale[0];
  Vec s = load(scale), factor = inverse(s);
  for (int i = 0; i < c.columns; i += LANES) {
    store(ranges + 1 + i, load(c.x + i));
    Vec zero = load(ranges + 1 + i), sums = broadcast(0.0f), before = load(c.x + i);
    store_bytes(c.codes + i, broadcast_int(128));
    for (int row = 1; row < c.rows; ++row) {
      Vec x = load(c.x + row * c.columns + i);
      if (closed) before = add(zero, mul(s, sums));
      Vec step = round(clamp(mul(sub(x, before), factor), -127, 127));
      sums = add(sums, step);
      store_bytes(c.codes + row * c.columns + i, round_to_int(add(step, broadcast(128.0f))));
      before = x;
    }
  }
}

// Codes to the parts in which they are stored.
INLINE void pack_codes(const uint8_t* codes, int count, int bits, uint8_t* out) {
  if (bits & 4)
    for (int i = 0; i < count; i += 32, out += 16)
      for (int j = 0; j < 16; ++j) out[j] = (uint8_t)((codes[i + j] & 15) | codes[i + 16 + j] << 4);
  if (int shift = bits & 4; bits & 2)
    for (int i = 0; i < count; i += 64, out += 16)
      for (int j = 0; j < 16; ++j) {
        const uint8_t* c = codes + i + j;
        out[j] = (uint8_t)((c[0] >> shift & 3) | (c[16] >> shift & 3) << 2 | (c[32] >> shift & 3) << 4 | (c[48] >> shift & 3) << 6);
      }
  if (int shift = bits & 6; bits & 1)
    for (int i = 0; i < count; i += 8) {
      int byte = 0;
      for (int j = 0; j < 8; ++j) byte |= (codes[i + j] >> shift & 1) << j;
      *out++ = (uint8_t)byte;
    }
}

INLINE Vec broadcast_half(Half h) {
  Half lanes[LANES];
  for (int i = 0; i < LANES; ++i) lanes[i] = h;
  return load(lanes);
}

template <class T>
INLINE void transpose(const T* from, int rows, int columns, T* to) {
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column) to[column * rows + row] = from[row * columns + column];
}

template <class T>
INLINE void encode_plane_of(const T* tail, bool transposed, Plane plane, int head_dim, uint8_t* out, float* memory) {
  ptrdiff_t count = (ptrdiff_t)SEGMENT * head_dim;
  float* x = memory;
  if (plane.bits >= 16) {
    for (ptrdiff_t i = 0; i < count; i += LANES) {
      if (plane.bits == 16) store((Half*)out + i, load(tail + i));
      else store((float*)out + i, load(tail + i));
    }
    return;
  }
  for (ptrdiff_t i = 0; i < count; i += LANES) store(x + i, load(tail + i));
  Coder c;
  c.x = x, c.codes = (uint8_t*)(memory + 2 * count);
  c.rows = transposed ? head_dim : SEGMENT, c.columns = transposed ? SEGMENT : head_dim;
  Half* ranges = (Half*)(out + code_bytes(plane, head_dim));
  if (plane.coding == Coding::absolute) {
    bool of_rows = plane.ranges == Ranges::segment || (plane.ranges == Ranges::channel) == transposed;
    float levels = (float)((1 << plane.bits) - 1);
    find_ranges(c, of_rows);
    if (plane.ranges == Ranges::segment) share_range(c);
    store_ranges(c, of_rows ? c.rows : c.columns, scale_count(plane, head_dim), levels, ranges);
    encode_absolute(c, of_rows, levels);
  } else {
    if (transposed) transpose(x, head_dim, SEGMENT, memory + count), c.x = memory + count;
    c.rows = SEGMENT, c.columns = head_dim;
    encode_differences(c, plane.coding == Coding::closed, ranges);
    if (transposed) {
      uint8_t* turned = c.codes + count;
      transpose(c.codes, SEGMENT, head_dim, turned), c.codes = turned;
    }
  }
  if (plane.bits == 8)
    __builtin_memcpy(out, c.codes, count);
  else
    pack_codes(c.codes, (int)count, plane.bits, out);
  uint8_t* end = (uint8_t*)(ranges + scale_count(plane, head_dim) + zero_count(plane, head_dim));
  __builtin_memset(end, 0, out + plane_bytes(plane, head_dim) - end);
}

// A plane of codes as fp32, in rows that are row_stride apart (see widen_codes): what its codes stand for, each rounded once.
INLINE void decode_plane(const uint8_t* data, bool transposed, Plane plane, int head_dim, ptrdiff_t row_stride, float* out) {
  int rows = transposed ? head_dim : SEGMENT, columns = transposed ? SEGMENT : head_dim;
  const Half *scales = (const Half*)(data + code_bytes(plane, head_dim)), *zeros = scales + scale_count(plane, head_dim);
  widen_codes(plane.bits, data, rows, columns, row_stride, out);
  bool differences = plane.coding != Coding::absolute;
  for (int row = 0; differences && row < rows; ++row) {  // sums over tokens, exact
    float* x = out + row * row_stride;
    float total = 0;
    for (int i = 0; transposed && i < columns; ++i) x[i] = total += x[i] - 128;
    for (int i = 0; !transposed && i < columns; i += LANES) {
      Vec before = row ? load(x - row_stride + i) : broadcast(0.0f);
      store(x + i, add(before, sub(load(x + i), broadcast(128.0f))));
    }
  }
  bool scale_of_rows = plane.ranges == Ranges::segment || (plane.ranges == Ranges::channel) == transposed;
  bool zero_of_rows = differences ? transposed : scale_of_rows;
  bool shared = plane.ranges == Ranges::segment;
  for (int row = 0; row < rows; ++row)
    for (int i = 0; i < columns; i += LANES) {
      Vec scale = scale_of_rows ? broadcast_half(scales[shared ? 0 : row]) : load(scales + i);
      Vec zero = zero_of_rows ? broadcast_half(zeros[shared && !differences ? 0 : row]) : load(zeros + i);
      float* x = out + row * row_stride + i;
      store(x, fma(scale, load(x), zero));
    }
}

// One head's keys (transposed) or values of a tail -> the plane in a page. memory: seal_scratch(head_dim) floats.
void encode_plane(const void* tail, bool half, bool transposed, Plane plane, int head_dim, uint8_t* out, float* memory) {
  if (half)
    encode_plane_of((const Half*)tail, transposed, plane, head_dim, out, memory);
  else
    encode_plane_of((const float*)tail, transposed, plane, head_dim, out, memory);
}

}  // namespace
