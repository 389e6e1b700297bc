// The one matrix micro-kernel: rows of activations times panels of 16 columns, each output one chain of fused multiply-adds over
// ascending k. The tile's shape follows the register file and never changes a bit, since outputs do not mix.
#pragma once

#include "kernels.h"
#include "vec.h"

namespace {

// C panels of elements as fp32, `panel` elements apart, the first at element `at`.
template <int C, class W>
INLINE void load_panels(const W* w, ptrdiff_t at, ptrdiff_t panel, Vec* out) {
  UNROLL for (int c = 0; c < C; ++c) out[c] = load(w + at + c * panel);
}
// A part of one panel, where it costs no more than in company.
template <class W>
constexpr bool HAS_PARTS = false;
template <>
constexpr bool HAS_PARTS<float> = true;
template <>
constexpr bool HAS_PARTS<Half> = true;
template <class W>
INLINE Native panel_part(const W* w, ptrdiff_t at, int part) {
  return load_part(w + at, part);
}

// out[r][16 p + lane] = sum over k of x[r][k] * w[k][p][lane]. With `resume` the chains go on from what `out` holds.
// PANEL: elements between panels; 0: as many as w_panel says, for which every tile computes addresses.
template <class W, int PANEL = LANES>
struct Product {
  using Weights = W;
  const float* x;
  ptrdiff_t x_row;  // floats between rows
  const W* w;
  ptrdiff_t w_k;  // elements between steps of k
  int depth;      // steps of k
  float* out;
  ptrdiff_t out_row;
  bool resume;
  ptrdiff_t w_first = 0;  // element of the first step's first panel
  Ahead ahead = {};
  ptrdiff_t w_panel = 0;

  ptrdiff_t panel() const { return PANEL ? PANEL : w_panel; }
};

constexpr int ACCUMULATORS = REGISTERS == 32 ? 24 : 12;                                    // native registers for sums
constexpr int TILE_ROWS = ACCUMULATORS / PARTS >= 12 ? 12 : ACCUMULATORS / PARTS;          // most rows of one tile
constexpr int tile_panels(int rows) {
  int fit = ACCUMULATORS / (PARTS * rows);
  return fit >= 8 ? 8 : fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

// Adds one step's products; x: its first activation, at: its first panel's element.
template <int R, int C, class P>
INLINE void multiply_step(const P& a, const float* x, ptrdiff_t at, Vec (&sums)[R][C]) {
  if constexpr (HAS_PARTS<typename P::Weights> && R < C * PARTS) {  // the activations take fewer registers than the weights: hold those
    UNROLL for (int i = 0; i < C * PARTS; ++i) {
      Native weights = panel_part(a.w, at + i / PARTS * a.panel(), i % PARTS);
      UNROLL for (int r = 0; r < R; ++r) {
        Native& sum = sums[r][i / PARTS].part[i % PARTS];
        sum = fma_native(x[r * a.x_row] - Native{}, weights, sum);
      }
    }
  } else {
    Vec weights[C];
    load_panels<C>(a.w, at, a.panel(), weights);
    UNROLL for (int r = 0; r < R; ++r) {
      Vec activation = broadcast(x[r * a.x_row]);
      UNROLL for (int c = 0; c < C; ++c) sums[r][c] = fma(activation, weights[c], sums[r][c]);
    }
  }
}

// asks: rows of a.ahead, from row `asked` on, that the tile asks for: so many at each step that bursts do not wait for each other.
template <int R, int C, class P>
INLINE void tile(const P& a, int row, int panel, int asked, int asks) {
  const float* x = a.x + row * a.x_row;
  ptrdiff_t at = a.w_first + panel * a.panel();
  float* out = a.out + row * a.out_row + panel * LANES;
  Vec sums[R][C];
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int c = 0; c < C; ++c) sums[r][c] = a.resume ? load(out + r * a.out_row + c * LANES) : broadcast(0.0f);
  }
  int k = 0;
  if (asks) {
    int share = (asks + a.depth - 1) / a.depth, steps = asks / share;  // what is left over, less than a share, is not asked for
    const uint8_t* next = a.ahead.data + asked * a.ahead.row;
    for (; k < steps; ++k, at += a.w_k) {
      for (int i = 0; i < share; ++i, next += a.ahead.row)
        for (int line = 0; line < a.ahead.lines; ++line) __builtin_prefetch(next + line * LINE, 0, 2);
      multiply_step<R, C>(a, x + k, at, sums);
    }
  }
  for (; k + 4 <= a.depth; k += 4) {
    UNROLL for (int i = 0; i < 4; ++i, at += a.w_k) multiply_step<R, C>(a, x + k + i, at, sums);
  }
  for (; k < a.depth; ++k, at += a.w_k) multiply_step<R, C>(a, x + k, at, sums);
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int c = 0; c < C; ++c) store(out + r * a.out_row + c * LANES, sums[r][c]);
  }
}

// Panels outside, rows inside: the panels of a tile stay in the nearest cache for all rows. What is left after the widest tiles goes
// through ever narrower ones. The first tile of each panel asks for its share of what comes next.
template <int R, int C, class P>
INLINE void sweep_from(const P& a, int first_row, int last_row, int panel, int panels) {
  int ahead = first_row ? 0 : a.ahead.rows;
  for (; panel + C <= panels; panel += C) {
    int asked = ahead * panel / panels, asks = ahead * (panel + C) / panels - asked;
    for (int row = first_row; row < last_row; row += R, asks = 0) tile<R, C>(a, row, panel, asked, asks);
  }
  if constexpr (C > 1) sweep_from<R, C / 2>(a, first_row, last_row, panel, panels);
}

template <int R, class P>
__attribute__((noinline)) void sweep(const P& a, int first_row, int last_row, int panels) {
  sweep_from<R, tile_panels(R)>(a, first_row, last_row, 0, panels);
}

template <int R, class P>
INLINE void rest(const P& a, int first_row, int rows, int panels) {
  if constexpr (R > 0) {
    if (rows == R) return sweep<R>(a, first_row, first_row + R, panels);
    rest<R - 1>(a, first_row, rows, panels);
  }
}

template <class P>
INLINE void multiply(const P& a, int rows, int panels) {
  int whole = rows / TILE_ROWS * TILE_ROWS;
  if (whole) sweep<TILE_ROWS>(a, 0, whole, panels);
  rest<TILE_ROWS - 1>(a, whole, rows - whole, panels);
}

}  // namespace
