// The table of single-threaded kernels that each instruction set fills. The drivers (drivers.h) split work and call them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "packed.h"
#include "planes.h"

constexpr int LINE = 64;  // bytes of a cache line

// Memory that will be read soon and may be asked for already: rows of so many lines, so many bytes apart.
struct Ahead {
  const uint8_t* data;
  int rows, lines;
  ptrdiff_t row;
};

// What is read of a plane for the tokens [0, seen). transposed: it holds keys.
static inline Ahead ahead_of(Plane plane, const uint8_t* data, int head_dim, bool transposed, int seen) {
  auto lines = [](size_t bytes) { return (int)((bytes + LINE - 1) / LINE); };
  if (!is_float(plane)) return {data, lines(plane_bytes(plane, head_dim)), 1, LINE};
  int size = plane.bits / 8;
  return transposed ? Ahead{data, head_dim, lines((size_t)seen * size), (ptrdiff_t)128 * size}
                    : Ahead{data, lines((size_t)seen * head_dim * size), 1, LINE};
}

// A block of query vectors against one 128-token segment of one KV head. Vector i sees the segment's tokens low[i] <= t < high[i];
// what lies outside is never looked at: it may hold any bit pattern.
struct SegmentBlock {
  const float* q;  // [count][head_dim]
  int count;
  const int* low;
  const int* high;
  const uint8_t* keys;  // [head_dim][128], transposed
  Plane key_plane;
  const uint8_t* values;  // [128][head_dim]
  Plane value_plane;
  int head_dim;
  const float* scale;    // [count]
  const float* softcap;  // [count], 0: none
  float* scratch;        // segment_scratch(count, head_dim) floats
  Ahead next;            // the keys that will be read after this segment's
};

// Softmax numerators: largest score, sum of exp(score - largest), sum of exp(score - largest) * value. `total` is 0 where nothing is seen.
struct Partial {
  float* largest;  // [count]
  float* total;    // [count]
  float* values;   // [count][head_dim]
};

constexpr int GAP = 16;  // floats after each row of many, which would else all lie in the same few sets of the nearest cache
constexpr int SCORE_ROW = 128 + GAP;  // floats from one vector's scores to the next one's
// Scores, scaled queries, two numbers for each, queries or weights as 16 bits, and a plane as fp32.
static inline size_t segment_scratch(int count, int head_dim) {
  size_t longer = head_dim > 128 ? head_dim : 128, plane = 128 * (size_t)head_dim + longer * GAP;
  return (size_t)count * (SCORE_ROW + head_dim + longer / 2) + (count + 15) / 16 * 32 + plane;
}
// A plane as fp32 twice, and its codes twice.
static inline size_t encode_scratch(int head_dim) { return 128 * (size_t)head_dim * 5 / 2; }

// Rows of gates and of what they are multiplied by, so many floats apart; up_row 0: one row for all.
struct GateUp {
  const float* gate;
  ptrdiff_t gate_row;
  const float* up;
  ptrdiff_t up_row;
  int rows, features;
};

// Of a floating-point panel.
enum class Floats : int { fp32 = 0, fp16 = 1, bf16 = 2 };

struct Kernels {
  const char* name;
  int packed_rows;  // of the largest tile of packed_linear
  bool fma;         // false: fused multiply-adds are emulated, exact but slow
  // x [rows][depth] * packed panels [panels][depth][16] -> out [rows][columns], columns <= 16 panels
  void (*linear)(const float* x, ptrdiff_t x_row, int rows, Floats kind, const void* w, int depth, int panels, int columns, float* out,
                 ptrdiff_t out_row);
  // Packed weights (packed.h) times a tile of quantised rows, or rows as they are; groups dequantised to [32][16]; a tile's rows quantised
  void (*packed_linear)(const PackedTask& task, const Activations& x);
  void (*packed_linear_fp32)(const PackedTask& task, const float* x, ptrdiff_t x_row, int rows, float* scratch);  // of fp32_scratch
  void (*dequantize_group)(Weights kind, const uint8_t* panel, int group, float* out);
  void (*quantize)(const float* x, ptrdiff_t x_row, int depth, float levels, const Activations& out);
  Form (*form)(Weights kind, Precision precision, int rows);  // that activations should have, in tiles of so many rows at most
  // One column of a floating-point panel -> out [depth]
  void (*linear_row)(Floats kind, const void* panel, int depth, int lane, float* out);
  void (*rms_norm)(const float* x, ptrdiff_t x_row, int rows, const float* weight, int dim, float eps, float* out);
  void (*layer_norm)(const float* x, ptrdiff_t x_row, int rows, const float* weight, const float* bias, int dim, float eps, float* out);
  void (*silu_mul)(const GateUp& x, float* out);
  void (*gelu_tanh_mul)(const GateUp& x, float* out);
  void (*gelu_erf_mul)(const GateUp& x, float* out);
  void (*softcap)(const float* x, float cap, ptrdiff_t count, float* out);
  // One row: x [heads][head_dim], cos and sin [head_dim / 2]
  void (*rotate)(const float* x, const float* cos, const float* sin, int heads, int head_dim, bool interleaved, float* out);
  // x [heads][dim], dim a power of two -> each head's Walsh-Hadamard transform / sqrt(dim)
  void (*hadamard)(const float* x, int heads, int dim, float* out);
  // One row of one KV head into a tail at token offset `at`: keys [head_dim][128], values [128][head_dim]
  void (*append)(const float* k, const float* v, void* keys, void* values, bool half, int head_dim, int at);
  // Keys (transposed) or values of one head of a tail into a page; memory: encode_scratch(head_dim) floats
  void (*encode_plane)(const void* tail, bool half, bool transposed, Plane plane, int head_dim, uint8_t* out, float* memory);
  void (*attend_segment)(const SegmentBlock& block, const Partial& out);
  // Merges `more` partials into the first, in order; their arrays lie `stride` floats apart, each behind the one before
  void (*merge)(const Partial& first, ptrdiff_t stride, int more, int count, int head_dim);
  // state -> out[i] = values / total, zeros where nothing was seen; row i goes to out + offsets[i]
  void (*finish)(const Partial& state, int count, int head_dim, float* out, const ptrdiff_t* offsets);
  void (*exp)(const float* x, float* out, ptrdiff_t count);  // for draws from logits
  float (*sum)(const float* x, ptrdiff_t count);             // reads memory as fast as it comes: the bench's ceiling
};

extern const Kernels kernels_portable;
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
extern const Kernels kernels_avx512vnni;
extern const Kernels kernels_neon;
