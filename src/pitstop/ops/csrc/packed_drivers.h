// Packing from a model file's own blocks, and products of packed weights, on the pool. Layouts: packed.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pitstop {

enum class Blocks : int { q4_0 = 0, q4_1 = 1, q8_0 = 2 };  // GGUF's, 32 weights each

int64_t packed_panel_bytes(int kind, int depth);

// `rows` stored rows become the columns [first, first + rows) of the zero-filled `out`. False, with `out` unusable, when a value cannot be
// kept exactly: a q4_0 scale of 8192 or more, whose minimum would overflow fp16.
bool pack_blocks(int format, const uint8_t* source, int rows, int depth, int first, uint8_t* out);
// values [rows][depth], scales [rows]
void pack_int8(const int8_t* values, const float* scales, int rows, int depth, uint8_t* out);

// x [rows][depth] -> out [rows][columns]
void packed_linear(const float* x, ptrdiff_t x_row, int rows, int kind, const uint8_t* w, int depth, int columns, int precision, float* out);
// The dequantised weights of outputs ids[i] -> out [count][depth]. Throws std::out_of_range.
void packed_rows(int kind, const uint8_t* w, int depth, int columns, const int64_t* ids, int count, float* out);

}  // namespace pitstop
