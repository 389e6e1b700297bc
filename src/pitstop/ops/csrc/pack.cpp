// From stored blocks to panels (packed.h), a panel at a time, exactly.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels.h"
#include "packed_drivers.h"
#include "pool.h"

namespace pitstop {
namespace {

constexpr int LANES = 16, NESTED = 8;                     // groups of a nested block
constexpr int INPUT_ORDER[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // which of eight inputs the bytes of two successive parts hold

struct BlockForm {
  Weights kind;
  int bytes, groups;
};
BlockForm form_of(Blocks blocks) {
  switch (blocks) {
    case Blocks::q4_0: return {Weights::q4, 18, 1};
    case Blocks::q4_1: return {Weights::q4, 20, 1};
    case Blocks::q8_0: return {Weights::q8, 34, 1};
    case Blocks::q5_0: return {Weights::q5, 22, 1};
    case Blocks::q5_1: return {Weights::q5, 24, 1};
    case Blocks::q4_f: return {Weights::q4f, 24, 1};
    case Blocks::q4_k: return {Weights::q4k, 144, NESTED};
    case Blocks::q5_k: return {Weights::q5k, 176, NESTED};
    default: return {Weights::q6k, 210, NESTED};
  }
}

// -2^power * d of an fp16 in bits; false where it would overflow.
bool minus_times(int power, uint16_t d, uint16_t* out) {
  int sign = ~d & 0x8000, exponent = d >> 10 & 31, mantissa = d & 1023;
  if (exponent + power >= 31) return false;
  if (exponent > 0) {
    exponent += power;
  } else {  // mantissa * 2^-24, times 2^power
    mantissa <<= power;
    if (mantissa >= 1024) {
      exponent = 1;
      for (; mantissa >= 2048; mantissa /= 2) ++exponent;
      mantissa -= 1024;
    }
  }
  *out = (uint16_t)(sign | exponent << 10 | mantissa);
  return true;
}

void put_half(uint8_t* group, int lane, uint16_t bits) { std::memcpy(group + lane * 2, &bits, 2); }

// Codes of 4 + MORE bits, one a byte.
template <int MORE>
void put_codes(const uint8_t* codes, uint8_t* out, int lane) {
  uint8_t more[2][4] = {};
  for (int part = 0; part < 4; ++part) {
    uint64_t bytes;
    std::memcpy(&bytes, codes + part * 8, 8);
    uint64_t even = bytes & 0x000f000f000f000f, odd = bytes >> 8 & 0x000f000f000f000f;
    auto gather = [](uint64_t v) { return (uint32_t)((v | v >> 12 | v >> 24 | v >> 36) & 0xffff); };
    uint32_t word = gather(even) | gather(odd) << 16;
    std::memcpy(out + part * 64 + lane * 4, &word, 4);
    if constexpr (MORE > 0) {
      constexpr int FIELDS = 4 / MORE;  // parts of one vector
      for (int i = 0; i < 8; ++i)
        more[part / FIELDS][i % 4] |= codes[part * 8 + INPUT_ORDER[i]] >> 4 << MORE * (part % FIELDS * 2 + i / 4);
    }
  }
  for (int vector = 0; vector < MORE; ++vector) std::memcpy(out + 256 + vector * 64 + lane * 4, more[vector], 4);
}

void put_bytes(const int8_t* values, uint8_t* parts, int lane) {
  for (int part = 0; part < 8; ++part)
    for (int i = 0; i < 4; ++i) parts[part * 64 + lane * 4 + i] = (uint8_t)values[part / 2 * 8 + INPUT_ORDER[part % 2 * 4 + i]];
}

// Byte i of the nibbles: input i low, input i + 16 high; bit i of the 32 further ones, where there are, belongs to input i.
void unpack_nibbles(const uint8_t* nibbles, const uint8_t* further, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) codes[i] = nibbles[i] & 15, codes[i + 16] = nibbles[i] >> 4;
  if (further)
    for (int i = 0; i < GROUP; ++i) codes[i] |= (further[i / 8] >> i % 8 & 1) << 4;
}

// q4_0, q4_1, q5_0, q5_1: fp16 scale, for _1 fp16 minimum, for 5 bits 32 further bits, nibbles. For _0 the minimum is -2^(bits - 1) scales.
bool pack_affine(Blocks blocks, const uint8_t* block, uint8_t* group, int lane) {
  bool with_minimum = blocks == Blocks::q4_1 || blocks == Blocks::q5_1, five = blocks == Blocks::q5_0 || blocks == Blocks::q5_1;
  uint16_t scale, minimum;
  std::memcpy(&scale, block, 2);
  if (with_minimum)
    std::memcpy(&minimum, block + 2, 2);
  else if (!minus_times(five ? 4 : 3, scale, &minimum))
    return false;
  put_half(group, lane, scale);
  put_half(group, LANES + lane, minimum);
  const uint8_t* codes_at = block + (with_minimum ? 4 : 2);
  uint8_t codes[GROUP];
  unpack_nibbles(codes_at + (five ? 4 : 0), five ? codes_at : nullptr, codes);
  if (five)
    put_codes<1>(codes, group + group_layout(Weights::q5).codes_at, lane);
  else
    put_codes<0>(codes, group + group_layout(Weights::q4).codes_at, lane);
  return true;
}

// fp32 scale, fp32 minimum, nibbles.
void pack_affine_fp32(const uint8_t* block, uint8_t* group, int lane) {
  std::memcpy(group + lane * 4, block, 4);
  std::memcpy(group + (LANES + lane) * 4, block + 4, 4);
  uint8_t codes[GROUP];
  unpack_nibbles(block + 8, nullptr, codes);
  put_codes<0>(codes, group + group_layout(Weights::q4f).codes_at, lane);
}

// q4_k, q5_k: fp16 d, fp16 dmin, twelve bytes with eight s and eight m of 6 bits; for 5 bits 32 bytes of which bit g belongs to group g;
// 128 bytes of nibbles, of which 32 hold a group low and the next one high.
void pack_nested(bool five, const uint8_t* block, uint8_t* out, int lane) {
  constexpr GroupLayout FOUR = group_layout(Weights::q4k), FIVE = group_layout(Weights::q5k);
  const uint8_t *packed = block + 4, *further = block + 16, *nibbles = block + (five ? 48 : 16);
  uint16_t d, dmin;
  std::memcpy(&d, block, 2);
  std::memcpy(&dmin, block + 2, 2);
  put_half(out, lane, d);
  put_half(out, LANES + lane, dmin ^ 0x8000);
  for (int g = 0; g < NESTED; ++g) {
    const uint8_t* low = packed + g % 4;
    uint8_t* numbers = out + 64 + g * 2 * LANES + lane;
    numbers[0] = g < 4 ? low[0] & 63 : (low[8] & 15) | low[0] >> 6 << 4;
    numbers[LANES] = g < 4 ? low[4] & 63 : low[8] >> 4 | low[4] >> 6 << 4;
    uint8_t codes[GROUP];
    for (int i = 0; i < GROUP; ++i)
      codes[i] = (nibbles[g / 2 * GROUP + i] >> g % 2 * 4 & 15) | (five ? further[i] >> g & 1 : 0) << 4;
    if (five)
      put_codes<1>(codes, out + FIVE.codes_at + g * FIVE.codes, lane);
    else
      put_codes<0>(codes, out + FOUR.codes_at + g * FOUR.codes, lane);
  }
}

// q6_k: 128 bytes of nibbles, 64 bytes of bit pairs, sixteen signed s, fp16 d. Of 128 inputs, the first 64 are in low nibbles.
void pack_q6k(const uint8_t* block, uint8_t* out, int lane) {
  constexpr GroupLayout LAYOUT = group_layout(Weights::q6k);
  uint16_t d;
  std::memcpy(&d, block + 208, 2);
  put_half(out, lane, d);
  for (int g = 0; g < NESTED; ++g) {
    const uint8_t *nibbles = block + g / 4 * 64 + g % 2 * GROUP, *pairs = block + 128 + g / 4 * GROUP;
    for (int half = 0; half < 2; ++half) out[64 + (g * 2 + half) * LANES + lane] = block[192 + g * 2 + half] + 128;
    uint8_t codes[GROUP];
    for (int i = 0; i < GROUP; ++i) codes[i] = (nibbles[i] >> g % 4 / 2 * 4 & 15) | (pairs[i] >> g % 4 * 2 & 3) << 4;
    put_codes<2>(codes, out + LAYOUT.codes_at + g * LAYOUT.codes, lane);
  }
}

// One block to its groups. False where a value cannot be kept.
bool pack_block(Blocks blocks, const uint8_t* block, uint8_t* out, int lane) {
  switch (blocks) {
    case Blocks::q8_0:
      put_half(out, lane, (uint16_t)(block[0] | block[1] << 8));
      put_bytes((const int8_t*)block + 2, out + group_layout(Weights::q8).codes_at, lane);
      return true;
    case Blocks::q4_f: return pack_affine_fp32(block, out, lane), true;
    case Blocks::q4_k:
    case Blocks::q5_k: return pack_nested(blocks == Blocks::q5_k, block, out, lane), true;
    case Blocks::q6_k: return pack_q6k(block, out, lane), true;
    default: return pack_affine(blocks, block, out, lane);
  }
}

}  // namespace

int64_t packed_panel_bytes(int kind, int depth) { return panel_bytes((Weights)kind, depth); }

bool pack_blocks(int format, const uint8_t* source, int rows, int depth, int first, uint8_t* out) {
  BlockForm form = form_of((Blocks)format);
  int count = depth / GROUP / form.groups, first_panel = first / LANES, panels = (first + rows + LANES - 1) / LANES - first_panel;
  std::atomic<bool> exact{true};
  parallel(panels, [&](int task) {
    int panel = first_panel + task, from = std::max(first, panel * LANES), to = std::min(first + rows, (panel + 1) * LANES);
    uint8_t* base = out + panel * panel_bytes(form.kind, depth);
    for (int column = from; column < to; ++column) {
      const uint8_t* block = source + (int64_t)(column - first) * count * form.bytes;
      for (int i = 0; i < count; ++i, block += form.bytes)
        if (!pack_block((Blocks)format, block, base + (int64_t)i * group_layout(form.kind).size, column % LANES))
          exact.store(false, std::memory_order_relaxed);
    }
  });
  return exact;
}

void pack_int8(const int8_t* values, const float* scales, int rows, int depth, uint8_t* out) {
  constexpr GroupLayout LAYOUT = group_layout(Weights::int8);
  parallel((rows + LANES - 1) / LANES, [&](int panel) {
    uint8_t* base = out + panel * panel_bytes(Weights::int8, depth);
    for (int column = panel * LANES; column < std::min(rows, (panel + 1) * LANES); ++column) {
      std::memcpy(base + column % LANES * 4, scales + column, 4);
      for (int g = 0; g < depth / GROUP; ++g)
        put_bytes(values + (int64_t)column * depth + g * GROUP, base + panel_header(Weights::int8) + g * LAYOUT.size, column % LANES);
    }
  });
}

}  // namespace pitstop
