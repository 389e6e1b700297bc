#include "drivers.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "pool.h"

namespace pitstop {
namespace {

// Below about this many multiply-adds, or as many bytes moved, waking a thread costs more than it brings.
constexpr int64_t WORTH_SPLITTING = 1 << 16;

std::vector<const Kernels*> find_tables() {
  std::vector<const Kernels*> tables;
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512dq");
  if (avx512 && __builtin_cpu_supports("avx512vnni")) tables.push_back(&kernels_avx512vnni);
  if (avx512) tables.push_back(&kernels_avx512);
  if (avx2) tables.push_back(&kernels_avx2);
#elif defined(__aarch64__)
  tables.push_back(&kernels_neon);
#endif
#if !defined(__aarch64__)
  tables.push_back(&kernels_portable);
#endif
  return tables;
}

const std::vector<const Kernels*>& tables() {
  static const std::vector<const Kernels*> found = find_tables();
  return found;
}

const Kernels* active = tables().front();

// Rows in blocks that do not depend on how many threads there are.
template <class Body>
void over_rows(int rows, int64_t work_per_row, const Body& body) {
  int block = (int)std::max<int64_t>(1, WORTH_SPLITTING / 4 / std::max<int64_t>(1, work_per_row));
  if (rows * work_per_row < WORTH_SPLITTING) block = std::max(rows, 1);
  parallel((rows + block - 1) / block, [&](int task) { body(task * block, std::min(rows - task * block, block)); });
}

void gated(void (*kernel)(const GateUp& x, float* out), const GateUp& x, float* out) {
  over_rows(x.rows, 4 * (int64_t)x.features, [&](int row, int count) {
    GateUp part{x.gate + row * x.gate_row, x.gate_row, x.up + row * x.up_row, x.up_row, count, x.features};
    kernel(part, out + (ptrdiff_t)row * x.features);
  });
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Kernels* table : tables()) names.push_back(table->name);
  return names;
}

void set_isa(const std::string& name) {
  for (const Kernels* table : tables())
    if (table->name == name) {
      active = table;
      return;
    }
  throw std::invalid_argument("this machine cannot run the instruction set " + name);
}

const Kernels& kernels() { return *active; }

void linear(const float* x, ptrdiff_t x_row, int rows, int kind, const uint8_t* w, int depth, int columns, float* out) {
  constexpr int PANELS = 2, ROWS = 96;  // a task: these panels (the weights of one stay in L2) times these rows
  const Kernels& kernel = kernels();
  ptrdiff_t itemsize = (Floats)kind == Floats::fp32 ? 4 : 2;
  int panels = (columns + 15) / 16, groups = (panels + PANELS - 1) / PANELS, chunks = (rows + ROWS - 1) / ROWS;
  auto body = [&](int task) {
    int panel = task / chunks * PANELS, row = task % chunks * ROWS;
    int wide = std::min(PANELS, panels - panel), high = std::min(ROWS, rows - row);
    kernel.linear(x + row * x_row, x_row, high, (Floats)kind, w + (ptrdiff_t)panel * depth * 16 * itemsize, depth, wide,
                  std::min(wide * 16, columns - panel * 16), out + (ptrdiff_t)row * columns + panel * 16, columns);
  };
  if ((int64_t)rows * depth * columns >= WORTH_SPLITTING) return parallel(groups * chunks, body);
  for (int task = 0; task < groups * chunks; ++task) body(task);
}

namespace {

// row(id, out) for each of the ids, times `scale`.
template <class Row>
void gather(int depth, int columns, const int64_t* ids, int count, float scale, float* out, const Row& row) {
  for (int i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= columns)
      throw std::out_of_range("rows: ids[" + std::to_string(i) + "] = " + std::to_string(ids[i]) + " of " + std::to_string(columns));
  over_rows(count, 16 * (int64_t)depth, [&](int first, int rows) {
    for (int i = first; i < first + rows; ++i) {
      float* to = out + (ptrdiff_t)i * depth;
      row(ids[i], to);
      for (int k = 0; k < depth; ++k) to[k] *= scale;
    }
  });
}

}  // namespace

void linear_rows(int kind, const uint8_t* w, int depth, int columns, const int64_t* ids, int count, float scale, float* out) {
  ptrdiff_t panel_bytes = (ptrdiff_t)depth * 16 * ((Floats)kind == Floats::fp32 ? 4 : 2);
  gather(depth, columns, ids, count, scale, out, [&](int64_t id, float* to) {
    kernels().linear_row((Floats)kind, w + id / 16 * panel_bytes, depth, (int)(id % 16), to);
  });
}

void packed_rows(int kind, const uint8_t* w, int depth, int columns, const int64_t* ids, int count, float scale, float* out) {
  gather(depth, columns, ids, count, scale, out, [&](int64_t id, float* to) {
    const uint8_t* panel = w + id / 16 * panel_bytes((Weights)kind, depth);
    float values[GROUP * 16];
    for (int group = 0; group < depth / GROUP; ++group) {
      kernels().dequantize_group((Weights)kind, panel, group, values);
      for (int k = 0; k < GROUP; ++k) to[group * GROUP + k] = values[k * 16 + id % 16];
    }
  });
}

void add_bias(float* y, int rows, int columns, const float* bias) {
  over_rows(rows, columns, [&](int first, int count) {
    for (int row = first; row < first + count; ++row)
      for (ptrdiff_t i = 0, at = (ptrdiff_t)row * columns; i < columns; ++i) y[at + i] += bias[i];
  });
}

void rms_norm(const float* x, ptrdiff_t x_row, int rows, int heads, const float* weight, int dim, float eps, float* out) {
  ptrdiff_t width = (ptrdiff_t)heads * dim;
  over_rows(rows, width, [&](int first, int count) {
    for (int row = first; row < first + count; ++row)
      kernels().rms_norm(x + row * x_row, dim, heads, weight, dim, eps, out + row * width);
  });
}

void add_rms_norm(const float* x, const float* y, int rows, const float* weight, int dim, float eps, float* total, float* out) {
  over_rows(rows, dim, [&](int row, int count) {
    ptrdiff_t first = (ptrdiff_t)row * dim, end = first + (ptrdiff_t)count * dim;
    for (ptrdiff_t i = first; i < end; ++i) total[i] = x[i] + y[i];
    kernels().rms_norm(total + first, dim, count, weight, dim, eps, out + first);
  });
}

void layer_norm(const float* x, ptrdiff_t x_row, int rows, const float* weight, const float* bias, int dim, float eps, float* out) {
  over_rows(rows, 2 * (int64_t)dim, [&](int row, int count) {
    kernels().layer_norm(x + row * x_row, x_row, count, weight, bias, dim, eps, out + (ptrdiff_t)row * dim);
  });
}

void silu_mul(const GateUp& x, float* out) { gated(kernels().silu_mul, x, out); }
void gelu_tanh_mul(const GateUp& x, float* out) { gated(kernels().gelu_tanh_mul, x, out); }
void gelu_erf_mul(const GateUp& x, float* out) { gated(kernels().gelu_erf_mul, x, out); }

void route(const float* logits, int rows, int experts, int top_k, bool renormalise, int64_t* ids, float* weights) {
  std::vector<char> taken(experts);
  std::vector<double> shares(top_k);
  for (int row = 0; row < rows; ++row, logits += experts, ids += top_k, weights += top_k) {
    std::fill(taken.begin(), taken.end(), 0);
    double total = 0;
    for (int k = 0; k < top_k; ++k) {
      int best = -1;
      for (int e = 0; e < experts; ++e)
        if (!taken[e] && (best < 0 || logits[e] > logits[best])) best = e;
      taken[best] = 1;
      ids[k] = best;
      shares[k] = std::exp((double)logits[best] - logits[ids[0]]);
      total += shares[k];
    }
    for (int e = 0; !renormalise && e < experts; ++e)
      if (!taken[e]) total += std::exp((double)logits[e] - logits[ids[0]]);
    for (int k = 0; k < top_k; ++k) weights[k] = (float)(shares[k] / total);
  }
}

void softcap(const float* x, int rows, int columns, float cap, float* out) {
  over_rows(rows, 4 * (int64_t)columns, [&](int row, int count) {
    ptrdiff_t first = (ptrdiff_t)row * columns;
    for (ptrdiff_t i = first; i < first + (ptrdiff_t)count * columns; i += columns) kernels().softcap(x + i, cap, columns, out + i);
  });
}

void rotate(const float* x, ptrdiff_t x_row, int rows, const int32_t* positions, const float* cos, const float* sin, int context,
            int heads, int head_dim, bool interleaved, float* out) {
  for (int row = 0; row < rows; ++row)
    if (positions[row] < 0 || positions[row] >= context)
      throw std::invalid_argument("rotate: positions[" + std::to_string(row) + "] = " + std::to_string(positions[row]) +
                                  " lies outside the tables of " + std::to_string(context) + " positions");
  ptrdiff_t half = head_dim / 2, width = (ptrdiff_t)heads * head_dim;
  over_rows(rows, width, [&](int first, int count) {
    for (int row = first; row < first + count; ++row)
      kernels().rotate(x + row * x_row, cos + positions[row] * half, sin + positions[row] * half, heads, head_dim, interleaved,
                       out + row * width);
  });
}

void hadamard(const float* x, ptrdiff_t x_row, int rows, int heads, int dim, float* out) {
  ptrdiff_t width = (ptrdiff_t)heads * dim;
  over_rows(rows, 2 * width, [&](int first, int count) {
    for (int row = first; row < first + count; ++row) kernels().hadamard(x + row * x_row, heads, dim, out + row * width);
  });
}

float read(const float* x, int64_t count) {
  constexpr int64_t BLOCK = 1 << 16;
  std::vector<float> sums((count + BLOCK - 1) / BLOCK);
  parallel((int)sums.size(), [&](int task) { sums[task] = kernels().sum(x + task * BLOCK, std::min(BLOCK, count - task * BLOCK)); });
  return std::accumulate(sums.begin(), sums.end(), 0.0f);
}

}  // namespace pitstop
