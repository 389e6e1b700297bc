// Products of packed weights (packed.h) with quantised rows. Per output and group (half a group of q6k), ascending: the integer sum, exact;
// then acc = fma(sum, scale * row scale, acc) and, where there are minima, acc = fma(minimum, row scale * row sum, acc). Nothing else
// touches an output, so tiles may have any shape.
#pragma once

#include "ints.h"
#include "packed.h"
#include "tile.h"

namespace {

// ---- the weights of one group of one panel
//
// As bytes they are multiplied unsigned: codes of 4 and 5 bits as they are, those of 8 + 128 (OFFSET), which each row makes up for with
// -128 times its sum. Only sums of 4 bits fit in 16: where quads are summed in those, the others go as pairs, with the same result; so does
// q6k everywhere, whose halves would need sums of their own. Where quads are summed in 32 bits, few rows of int16 go as quads, too, split
// into bytes: as many products, but half the unpacking of weights, which is most of the work for one row.

// Unsigned codes of 4, 5 or 6 bits.
template <int BITS>
struct GroupCodes {
  static constexpr int MORE = BITS - 4, FIELDS = MORE ? 4 / MORE : 1;  // parts whose further bits lie in one vector
  const uint8_t* at;
  INLINE Ints pair(int part, int j) const {  // inputs 8 part + 2j and + 1, 16 bits each
    Ints v = load_ints(at + part * 64);
    v = j == 0 ? nibbles_0(v) : j == 1 ? nibbles_1(v) : j == 2 ? nibbles_2(v) : nibbles_3(v);
    return with_more(v, part, j / 2 * 8, j % 2, 1);
  }
  INLINE Ints quad(int part, int j) const {  // four of the eight inputs, in the order of bytes
    Ints v = load_ints(at + part * 64);
    return with_more(j ? byte_nibbles_1(v) : byte_nibbles_0(v), part, 0, j, 0x0101);
  }
  INLINE Ints plain_quad(int part, int j) const { return quad(part, j); }  // as signed bytes

 private:
  INLINE Ints with_more(Ints low, int part, int byte, int nibble, int ones) const {
    if constexpr (MORE == 0) return low;
    Ints more = load_ints(at + 256 + part / FIELDS * 64);
    return add(low, bits_as_high(more, byte + MORE * (part % FIELDS * 2 + nibble), ((1 << MORE) - 1) * ones));
  }
};

template <Weights KIND, int BITS, class Number>
struct Affine : GroupCodes<BITS> {
  static constexpr GroupLayout LAYOUT = group_layout(KIND);
  static constexpr bool MINIMA = true, BYTES = BITS == 4 || WIDE_QUADS, OFFSET = false, PREFETCH = true;
  static constexpr int HALVES = 1;
  const Number* numbers;
  INLINE static Affine of(const uint8_t* panel, int group) {
    const uint8_t* at = panel + group * LAYOUT.size;
    return {{at + LAYOUT.codes_at}, (const Number*)at};
  }
  INLINE Vec scales(int) const { return load(numbers); }
  INLINE Vec minima() const { return load(numbers + LANES); }
};
using Q4 = Affine<Weights::q4, 4, Half>;
using Q5 = Affine<Weights::q5, 5, Half>;
using Q4F = Affine<Weights::q4f, 4, float>;

template <Weights KIND, int BITS>
struct Nested : GroupCodes<BITS> {
  static constexpr GroupLayout LAYOUT = group_layout(KIND);
  static constexpr bool MINIMA = true, BYTES = BITS == 4 || WIDE_QUADS, OFFSET = false, PREFETCH = true;
  static constexpr int HALVES = 1;
  const Half* factors;
  const uint8_t* numbers;
  INLINE static Nested of(const uint8_t* panel, int group) {
    const uint8_t* at = panel + group / 8 * LAYOUT.size;
    return {{at + LAYOUT.codes_at + group % 8 * LAYOUT.codes}, (const Half*)at, at + 64 + group % 8 * 2 * LANES};
  }
  INLINE Vec scales(int) const { return mul(to_float(load_bytes(numbers)), load(factors)); }
  INLINE Vec minima() const { return mul(to_float(load_bytes(numbers + LANES)), load(factors + LANES)); }
};
using Q4K = Nested<Weights::q4k, 4>;
using Q5K = Nested<Weights::q5k, 5>;

struct Q6K {
  static constexpr GroupLayout LAYOUT = group_layout(Weights::q6k);
  static constexpr bool MINIMA = false, BYTES = false, OFFSET = false, PREFETCH = true;
  static constexpr int HALVES = 2;
  const uint8_t* at;
  const Half* factors;
  const uint8_t* numbers;
  INLINE static Q6K of(const uint8_t* panel, int group) {
    const uint8_t* at = panel + group / 8 * LAYOUT.size;
    return {at + LAYOUT.codes_at + group % 8 * LAYOUT.codes, (const Half*)at, at + 64 + group % 8 * 2 * LANES};
  }
  INLINE Vec scales(int half) const {
    return mul(to_float(add(load_bytes(numbers + half * LANES), broadcast_int(-128))), load(factors));
  }
  INLINE Vec minima() const { return broadcast(0.0f); }
  INLINE Ints pair(int part, int j) const { return minus_32(GroupCodes<6>{at}.pair(part, j)); }
  INLINE Ints quad(int, int) const { return zero_ints(); }  // never asked for
};

INLINE Ints quad_at(const uint8_t* quads, int part, int j) { return load_ints(quads + (2 * part + j) * 64); }
INLINE Ints pair_at(const uint8_t* quads, int part, int j) {
  Ints v = quad_at(quads, part, j % 2);
  return j < 2 ? low_bytes(v) : high_bytes(v);
}

struct Q8 {
  static constexpr GroupLayout LAYOUT = group_layout(Weights::q8);
  static constexpr bool MINIMA = false, BYTES = WIDE_QUADS, OFFSET = true, PREFETCH = PARTS > 1;
  static constexpr int HALVES = 1;
  const uint8_t* at;
  INLINE static Q8 of(const uint8_t* panel, int group) { return {panel + group * LAYOUT.size}; }
  INLINE Vec scales(int) const { return load((const Half*)at); }
  INLINE Vec minima() const { return broadcast(0.0f); }
  INLINE Ints pair(int part, int j) const { return pair_at(at + LAYOUT.codes_at, part, j); }
  INLINE Ints quad(int part, int j) const { return offset_bytes(quad_at(at + LAYOUT.codes_at, part, j)); }
  INLINE Ints plain_quad(int part, int j) const { return quad_at(at + LAYOUT.codes_at, part, j); }
};

struct Int8 {
  static constexpr GroupLayout LAYOUT = group_layout(Weights::int8);
  static constexpr bool MINIMA = false, BYTES = WIDE_QUADS, OFFSET = true, PREFETCH = PARTS > 1;
  static constexpr int HALVES = 1;
  const uint8_t *at, *panel;
  INLINE static Int8 of(const uint8_t* panel, int group) { return {panel + panel_header(Weights::int8) + group * LAYOUT.size, panel}; }
  INLINE Vec scales(int) const { return load((const float*)panel); }
  INLINE Vec minima() const { return broadcast(0.0f); }
  INLINE Ints pair(int part, int j) const { return pair_at(at, part, j); }
  INLINE Ints quad(int part, int j) const { return offset_bytes(quad_at(at, part, j)); }
  INLINE Ints plain_quad(int part, int j) const { return quad_at(at, part, j); }
};

// What act.of<Kind>() returns for the kind's struct.
template <class Act>
INLINE auto by_kind(Weights kind, const Act& act) {
  switch (kind) {
    case Weights::q4: return act.template of<Q4>();
    case Weights::q8: return act.template of<Q8>();
    case Weights::int8: return act.template of<Int8>();
    case Weights::q5: return act.template of<Q5>();
    case Weights::q4f: return act.template of<Q4F>();
    case Weights::q4k: return act.template of<Q4K>();
    case Weights::q5k: return act.template of<Q5K>();
    default: return act.template of<Q6K>();
  }
}

// ---- one tile: up to TILE rows times one panel

constexpr int SPLIT_ROWS = 8;  // of a tile, at most: the sums of split values, twice as many, stay in registers
constexpr int PACKED_ROWS = PARTS == 1 ? 12 : PARTS == 2 ? 6 : 4;  // most rows of a tile, by what the registers hold

// Sums over the group, or over its `half` of 16 inputs.
template <Form FORM, int R, class Kind>
INLINE void multiply_group(const char* values, const int32_t* offsets, const Kind& w, int half, Ints (&sums)[R]) {
  constexpr bool BYTES = FORM == Form::bytes;
  constexpr int ROW_BYTES = BYTES ? GROUP : 2 * GROUP, STEPS = BYTES ? 2 : 4, PARTS_SUMMED = 4 / Kind::HALVES;
  UNROLL for (int r = 0; r < R; ++r) sums[r] = BYTES && Kind::OFFSET ? broadcast_int(offsets[r]) : zero_ints();
  for (int part = half * PARTS_SUMMED; part < (half + 1) * PARTS_SUMMED; ++part) {
    UNROLL for (int j = 0; j < STEPS; ++j) {
      Ints weights = BYTES ? w.quad(part, j) : w.pair(part, j);
      UNROLL for (int r = 0; r < R; ++r) {
        Ints activation = broadcast_word(values + r * ROW_BYTES + (part * STEPS + j) * 4);
        sums[r] = BYTES ? add_quads(sums[r], weights, activation) : dot16(sums[r], weights, activation);
      }
    }
  }
  if (BYTES) {
    UNROLL for (int r = 0; r < R; ++r) sums[r] = finish_quads(sums[r]);
  }
}

// Sums over the group of rows that are split into bytes.
template <int R, class Kind>
INLINE void multiply_split(const char* values, const int32_t* offsets, const Kind& w, Ints (&sums)[R]) {
  Ints low[R];
  UNROLL for (int r = 0; r < R; ++r) sums[r] = Kind::OFFSET ? broadcast_int(offsets[r]) : zero_ints(), low[r] = zero_ints();
  UNROLL for (int quad = 0; quad < GROUP / 4; ++quad) {
    Ints weights = w.quad(quad / 2, quad % 2), plain = w.plain_quad(quad / 2, quad % 2);
    UNROLL for (int r = 0; r < R; ++r) {
      const char* at = values + r * 2 * GROUP + quad * 4;
      sums[r] = add_quads(sums[r], weights, broadcast_word(at));
      low[r] = add_quads(low[r], broadcast_word(at + GROUP), plain);
    }
  }
  UNROLL for (int r = 0; r < R; ++r) sums[r] = add(shift_left(sums[r], 8), low[r]);
}

INLINE void store_columns(float* out, Vec v, int columns) {
  if (columns >= LANES) return store(out, v);
  if (columns > 0) store_first(out, v, columns);
}

// Weights go from memory to registers, sums stay there: nothing is stored but the outputs. The hardware's prefetch is too late for q4, and
// for 8 bits where a group takes two registers; where it takes one (Zen 4), 8 bits are slower with another, and 4 bits no slower (Emerald
// Rapids: faster) asked for into the second cache.
constexpr int AHEAD = PARTS == 1 ? 8192 : 4096;  // bytes

template <class Kind, Form FORM, int R>
INLINE void packed_tile(const PackedTask& t, const Activations& x, int panel) {
  const uint8_t* base = t.panels + panel * panel_bytes(t.kind, t.depth);
  const char* values = (const char*)x.values;
  const float *scales = x.scales, *row_sums = x.sums;
  const int32_t* offsets = x.offsets;
  Vec acc[R];
  UNROLL for (int r = 0; r < R; ++r) acc[r] = broadcast(0.0f);
  for (int group = 0; group < t.depth / GROUP; ++group) {
    Kind w = Kind::of(base, group);
    if constexpr (Kind::PREFETCH) {
      UNROLL for (int line = 0; line < Kind::LAYOUT.size / Kind::LAYOUT.groups; line += 64)
        __builtin_prefetch(w.at + AHEAD + line, 0, PARTS == 1 ? 2 : 3);
    }
    UNROLL for (int half = 0; half < Kind::HALVES; ++half) {
      Ints sums[R];
      if constexpr (FORM == Form::split)
        multiply_split(values, offsets, w, sums);
      else
        multiply_group<FORM>(values, offsets, w, half, sums);
      Vec scale = w.scales(half), minimum = w.minima();
      UNROLL for (int r = 0; r < R; ++r) {
        acc[r] = fma(to_float(sums[r]), mul(scale, broadcast(scales[r])), acc[r]);
        if (Kind::MINIMA) acc[r] = fma(minimum, broadcast(row_sums[r]), acc[r]);
      }
    }
    values += R * GROUP * (FORM == Form::bytes ? 1 : 2), scales += R, row_sums += R, offsets += R;
  }
  UNROLL for (int r = 0; r < R; ++r) store_columns(t.out + r * t.out_row + panel * LANES, acc[r], t.columns - panel * LANES);
}

template <class Kind, Form FORM, int R>
__attribute__((noinline)) void packed_panels(const PackedTask& t, const Activations& x) {
  for (int panel = 0; panel * LANES < t.columns; ++panel) packed_tile<Kind, FORM, R>(t, x, panel);
}

template <class Kind, Form FORM, int R = FORM == Form::split ? SPLIT_ROWS : PACKED_ROWS>
INLINE void packed_by(const PackedTask& t, const Activations& x) {
  if (x.rows == R) return packed_panels<Kind, FORM, R>(t, x);
  if constexpr (R > 1) packed_by<Kind, FORM, R - 1>(t, x);
}

struct Multiply {
  const PackedTask& t;
  const Activations& x;
  template <class Kind>
  INLINE void of() const {
    if constexpr (Kind::BYTES) {
      if (x.form == Form::bytes) return packed_by<Kind, Form::bytes>(t, x);
    }
    if constexpr (Kind::BYTES && WIDE_QUADS) {
      if (x.form == Form::split) return packed_by<Kind, Form::split>(t, x);
    }
    packed_by<Kind, Form::shorts>(t, x);
  }
};
void packed_linear(const PackedTask& t, const Activations& x) { by_kind(t.kind, Multiply{t, x}); }

struct FormFor {
  Precision precision;
  int rows;
  template <class Kind>
  INLINE Form of() const {
    if (!Kind::BYTES) return Form::shorts;
    if (precision == Precision::int8) return Form::bytes;
    return WIDE_QUADS && rows <= SPLIT_ROWS ? Form::split : Form::shorts;
  }
};
Form form(Weights kind, Precision precision, int rows) { return by_kind(kind, FormFor{precision, rows}); }

// ---- fp32: a group is dequantised, then goes through the fp32 tiles

// Inputs 2p and 2p + 1 come in one step: out [32][16].
struct Dequantize {
  const uint8_t* panel;
  int group;
  float* out;
  template <class Kind>
  INLINE void of() const {
    Kind w = Kind::of(panel, group);
    for (int p = 0; p < GROUP / 2; ++p) {
      int32_t lanes[LANES], low[LANES], high[LANES];
      store_ints(lanes, w.pair(p / 4, p % 4));
      for (int i = 0; i < LANES; ++i) low[i] = (int16_t)lanes[i], high[i] = lanes[i] >> 16;
      Vec scale = w.scales(p * Kind::HALVES * 2 / GROUP), minimum = w.minima();
      Vec even = mul(to_float(load_ints(low)), scale), odd = mul(to_float(load_ints(high)), scale);
      store(out + 2 * p * LANES, Kind::MINIMA ? add(even, minimum) : even);
      store(out + (2 * p + 1) * LANES, Kind::MINIMA ? add(odd, minimum) : odd);
    }
  }
};
void dequantize_group(Weights kind, const uint8_t* panel, int group, float* out) { by_kind(kind, Dequantize{panel, group, out}); }

void packed_linear_fp32(const PackedTask& t, const float* x, ptrdiff_t x_row, int rows, float* scratch) {
  float *weights = scratch, *acc = scratch + GROUP * LANES;
  for (int panel = 0; panel * LANES < t.columns; ++panel) {
    const uint8_t* base = t.panels + panel * panel_bytes(t.kind, t.depth);
    for (int group = 0; group < t.depth / GROUP; ++group) {
      dequantize_group(t.kind, base, group, weights);
      multiply(Product<float>{x + group * GROUP, x_row, weights, LANES, GROUP, acc, LANES, group > 0}, rows, 1);
    }
    for (int r = 0; r < rows; ++r) store_columns(t.out + r * t.out_row + panel * LANES, load(acc + r * LANES), t.columns - panel * LANES);
  }
}

// ---- activations

// Values are `levels` at most: 32767, or 127.
void quantize(const float* x, ptrdiff_t x_row, int depth, float levels, const Activations& out) {
  for (int row = 0; row < out.rows; ++row) {
    for (int group = 0; group < depth / GROUP; ++group) {
      const float* from = x + row * x_row + group * GROUP;
      ptrdiff_t at = (ptrdiff_t)group * out.rows + row;
      Vec a = load(from), b = load(from + LANES);
      Rounding rounding = rounding_to(largest_magnitude(a, b), levels);
      Ints low = round_to_int(a, rounding), high = round_to_int(b, rounding);
      out.scales[at] = rounding.scale;
      int32_t sum = sum_lanes(add(low, high));
      out.sums[at] = rounding.scale * (float)sum;
      out.offsets[at] = -128 * sum;
      int8_t* to = (int8_t*)out.values + at * GROUP * (out.form == Form::bytes ? 1 : 2);
      if (out.form == Form::bytes) {
        store_eights(to, low), store_eights(to + LANES, high);
      } else if (WIDE_QUADS && out.form == Form::split) {
        Ints a = shift_right(low, 8), b = shift_right(high, 8);
        store_eights(to, a), store_eights(to + LANES, b), store_eights(to + GROUP, low), store_eights(to + GROUP + LANES, high);
        out.offsets[at] = -128 * sum_lanes(add(a, b));
      } else {
        store_shorts((int16_t*)to, low), store_shorts((int16_t*)to + LANES, high);
      }
    }
  }
}

}  // namespace
