// Codes of 2 to 8 bits, from the parts in which they are stored (ops/attention/layout.py): the binary digits of
// their number of bits say which parts there are, and the larger part holds the lower bits of each code.
#pragma once

#include "ints.h"

namespace {

typedef uint8_t Bytes16 __attribute__((vector_size(16)));

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

// The code's bits that part W holds begin here.
template <int BITS, int W>
constexpr int SHIFT = W == 4 ? 0 : W == 2 ? (BITS & 4) : (BITS & 6);

// Sixteen codes from code `at` on, a multiple of 16.
template <int BITS>
INLINE Bytes16 panel_codes(const Codes<BITS>& codes, ptrdiff_t at) {
  auto load = [](const uint8_t* p) {
    Bytes16 r;
    __builtin_memcpy(&r, p, 16);
    return r;
  };
  typedef uint16_t Shorts8 __attribute__((vector_size(16)));  // instruction sets shift these, but no bytes
  auto field = [&](const uint8_t* p, ptrdiff_t from, uint8_t ones) {  // of each byte
    return (Bytes16)((Shorts8)load(p) >> (int)from) & ones;
  };
  if constexpr (BITS == 8) return load(codes.data + at);
  Bytes16 r = {};
  if constexpr ((BITS & 4) != 0) r = field(codes.data + at / 32 * 16, at / 16 % 2 * 4, 15);
  if constexpr ((BITS & 2) != 0)
    r |= (Bytes16)((Shorts8)field(codes.data + codes.count * (BITS & 4) / 8 + at / 64 * 16, at / 16 % 4 * 2, 3) << SHIFT<BITS, 2>);
  if constexpr ((BITS & 1) != 0) {
    const uint8_t* p = codes.data + codes.count * (BITS & 6) / 8 + at / 8;
    uint64_t eights[2] = {p[0] * 0x0101010101010101u, p[1] * 0x0101010101010101u};
    Bytes16 each = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    r |= (Bytes16)((load((const uint8_t*)eights) & each) == each) & (uint8_t)(1 << SHIFT<BITS, 1>);
  }
  return r;
}

template <int BITS>
void widen_bits(const uint8_t* data, int rows, int columns, ptrdiff_t row_stride, float* out) {
  Codes<BITS> codes{data, (ptrdiff_t)rows * columns};
  ptrdiff_t at = 0;
  for (int row = 0; row < rows; ++row, out += row_stride)
    for (int column = 0; column < columns; column += LANES, at += LANES) {
      Bytes16 bytes = panel_codes(codes, at);
      store(out + column, to_float(load_bytes((const uint8_t*)&bytes)));
    }
}

// All codes of a plane, [rows][columns] -> rows that are row_stride apart.
INLINE void widen_codes(int bits, const uint8_t* data, int rows, int columns, ptrdiff_t row_stride, float* out) {
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
