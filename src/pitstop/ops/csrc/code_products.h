// Products of rows with a plane of codes, in integers. A row is rounded to 16 bits by one scale of its own; sums of its products with codes
// are exact then, so that any order and any instruction give the same. Bytes are multiplied in fours where quads are summed in 32 bits,
// the row's values as 256 * high + low, both signed; 16-bit halves in twos elsewhere.
#pragma once

#include "codes.h"

namespace {

constexpr int STEP = WIDE_QUADS ? 4 : 2;               // of a column's codes that one instruction takes
constexpr float CODE_LEVELS = 127 * 256 + 127;         // largest value whose high byte is one, too
constexpr int CODE_ROWS = 3;                           // of a tile: their sums and a block's codes stay in registers, or nearly
constexpr int BLOCK = 4 * WIDTH, BLOCK_PANELS = BLOCK / LANES;  // columns: four vectors of sums for each row

typedef uint8_t NativeBytes __attribute__((vector_size(WIDTH * 4)));

// `panels` times sixteen codes in order, 0 behind them. ALIGNED: a whole block, from a multiple of its length on.
template <bool ALIGNED, int BITS>
INLINE NativeBytes block_codes(const Codes<BITS>& codes, ptrdiff_t at, int panels) {
#if defined(__AVX512F__)
  if constexpr (ALIGNED && BITS < 8) {
    __m512i r = _mm512_setzero_si512();
    if constexpr ((BITS & 4) != 0) {
      __m512i twice = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)(codes.data + at / 2)));
      twice = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), twice);
      r = _mm512_and_si512(_mm512_mask_srli_epi16(twice, 0xff00ff00, twice, 4), _mm512_set1_epi8(15));
    }
    if constexpr ((BITS & 2) != 0) {
      const uint8_t* pairs = codes.data + codes.count * (BITS & 4) / 8 + at / 4;
      constexpr int64_t EACH = 0x0001000100010001;
      __m512i four = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)pairs));
      four = _mm512_srlv_epi16(four, _mm512_setr_epi64(0, 0, EACH * 2, EACH * 2, EACH * 4, EACH * 4, EACH * 6, EACH * 6));
      r = _mm512_or_si512(r, _mm512_slli_epi16(_mm512_and_si512(four, _mm512_set1_epi8(3)), SHIFT<BITS, 2>));
    }
    if constexpr ((BITS & 1) != 0) {
      uint64_t single;
      __builtin_memcpy(&single, codes.data + codes.count * (BITS & 6) / 8 + at / 8, 8);
      r = _mm512_or_si512(r, _mm512_maskz_set1_epi8((__mmask64)single, (char)(1 << SHIFT<BITS, 1>)));
    }
    return (NativeBytes)r;
  }
#elif defined(__AVX2__)
  if constexpr (ALIGNED && BITS < 8) {
    auto load = [](const uint8_t* p) { return _mm_loadu_si128((const __m128i*)p); };
    __m256i r = _mm256_setzero_si256();
    if constexpr ((BITS & 4) != 0) {
      __m128i nibbles = load(codes.data + at / 2);
      r = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(nibbles, 4), nibbles), _mm256_set1_epi8(15));
    }
    if constexpr ((BITS & 2) != 0) {
      __m128i pairs = load(codes.data + codes.count * (BITS & 4) / 8 + at / 64 * 16);
      pairs = _mm_srl_epi16(pairs, _mm_cvtsi32_si128((int)(at / 32 % 2) * 4));
      __m256i both = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(pairs, 2), pairs), _mm256_set1_epi8(3));
      r = _mm256_or_si256(r, _mm256_slli_epi16(both, SHIFT<BITS, 2>));
    }
    if constexpr ((BITS & 1) != 0) {
      int32_t single;
      __builtin_memcpy(&single, codes.data + codes.count * (BITS & 6) / 8 + at / 8, 4);
      constexpr int64_t EACH = 0x0101010101010101;
      __m256i eights = _mm256_shuffle_epi8(_mm256_set1_epi32(single), _mm256_setr_epi64x(0, EACH, EACH * 2, EACH * 3));
      __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201);
      eights = _mm256_cmpeq_epi8(_mm256_and_si256(eights, bit), bit);
      r = _mm256_or_si256(r, _mm256_and_si256(eights, _mm256_set1_epi8((char)(1 << SHIFT<BITS, 1>))));
    }
    return (NativeBytes)r;
  }
#endif
  NativeBytes r;
  if constexpr (ALIGNED && BITS == 8) {
    __builtin_memcpy(&r, codes.data + at, sizeof r);
    return r;
  }
  Bytes16 parts[BLOCK_PANELS] = {};
  UNROLL for (int i = 0; i < BLOCK_PANELS; ++i) {
    if (ALIGNED || i < panels) parts[i] = panel_codes(codes, at + i * LANES);
  }
#if defined(__AVX2__) && !defined(__AVX512F__)  // through memory it would wait for two stores
  return (NativeBytes)_mm256_set_m128i((__m128i)parts[1], (__m128i)parts[0]);
#else
  __builtin_memcpy(&r, parts, sizeof r);
  return r;
#endif
}

// Within each 128 bits the lower, or the upper, halves' bytes (16-bit halves) in turn.
#if defined(__AVX512F__)
INLINE NativeBytes zip_bytes(NativeBytes a, NativeBytes b, bool upper) {
  return (NativeBytes)(upper ? _mm512_unpackhi_epi8((__m512i)a, (__m512i)b) : _mm512_unpacklo_epi8((__m512i)a, (__m512i)b));
}
INLINE NativeInt zip_shorts(NativeBytes a, NativeBytes b, bool upper) {
  return (NativeInt)(upper ? _mm512_unpackhi_epi16((__m512i)a, (__m512i)b) : _mm512_unpacklo_epi16((__m512i)a, (__m512i)b));
}
#elif defined(__AVX2__)
INLINE NativeBytes zip_bytes(NativeBytes a, NativeBytes b, bool upper) {
  return (NativeBytes)(upper ? _mm256_unpackhi_epi8((__m256i)a, (__m256i)b) : _mm256_unpacklo_epi8((__m256i)a, (__m256i)b));
}
#elif defined(__aarch64__)
INLINE NativeBytes zip_bytes(NativeBytes a, NativeBytes b, bool upper) {
  return (NativeBytes)(upper ? vzip2q_u8((uint8x16_t)a, (uint8x16_t)b) : vzip1q_u8((uint8x16_t)a, (uint8x16_t)b));
}
#else
INLINE NativeBytes zip_bytes(NativeBytes a, NativeBytes b, bool upper) {
  NativeBytes r;
  for (int i = 0; i < 8; ++i) r[2 * i] = a[i + 8 * upper], r[2 * i + 1] = b[i + 8 * upper];
  return r;
}
#endif

// A block's codes of STEP rows: lane 4 L + i of vector j holds those of column 16 L + 4 j + i.
INLINE void interleave(const NativeBytes (&rows)[STEP], NativeInt (&out)[4]) {
  NativeBytes lower = zip_bytes(rows[0], rows[1], false), upper = zip_bytes(rows[0], rows[1], true);
#if defined(__AVX512VNNI__)
  NativeBytes more = zip_bytes(rows[2], rows[3], false), most = zip_bytes(rows[2], rows[3], true);
  out[0] = zip_shorts(lower, more, false), out[1] = zip_shorts(lower, more, true);
  out[2] = zip_shorts(upper, most, false), out[3] = zip_shorts(upper, most, true);
#else
  NativeBytes zero = {};
  out[0] = (NativeInt)zip_bytes(lower, zero, false), out[1] = (NativeInt)zip_bytes(lower, zero, true);
  out[2] = (NativeInt)zip_bytes(upper, zero, false), out[3] = (NativeInt)zip_bytes(upper, zero, true);
#endif
}

// Stores what `interleave` has spread over four vectors, `panels` times sixteen numbers.
INLINE void store_block(float* out, const Native (&v)[4], int panels) {
  UNROLL for (int panel = 0; panel < BLOCK_PANELS; ++panel) {
    if (panel >= panels) return;
    UNROLL for (int j = 0; j < 4; ++j) __builtin_memcpy(out + panel * LANES + 4 * j, (const char*)&v[j] + panel * 16, 16);
  }
}

// x [depth] ~ scale * values, which take 2 * depth bytes; returns the scale, NaN where a number is none.
INLINE float round_row(const float* x, int depth, int8_t* values) {
  uint32_t bits = 0;
  for (int i = 0; i < depth; i += 2 * LANES) {
    uint32_t some = largest_magnitude(load(x + i), load(x + i + (i + LANES < depth ? LANES : 0)));
    bits = some > bits ? some : bits;
  }
  Rounding rounding = rounding_to(bits, CODE_LEVELS);
  for (int i = 0; i < depth; i += LANES) {
    Ints whole = round_to_int(load(x + i), rounding);
    if (WIDE_QUADS) {
      Ints high = shift_right(add(whole, broadcast_int(128)), 8);
      store_bytes((uint8_t*)values + i, high), store_bytes((uint8_t*)values + depth + i, whole);
    } else {
      store_shorts((int16_t*)values + i, whole);
    }
  }
  return rounding.scale;
}

// out[r][column] = scales[r] * (sum over k of values[r][k] * codes[k][column]) + more[r]
struct CodeProduct {
  const uint8_t* codes;  // [depth][columns]
  int depth, columns;    // multiples of 16
  const int8_t* values;  // [rows][2 depth], of round_row
  const float *scales, *more;
  float* out;
  ptrdiff_t out_row;
  Ahead ahead;
};

// source(step): a block's codes of STEP rows.
template <int R, class Source>
INLINE void code_tile(const CodeProduct& p, int row, int column, int panels, const Source& source) {
  ptrdiff_t depth = p.depth;
  const int8_t* x = p.values + row * 2 * depth;
  NativeInt sums[R][4], low[R][4];
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int j = 0; j < 4; ++j) sums[r][j] = low[r][j] = NativeInt{};
  }
  for (int step = 0; step < depth / STEP; ++step) {
    NativeInt codes[4];
    source(step, codes);
    UNROLL for (int r = 0; r < R; ++r) {
      const int8_t* at = x + r * 2 * depth + 4 * step;
      UNROLL for (int j = 0; j < 4; ++j) {
#if defined(__AVX512VNNI__)
        sums[r][j] = dot8(sums[r][j], codes[j], native_word(at));
        low[r][j] = dot8(low[r][j], codes[j], native_word(at + depth));
#else
        NativeInt sum = dot16(sums[r][j], codes[j], native_word(at));
        PITSTOP_PIN(sum);
        sums[r][j] = sum;
#endif
      }
    }
  }
  UNROLL for (int r = 0; r < R; ++r) {
    Native scale = p.scales[row + r] - Native{}, more = p.more[row + r] - Native{}, out[4];
    UNROLL for (int j = 0; j < 4; ++j) {
      NativeInt sum = WIDE_QUADS ? sums[r][j] * 256 + low[r][j] : sums[r][j];
      out[j] = fma_native(__builtin_convertvector(sum, Native), scale, more);
    }
    store_block(p.out + (row + r) * p.out_row + column, out, panels);
  }
}

template <class Source, int R = CODE_ROWS>
INLINE void code_rows(const CodeProduct& p, int row, int rows, int column, int panels, const Source& source) {
  if (rows >= R) return code_tile<R>(p, row, column, panels, source);
  if constexpr (R > 1) code_rows<Source, R - 1>(p, row, rows, column, panels, source);
}

// A block after the other. The first rows take its codes apart, asking for their share of what comes next, and keep them for the others.
template <int BITS, bool ALIGNED>
__attribute__((noinline)) void multiply_blocks(const CodeProduct& p, int rows, char* kept) {
  Codes<BITS> codes{p.codes, (ptrdiff_t)p.depth * p.columns};
  ptrdiff_t columns = p.columns;
  Ahead ahead = p.ahead;
  int steps = p.depth / STEP, blocks = (p.columns + BLOCK - 1) / BLOCK, share = (ahead.rows + steps * blocks - 1) / (steps * blocks);
  for (int block = 0; block < blocks; ++block) {
    int column = block * BLOCK, left = (p.columns - column) / LANES, panels = left < BLOCK_PANELS ? left : BLOCK_PANELS;
    bool keeps = rows > CODE_ROWS;
    code_rows(p, 0, rows, column, panels, [&](int step, NativeInt (&out)[4]) {
      int asked = (block * steps + step) * share, asks = ahead.rows - asked < share ? ahead.rows - asked : share;
      for (int i = 0; i < asks; ++i)
        for (int line = 0; line < ahead.lines; ++line) __builtin_prefetch(ahead.data + (asked + i) * ahead.row + line * LINE, 0, 2);
      NativeBytes taken[STEP];
      UNROLL for (int i = 0; i < STEP; ++i) taken[i] = block_codes<ALIGNED>(codes, (step * STEP + i) * columns + column, panels);
      interleave(taken, out);
      if (!keeps) return;
      UNROLL for (int j = 0; j < 4; ++j) __builtin_memcpy(kept + (4 * step + j) * sizeof out[j], &out[j], sizeof out[j]);
    });
    auto again = [&](int step, NativeInt (&out)[4]) {
      UNROLL for (int j = 0; j < 4; ++j) __builtin_memcpy(&out[j], kept + (4 * step + j) * sizeof out[j], sizeof out[j]);
    };
    for (int row = CODE_ROWS; row < rows; row += CODE_ROWS) code_rows(p, row, rows - row, column, panels, again);
  }
}

template <int BITS>
INLINE void multiply_bits(const CodeProduct& p, int rows, char* kept) {
  if (p.columns % BLOCK == 0) return multiply_blocks<BITS, true>(p, rows, kept);
  multiply_blocks<BITS, false>(p, rows, kept);
}

// memory: 128 * depth bytes
INLINE void multiply_codes(int bits, const CodeProduct& p, int rows, void* memory) {
  char* kept = (char*)memory;
  switch (bits) {
    case 2: return multiply_bits<2>(p, rows, kept);
    case 3: return multiply_bits<3>(p, rows, kept);
    case 4: return multiply_bits<4>(p, rows, kept);
    case 5: return multiply_bits<5>(p, rows, kept);
    case 6: return multiply_bits<6>(p, rows, kept);
    case 7: return multiply_bits<7>(p, rows, kept);
    default: return multiply_bits<8>(p, rows, kept);
  }
}

}  // namespace
