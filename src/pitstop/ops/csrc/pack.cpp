// From GGUF blocks to panels (packed.h), a panel at a time, exactly.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels.h"
#include "packed_drivers.h"
#include "pool.h"

namespace pitstop {
namespace {

constexpr int LANES = 16;
constexpr int BLOCK_BYTES[] = {18, 20, 34};
constexpr int INPUT_ORDER[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // which of eight inputs the bytes of two successive parts hold

// -8 * d of an fp16 in bits; false where it would overflow.
bool minus_eight_times(uint16_t d, uint16_t* out) {
  int sign = ~d & 0x8000, exponent = d >> 10 & 31, mantissa = d & 1023;
  if (exponent >= 28) return false;
  if (exponent > 0) {
    exponent += 3;
  } else {  // mantissa * 2^-24, times 8
    mantissa *= 8;
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

bool pack_q4(const uint8_t* block, bool with_minimum, uint8_t* group, int lane) {
  uint16_t scale, minimum;
  std::memcpy(&scale, block, 2);
  if (with_minimum)
    std::memcpy(&minimum, block + 2, 2);
  else if (!minus_eight_times(scale, &minimum))
    return false;
  put_half(group, lane, scale);
  put_half(group, LANES + lane, minimum);
  const uint8_t* nibbles = block + (with_minimum ? 4 : 2);  // byte i: input i low, input i + 16 high
  for (int part = 0; part < 4; ++part) {
    uint64_t bytes;
    std::memcpy(&bytes, nibbles + part % 2 * 8, 8);
    bytes = bytes >> part / 2 * 4 & 0x0f0f0f0f0f0f0f0f;  // eight inputs, one a byte
    uint64_t even = bytes & 0x000f000f000f000f, odd = bytes >> 8 & 0x000f000f000f000f;
    auto gather = [](uint64_t v) { return (uint32_t)((v | v >> 12 | v >> 24 | v >> 36) & 0xffff); };
    uint32_t word = gather(even) | gather(odd) << 16;
    std::memcpy(group + 64 + part * 64 + lane * 4, &word, 4);
  }
  return true;
}

void put_bytes(const int8_t* values, uint8_t* parts, int lane) {
  for (int part = 0; part < 8; ++part)
    for (int i = 0; i < 4; ++i) parts[part * 64 + lane * 4 + i] = (uint8_t)values[part / 2 * 8 + INPUT_ORDER[part % 2 * 4 + i]];
}

}  // namespace

int64_t packed_panel_bytes(int kind, int depth) { return panel_bytes((Weights)kind, depth); }

bool pack_blocks(int format, const uint8_t* source, int rows, int depth, int first, uint8_t* out) {
  Blocks blocks = (Blocks)format;
  Weights kind = blocks == Blocks::q8_0 ? Weights::q8 : Weights::q4;
  int groups = depth / GROUP, first_panel = first / LANES, panels = (first + rows + LANES - 1) / LANES - first_panel;
  int64_t row_bytes = (int64_t)groups * BLOCK_BYTES[format];
  std::atomic<bool> exact{true};
  parallel(panels, [&](int task) {
    int panel = first_panel + task, from = std::max(first, panel * LANES), to = std::min(first + rows, (panel + 1) * LANES);
    uint8_t* base = out + panel * panel_bytes(kind, depth);
    for (int column = from; column < to; ++column) {
      const uint8_t* block = source + (column - first) * row_bytes;
      int lane = column % LANES;
      for (int g = 0; g < groups; ++g, block += BLOCK_BYTES[format]) {
        uint8_t* group = base + g * group_bytes(kind);
        if (kind == Weights::q4) {
          if (!pack_q4(block, blocks == Blocks::q4_1, group, lane)) exact.store(false, std::memory_order_relaxed);
        } else {
          std::memcpy(group + lane * 2, block, 2);
          put_bytes((const int8_t*)block + 2, group + 32, lane);
        }
      }
    }
  });
  return exact;
}

void pack_int8(const int8_t* values, const float* scales, int rows, int depth, uint8_t* out) {
  parallel((rows + LANES - 1) / LANES, [&](int panel) {
    uint8_t* base = out + panel * panel_bytes(Weights::int8, depth);
    for (int column = panel * LANES; column < std::min(rows, (panel + 1) * LANES); ++column) {
      std::memcpy(base + column % LANES * 4, scales + column, 4);
      for (int g = 0; g < depth / GROUP; ++g)
        put_bytes(values + (int64_t)column * depth + g * GROUP, base + 64 + g * group_bytes(Weights::int8), column % LANES);
    }
  });
}

}  // namespace pitstop
