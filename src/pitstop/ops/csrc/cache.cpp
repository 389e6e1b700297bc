// Drivers of what writes the KV cache, and where things lie in it.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "drivers.h"
#include "pool.h"

namespace pitstop {
namespace {

constexpr int SEGMENT = 128;
constexpr int64_t WORTH_SHARING = 1 << 11;  // numbers appended: half of them go to a line of their own

// The new key's numbers lie in a line each, which are asked for while others are written.
void ask_for_keys(const Cache& cache, const Item& item, int head) {
  const uint8_t* at = tail_head(cache, item.tail, head).keys + item.start % SEGMENT * (cache.half ? 2 : 4);
  for (int d = 0; d < cache.head_dim; ++d) __builtin_prefetch(at + (ptrdiff_t)d * SEGMENT * (cache.half ? 2 : 4), 1);
}

}  // namespace

Head tail_head(const Cache& cache, int slot, int head) {
  size_t size = plane_bytes(cache.tail_plane(), cache.head_dim);
  uint8_t* keys = cache.tails + slot * cache.tail_bytes() + 2 * head * size;
  return {keys, cache.tail_plane(), keys + size, cache.tail_plane()};
}

Head page_head(const Cache& cache, int page, int lead, int head) {
  Plane keys = cache.layout.keys, values = cache.layout.values;
  uint8_t* base = cache.pages + page * cache.page_bytes;
  if (lead < 0) {
    size_t size = plane_bytes(keys, cache.head_dim);
    uint8_t* at = base + head * (size + plane_bytes(values, cache.head_dim));
    return {at, keys, at + size, values};
  }
  keys = first_plane(cache.layout, keys), values = first_plane(cache.layout, values);
  uint8_t* lead_base = cache.pages + lead * cache.page_bytes;
  return {lead_base + head * plane_bytes(keys, cache.head_dim), keys, base + head * plane_bytes(values, cache.head_dim), values};
}

void check_pages(const Cache& cache) {
  const Layout& layout = cache.layout;
  int dim = cache.head_dim;
  size_t need = plane_bytes(layout.keys, dim) + plane_bytes(layout.values, dim);
  size_t first = std::max(plane_bytes(first_plane(layout, layout.keys), dim), plane_bytes(first_plane(layout, layout.values), dim));
  if (layout.lead) need = std::max(need, first);
  if (cache.page_bytes < (int64_t)(need * cache.kv_heads))
    throw std::invalid_argument("a page of " + std::to_string(cache.page_bytes) + " bytes is smaller than a segment, which takes " +
                                std::to_string(need * cache.kv_heads));
}

void check_table(const Cache& cache, const Item* items, int index, int segments, const int32_t* table, int table_size) {
  if (segments == 0) return;
  const Item& item = items[index];
  int pages = segments + (cache.layout.lead != 0);
  if (item.table < 0 || item.table > table_size - pages)
    throw std::invalid_argument("item " + std::to_string(index) + " needs " + std::to_string(pages) + " page ids from table offset " +
                                std::to_string(item.table) + "; the table has " + std::to_string(table_size));
  for (int i = item.table; i < item.table + pages; ++i)
    if (table[i] < 0 || table[i] >= cache.page_count)
      throw std::invalid_argument("item " + std::to_string(index) + " names page " + std::to_string(table[i]) + " of " +
                                  std::to_string(cache.page_count));
}

void check_items(const Cache& cache, const Item* items, int count, int rows) {
  for (int i = 0; i < count; ++i) {
    const Item& item = items[i];
    auto refuse = [&](const std::string& what) { throw std::invalid_argument("item " + std::to_string(i) + ": " + what); };
    if (item.count < 1 || item.row < 0 || item.row > rows - item.count)
      refuse("rows " + std::to_string(item.row) + " + " + std::to_string(item.count) + " exceed the batch of " + std::to_string(rows));
    if (item.start < 0 || item.start % SEGMENT + item.count > SEGMENT)
      refuse(std::to_string(item.count) + " rows from position " + std::to_string(item.start) + " do not lie in one 128-token segment");
    if (item.tail < 0 || item.tail >= cache.slots)
      refuse("tail " + std::to_string(item.tail) + " of " + std::to_string(cache.slots) + " slots");
  }
}

void append(const float* k, ptrdiff_t k_row, const float* v, ptrdiff_t v_row, int rows, const Cache& cache, const Item* items, int count) {
  check_items(cache, items, count, rows);
  int units = count * cache.kv_heads;
  auto write = [&](int unit) {
    const Item& item = items[unit / cache.kv_heads];
    int head = unit % cache.kv_heads;
    Head to = tail_head(cache, item.tail, head);
    if (unit + 1 < units) ask_for_keys(cache, items[(unit + 1) / cache.kv_heads], (unit + 1) % cache.kv_heads);
    for (int r = 0; r < item.count; ++r)
      kernels().append(k + (item.row + r) * k_row + head * cache.head_dim, v + (item.row + r) * v_row + head * cache.head_dim, to.keys,
                       to.values, cache.half, cache.head_dim, (item.start + r) % SEGMENT);
  };
  if ((int64_t)rows * cache.kv_heads * cache.head_dim >= WORTH_SHARING) return parallel(units, write);
  for (int unit = 0; unit < units; ++unit) write(unit);
}

void seal(const Cache& cache, const Item* items, int count, const int32_t* table, int table_size) {
  std::vector<std::pair<const Item*, int32_t>> sealed;  // items, and their lead pages
  for (int i = 0; i < count; ++i) {
    const Item& item = items[i];
    if (item.seal < 0) continue;
    bool lead = cache.layout.lead != 0 && item.start < SEGMENT;
    auto refuse = [&](const std::string& what) { throw std::invalid_argument("seal: item " + std::to_string(i) + what); };
    if (item.seal >= cache.page_count || item.tail < 0 || item.tail >= cache.slots)
      refuse(" names page " + std::to_string(item.seal) + " of " + std::to_string(cache.page_count) + ", tail " +
             std::to_string(item.tail) + " of " + std::to_string(cache.slots));
    if (lead && (item.table < 0 || item.table >= table_size || table[item.table] < 0 || table[item.table] >= cache.page_count))
      refuse(" has no lead page at table offset " + std::to_string(item.table));
    sealed.push_back({&item, lead ? table[item.table] : -1});
  }
  if (sealed.empty()) return;
  check_pages(cache);
  int units = (int)sealed.size() * cache.kv_heads * 2;
  parallel(units, [&](int unit) {
    auto [item, lead] = sealed[unit / (2 * cache.kv_heads)];
    int head = unit / 2 % cache.kv_heads;
    bool keys = unit % 2 == 0;
    Head from = tail_head(cache, item->tail, head), to = page_head(cache, item->seal, lead, head);
    float* memory = scratch(encode_scratch(cache.head_dim));
    kernels().encode_plane(keys ? from.keys : from.values, cache.half, keys, keys ? to.key_plane : to.value_plane, cache.head_dim,
                           keys ? to.keys : to.values, memory);
  });
}

}  // namespace pitstop
