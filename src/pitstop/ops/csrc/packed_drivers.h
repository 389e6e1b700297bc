// Packing from a model file's own blocks, and products of packed weights, on the pool. Layouts: packed.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pitstop {

// GGUF's, of 32 or (_k) 256 weights; q4_f is q4_1 with fp32 numbers.
enum class Blocks : int { q4_0 = 0, q4_1 = 1, q8_0 = 2, q5_0 = 3, q5_1 = 4, q4_f = 5, q4_k = 6, q5_k = 7, q6_k = 8 };

int64_t packed_panel_bytes(int kind, int depth);

// `rows` stored rows become the columns [first, first + rows) of the zero-filled `out`. False, with `out` unusable, when a value cannot be
// kept exactly: a q4_0 scale of 8192 or more (q5_0: 4096), whose minimum would overflow fp16.
bool pack_blocks(int format, const uint8_t* source, int rows, int depth, int first, uint8_t* out);
// values [rows][depth], scales [rows]
void pack_int8(const int8_t* values, const float* scales, int rows, int depth, uint8_t* out);

// x [rows][depth] -> out [rows][columns], rows out_row floats apart
void packed_linear(const float* x, ptrdiff_t x_row, int rows, int kind, const uint8_t* w, int depth, int columns, int precision, float* out,
                   ptrdiff_t out_row);

}  // namespace pitstop
