// Codes of 2 to 8 bits as fp32 lanes, exactly, from the parts in which they are stored (ops/attention/layout.py): the binary digits of
// their number of bits say which parts there are, and the larger part holds the lower bits of each code.
#pragma once

#include "ints.h"
#include "tile.h"

namespace {

// Lane i is `value` where bit i of the two bytes is set, else 0; value is a power of two.
INLINE Ints spread_bits(const uint8_t* p, int value) {
  int word = p[0] | p[1] << 8;
  Ints r;
#if defined(__AVX512F__)
  r.part[0] = (NativeInt)_mm512_maskz_set1_epi32((__mmask16)word, value);
#else
  UNROLL for (int i = 0; i < PARTS; ++i) {
    NativeInt bit;
    UNROLL for (int j = 0; j < WIDTH; ++j) bit[j] = 1 << (i * WIDTH + j);
    r.part[i] = ((NativeInt{} + word & bit) != 0) & value;
  }
#endif
  return r;
}
INLINE Ints shift_right(Ints a, int by) {
  UNROLL for (int i = 0; i < PARTS; ++i) a.part[i] = a.part[i] >> by;
  return a;
}
INLINE Ints shift_left(Ints a, int by) {
  UNROLL for (int i = 0; i < PARTS; ++i) a.part[i] = a.part[i] << by;
  return a;
}
INLINE Ints mask(Ints a, int bits) {
  UNROLL for (int i = 0; i < PARTS; ++i) a.part[i] = a.part[i] & bits;
  return a;
}
INLINE Ints both(Ints a, Ints b) {
  UNROLL for (int i = 0; i < PARTS; ++i) a.part[i] = a.part[i] | b.part[i];
  return a;
}
// The low 8 bits of each lane, in order.
INLINE void store_bytes(uint8_t* p, Ints v) {
#if defined(__AVX512F__)
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)v.part[0]));
#else
  int32_t lanes[LANES];
  store_ints(lanes, v);
  for (int i = 0; i < LANES; ++i) p[i] = (uint8_t)lanes[i];
#endif
}

template <int BITS>
struct Codes {
  const uint8_t* data;
  ptrdiff_t count;  // codes of the plane: where the parts begin follows from it
};

template <>
constexpr bool HAS_PARTS<Codes<8>> = true;
INLINE Native panel_part(const Codes<8>* codes, ptrdiff_t at, int part) {
  return __builtin_convertvector(load_bytes_part(codes->data + at, part), Native);
}

// The code's bits that part W holds begin here.
template <int BITS, int W>
constexpr int SHIFT = W == 4 ? 0 : W == 2 ? (BITS & 4) : (BITS & 6);

// C panels of 16 codes that lie one after the other from code `at` on. Two panels of an even C share the bytes of a 4-bit part.
template <int C, int BITS>
INLINE void load_panels(const Codes<BITS>* codes, ptrdiff_t at, ptrdiff_t, Vec* out) {
  const uint8_t* data = codes->data;
  if constexpr (BITS == 8) {
    UNROLL for (int c = 0; c < C; ++c) out[c] = to_float(load_bytes(data + at + c * LANES));
    return;
  }
  const uint8_t* pairs = data + codes->count * (BITS & 4) / 8;
  const uint8_t* single = data + codes->count * (BITS & 6) / 8;
  Ints shared = {};
  UNROLL for (int c = 0; c < C; ++c) {
    ptrdiff_t own = at + c * LANES;
    Ints code = {};
    if constexpr ((BITS & 4) != 0 && C % 2 == 0) {
      if (c % 2 == 0) shared = load_bytes(data + own / 2);
      code = c % 2 == 0 ? mask(shared, 15) : shift_right(shared, 4);
    } else if constexpr ((BITS & 4) != 0) {
      code = mask(shift_right(load_bytes(data + own / 32 * 16), (int)(own / 16 % 2) * 4), 15);
    }
    if constexpr ((BITS & 2) != 0)
      code = both(code, shift_left(mask(shift_right(load_bytes(pairs + own / 64 * 16), (int)(own / 16 % 4) * 2), 3), SHIFT<BITS, 2>));
    if constexpr ((BITS & 1) != 0) code = both(code, spread_bits(single + own / 8, 1 << SHIFT<BITS, 1>));
    out[c] = to_float(code);
  }
}

template <int BITS>
void widen_bits(const uint8_t* data, int rows, int columns, ptrdiff_t row_stride, float* out) {
  Codes<BITS> codes{data, (ptrdiff_t)rows * columns};
  ptrdiff_t at = 0;
  for (int row = 0; row < rows; ++row, out += row_stride)
    for (int column = 0; column < columns; column += 2 * LANES, at += 2 * LANES) {
      Vec panels[2];
      load_panels<2>(&codes, at, LANES, panels);
      store(out + column, panels[0]);
      store(out + column + LANES, panels[1]);
    }
}

// All codes of a plane, [rows][columns] -> rows that are row_stride apart; columns is a multiple of 32, or else there are no gaps.
INLINE void widen_codes(int bits, const uint8_t* data, int rows, int columns, ptrdiff_t row_stride, float* out) {
  if (columns % (2 * LANES)) rows = rows * columns / (2 * LANES), columns = 2 * LANES, row_stride = columns;
  switch (bits) {
    case 2: return widen_bits<2>(data, rows, columns, row_stride, out);
    case 3: return widen_bits<3>(data, rows, columns, row_stride, out);
    case 4: return widen_bits<4>(data, rows, columns, row_stride, out);
    case 5: return widen_bits<5>(data, rows, columns, row_stride, out);
    case 6: return widen_bits<6>(data, rows, columns, row_stride, out);
    case 7: return widen_bits<7>(data, rows, columns, row_stride, out);
    default: return widen_bits<8>(data, rows, columns, row_stride, out);
  }
}

}  // namespace
