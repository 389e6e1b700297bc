// Sixteen fp32 lanes as one value, whatever the instruction set: every lane sees the same IEEE operations in the same order, so all
// variants give the same bits. Compiled once per instruction set; everything here has internal linkage, and nothing here may instantiate
// a std template: the linker would merge it across variants and hand AVX-512 code to a machine without it.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(PITSTOP_SANITIZE)  // every check of a tile inlined and unrolled would take the compiler an hour
#define INLINE inline
#define UNROLL
#else
#define INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#endif

namespace {

constexpr int LANES = 16;

#if defined(__AVX512F__)
constexpr int WIDTH = 16, REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int WIDTH = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int WIDTH = 4, REGISTERS = 32;
#else
constexpr int WIDTH = 4, REGISTERS = 16;
#endif
constexpr int PARTS = LANES / WIDTH;

typedef float Native __attribute__((vector_size(WIDTH * 4)));
typedef int32_t NativeInt __attribute__((vector_size(WIDTH * 4)));

struct Half {
  uint16_t bits;
};

struct BFloat {
  uint16_t bits;
};

struct Vec {
  Native part[PARTS];
};

// ---- the three operations that need more than the compiler's vector types: a * b + c rounded once, and fp16 in and out

#if defined(__AVX512F__)
INLINE Native fma_native(Native a, Native b, Native c) { return _mm512_fmadd_ps(a, b, c); }
INLINE Native widen(const Half* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
INLINE void narrow(Half* p, Native v) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
#elif defined(__AVX2__)
INLINE Native fma_native(Native a, Native b, Native c) { return _mm256_fmadd_ps(a, b, c); }
INLINE Native widen(const Half* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
INLINE void narrow(Half* p, Native v) { _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT)); }
#elif defined(__aarch64__)
INLINE Native fma_native(Native a, Native b, Native c) { return (Native)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
INLINE Native widen(const Half* p) { return (Native)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t*)p))); }
INLINE void narrow(Half* p, Native v) { vst1_u16((uint16_t*)p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v))); }
#else
// Without an FMA instruction the C library's exact fmaf keeps the bits equal, at a tenth of the speed.
INLINE Native fma_native(Native a, Native b, Native c) {
  Native r;
  for (int i = 0; i < WIDTH; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return r;
}
INLINE float from_bits(uint32_t u) {
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
INLINE uint32_t to_bits(float f) {
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  return u;
}
INLINE float widen_one(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
  if (magnitude >= 0x7c00) return from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  // 2^112 moves the half's exponent range onto the float's, subnormals included, exactly.
  return from_bits(sign | to_bits(from_bits(magnitude << 13) * 0x1p112f));
}
INLINE uint16_t narrow_one(float f) {
  uint32_t u = to_bits(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);  // 65520 and above round to infinity
  if (magnitude < 0x38800000)  // subnormal as a half: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    return (uint16_t)(sign | (to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f)));
  uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return (uint16_t)(sign | (rounded - 0x38000000) >> 13);
}
INLINE Native widen(const Half* p) {
  Native r;
  for (int i = 0; i < WIDTH; ++i) r[i] = widen_one(p[i].bits);
  return r;
}
INLINE void narrow(Half* p, Native v) {
  for (int i = 0; i < WIDTH; ++i) p[i].bits = narrow_one(v[i]);
}
#endif

// ---- memory

INLINE Native load_part(const float* p, int part) {
  Native r;
  __builtin_memcpy(&r, p + part * WIDTH, sizeof r);
  return r;
}
INLINE Native load_part(const Half* p, int part) { return widen(p + part * WIDTH); }
INLINE Vec load(const float* p) {
  Vec r;
  UNROLL for (int i = 0; i < PARTS; ++i) r.part[i] = load_part(p, i);
  return r;
}
INLINE Vec load(const Half* p) {
  Vec r;
  UNROLL for (int i = 0; i < PARTS; ++i) r.part[i] = load_part(p, i);
  return r;
}
INLINE Vec load(const BFloat* p) {
  uint32_t lanes[LANES];
  UNROLL for (int i = 0; i < LANES; ++i) lanes[i] = (uint32_t)p[i].bits << 16;
  Vec r;
  __builtin_memcpy(&r, lanes, sizeof r);
  return r;
}
INLINE void store(float* p, Vec v) {
  UNROLL for (int i = 0; i < PARTS; ++i) __builtin_memcpy(p + i * WIDTH, &v.part[i], sizeof(Native));
}
INLINE void store(Half* p, Vec v) {
  UNROLL for (int i = 0; i < PARTS; ++i) narrow(p + i * WIDTH, v.part[i]);
}
INLINE Vec broadcast(float x) {
  Vec r;
  UNROLL for (int i = 0; i < PARTS; ++i) r.part[i] = x - Native{};
  return r;
}
// The first n lanes, zeros after: tails go through the same arithmetic as full vectors.
INLINE Vec load_first(const float* p, int n) {
  float lanes[LANES] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return load(lanes);
}
INLINE void store_first(float* p, Vec v, int n) {
  float lanes[LANES];
  store(lanes, v);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

// ---- arithmetic

#define PITSTOP_LANEWISE(name, expression)                                         \
  INLINE Vec name(Vec a, Vec b) {                                                  \
    Vec r;                                                                         \
    UNROLL for (int i = 0; i < PARTS; ++i) {                                       \
      Native x = a.part[i], y = b.part[i];                                         \
      r.part[i] = expression;                                                      \
    }                                                                              \
    return r;                                                                      \
  }
PITSTOP_LANEWISE(add, x + y)
PITSTOP_LANEWISE(sub, x - y)
PITSTOP_LANEWISE(mul, x* y)
PITSTOP_LANEWISE(div, x / y)
PITSTOP_LANEWISE(larger, x > y ? x : y)   // y where either is NaN
PITSTOP_LANEWISE(smaller, x < y ? x : y)  // y where either is NaN
PITSTOP_LANEWISE(least, (x < y) | (x != x) ? x : y)  // NaN where either is
PITSTOP_LANEWISE(most, (x > y) | (x != x) ? x : y)   // NaN where either is
#undef PITSTOP_LANEWISE

INLINE Vec fma(Vec a, Vec b, Vec c) {
  Vec r;
  UNROLL for (int i = 0; i < PARTS; ++i) r.part[i] = fma_native(a.part[i], b.part[i], c.part[i]);
  return r;
}

typedef float Four __attribute__((vector_size(16)));

// Lane i + lane i+8, then +4, +2, +1.
INLINE float sum(Vec v) {
  Four part[4];
  __builtin_memcpy(part, &v, sizeof part);
  Four a = (part[0] + part[2]) + (part[1] + part[3]);
  return (a[0] + a[2]) + (a[1] + a[3]);
}
// Lanes that are NaN are passed over, but for the first four.
INLINE float largest(Vec v) {
  Four part[4];
  __builtin_memcpy(part, &v, sizeof part);
  UNROLL for (int i = 1; i < 4; ++i) part[0] = part[i] > part[0] ? part[i] : part[0];
  float r = part[0][0];
  UNROLL for (int i = 1; i < 4; ++i) r = part[0][i] > r ? part[0][i] : r;
  return r;
}

// Adding 1.5 * 2^23 rounds to an integer, which then sits in the low bits of the float.
constexpr float ROUNDER = 0x1.8p23f;

// Rounds lanes that hold at most 22 bits and a fraction to integers, to nearest even.
INLINE Vec round(Vec v) { return sub(add(v, broadcast(ROUNDER)), broadcast(ROUNDER)); }

// e^x within 1.1 ulp (measured by a test), gradual underflow and overflow to infinity included; NaN stays NaN.
// x = n ln 2 + r, |r| <= ln 2 / 2; e^r = 1 + r + r^2 q(r), q of degree 4 interpolating (e^r - 1 - r) / r^2 at Chebyshev nodes.
INLINE Vec exp(Vec x) {
  x = smaller(broadcast(89.0f), larger(broadcast(-104.0f), x));
  Vec shifted = fma(x, broadcast(0x1.715476p0f), broadcast(ROUNDER));
  Vec n = sub(shifted, broadcast(ROUNDER));
  Vec r = fma(n, broadcast(-0x1.63p-1f), x);  // ln 2 in two parts: n times the first is exact
  r = fma(n, broadcast(0x1.bd0106p-13f), r);
  Vec q = fma(broadcast(0x1.6d138p-10f), r, broadcast(0x1.120de4p-7f));
  q = fma(q, r, broadcast(0x1.555518p-5f));
  q = fma(q, r, broadcast(0x1.5554dap-3f));
  q = fma(q, r, broadcast(0x1p-1f));
  Vec e = add(fma(mul(r, r), q, r), broadcast(1.0f));
  UNROLL for (int i = 0; i < PARTS; ++i) {
#if defined(__AVX512F__)
    e.part[i] = _mm512_scalef_ps(e.part[i], n.part[i]);  // rounds once, as what follows does
#else
    // Two half powers, so that subnormal results are rounded once and 2^128 is reached without overflow of the scale.
    NativeInt whole = (NativeInt)shifted.part[i] - (NativeInt)(Native{} + ROUNDER);
    NativeInt low = whole >> 1, high = whole - low;
    e.part[i] = e.part[i] * (Native)((low + 127) << 23) * (Native)((high + 127) << 23);
#endif
  }
  return e;
}

// tanh(x) = 1 - 2 / (e^2x + 1): absolute error below 2^-22.
INLINE Vec tanh(Vec x) {
  Vec e = exp(add(x, x));
  return sub(broadcast(1.0f), div(broadcast(2.0f), add(e, broadcast(1.0f))));
}

}  // namespace
