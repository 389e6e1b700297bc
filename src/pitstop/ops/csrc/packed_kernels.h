// Products of packed weights (packed.h) with quantised rows. Per output and group, ascending: the integer sum, exact; then
// acc = fma(sum, scale * row scale, acc) and, for q4, acc = fma(minimum, row scale * row sum, acc). Nothing else touches an output, so
// tiles may have any shape.
#pragma once

#include "ints.h"
#include "packed.h"
#include "tile.h"

namespace {

// ---- the weights of one group of one panel

struct Q4 {
  static constexpr bool MINIMA = true, BYTES = true;
  const uint8_t* at;
  INLINE static Q4 of(const uint8_t* panel, int group) { return {panel + group * 320}; }
  INLINE Vec scales() const { return load((const Half*)at); }
  INLINE Vec minima() const { return load((const Half*)at + LANES); }
  INLINE Ints pair(int p) const {  // inputs 2p and 2p + 1, 16 bits each
    Ints v = load_ints(at + 64 + p / 4 * 64);
    return p % 4 == 0 ? nibbles_0(v) : p % 4 == 1 ? nibbles_1(v) : p % 4 == 2 ? nibbles_2(v) : nibbles_3(v);
  }
  INLINE Ints quad(int q) const {  // four inputs in the order of bytes
    Ints v = load_ints(at + 64 + q / 2 * 64);
    return q % 2 ? byte_nibbles_1(v) : byte_nibbles_0(v);
  }
};

INLINE Ints pair_of_bytes(const uint8_t* quads, int p) {
  Ints v = load_ints(quads + (p / 4 * 2 + p % 2) * 64);
  return p % 4 < 2 ? low_bytes(v) : high_bytes(v);
}

struct Q8 {
  static constexpr bool MINIMA = false, BYTES = false;
  const uint8_t* at;
  INLINE static Q8 of(const uint8_t* panel, int group) { return {panel + group * 544}; }
  INLINE Vec scales() const { return load((const Half*)at); }
  INLINE Vec minima() const { return broadcast(0.0f); }
  INLINE Ints pair(int p) const { return pair_of_bytes(at + 32, p); }
  INLINE Ints quad(int q) const { return load_ints(at + 32 + q * 64); }
};

struct Int8 {
  static constexpr bool MINIMA = false, BYTES = false;
  const uint8_t *at, *panel;
  INLINE static Int8 of(const uint8_t* panel, int group) { return {panel + 64 + group * 512, panel}; }
  INLINE Vec scales() const { return load((const float*)panel); }
  INLINE Vec minima() const { return broadcast(0.0f); }
  INLINE Ints pair(int p) const { return pair_of_bytes(at, p); }
  INLINE Ints quad(int q) const { return load_ints(at + q * 64); }
};

// A group widened once for many rows.
struct Widened {
  const int32_t* at;
  INLINE Ints pair(int p) const { return load_ints(at + p * LANES); }
  INLINE Ints quad(int q) const { return load_ints(at + q * LANES); }
};

// ---- one group: R rows times C panels

struct GroupRows {
  const char* values;  // of the first row; `stride` bytes from row to row
  const float *scales, *sums;
};

template <bool BYTES>
constexpr int ROW_BYTES = BYTES ? GROUP : 2 * GROUP;

template <bool BYTES>
INLINE GroupRows group_rows(const Activations& x, int group, int row) {
  ptrdiff_t at = (ptrdiff_t)group * x.rows + row;
  return {(const char*)x.values + at * ROW_BYTES<BYTES>, x.scales + at, x.sums + at};
}

template <bool BYTES, int R, int C, class Source>
INLINE void multiply_group(const char* x, const Source* w, Ints (&sums)[R][C]) {
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int c = 0; c < C; ++c) sums[r][c] = zero_ints();
  }
  constexpr int STEPS = BYTES ? 8 : 16;
  UNROLL for (int step = 0; step < STEPS; ++step) {
    Ints weights[C];
    UNROLL for (int c = 0; c < C; ++c) weights[c] = BYTES ? w[c].quad(step) : w[c].pair(step);
    UNROLL for (int r = 0; r < R; ++r) {
      Ints activation = broadcast_word(x + r * ROW_BYTES<BYTES> + step * 4);
      UNROLL for (int c = 0; c < C; ++c)
        sums[r][c] = BYTES ? add_pairs8(sums[r][c], weights[c], activation) : dot16(sums[r][c], weights[c], activation);
    }
  }
  if (BYTES) {
    UNROLL for (int r = 0; r < R; ++r) {
      UNROLL for (int c = 0; c < C; ++c) sums[r][c] = add_halves(sums[r][c]);
    }
  }
}

template <bool MINIMA>
INLINE Vec add_group(Vec acc, Ints sum, Vec scale, Vec minimum, float row_scale, float row_sum) {
  acc = fma(to_float(sum), mul(scale, broadcast(row_scale)), acc);
  return MINIMA ? fma(minimum, broadcast(row_sum), acc) : acc;
}

INLINE void store_columns(float* out, Vec v, int columns) {
  if (columns >= LANES) return store(out, v);
  if (columns > 0) store_first(out, v, columns);
}

// ---- few rows: weights go from memory to registers once, one panel after the other, as prefetchers like it

constexpr int FEW_ROWS = 4;

template <class Kind, bool BYTES, int R>
__attribute__((noinline)) void few_rows(const PackedTask& t, const Activations& x, int panel) {
  const uint8_t* base = t.panels + panel * panel_bytes(t.kind, t.depth);
  Vec acc[R];
  UNROLL for (int r = 0; r < R; ++r) acc[r] = broadcast(0.0f);
  for (int group = 0; group < t.depth / GROUP; ++group) {
    GroupRows rows = group_rows<BYTES>(x, group, t.row);
    Kind w[1] = {Kind::of(base, group)};
    Ints sums[R][1];
    multiply_group<BYTES>(rows.values, w, sums);
    Vec scale = w[0].scales(), minimum = w[0].minima();
    UNROLL for (int r = 0; r < R; ++r) acc[r] = add_group<Kind::MINIMA>(acc[r], sums[r][0], scale, minimum, rows.scales[r], rows.sums[r]);
  }
  UNROLL for (int r = 0; r < R; ++r) store_columns(t.out + r * t.out_row + panel * LANES, acc[r], t.columns - panel * LANES);
}

// ---- many rows: a group is widened once, then goes through all of them

template <bool MINIMA, bool BYTES, int R, int C>
INLINE void rows_of_group(const GroupRows& rows, const Widened* w, const Vec* scales, const Vec* minima, float* acc) {
  Ints sums[R][C];
  multiply_group<BYTES>(rows.values, w, sums);
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int c = 0; c < C; ++c) {
      float* at = acc + (r * C + c) * LANES;
      store(at, add_group<MINIMA>(load(at), sums[r][c], scales[c], minima[c], rows.scales[r], rows.sums[r]));
    }
  }
}

constexpr int MANY_ROWS = REGISTERS == 32 && PARTS == 1 ? 12 : PARTS == 4 ? 2 : 6;  // of one tile
constexpr int MANY_PANELS = PARTS == 1 ? 2 : 1;

template <class Kind, bool BYTES, int R, int C>
__attribute__((noinline)) void group_sweep(const PackedTask& t, const Activations& x, int group, int first, int last, const Widened* w,
                                           const Vec* scales, const Vec* minima, float* acc) {
  for (int row = first; row < last; row += R)
    rows_of_group<Kind::MINIMA, BYTES, R, C>(group_rows<BYTES>(x, group, t.row + row), w, scales, minima, acc + row * C * LANES);
}

// Rows [first, last) in tiles of R, which divides their number.
template <class Kind, bool BYTES, int R, int C>
INLINE void sweep_by(int rows, const PackedTask& t, const Activations& x, int group, int first, int last, const Widened* w,
                     const Vec* scales, const Vec* minima, float* acc) {
  if (rows == R) return group_sweep<Kind, BYTES, R, C>(t, x, group, first, last, w, scales, minima, acc);
  if constexpr (R > 1) sweep_by<Kind, BYTES, R - 1, C>(rows, t, x, group, first, last, w, scales, minima, acc);
}

template <class Kind, bool BYTES, int C>
void many_rows(const PackedTask& t, const Activations& x, int panel) {
  constexpr int STEPS = BYTES ? 8 : 16;
  ptrdiff_t bytes = panel_bytes(t.kind, t.depth);
  const uint8_t* base = t.panels + panel * bytes;
  int32_t* buffer = (int32_t*)t.scratch;
  float* acc = t.scratch + C * GROUP * LANES;
  for (ptrdiff_t i = 0; i < (ptrdiff_t)t.count * C * LANES; i += LANES) store(acc + i, broadcast(0.0f));
  // As few tiles as fit, of sizes that differ by at most one.
  int tiles = (t.count + MANY_ROWS - 1) / MANY_ROWS, small = t.count / tiles, large_rows = t.count % tiles * (small + 1);
  for (int group = 0; group < t.depth / GROUP; ++group) {
    Widened w[C];
    Vec scales[C], minima[C];
    UNROLL for (int c = 0; c < C; ++c) {
      Kind source = Kind::of(base + c * bytes, group);
      int32_t* to = buffer + c * STEPS * LANES;
      UNROLL for (int step = 0; step < STEPS; ++step) store_ints(to + step * LANES, BYTES ? source.quad(step) : source.pair(step));
      w[c] = {to};
      scales[c] = source.scales();
      minima[c] = source.minima();
    }
    if (large_rows) sweep_by<Kind, BYTES, MANY_ROWS, C>(small + 1, t, x, group, 0, large_rows, w, scales, minima, acc);
    sweep_by<Kind, BYTES, MANY_ROWS, C>(small, t, x, group, large_rows, t.count, w, scales, minima, acc);
  }
  for (int r = 0; r < t.count; ++r)
    for (int c = 0; c < C; ++c)
      store_columns(t.out + r * t.out_row + (panel + c) * LANES, load(acc + (r * C + c) * LANES), t.columns - (panel + c) * LANES);
}

template <class Kind, bool BYTES>
void packed_panels(const PackedTask& t, const Activations& x) {
  int panels = (t.columns + LANES - 1) / LANES, panel = 0;
  for (; t.count <= FEW_ROWS && panel < panels; ++panel) {
    if (t.count == 1) few_rows<Kind, BYTES, 1>(t, x, panel);
    if (t.count == 2) few_rows<Kind, BYTES, 2>(t, x, panel);
    if (t.count == 3) few_rows<Kind, BYTES, 3>(t, x, panel);
    if (t.count == 4) few_rows<Kind, BYTES, 4>(t, x, panel);
  }
  for (; panel + MANY_PANELS <= panels; panel += MANY_PANELS) many_rows<Kind, BYTES, MANY_PANELS>(t, x, panel);
  for (; panel < panels; ++panel) many_rows<Kind, BYTES, 1>(t, x, panel);
}

void packed_linear(const PackedTask& t, const Activations& x) {
  if (t.kind == Weights::q4) return x.bytes ? packed_panels<Q4, true>(t, x) : packed_panels<Q4, false>(t, x);
  if (t.kind == Weights::q8) return packed_panels<Q8, false>(t, x);
  packed_panels<Int8, false>(t, x);
}

bool takes_bytes(Weights kind) { return kind == Weights::q4 ? Q4::BYTES : Q8::BYTES; }

// ---- fp32: a group is dequantised, then goes through the fp32 tiles

// Inputs 2p and 2p + 1 come in one step: out [32][16].
template <class Kind>
INLINE void dequantize(const Kind& w, float* out) {
  Vec scale = w.scales(), minimum = w.minima();
  for (int p = 0; p < GROUP / 2; ++p) {
    int32_t lanes[LANES], low[LANES], high[LANES];
    store_ints(lanes, w.pair(p));
    for (int i = 0; i < LANES; ++i) low[i] = (int16_t)lanes[i], high[i] = lanes[i] >> 16;
    Vec even = mul(to_float(load_ints(low)), scale), odd = mul(to_float(load_ints(high)), scale);
    store(out + 2 * p * LANES, Kind::MINIMA ? add(even, minimum) : even);
    store(out + (2 * p + 1) * LANES, Kind::MINIMA ? add(odd, minimum) : odd);
  }
}

void dequantize_group(Weights kind, const uint8_t* panel, int group, float* out) {
  if (kind == Weights::q4) return dequantize(Q4::of(panel, group), out);
  if (kind == Weights::q8) return dequantize(Q8::of(panel, group), out);
  dequantize(Int8::of(panel, group), out);
}

void packed_linear_fp32(const PackedTask& t, const float* x, ptrdiff_t x_row) {
  float *weights = t.scratch, *acc = t.scratch + GROUP * LANES;
  for (int panel = 0; panel * LANES < t.columns; ++panel) {
    const uint8_t* base = t.panels + panel * panel_bytes(t.kind, t.depth);
    for (int group = 0; group < t.depth / GROUP; ++group) {
      dequantize_group(t.kind, base, group, weights);
      multiply(Product<float>{x + t.row * x_row + group * GROUP, x_row, weights, LANES, 0, GROUP, acc, LANES, group > 0}, t.count, 1);
    }
    for (int r = 0; r < t.count; ++r)
      store_columns(t.out + r * t.out_row + panel * LANES, load(acc + r * LANES), t.columns - panel * LANES);
  }
}

// ---- activations

// Groups whose largest magnitude lies below count as zeros, so that scales and their inverses are normal numbers.
constexpr float SMALLEST = 0x1p-100f;

// Values are `levels` at most: 32767, or 127. Where bytes are wanted, each eight go in the order 0 4 1 5 2 6 3 7.
void quantize(const float* x, ptrdiff_t x_row, int first, int count, int depth, float levels, const Activations& out) {
  for (int row = first; row < first + count; ++row) {
    for (int group = 0; group < depth / GROUP; ++group) {
      const float* from = x + row * x_row + group * GROUP;
      ptrdiff_t at = (ptrdiff_t)group * out.rows + row;
      Vec a = load(from), b = load(from + LANES);
      uint32_t bits = largest_magnitude(a, b);
      float largest;
      __builtin_memcpy(&largest, &bits, 4);
      bool finite = bits < 0x7f800000, zero = !finite || largest < SMALLEST;
      Vec inverse = broadcast(zero ? 0.0f : levels / largest);
      Ints q[2] = {zero ? zero_ints() : round_to_int(mul(a, inverse)), zero ? zero_ints() : round_to_int(mul(b, inverse))};
      float scale = !finite ? __builtin_nanf("") : zero ? 0.0f : largest / levels;
      out.scales[at] = scale;
      out.sums[at] = scale * (float)(sum_lanes(q[0]) + sum_lanes(q[1]));
      int16_t shorts[GROUP], *to = out.bytes ? shorts : (int16_t*)out.values + at * GROUP;
      store_shorts(to, q[0]);
      store_shorts(to + LANES, q[1]);
      if (!out.bytes) continue;
      constexpr int ORDER[8] = {0, 4, 1, 5, 2, 6, 3, 7};
      int8_t* bytes = (int8_t*)out.values + at * GROUP;
      for (int i = 0; i < GROUP; ++i) bytes[i] = (int8_t)shorts[i / 8 * 8 + ORDER[i % 8]];
    }
  }
}

}  // namespace
