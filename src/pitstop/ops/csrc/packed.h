// Weights kept in the precision they were stored in, and the activations they are multiplied by.
//
// A matrix [columns][depth] (columns are outputs, depth is a multiple of 32) is cut into panels of 16 columns, each into groups of 32
// inputs. In a group come 16 scales, for some kinds 16 minima, and the codes.
//
// Codes of 4 bits are 4 times 64 bytes: 32-bit lane c of part i belongs to column c; nibble j of its low half is input 8i + 2j, nibble j
// of its high half is input 8i + 2j + 1. So one shift and mask give the 16-bit pairs that a multiply-add wants, and as bytes the same lane
// holds inputs 8i + {0, 4, 1, 5} (low nibbles) and 8i + {2, 6, 3, 7}. Codes of 5 and 6 bits are followed by 64 bytes for each bit more:
// byte b of a lane holds the further bits of what byte b of the parts holds, low nibble first, part after part from the lowest bit on.
// Codes of 8 bits: 8 times 64 bytes, lane c of part 2i holding inputs 8i + {0, 4, 1, 5} and of part 2i + 1 8i + {2, 6, 3, 7}.
//
// q4, q5: fp16 scales, fp16 minima, codes. q4f: the same in fp32. q8: fp16 scales, codes. int8: codes; 16 fp32 scales begin the panel.
// q4k, q5k: eight groups lie together, 16 fp16 d and 16 fp16 -dmin, then 16 bytes s and 16 bytes m for each group, then the groups' codes;
// scale = s * d, minimum = m * -dmin, both exact in fp32. q6k: 16 fp16 d, 32 bytes unused, 16 bytes s + 128 for each half of a group, codes
// of 6 bits; scale of a half = s * d, and 32 is taken from each code.
#pragma once

#include <cstddef>
#include <cstdint>

constexpr int GROUP = 32;

enum class Weights : int { q4 = 0, q8 = 1, int8 = 2, q5 = 3, q4f = 4, q4k = 5, q5k = 6, q6k = 7 };
enum class Precision : int { int16 = 0, int8 = 1, fp32 = 2 };  // of activations

// How a group's 32 values lie: int16; int8 in the order in which lanes hold inputs; or int16 split into high bytes, signed, in that order,
// and then low bytes, unsigned: 256 times the high bytes' product and the low bytes' product are the same integer as that of the values.
enum class Form : int { shorts, bytes, split };

// So many groups lie together, in so many bytes; the first one's codes begin there, and each has so many bytes of them.
struct GroupLayout {
  int groups, size, codes_at, codes;
};
constexpr GroupLayout group_layout(Weights kind) {
  switch (kind) {
    case Weights::q4: return {1, 320, 64, 256};
    case Weights::q8: return {1, 544, 32, 512};
    case Weights::int8: return {1, 512, 0, 512};
    case Weights::q5: return {1, 384, 64, 320};
    case Weights::q4f: return {1, 384, 128, 256};
    case Weights::q4k: return {8, 2368, 320, 256};
    case Weights::q5k: return {8, 2880, 320, 320};
    default: return {8, 3392, 320, 384};
  }
}
constexpr int panel_header(Weights kind) { return kind == Weights::int8 ? 64 : 0; }
constexpr ptrdiff_t panel_bytes(Weights kind, int depth) {
  return panel_header(kind) + (ptrdiff_t)depth / GROUP / group_layout(kind).groups * group_layout(kind).size;
}

// A tile's rows, quantised group by group: x ~ scale * value with |value| <= 32767 (or 127), every group with a scale of its own.
struct Activations {
  void* values;      // [groups][rows][32]
  float* scales;     // [groups][rows]; NaN where the group holds an infinity or NaN, whose values are then 0
  float* sums;       // [groups][rows]: scale * sum of values
  int32_t* offsets;  // [groups][rows]: -128 * sum of values, or of high bytes where they are split
  int rows;          // at most Kernels::packed_rows
  Form form;
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
