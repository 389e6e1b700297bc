// What Python calls: checks indices, cuts the work into fixed tasks and runs the active table's kernels on the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels.h"

namespace pitstop {

// Names of the tables that this machine can run, fastest first.
std::vector<std::string> available_isas();
// Throws std::invalid_argument for one that it cannot.
void set_isa(const std::string& name);
const Kernels& kernels();

void linear(const float* x, ptrdiff_t x_row, int rows, int kind, const uint8_t* w, int depth, int columns, float* out);
// The weights of outputs ids[i], times `scale` -> out [count][depth]. Throws std::out_of_range.
void linear_rows(int kind, const uint8_t* w, int depth, int columns, const int64_t* ids, int count, float scale, float* out);
// Likewise of packed weights.
void packed_rows(int kind, const uint8_t* w, int depth, int columns, const int64_t* ids, int count, float scale, float* out);
// y += bias in each of its rows, which are contiguous.
void add_bias(float* y, int rows, int columns, const float* bias);
// x [rows][heads][dim], rows x_row floats apart; each head is normalised by itself.
void rms_norm(const float* x, ptrdiff_t x_row, int rows, int heads, const float* weight, int dim, float eps, float* out);
// total = x + y, out = rms_norm(total); all rows contiguous. total may be x.
void add_rms_norm(const float* x, const float* y, int rows, const float* weight, int dim, float eps, float* total, float* out);
// x [rows][dim], rows x_row floats apart.
void layer_norm(const float* x, ptrdiff_t x_row, int rows, const float* weight, const float* bias, int dim, float eps, float* out);
// out: contiguous rows
void silu_mul(const GateUp& x, float* out);
void gelu_tanh_mul(const GateUp& x, float* out);
void gelu_erf_mul(const GateUp& x, float* out);
// All rows contiguous: of each row of logits the `top_k` largest, in order (of equals the first), and their shares of the softmax of all,
// or among themselves where `renormalise`.
void route(const float* logits, int rows, int experts, int top_k, bool renormalise, int64_t* ids, float* weights);
// All rows contiguous.
void softcap(const float* x, int rows, int columns, float cap, float* out);
void rotate(const float* x, ptrdiff_t x_row, int rows, const int32_t* positions, const float* cos, const float* sin, int context,
            int heads, int head_dim, bool interleaved, float* out);

// Reads `count` floats with all threads; returns a sum, so that the reading is not optimised away.
float read(const float* x, int64_t count);

// One row of the items tensor, int32 [n, 6].
struct Item {
  int32_t row, count, start, tail, seal, table;
};

// x [rows][heads][dim], rows x_row floats apart; dim a power of two.
void hadamard(const float* x, ptrdiff_t x_row, int rows, int heads, int dim, float* out);

// tails [slots][kv_heads][2][128 * head_dim]; pages [pages][page_bytes], of which the layout says what lies in them.
struct Cache {
  uint8_t* tails;
  int slots;
  uint8_t* pages;
  int page_count;
  int64_t page_bytes;
  int kv_heads, head_dim;
  bool half;
  Layout layout;

  Plane tail_plane() const { return Plane{half ? 16 : 32, Ranges::none, Coding::absolute}; }
  size_t tail_bytes() const { return 2 * kv_heads * plane_bytes(tail_plane(), head_dim); }
};

// One head's keys and values of a segment.
struct Head {
  uint8_t* keys;
  Plane key_plane;
  uint8_t* values;
  Plane value_plane;
};

Head tail_head(const Cache& cache, int slot, int head);
// lead: the lead page of a first segment that has one, else -1.
Head page_head(const Cache& cache, int page, int lead, int head);
// Throws std::invalid_argument where pages are smaller than the layout needs.
void check_pages(const Cache& cache);
// Throws std::invalid_argument unless the first `segments` segments of the item's stream have their pages in the table.
void check_table(const Cache& cache, const Item* items, int index, int segments, const int32_t* table, int table_size);

struct Queries {
  const float* q;
  ptrdiff_t row_stride;
  int rows, heads;
  float scale, softcap;
  int window;
  int temperature_length = 0;  // t: scores at positions p > t count log p / log t times; 0: nowhere
  bool cap_first = false;      // whether that comes after the soft cap
};

void append(const float* k, ptrdiff_t k_row, const float* v, ptrdiff_t v_row, int rows, const Cache& cache, const Item* items, int count);
void seal(const Cache& cache, const Item* items, int count, const int32_t* table, int table_size);
void paged_attention(const Queries& queries, const Cache& cache, const Item* items, int count, const int32_t* table, int table_size,
                     float* out);
// Throws std::invalid_argument naming the item and the column that is out of range.
void check_items(const Cache& cache, const Item* items, int count, int rows);

}  // namespace pitstop
