// Drivers of paged attention: the cutting of items into blocks of query vectors, and of long streams into segments.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "drivers.h"
#include "pool.h"

namespace pitstop {
namespace {

constexpr int SEGMENT = 128;
constexpr int BLOCK_VECTORS = 96;  // query vectors of one block: a segment is read and widened once for all of them
constexpr size_t WORTH_MERGING_TOGETHER = 16;  // blocks: fewer are merged before another thread has woken
constexpr int SPLIT_ROWS = 4;      // blocks of at most so many rows have their segments shared out among threads, small ones or few
constexpr int RUNS = 24, LONGEST_RUN = 8;  // in runs, so that each segment can ask for the next; many runs, so that no thread waits long

// Rows [row, row + rows) of the batch from position `start` on, all query heads of one KV head.
struct Block {
  const Item* item;
  int kv_head, row, rows, start;
  int first, own;     // first segment that any row sees, and the rows' own, the last; first > own: nothing is seen
  ptrdiff_t partial;  // where the partials of its segments lie, in floats; -1: merged as they come
};

// A run of a block's segments, from `segment` to `last`, or a whole block: segment -1.
struct Unit {
  int block, segment, last;
};

struct Call {
  const Queries& queries;
  const Cache& cache;
  const int32_t* table;
  float* out;
  std::vector<Block>& blocks;
  std::vector<Unit>& units;
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
  bool few = call.blocks.size() < RUNS;
  auto splits = [&](const Block& block) {
    return block.rows <= SPLIT_ROWS && block.own > block.first && (few || block.rows * call.group() <= BLOCK_VECTORS / 2);
  };
  int segments = 0;
  for (Block& block : call.blocks) {
    if (!splits(block)) continue;
    block.partial = (ptrdiff_t)call.partial_floats;
    call.partial_floats += (block.own - block.first + 1) * partial_size(block.rows * call.group(), call.cache.head_dim);
    segments += block.own - block.first + 1;
  }
  int run = std::clamp(segments / RUNS, 1, LONGEST_RUN);
  for (int i = 0; i < (int)call.blocks.size(); ++i) {
    const Block& block = call.blocks[i];
    if (!splits(block)) call.units.push_back({i, -1, -1});
    for (int segment = block.first; splits(block) && segment <= block.own; segment += run)
      call.units.push_back({i, segment, std::min(segment + run - 1, block.own)});
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

// One head's keys and values of one of a block's segments.
Head locate(const Call& call, const Block& block, int segment) {
  if (segment == block.own) return tail_head(call.cache, block.item->tail, block.kv_head);
  const int32_t* pages = call.table + block.item->table;
  bool lead = call.cache.layout.lead != 0;
  return page_head(call.cache, pages[segment + lead], lead && segment == 0 ? pages[0] : -1, block.kv_head);
}

// The keys of a block's segment, to be asked for before they are read.
Ahead keys_of(const Call& call, const Block& block, int segment) {
  Head head = locate(call, block, segment);
  return ahead_of(head.key_plane, head.keys, call.cache.head_dim, true, std::min(SEGMENT, block.start + block.rows - segment * SEGMENT));
}

float temperature(const Queries& queries, int position) {
  int length = queries.temperature_length;
  return length > 0 && position > length ? (float)(std::log2((double)position) / std::log2((double)length)) : 1.0f;
}

// `next`: what this thread will read after the segment.
void attend(const Call& call, const Block& block, int segment, Ahead next, const float* q, int* ranges, float* scratch,
            const Partial& out) {
  const Cache& cache = call.cache;
  int group = call.group(), vectors = block.rows * group, window = call.queries.window;
  int *low = ranges, *high = ranges + vectors;
  float *scale = reinterpret_cast<float*>(ranges + 2 * vectors), *softcap = scale + vectors;
  for (int i = 0; i < vectors; ++i) {
    int position = block.start + i / group - segment * SEGMENT;  // relative to the segment
    low[i] = window < 0 ? 0 : std::max(0, position - window + 1);
    high[i] = std::min(SEGMENT, position + 1);
    float heat = temperature(call.queries, block.start + i / group);
    scale[i] = call.queries.scale * heat;
    softcap[i] = call.queries.cap_first ? call.queries.softcap * heat : call.queries.softcap;  // t c tanh(s/c) = tc tanh(ts/tc)
  }
  Head head = locate(call, block, segment);
  kernels().attend_segment(SegmentBlock{q, vectors, low, high, head.keys, head.key_plane, head.values, head.value_plane, cache.head_dim,
                                        scale, softcap, scratch, next},
                           out);
}

void finish(const Call& call, const Block& block, const Partial& state, ptrdiff_t* offsets) {
  int group = call.group(), head_dim = call.cache.head_dim, vectors = block.rows * group;
  for (int i = 0; i < vectors; ++i)
    offsets[i] = ((ptrdiff_t)(block.row + i / group) * call.queries.heads + block.kv_head * group + i % group) * head_dim;
  kernels().finish(state, vectors, head_dim, call.out, offsets);
}

// One unit of work: a block's segment into its partial, or a whole block into the output.
void run_unit(const Call& call, int index, float* partials) {
  const Unit& unit = call.units[index];
  const Block& block = call.blocks[unit.block];
  // A thread takes tasks that follow each other, but at the end.
  const Unit* later = index + 1 < (int)call.units.size() ? &call.units[index + 1] : nullptr;
  auto after = [&](int at, int last) {
    if (at < last) return keys_of(call, block, at + 1);
    return later && later->segment >= 0 ? keys_of(call, call.blocks[later->block], later->segment) : Ahead{};
  };
  int segment = unit.segment;
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
    for (; segment <= unit.last; ++segment)
      attend(call, block, segment, after(segment, unit.last), q, ranges, segment_memory,
             partial_at(partials + block.partial + (segment - block.first) * size, vectors));
    return;
  }
  Partial state = partial_at(own_partials, vectors), next = partial_at(own_partials + size, vectors);
  std::fill_n(state.total, vectors, 0.0f);
  for (int s = block.first; s <= block.own; ++s) {
    attend(call, block, s, after(s, block.own), q, ranges, segment_memory, next);
    kernels().merge(state, (ptrdiff_t)size, 1, vectors, head_dim);
  }
  finish(call, block, state, reinterpret_cast<ptrdiff_t*>(ranges));
}

void merge_split(const Call& call, const Block& block, float* partials) {
  int vectors = block.rows * call.group();
  Partial first = partial_at(partials + block.partial, vectors);
  kernels().merge(first, (ptrdiff_t)partial_size(vectors, call.cache.head_dim), block.own - block.first, vectors, call.cache.head_dim);
  finish(call, block, first, reinterpret_cast<ptrdiff_t*>(scratch(2 * vectors)));
}

}  // namespace

void paged_attention(const Queries& queries, const Cache& cache, const Item* items, int count, const int32_t* table, int table_size,
                     float* out) {
  check_items(cache, items, count, queries.rows);
  check_pages(cache);
  for (int i = 0; i < count; ++i) check_table(cache, items, i, items[i].start / SEGMENT, table, table_size);
  // Kept from call to call, since allocating takes as long as a short stream's attention.
  thread_local std::vector<Block> blocks;
  thread_local std::vector<Unit> units;
  blocks.clear(), units.clear();
  Call call{queries, cache, table, out, blocks, units};
  plan(call, items, count);
  float* partials = call_scratch(call.partial_floats);
  parallel((int)units.size(), [&](int i) { run_unit(call, i, partials); });
  if (call.partial_floats == 0) return;
  auto merge_block = [&](int i) {
    if (call.blocks[i].partial >= 0) merge_split(call, call.blocks[i], partials);
  };
  if (blocks.size() >= WORTH_MERGING_TOGETHER) return parallel((int)blocks.size(), merge_block);
  for (int i = 0; i < (int)blocks.size(); ++i) merge_block(i);
}

}  // namespace pitstop
