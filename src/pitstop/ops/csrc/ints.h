// Sixteen int32 lanes as one value, seen as bytes or 16-bit halves where that is meant. All operations are exact integers, so the order
// of sums and the instruction set never show in the result. Internal linkage throughout, for the reason that vec.h gives.
#pragma once

#include "vec.h"

namespace {

typedef int16_t NativeShort __attribute__((vector_size(WIDTH * 4)));
typedef uint16_t NativeUShort __attribute__((vector_size(WIDTH * 4)));

struct Ints {
  NativeInt part[PARTS];
};

#if defined(__AVX512F__)
// sum + a[2i] * b[2i] + a[2i + 1] * b[2i + 1] of signed 16-bit halves
INLINE NativeInt dot16(NativeInt sum, NativeInt a, NativeInt b) {
#if defined(__AVX512VNNI__)
  return (NativeInt)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#else
  return sum + (NativeInt)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#endif
}
// sums of two products of unsigned bytes a and signed bytes b, as 16-bit halves
INLINE NativeShort pairs8(NativeInt a, NativeInt b) { return (NativeShort)_mm512_maddubs_epi16((__m512i)a, (__m512i)b); }
#elif defined(__AVX2__)
INLINE NativeInt dot16(NativeInt sum, NativeInt a, NativeInt b) { return sum + (NativeInt)_mm256_madd_epi16((__m256i)a, (__m256i)b); }
INLINE NativeShort pairs8(NativeInt a, NativeInt b) { return (NativeShort)_mm256_maddubs_epi16((__m256i)a, (__m256i)b); }
#elif defined(__aarch64__)
INLINE NativeInt dot16(NativeInt sum, NativeInt a, NativeInt b) {
  int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
  return sum + (NativeInt)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
}
INLINE NativeShort pairs8(NativeInt a, NativeInt b) {  // a is below 128 wherever this is used
  int8x16_t x = (int8x16_t)a, y = (int8x16_t)b;
  return (NativeShort)vpaddq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)), vmull_high_s8(x, y));
}
#else
INLINE NativeInt dot16(NativeInt sum, NativeInt a, NativeInt b) {
  NativeInt low = (a << 16 >> 16) * (b << 16 >> 16), high = (a >> 16) * (b >> 16);
  return sum + low + high;
}
INLINE NativeShort pairs8(NativeInt a, NativeInt b) {
  NativeUShort x = (NativeUShort)a, y = (NativeUShort)b;
  NativeShort low = (NativeShort)(x & 255) * ((NativeShort)(y << 8) >> 8);
  return low + (NativeShort)(x >> 8) * ((NativeShort)y >> 8);
}
#endif

INLINE Ints load_ints(const void* p) {
  Ints r;
  UNROLL for (int i = 0; i < PARTS; ++i) __builtin_memcpy(&r.part[i], (const char*)p + i * WIDTH * 4, sizeof(NativeInt));
  return r;
}
// Sixteen unsigned bytes, one a lane.
INLINE Ints load_bytes(const uint8_t* p) {
  Ints r;
#if defined(__AVX512F__)
  r.part[0] = (NativeInt)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
  UNROLL for (int i = 0; i < PARTS; ++i) r.part[i] = (NativeInt)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + i * WIDTH)));
#else
  typedef uint8_t Bytes __attribute__((vector_size(WIDTH)));
  UNROLL for (int i = 0; i < PARTS; ++i) {
    Bytes bytes;
    __builtin_memcpy(&bytes, p + i * WIDTH, WIDTH);
    r.part[i] = __builtin_convertvector(bytes, NativeInt);
  }
#endif
  return r;
}
INLINE void store_ints(void* p, Ints v) {
  UNROLL for (int i = 0; i < PARTS; ++i) __builtin_memcpy((char*)p + i * WIDTH * 4, &v.part[i], sizeof(NativeInt));
}
// The four bytes at p in every lane.
INLINE NativeInt native_word(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  return word - NativeInt{};
}
INLINE Ints broadcast_word(const void* p) {
  Ints r;
  UNROLL for (int i = 0; i < PARTS; ++i) r.part[i] = native_word(p);
  return r;
}
INLINE Ints zero_ints() { return Ints{}; }

#define PITSTOP_LANEWISE(name, expression)                                                   \
  INLINE Ints name(Ints a) {                                                                 \
    UNROLL for (int i = 0; i < PARTS; ++i) {                                                 \
      NativeShort x = (NativeShort)a.part[i];                                                \
      NativeUShort u = (NativeUShort)x;                                                      \
      (void)x, (void)u;                                                                      \
      a.part[i] = (NativeInt)(expression);                                                   \
    }                                                                                        \
    return a;                                                                                \
  }
// On 16-bit halves: a nibble of each half, the sign-extended low byte, the sign-extended high byte.
PITSTOP_LANEWISE(nibbles_0, u & 15)
PITSTOP_LANEWISE(nibbles_1, u >> 4 & 15)
PITSTOP_LANEWISE(nibbles_2, u >> 8 & 15)
PITSTOP_LANEWISE(nibbles_3, u >> 12)
PITSTOP_LANEWISE(low_bytes, (NativeShort)(u << 8) >> 8)
PITSTOP_LANEWISE(high_bytes, x >> 8)
// On bytes: the low nibble of each, the high nibble of each.
PITSTOP_LANEWISE(byte_nibbles_0, u & 0x0f0f)
PITSTOP_LANEWISE(byte_nibbles_1, u >> 4 & 0x0f0f)
PITSTOP_LANEWISE(minus_32, x - 32)
#undef PITSTOP_LANEWISE

// On 16-bit halves: the bits of `mask` from bit `from` on, four bits higher than there.
INLINE Ints bits_as_high(Ints a, int from, int mask) {
  UNROLL for (int i = 0; i < PARTS; ++i) a.part[i] = (NativeInt)(((NativeUShort)a.part[i] >> from & (uint16_t)mask) << 4);
  return a;
}

// Keeps a running sum where it is: compilers otherwise regroup chains of exact integer sums, and spill dozens of products.
#if defined(__AVX512F__)
#define PITSTOP_PIN(v) asm("" : "+v"(v))
#elif defined(__x86_64__)
#define PITSTOP_PIN(v) asm("" : "+x"(v))
#elif defined(__aarch64__)
#define PITSTOP_PIN(v) asm("" : "+w"(v))
#else
#define PITSTOP_PIN(v) (void)0
#endif

INLINE Ints dot16(Ints sum, Ints a, Ints b) {
  UNROLL for (int i = 0; i < PARTS; ++i) {
    sum.part[i] = dot16(sum.part[i], a.part[i], b.part[i]);
    PITSTOP_PIN(sum.part[i]);
  }
  return sum;
}
#if defined(__AVX512VNNI__)
constexpr bool WIDE_QUADS = true;  // quads are summed in 32 bits
// sum + products of unsigned bytes a and signed bytes b, four a lane
INLINE NativeInt dot8(NativeInt sum, NativeInt a, NativeInt b) {
  sum = (NativeInt)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
  PITSTOP_PIN(sum);
  return sum;
}
INLINE Ints add_quads(Ints sum, Ints a, Ints b) {
  sum.part[0] = dot8(sum.part[0], a.part[0], b.part[0]);
  return sum;
}
INLINE Ints finish_quads(Ints sum) { return sum; }
#else
constexpr bool WIDE_QUADS = false;
// sum + products of unsigned bytes a and signed bytes b, four a lane; in two 16-bit halves, which the caller sees to it cannot overflow
INLINE Ints add_quads(Ints sum, Ints a, Ints b) {
  UNROLL for (int i = 0; i < PARTS; ++i) {
    sum.part[i] = (NativeInt)((NativeShort)sum.part[i] + pairs8(a.part[i], b.part[i]));
    PITSTOP_PIN(sum.part[i]);
  }
  return sum;
}
// One sum a lane.
INLINE Ints finish_quads(Ints sum) {
  UNROLL for (int i = 0; i < PARTS; ++i) sum.part[i] = dot16(NativeInt{}, sum.part[i], (NativeInt)(NativeShort{} + 1));
  return sum;
}
#endif
INLINE Ints broadcast_int(int32_t value) {
  Ints r;
  UNROLL for (int i = 0; i < PARTS; ++i) r.part[i] = value - NativeInt{};
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
// Signed bytes + 128, as unsigned bytes.
INLINE Ints offset_bytes(Ints a) {
  UNROLL for (int i = 0; i < PARTS; ++i) a.part[i] ^= (int32_t)0x80808080;
  return a;
}
INLINE Ints add(Ints a, Ints b) {
  UNROLL for (int i = 0; i < PARTS; ++i) a.part[i] += b.part[i];
  return a;
}
INLINE Vec to_float(Ints a) {
  Vec r;
  UNROLL for (int i = 0; i < PARTS; ++i) r.part[i] = __builtin_convertvector(a.part[i], Native);
  return r;
}

// x rounded to the nearest integer, ties to even; |x| < 2^22.
INLINE Ints round_to_int(Vec x) {
  Ints r;
  UNROLL for (int i = 0; i < PARTS; ++i) r.part[i] = (NativeInt)(x.part[i] + ROUNDER) - (NativeInt)(Native{} + ROUNDER);
  return r;
}

// The low 16 bits of each lane, in order.
INLINE void store_shorts(int16_t* p, Ints v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16((__m512i)v.part[0]));
#elif defined(__AVX2__)
  __m256i packed = _mm256_packs_epi32((__m256i)v.part[0], (__m256i)v.part[1]);
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xd8));
#else
  int32_t lanes[LANES];
  store_ints(lanes, v);
  for (int i = 0; i < LANES; ++i) p[i] = (int16_t)lanes[i];
#endif
}
// The low 8 bits of each lane, each eight in the order 0 4 1 5 2 6 3 7.
INLINE void store_eights(int8_t* p, Ints v) {
#if defined(__AVX2__)
  const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
#if defined(__AVX512F__)
  __m128i bytes = _mm512_cvtepi32_epi8((__m512i)v.part[0]);
#else
  __m256i shorts = _mm256_permute4x64_epi64(_mm256_packs_epi32((__m256i)v.part[0], (__m256i)v.part[1]), 0xd8);
  __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1));
#endif
  _mm_storeu_si128((__m128i*)p, _mm_shuffle_epi8(bytes, order));
#else
  int32_t lanes[LANES];
  store_ints(lanes, v);
  for (int i = 0; i < LANES; ++i) p[i] = (int8_t)lanes[i / 8 * 8 + i % 2 * 4 + i % 8 / 2];
#endif
}

INLINE NativeInt larger_ints(NativeInt a, NativeInt b) { return a > b ? a : b; }

#if defined(__AVX512F__)
INLINE int32_t sum_native(NativeInt v) { return _mm512_reduce_add_epi32((__m512i)v); }
INLINE int32_t largest_native(NativeInt v) { return _mm512_reduce_max_epi32((__m512i)v); }
#else
INLINE int32_t sum_native(NativeInt v) {
  int32_t sum = 0;
  for (int i = 0; i < WIDTH; ++i) sum += v[i];
  return sum;
}
INLINE int32_t largest_native(NativeInt v) {
  int32_t largest = v[0];
  for (int i = 1; i < WIDTH; ++i) largest = v[i] > largest ? v[i] : largest;
  return largest;
}
#endif

INLINE int32_t sum_lanes(Ints v) {
  NativeInt total = v.part[0];
  for (int i = 1; i < PARTS; ++i) total += v.part[i];
  return sum_native(total);
}

// The largest |x| as bits: an integer maximum, which puts infinity above every number and NaN above that.
INLINE uint32_t largest_magnitude(Vec a, Vec b) {
  NativeInt top = NativeInt{};
  UNROLL for (int i = 0; i < PARTS; ++i)
    top = larger_ints(top, larger_ints((NativeInt)a.part[i] & 0x7fffffff, (NativeInt)b.part[i] & 0x7fffffff));
  return (uint32_t)largest_native(top);
}

// Magnitudes below count as zeros, so that scales and their inverses are normal numbers.
constexpr float SMALLEST = 0x1p-100f;

// How numbers become integers: x ~ scale * round(x * inverse). NaN and zeros where one of them is an infinity or NaN.
struct Rounding {
  float scale, inverse;
};
// bits: the largest magnitude, which becomes `levels`.
INLINE Rounding rounding_to(uint32_t bits, float levels) {
  float largest;
  __builtin_memcpy(&largest, &bits, 4);
  if (bits >= 0x7f800000) return {__builtin_nanf(""), 0};
  return largest < SMALLEST ? Rounding{0, 0} : Rounding{largest / levels, levels / largest};
}
INLINE Ints round_to_int(Vec x, Rounding by) { return by.inverse == 0 ? zero_ints() : round_to_int(mul(x, broadcast(by.inverse))); }

}  // namespace
