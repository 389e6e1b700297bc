// Prints a checksum of what every kernel gives on inputs made from a seed. Built for two instruction sets, the two must print the same.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "drivers.h"
#include "packed_drivers.h"
#include "pool.h"

using namespace pitstop;

namespace {

struct Random {
  uint64_t state;
  uint32_t next() { return (uint32_t)((state = state * 6364136223846793005u + 1442695040888963407u) >> 32); }
  float real() { return (float)(int32_t)next() * 0x1p-30f; }  // -2 to 2
};

std::vector<float> reals(Random& random, size_t count, float scale = 1) {
  std::vector<float> values(count);
  for (float& value : values) value = random.real() * scale;
  return values;
}

void print(const char* what, const void* data, size_t bytes) {
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ ((const uint8_t*)data)[i]) * 1099511628211u;
  std::printf("%s %016llx\n", what, (unsigned long long)hash);
}

void print(const char* what, const std::vector<float>& values) { print(what, values.data(), values.size() * sizeof(float)); }

// A block as pack_blocks takes it: its bytes and weights, where its floating-point numbers lie, and the kind that it becomes.
struct Form {
  int kind, bytes, weights, numbers_at, numbers;
};
constexpr Form FORMS[] = {{0, 18, 32, 0, 1},  {0, 20, 32, 0, 2},   {1, 34, 32, 0, 1},   {3, 22, 32, 0, 1},    {3, 24, 32, 0, 2},
                          {4, 24, 32, 0, 2},  {5, 144, 256, 0, 2}, {6, 176, 256, 0, 2}, {7, 210, 256, 208, 1}};
constexpr int FP32_NUMBERS = 5;

// Numbers around 0.01, then codes.
std::vector<uint8_t> blocks(Random& random, int format, int count) {
  const Form& form = FORMS[format];
  std::vector<uint8_t> data((size_t)count * form.bytes);
  for (uint8_t& byte : data) byte = (uint8_t)random.next();
  for (int i = 0; i < count; ++i)
    for (int number = 0; number < form.numbers; ++number) {
      uint8_t* at = &data[(size_t)i * form.bytes + form.numbers_at];
      if (format == FP32_NUMBERS) {
        float value = random.real() * 0.01f;
        std::memcpy(at + number * 4, &value, 4);
      } else {
        uint16_t half = (uint16_t)(0x2000 | (random.next() & 0x83ff));
        std::memcpy(at + number * 2, &half, 2);
      }
    }
  return data;
}

void packed(Random& random) {
  const int columns = 72;
  for (int format = 0; format < (int)(sizeof FORMS / sizeof *FORMS); ++format) {
    int kind = FORMS[format].kind, depth = FORMS[format].weights == 32 ? 96 : 512;
    std::vector<uint8_t> stored = blocks(random, format, columns * depth / FORMS[format].weights);
    std::vector<uint8_t> weight((columns + 15) / 16 * packed_panel_bytes(kind, depth));
    if (!pack_blocks(format, stored.data(), columns, depth, 0, weight.data())) std::printf("pack refused\n");
    print("pack", weight.data(), weight.size());
    for (int rows : {1, 2, 3, 4, 5, 7, 8, 13, 33})
      for (int precision = 0; precision < 3; ++precision) {
        std::vector<float> x = reals(random, (size_t)rows * depth), out((size_t)rows * columns);
        x[5] = 1000, x[6] = 0;
        packed_linear(x.data(), depth, rows, kind, weight.data(), depth, columns, precision, out.data(), columns);
        char name[64];
        std::snprintf(name, sizeof name, "packed_linear format %d precision %d rows %d", format, precision, rows);
        print(name, out);
      }
    std::vector<float> out(2 * depth);
    int64_t ids[] = {71, 3};
    packed_rows(kind, weight.data(), depth, columns, ids, 2, 0.7f, out.data());
    print("packed_rows", out);
  }
}

void floats(Random& random) {
  const int depth = 45, columns = 40;
  std::vector<float> weight = reals(random, 3 * 16 * depth);
  for (int kind = 0; kind < 3; ++kind)
    for (int rows : {1, 5, 30}) {
      std::vector<float> x = reals(random, (size_t)rows * depth), out((size_t)rows * columns);
      std::vector<uint8_t> w(weight.size() * (kind ? 2 : 4));
      for (size_t i = 0; kind && i < weight.size(); ++i) {
        uint16_t bits = kind == 1 ? (uint16_t)(0x3000 | (random.next() & 0x87ff)) : (uint16_t)(0x3e00 | (random.next() & 0x81ff));
        std::memcpy(&w[2 * i], &bits, 2);
      }
      if (!kind) std::memcpy(w.data(), weight.data(), w.size());
      linear(x.data(), depth, rows, kind, w.data(), depth, columns, out.data());
      print("linear", out);
      int64_t ids[] = {39, 3};
      std::vector<float> found(2 * depth);
      linear_rows(kind, w.data(), depth, columns, ids, 2, 0.7f, found.data());
      print("linear_rows", found);
    }
}

void rowwise(Random& random) {
  const int rows = 5, dim = 70;
  std::vector<float> x = reals(random, 2 * rows * dim, 3), weight = reals(random, dim), out(rows * dim), total(rows * dim);
  rms_norm(x.data(), dim, rows, 1, weight.data(), dim, 1e-5f, out.data());
  print("rms_norm", out);
  add_rms_norm(x.data(), x.data() + rows * dim, rows, weight.data(), dim, 1e-5f, total.data(), out.data());
  print("add_rms_norm", total);
  print("add_rms_norm", out);
  layer_norm(x.data(), dim, rows, weight.data(), x.data() + rows * dim, dim, 1e-5f, out.data());
  print("layer_norm", out);
  GateUp halves{x.data(), 2 * dim, x.data() + dim, 2 * dim, rows, dim};
  silu_mul(halves, out.data());
  print("silu_mul", out);
  gelu_tanh_mul(halves, out.data());
  print("gelu_tanh_mul", out);
  gelu_erf_mul(halves, out.data());
  print("gelu_erf_mul", out);
  softcap(x.data(), rows, dim, 2.0f, out.data());
  print("softcap", out);
  rms_norm(x.data(), dim, rows, 7, weight.data(), 10, 1e-5f, out.data());
  add_bias(out.data(), rows, dim, weight.data());
  print("rms_norm of heads", out);
  std::vector<float> wide = reals(random, 4096, 40), results(4096);
  kernels().exp(wide.data(), results.data(), (ptrdiff_t)wide.size());
  print("exp", results);
}

// A stream of 300 tokens in chunks of 100, one fp16 tail a segment, one page a segment and the lead page last.
void attention(Random& random, const char* name, const Layout& layout) {
  const int tokens = 300, heads = 6, kv_heads = 2, dim = 64, segments = 3;
  std::vector<uint8_t> tails(segments * 2 * kv_heads * 128 * dim * 2);
  Cache cache{tails.data(), segments, nullptr, segments + 1, 0, kv_heads, dim, true, layout};
  cache.page_bytes = 4 * (int64_t)kv_heads * 128 * dim * 2;
  std::vector<uint8_t> pages(cache.page_bytes * cache.page_count);
  cache.pages = pages.data();
  std::vector<int32_t> table;
  if (layout.lead) table.push_back(segments);
  for (int i = 0; i < segments; ++i) table.push_back(i);
  std::vector<float> q = reals(random, tokens * heads * dim, 2), k = reals(random, tokens * kv_heads * dim), v = reals(random, tokens * kv_heads * dim);
  std::vector<float> turned(q.size()), out(q.size());
  hadamard(q.data(), heads * dim, tokens, heads, dim, turned.data());
  print("hadamard", turned);
  for (int start = 0; start < tokens; start += 100) {
    std::vector<Item> items;
    for (int at = start; at < start + 100;) {
      int end = std::min(start + 100, at / 128 * 128 + 128);
      items.push_back({at - start, end - at, at, at / 128, end % 128 ? -1 : at / 128, 0});
      at = end;
    }
    ptrdiff_t first = (ptrdiff_t)start * kv_heads * dim;
    append(k.data() + first, kv_heads * dim, v.data() + first, kv_heads * dim, 100, cache, items.data(), (int)items.size());
    seal(cache, items.data(), (int)items.size(), table.data(), (int)table.size());
    ptrdiff_t row = (ptrdiff_t)start * heads * dim;
    paged_attention(Queries{q.data() + row, heads * dim, 100, heads, 0.1f, start ? 20.0f : 0.0f, start ? -1 : 50}, cache, items.data(),
                    (int)items.size(), table.data(), (int)table.size(), out.data() + row);
  }
  print(name, pages.data(), pages.size());
  print(name, out);
}

void attention(Random& random) {
  Plane half{16, Ranges::none, Coding::absolute};
  attention(random, "raw16", Layout{half, half, 0});
  for (int bits = 2; bits <= 8; ++bits) {
    Plane keys{bits, Ranges::channel, Coding::absolute}, values{bits, Ranges::token, Coding::absolute};
    attention(random, "int", Layout{keys, values, bits >= 4 ? 8 : 0});
  }
  for (Coding coding : {Coding::absolute, Coding::closed, Coding::open}) {
    Plane plane{8, Ranges::segment, coding};
    attention(random, "baseline", Layout{plane, plane, 0});
  }
}

}  // namespace

int main() {
  Random random{7};
  set_threads(2);
  packed(random);
  floats(random);
  rowwise(random);
  attention(random);
}
