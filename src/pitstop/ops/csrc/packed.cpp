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
constexpr int TASKS = 16;                     // at least, where there are panels for them: enough to share out evenly
constexpr int TASK_PANELS = 16;               // at most: they stay in the second cache while all tiles pass
constexpr int FP32_ROWS = 96;                 // of a task; their accumulators stay in the nearest cache

template <class Body>
void run(int tasks, int64_t work, const Body& body) {
  if (work >= WORTH_SPLITTING) return parallel(tasks, body);
  for (int task = 0; task < tasks; ++task) body(task);
}

// A product cut into tiles of rows, as few as `most` allows and of even sizes, times blocks of panels.
struct Cut {
  int rows, columns, depth, tiles, panels, wide, blocks;
  Weights kind;
  const uint8_t* w;
  float* out;
  ptrdiff_t out_row;

  Cut(int rows, int columns, int depth, int most, Weights kind, const uint8_t* w, float* out, ptrdiff_t out_row)
      : rows(rows), columns(columns), depth(depth), tiles((rows + most - 1) / most), panels((columns + 15) / 16),
        wide((int)std::clamp<int64_t>((int64_t)panels * tiles / TASKS, 1, TASK_PANELS)), blocks((panels + wide - 1) / wide), kind(kind),
        w(w), out(out), out_row(out_row) {}
  int first(int tile) const { return (int)((int64_t)tile * rows / tiles); }
  int tasks() const { return tiles * blocks; }
  int64_t work() const { return (int64_t)rows * depth * columns; }
  PackedTask task(int block, int row) const {
    int panel = block * wide;
    return {kind, w + panel * panel_bytes(kind, depth), depth, std::min(wide * 16, columns - panel * 16),
            out + row * out_row + panel * 16, out_row};
  }
};

// All tiles quantised, one after the other in memory.
class Quantised {
 public:
  Quantised(const float* x, ptrdiff_t x_row, const Cut& cut, Precision precision) : cut_(cut) {
    const Kernels& kernel = kernels();
    form_ = kernel.form(cut.kind, precision, (cut.rows + cut.tiles - 1) / cut.tiles);
    size_t count = (size_t)cut.depth / GROUP * cut.rows;
    values_ = (char*)call_scratch(count * (GROUP * itemsize() / 4 + 3));
    scales_ = (float*)(values_ + count * GROUP * itemsize());
    run(cut.tiles, 4 * (int64_t)cut.rows * cut.depth, [&](int tile) {
      kernel.quantize(x + cut.first(tile) * x_row, x_row, cut.depth, precision == Precision::int8 ? 127.0f : 32767.0f, (*this)[tile]);
    });
  }
  Activations operator[](int tile) const {
    ptrdiff_t groups = cut_.depth / GROUP, at = groups * cut_.first(tile), count = groups * cut_.rows;
    float* scales = scales_ + at;
    int rows = cut_.first(tile + 1) - cut_.first(tile);
    return {values_ + at * GROUP * itemsize(), scales, scales + count, (int32_t*)(scales + 2 * count), rows, form_};
  }

 private:
  size_t itemsize() const { return form_ == Form::bytes ? 1 : 2; }

  const Cut& cut_;
  Form form_;
  char* values_;
  float* scales_;
};

}  // namespace

void packed_linear(const float* x, ptrdiff_t x_row, int rows, int kind, const uint8_t* w, int depth, int columns, int precision,
                   float* out, ptrdiff_t out_row) {
  if (rows == 0) return;
  const Kernels& kernel = kernels();
  bool fp32 = (Precision)precision == Precision::fp32;
  Cut cut(rows, columns, depth, fp32 ? FP32_ROWS : kernel.packed_rows, (Weights)kind, w, out, out_row);
  if (fp32)
    return run(cut.tasks(), cut.work(), [&](int task) {
      int tile = task % cut.tiles, row = cut.first(tile), count = cut.first(tile + 1) - row;
      kernel.packed_linear_fp32(cut.task(task / cut.tiles, row), x + row * x_row, x_row, count, scratch(fp32_scratch(count)));
    });
  Quantised quantised(x, x_row, cut, (Precision)precision);
  run(cut.tasks(), cut.work(), [&](int task) {
    int tile = task % cut.tiles;
    kernel.packed_linear(cut.task(task / cut.tiles, cut.first(tile)), quantised[tile]);
  });
}

}  // namespace pitstop
