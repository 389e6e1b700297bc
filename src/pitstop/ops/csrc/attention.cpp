// Drivers of paged attention: the cutting of items into blocks of query vectors, and of long streams into segments.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "drivers.h"
#include "pool.h"

namespace pitstop {
namespace {

constexpr int SEGMENT = 128;
constexpr int BLOCK_VECTORS = 96;  // query vectors of one block: a segment is read and widened once for all of them
constexpr int SPLIT_ROWS = 4;      // blocks of at most so many rows have their segments shared out among threads

// Rows [row, row + rows) of the batch from position `start` on, all query heads of one KV head.
struct Block {
  const Item* item;
  int kv_head, row, rows, start;
  int first, own;     // first segment that any row sees, and the rows' own, the last; first > own: nothing is seen
  ptrdiff_t partial;  // where the partials of its segments lie, in floats; -1: merged as they come
};

struct Call {
  const Queries& queries;
  const Cache& cache;
  const int32_t* table;
  float* out;
  std::vector<Block> blocks;
  std::vector<std::pair<int, int>> units;  // (block, segment), or (block, -1) for a whole block
  size_t partial_floats = 0;

  int group() const { return queries.heads / cache.kv_heads; }
};

size_t partial_size(int vectors, int head_dim) { return (size_t)vectors * (head_dim + 2); }

Partial partial_at(float* memory, int vectors) { return Partial{memory, memory + vectors, memory + 2 * vectors}; }

void plan(Call& call, const Item* items, int count) {
  int block_rows = std::max(1, BLOCK_VECTORS / call.group()), window = call.queries.window;
  for (const Item* item = items; item < items + count; ++item)
    for (int head = 0; head < call.cache.kv_heads; ++head)
      for (int row = 0; row < item->count; row += block_rows) {
        int rows = std::min(block_rows, item->count - row), start = item->start + row;
        int own = start / SEGMENT, first = window < 0 ? 0 : window == 0 ? own + 1 : std::max(0, start - window + 1) / SEGMENT;
        call.blocks.push_back({item, head, item->row + row, rows, start, first, own, -1});
      }
  for (int i = 0; i < (int)call.blocks.size(); ++i) {
    Block& block = call.blocks[i];
    if (block.rows > SPLIT_ROWS || block.own <= block.first) {
      call.units.push_back({i, -1});
      continue;
    }
    block.partial = (ptrdiff_t)call.partial_floats;
    call.partial_floats += (block.own - block.first + 1) * partial_size(block.rows * call.group(), call.cache.head_dim);
    for (int segment = block.first; segment <= block.own; ++segment) call.units.push_back({i, segment});
  }
}

// The block's query vectors side by side, [rows * group][head_dim].
void gather_queries(const Call& call, const Block& block, float* q) {
  int group = call.group(), head_dim = call.cache.head_dim;
  for (int r = 0; r < block.rows; ++r)
    std::memcpy(q + (ptrdiff_t)r * group * head_dim,
                call.queries.q + (block.row + r) * call.queries.row_stride + (ptrdiff_t)block.kv_head * group * head_dim,
                sizeof(float) * group * head_dim);
}

void attend(const Call& call, const Block& block, int segment, const float* q, int* ranges, float* scratch, const Partial& out) {
  const Cache& cache = call.cache;
  int group = call.group(), vectors = block.rows * group, window = call.queries.window;
  int *low = ranges, *high = ranges + vectors;
  for (int i = 0; i < vectors; ++i) {
    int position = block.start + i / group - segment * SEGMENT;  // relative to the segment
    low[i] = window < 0 ? 0 : std::max(0, position - window + 1);
    high[i] = std::min(SEGMENT, position + 1);
  }
  const uint8_t* base = segment == block.own ? cache.tails + block.item->tail * cache.tail_bytes()
                                             : cache.pages + call.table[block.item->table + segment] * cache.page_bytes;
  const uint8_t* keys = base + 2 * block.kv_head * cache.plane_bytes();
  kernels().attend_segment(SegmentBlock{q, vectors, low, high, keys, keys + cache.plane_bytes(), cache.half, cache.head_dim,
                                        call.queries.scale, call.queries.softcap, scratch},
                           out);
}

void finish(const Call& call, const Block& block, const Partial& state, ptrdiff_t* offsets) {
  int group = call.group(), head_dim = call.cache.head_dim, vectors = block.rows * group;
  for (int i = 0; i < vectors; ++i)
    offsets[i] = ((ptrdiff_t)(block.row + i / group) * call.queries.heads + block.kv_head * group + i % group) * head_dim;
  kernels().finish(state, vectors, head_dim, call.out, offsets);
}

// One unit of work: a block's segment into its partial, or a whole block into the output.
void run_unit(const Call& call, const Block& block, int segment, float* partials) {
  int head_dim = call.cache.head_dim, vectors = block.rows * call.group();
  size_t size = partial_size(vectors, head_dim), q_size = (size_t)vectors * head_dim;
  size_t padded = (q_size + 4 * vectors + 15) / 16 * 16;  // queries, ranges and offsets
  float* memory = scratch(padded + 2 * size + segment_scratch(vectors, head_dim));
  float* q = memory;
  int* ranges = reinterpret_cast<int*>(memory + q_size);
  float* segment_memory = memory + padded;
  float* own_partials = segment_memory + segment_scratch(vectors, head_dim);
  gather_queries(call, block, q);
  if (segment >= 0) {
    Partial out = partial_at(partials + block.partial + (segment - block.first) * size, vectors);
    return attend(call, block, segment, q, ranges, segment_memory, out);
  }
  Partial state = partial_at(own_partials, vectors), next = partial_at(own_partials + size, vectors);
  std::fill_n(state.total, vectors, 0.0f);
  for (int s = block.first; s <= block.own; ++s) {
    attend(call, block, s, q, ranges, segment_memory, next);
    kernels().merge(state, next, vectors, head_dim);
  }
  finish(call, block, state, reinterpret_cast<ptrdiff_t*>(ranges));
}

void merge_split(const Call& call, const Block& block, float* partials) {
  int head_dim = call.cache.head_dim, vectors = block.rows * call.group();
  size_t size = partial_size(vectors, head_dim);
  std::vector<ptrdiff_t> offsets(vectors);
  Partial state = partial_at(partials + block.partial, vectors);
  for (int s = 1; s <= block.own - block.first; ++s)
    kernels().merge(state, partial_at(partials + block.partial + s * size, vectors), vectors, head_dim);
  finish(call, block, state, offsets.data());
}

}  // namespace

void paged_attention(const Queries& queries, const Cache& cache, const Item* items, int count, const int32_t* table, int table_size,
                     float* out) {
  check_items(cache, items, count, queries.rows);
  for (int i = 0; i < count; ++i) {
    int sealed = items[i].start / SEGMENT;
    if (items[i].table < 0 || items[i].table + sealed > table_size)
      throw std::invalid_argument("paged_attention: item " + std::to_string(i) + " needs " + std::to_string(sealed) +
                                  " page ids from table offset " + std::to_string(items[i].table) + "; the table has " +
                                  std::to_string(table_size));
    for (int s = 0; s < sealed; ++s)
      if (int page = table[items[i].table + s]; page < 0 || page >= cache.page_count)
        throw std::invalid_argument("paged_attention: item " + std::to_string(i) + " names page " + std::to_string(page) + " of " +
                                    std::to_string(cache.page_count));
  }
  Call call{queries, cache, table, out, {}, {}};
  plan(call, items, count);
  std::vector<float> partials(call.partial_floats);
  parallel((int)call.units.size(), [&](int unit) {
    auto [block, segment] = call.units[unit];
    run_unit(call, call.blocks[block], segment, partials.data());
  });
  if (call.partial_floats == 0) return;
  for (const Block& block : call.blocks)
    if (block.partial >= 0) merge_split(call, block, partials.data());
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
  auto write = [&](int unit) {
    const Item& item = items[unit / cache.kv_heads];
    int head = unit % cache.kv_heads;
    uint8_t* keys = cache.tails + item.tail * cache.tail_bytes() + 2 * head * cache.plane_bytes();
    for (int r = 0; r < item.count; ++r)
      kernels().append(k + (item.row + r) * k_row + head * cache.head_dim, v + (item.row + r) * v_row + head * cache.head_dim, keys,
                       keys + cache.plane_bytes(), cache.half, cache.head_dim, (item.start + r) % SEGMENT);
  };
  if ((int64_t)rows * cache.kv_heads * cache.head_dim >= 1 << 14) return parallel(count * cache.kv_heads, write);
  for (int unit = 0; unit < count * cache.kv_heads; ++unit) write(unit);
}

void seal_raw(const Cache& cache, const Item* items, int count) {
  if (cache.page_bytes < (int64_t)cache.tail_bytes()) throw std::invalid_argument("seal_raw: a page is smaller than a tail");
  for (int i = 0; i < count; ++i) {
    if (items[i].seal < 0) continue;
    if (items[i].seal >= cache.page_count || items[i].tail < 0 || items[i].tail >= cache.slots)
      throw std::invalid_argument("seal_raw: item " + std::to_string(i) + " names page " + std::to_string(items[i].seal) + " of " +
                                  std::to_string(cache.page_count) + ", tail " + std::to_string(items[i].tail) + " of " +
                                  std::to_string(cache.slots));
    std::memcpy(cache.pages + items[i].seal * cache.page_bytes, cache.tails + items[i].tail * cache.tail_bytes(), cache.tail_bytes());
  }
}

}  // namespace pitstop
