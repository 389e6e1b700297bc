// Weights kept in the precision they were stored in, and the activations they are multiplied by.
//
// A matrix [columns][depth] (columns are outputs, depth is a multiple of 32) is cut into panels of 16 columns, each into groups of 32
// inputs. In a group of q4 come 16 fp16 scales, 16 fp16 minima and 4 times 64 bytes of nibbles: 32-bit lane c of part i belongs to column
// c; nibble j of its low half is input 8i + 2j, nibble j of its high half is input 8i + 2j + 1. So one shift and mask give the 16-bit
// pairs that a multiply-add wants, and as bytes the same lane holds inputs 8i + {0, 4, 1, 5} (low nibbles) and 8i + {2, 6, 3, 7}.
// A group of q8: 16 fp16 scales, 8 times 64 bytes, lane c of part 2i holding inputs 8i + {0, 4, 1, 5} and of part 2i + 1 8i + {2, 6, 3, 7}.
// int8: the same without the scales; a panel begins with 16 fp32 scales instead.
#pragma once

#include <cstddef>
#include <cstdint>

constexpr int GROUP = 32;

enum class Weights : int { q4 = 0, q8 = 1, int8 = 2 };
enum class Precision : int { int16 = 0, int8 = 1, fp32 = 2 };  // of activations

inline ptrdiff_t group_bytes(Weights kind) { return kind == Weights::q4 ? 320 : kind == Weights::q8 ? 544 : 512; }
inline ptrdiff_t panel_bytes(Weights kind, int depth) {
  return (kind == Weights::int8 ? 64 : 0) + depth / GROUP * group_bytes(kind);
}

// A tile's rows, quantised group by group: x ~ scale * value with |value| <= 32767 (or 127), every group with a scale of its own.
struct Activations {
  void* values;      // [groups][rows][32]: int16, or int8 where `bytes`, in the order in which lanes hold inputs
  float* scales;     // [groups][rows]; NaN where the group holds an infinity or NaN, whose values are then 0
  float* sums;       // [groups][rows]: scale * sum of values
  int32_t* offsets;  // [groups][rows]: -128 * sum of values
  int rows;          // at most Kernels::packed_rows
  bool bytes;
};

// What a task computes: a tile's rows times some panels.
struct PackedTask {
  Weights kind;
  const uint8_t* panels;
  int depth, columns;  // columns may end within the last panel
  float* out;          // [rows][out_row]
  ptrdiff_t out_row;
};

inline size_t fp32_scratch(int rows) { return 16 * ((size_t)GROUP + rows); }  // floats
