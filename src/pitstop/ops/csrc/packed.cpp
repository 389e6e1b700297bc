// Drivers of products with packed weights: quantise the rows, cut the work into tasks of whole panels.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "drivers.h"
#include "packed_drivers.h"
#include "pool.h"

namespace pitstop {
namespace {

constexpr int64_t WORTH_SPLITTING = 1 << 17;  // multiply-adds; below, waking a thread costs more than it brings
constexpr int TASK_ROWS = 96;                 // their activations of one group, and accumulators, stay in the nearest cache
constexpr int QUANTIZE_ROWS = 16;             // rows of one task

Activations quantized(const float* x, ptrdiff_t x_row, int rows, int depth, Weights kind, Precision precision) {
  const Kernels& kernel = kernels();
  bool bytes = precision == Precision::int8 && kernel.takes_bytes(kind);
  size_t groups = depth / GROUP, count = groups * rows;
  float* memory = call_scratch(count * (bytes ? GROUP / 4 : GROUP / 2) + 3 * count);
  Activations out{memory, memory + count * (bytes ? GROUP / 4 : GROUP / 2), nullptr, nullptr, rows, bytes};
  out.sums = out.scales + count;
  out.offsets = (int32_t*)(out.sums + count);
  float levels = precision == Precision::int8 ? 127.0f : 32767.0f;
  auto body = [&](int task) {
    int first = task * QUANTIZE_ROWS;
    kernel.quantize(x, x_row, first, std::min(QUANTIZE_ROWS, rows - first), depth, levels, out);
  };
  int tasks = (rows + QUANTIZE_ROWS - 1) / QUANTIZE_ROWS;
  if ((int64_t)rows * depth >= WORTH_SPLITTING / 4)
    parallel(tasks, body);
  else
    for (int task = 0; task < tasks; ++task) body(task);
  return out;
}

}  // namespace

void packed_linear(const float* x, ptrdiff_t x_row, int rows, int kind, const uint8_t* w, int depth, int columns, int precision,
                   float* out) {
  if (rows == 0) return;
  const Kernels& kernel = kernels();
  Weights weights = (Weights)kind;
  bool fp32 = (Precision)precision == Precision::fp32;
  Activations quantised{};
  if (!fp32) quantised = quantized(x, x_row, rows, depth, weights, (Precision)precision);
  int panels = (columns + 15) / 16, chunks = (rows + TASK_ROWS - 1) / TASK_ROWS, high = (rows + chunks - 1) / chunks;
  int wide = std::clamp(panels / 16 / 2 * 2, 2, 16), blocks = (panels + wide - 1) / wide;
  auto body = [&](int task) {
    int panel = task / chunks * wide, row = task % chunks * high, count = std::min(high, rows - row);
    if (count <= 0) return;
    PackedTask t{weights, w + panel * panel_bytes(weights, depth), depth, std::min(wide * 16, columns - panel * 16), row, count,
                 out + (ptrdiff_t)row * columns + panel * 16, columns, scratch(packed_scratch(count))};
    if (fp32)
      kernel.packed_linear_fp32(t, x, x_row);
    else
      kernel.packed_linear(t, quantised);
  };
  if ((int64_t)rows * depth * columns >= WORTH_SPLITTING) return parallel(blocks * chunks, body);
  for (int task = 0; task < blocks * chunks; ++task) body(task);
}

void packed_rows(int kind, const uint8_t* w, int depth, int columns, const int64_t* ids, int count, float* out) {
  for (int i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= columns)
      throw std::out_of_range("rows: ids[" + std::to_string(i) + "] = " + std::to_string(ids[i]) + " of " + std::to_string(columns));
  auto body = [&](int i) {
    const uint8_t* panel = w + ids[i] / 16 * panel_bytes((Weights)kind, depth);
    float values[GROUP * 16];
    for (int group = 0; group < depth / GROUP; ++group) {
      kernels().dequantize_group((Weights)kind, panel, group, values);
      for (int k = 0; k < GROUP; ++k) out[(ptrdiff_t)i * depth + group * GROUP + k] = values[k * 16 + ids[i] % 16];
    }
  };
  if ((int64_t)count * depth >= WORTH_SPLITTING / 16) return parallel(count, body);
  for (int i = 0; i < count; ++i) body(i);
}

}  // namespace pitstop
