// How the keys or the values of one head lie in a sealed segment: ops/attention/layout.py, in integers. Static functions: each
// instruction set has its own copies, which the linker must not merge.
#pragma once

#include <cstddef>
#include <cstdint>

enum class Ranges : int { none = 0, channel = 1, token = 2, segment = 3 };
enum class Coding : int { absolute = 0, closed = 1, open = 2 };

struct Plane {
  int bits;  // 32 and 16: floating point, 2 to 8: codes
  Ranges ranges;
  Coding coding;
};

static inline bool is_float(Plane plane) { return plane.bits >= 16; }

static inline size_t code_bytes(Plane plane, int head_dim) { return (size_t)16 * head_dim * plane.bits; }

// How many fp16 scales, and zeros.
static inline int scale_count(Plane plane, int head_dim) {
  return plane.ranges == Ranges::channel ? head_dim : plane.ranges == Ranges::token ? 128 : plane.ranges == Ranges::segment ? 1 : 0;
}
static inline int zero_count(Plane plane, int head_dim) {
  return plane.coding == Coding::absolute ? scale_count(plane, head_dim) : head_dim;
}

static inline size_t plane_bytes(Plane plane, int head_dim) {
  size_t ranges = 2 * (size_t)(scale_count(plane, head_dim) + zero_count(plane, head_dim));
  return (code_bytes(plane, head_dim) + ranges + 15) / 16 * 16;
}

struct Layout {
  Plane keys, values;
  int lead;  // bits of a stream's first segment, which then takes two pages; 0: it is like the others
};

// The keys or the values of a stream's first segment.
static inline Plane first_plane(const Layout& layout, Plane plane) {
  return Plane{layout.lead ? layout.lead : plane.bits, plane.ranges, plane.coding};
}
