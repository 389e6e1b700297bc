// Products of packed weights (packed.h) with quantised rows. Per output and group, ascending: the integer sum, exact; then
// acc = fma(sum, scale * row scale, acc) and, for q4, acc = fma(minimum, row scale * row sum, acc). Nothing else touches an output, so
// tiles may have any shape.
#pragma once

#include "ints.h"
#include "packed.h"
#include "tile.h"

namespace {

// ---- the weights of one group of one panel
//
// As bytes they are multiplied unsigned: q4 as it is, the others + 128 (OFFSET), which each row makes up for with -128 times its sum. Such
// sums need 32 bits: where quads are summed in 16, the others go as pairs, with the same result.

struct Q4 {
  static constexpr bool MINIMA = true, BYTES = true, OFFSET = false;
  const uint8_t* at;
  INLINE static Q4 of(const uint8_t* panel, int group) { return {panel + group * 320}; }
  INLINE Vec scales() const { return load((const Half*)at); }
  INLINE Vec minima() const { return load((const Half*)at + LANES); }
  INLINE Ints pair(int part, int j) const {  // inputs 8 part + 2j and + 1, 16 bits each
    Ints v = load_ints(at + 64 + part * 64);
    return j == 0 ? nibbles_0(v) : j == 1 ? nibbles_1(v) : j == 2 ? nibbles_2(v) : nibbles_3(v);
  }
  INLINE Ints quad(int part, int j) const {  // four of the eight inputs, in the order of bytes
    Ints v = load_ints(at + 64 + part * 64);
    return j ? byte_nibbles_1(v) : byte_nibbles_0(v);
  }
};

INLINE Ints quad_at(const uint8_t* quads, int part, int j) { return load_ints(quads + (2 * part + j) * 64); }
INLINE Ints pair_at(const uint8_t* quads, int part, int j) {
  Ints v = quad_at(quads, part, j % 2);
  return j < 2 ? low_bytes(v) : high_bytes(v);
}

struct Q8 {
  static constexpr bool MINIMA = false, BYTES = WIDE_QUADS, OFFSET = true;
  const uint8_t* at;
  INLINE static Q8 of(const uint8_t* panel, int group) { return {panel + group * 544}; }
  INLINE Vec scales() const { return load((const Half*)at); }
  INLINE Vec minima() const { return broadcast(0.0f); }
  INLINE Ints pair(int part, int j) const { return pair_at(at + 32, part, j); }
  INLINE Ints quad(int part, int j) const { return offset_bytes(quad_at(at + 32, part, j)); }
};

struct Int8 {
  static constexpr bool MINIMA = false, BYTES = WIDE_QUADS, OFFSET = true;
  const uint8_t *at, *panel;
  INLINE static Int8 of(const uint8_t* panel, int group) { return {panel + 64 + group * 512, panel}; }
  INLINE Vec scales() const { return load((const float*)panel); }
  INLINE Vec minima() const { return broadcast(0.0f); }
  INLINE Ints pair(int part, int j) const { return pair_at(at, part, j); }
  INLINE Ints quad(int part, int j) const { return offset_bytes(quad_at(at, part, j)); }
};

// What matters of a kind once it is widened.
template <bool HAS_MINIMA, bool HAS_OFFSET>
struct WideKind {
  static constexpr bool MINIMA = HAS_MINIMA, OFFSET = HAS_OFFSET;
};

// A group widened once for many rows.
struct Widened {
  const int32_t* at;
  INLINE Ints pair(int part, int j) const { return load_ints(at + (4 * part + j) * LANES); }
  INLINE Ints quad(int part, int j) const { return load_ints(at + (2 * part + j) * LANES); }
};

// ---- one group: R rows times C panels

struct GroupRows {
  const char* values;  // of the first row; `stride` bytes from row to row
  const float *scales, *sums;
  const int32_t* offsets;
};

template <bool BYTES>
constexpr int ROW_BYTES = BYTES ? GROUP : 2 * GROUP;

template <bool BYTES>
INLINE GroupRows group_rows(const Activations& x, int group, int row) {
  ptrdiff_t at = (ptrdiff_t)group * x.rows + row;
  return {(const char*)x.values + at * ROW_BYTES<BYTES>, x.scales + at, x.sums + at, x.offsets + at};
}

template <bool BYTES, bool OFFSET, int R, int C, class Source>
INLINE void multiply_group(const GroupRows& rows, const Source* w, Ints (&sums)[R][C]) {
  UNROLL for (int r = 0; r < R; ++r) {
    Ints start = BYTES && OFFSET ? broadcast_int(rows.offsets[r]) : zero_ints();
    UNROLL for (int c = 0; c < C; ++c) sums[r][c] = start;
  }
  constexpr int STEPS = BYTES ? 2 : 4;
  for (int part = 0; part < 4; ++part) {
    UNROLL for (int j = 0; j < STEPS; ++j) {
      Ints weights[C];
      UNROLL for (int c = 0; c < C; ++c) weights[c] = BYTES ? w[c].quad(part, j) : w[c].pair(part, j);
      UNROLL for (int r = 0; r < R; ++r) {
        Ints activation = broadcast_word(rows.values + r * ROW_BYTES<BYTES> + (part * STEPS + j) * 4);
        UNROLL for (int c = 0; c < C; ++c)
          sums[r][c] = BYTES ? add_quads(sums[r][c], weights[c], activation) : dot16(sums[r][c], weights[c], activation);
      }
    }
  }
  if (BYTES) {
    UNROLL for (int r = 0; r < R; ++r) {
      UNROLL for (int c = 0; c < C; ++c) sums[r][c] = finish_quads(sums[r][c]);
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
    multiply_group<BYTES, Kind::OFFSET>(rows, w, sums);
    Vec scale = w[0].scales(), minimum = w[0].minima();
    UNROLL for (int r = 0; r < R; ++r) acc[r] = add_group<Kind::MINIMA>(acc[r], sums[r][0], scale, minimum, rows.scales[r], rows.sums[r]);
  }
  UNROLL for (int r = 0; r < R; ++r) store_columns(t.out + r * t.out_row + panel * LANES, acc[r], t.columns - panel * LANES);
}

// ---- many rows: a group is widened once, then goes through all of them

constexpr int MANY_PANELS = PARTS == 1 ? 2 : 1;  // of one tile
// Most rows of one tile, by what the registers hold; and the fewest that it gets when more than FEW_ROWS are shared out evenly.
constexpr int most_rows(int panels) { return PARTS == 4 ? 2 : PARTS == 2 ? 6 : panels == 2 ? 12 : FEW_ROWS; }
constexpr int least_rows(int panels) { return (most_rows(panels) + 1) / 2 < FEW_ROWS + 1 ? (most_rows(panels) + 1) / 2 : FEW_ROWS + 1; }

// A group of C panels, widened, with the accumulators [rows][C][16] of all rows.
template <int C>
struct WideGroup {
  Widened w[C];
  Vec scales[C], minima[C];
  float* acc;
};

template <class Kind, bool BYTES, int R, int C>
__attribute__((noinline)) void sweep_group(const WideGroup<C>& g, const Activations& x, int group, int row, int first, int last) {
  for (int at = first; at < last; at += R) {
    GroupRows rows = group_rows<BYTES>(x, group, row + at);
    Ints sums[R][C];
    multiply_group<BYTES, Kind::OFFSET>(rows, g.w, sums);
    UNROLL for (int r = 0; r < R; ++r) {
      UNROLL for (int c = 0; c < C; ++c) {
        float* acc = g.acc + ((at + r) * C + c) * LANES;
        store(acc, add_group<Kind::MINIMA>(load(acc), sums[r][c], g.scales[c], g.minima[c], rows.scales[r], rows.sums[r]));
      }
    }
  }
}

// Rows [first, last) in tiles of `rows`, which divides their number.
template <class Kind, bool BYTES, int C, int R = most_rows(C)>
INLINE void sweep_by(int rows, const WideGroup<C>& g, const Activations& x, int group, int row, int first, int last) {
  if (rows == R) return sweep_group<Kind, BYTES, R>(g, x, group, row, first, last);
  if constexpr (R > least_rows(C)) sweep_by<Kind, BYTES, C, R - 1>(rows, g, x, group, row, first, last);
}

template <class Kind, bool BYTES, int C>
void many_rows(const PackedTask& t, const Activations& x, int panel) {
  using Alike = WideKind<Kind::MINIMA, Kind::OFFSET>;
  constexpr int STEPS = BYTES ? 2 : 4;
  ptrdiff_t bytes = panel_bytes(t.kind, t.depth);
  const uint8_t* base = t.panels + panel * bytes;
  int32_t* buffer = (int32_t*)t.scratch;
  WideGroup<C> g;
  g.acc = t.scratch + C * GROUP * LANES;
  for (ptrdiff_t i = 0; i < (ptrdiff_t)t.count * C * LANES; i += LANES) store(g.acc + i, broadcast(0.0f));
  // As few tiles as fit, of sizes that differ by at most one.
  int tiles = (t.count + most_rows(C) - 1) / most_rows(C), small = t.count / tiles, large_rows = t.count % tiles * (small + 1);
  for (int group = 0; group < t.depth / GROUP; ++group) {
    UNROLL for (int c = 0; c < C; ++c) {
      Kind source = Kind::of(base + c * bytes, group);
      g.w[c] = {buffer + c * GROUP / 2 * LANES};
      for (int part = 0; part < 4; ++part) {
        UNROLL for (int j = 0; j < STEPS; ++j)
          store_ints(buffer + (c * GROUP / 2 + part * STEPS + j) * LANES, BYTES ? source.quad(part, j) : source.pair(part, j));
      }
      g.scales[c] = source.scales();
      g.minima[c] = source.minima();
    }
    if (large_rows) sweep_by<Alike, BYTES>(small + 1, g, x, group, t.row, 0, large_rows);
    sweep_by<Alike, BYTES>(small, g, x, group, t.row, large_rows, t.count);
  }
  for (int r = 0; r < t.count; ++r)
    for (int c = 0; c < C; ++c)
      store_columns(t.out + r * t.out_row + (panel + c) * LANES, load(g.acc + (r * C + c) * LANES), t.columns - (panel + c) * LANES);
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

template <class Kind>
void packed_of(const PackedTask& t, const Activations& x) {
  if constexpr (Kind::BYTES) {
    if (x.bytes) return packed_panels<Kind, true>(t, x);
  }
  packed_panels<Kind, false>(t, x);
}

void packed_linear(const PackedTask& t, const Activations& x) {
  if (t.kind == Weights::q4) return packed_of<Q4>(t, x);
  if (t.kind == Weights::q8) return packed_of<Q8>(t, x);
  packed_of<Int8>(t, x);
}

bool takes_bytes(Weights kind) { return kind == Weights::q4 ? Q4::BYTES : Q8::BYTES; }

// ---- fp32: a group is dequantised, then goes through the fp32 tiles

// Inputs 2p and 2p + 1 come in one step: out [32][16].
template <class Kind>
INLINE void dequantize(const Kind& w, float* out) {
  Vec scale = w.scales(), minimum = w.minima();
  for (int p = 0; p < GROUP / 2; ++p) {
    int32_t lanes[LANES], low[LANES], high[LANES];
    store_ints(lanes, w.pair(p / 4, p % 4));
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
      int32_t sum = sum_lanes(q[0]) + sum_lanes(q[1]);
      out.sums[at] = scale * (float)sum;
      out.offsets[at] = -128 * sum;
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
