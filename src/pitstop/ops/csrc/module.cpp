// The Python module: addresses and integers in, nothing out. Shapes and dtypes are checked by the Python side (ops/*/cpu.py).
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>

#include "drivers.h"
#include "packed_drivers.h"
#include "pool.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace pitstop;

namespace {

using Address = uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// bits | ranges << 8 | coding << 12
Plane plane_of(int code) { return Plane{code & 255, (Ranges)(code >> 8 & 15), (Coding)(code >> 12)}; }

Cache cache_of(Address tails, int slots, Address pages, int page_count, int64_t page_bytes, int kv_heads, int head_dim, bool half, int keys,
               int values, int lead) {
  Layout layout{plane_of(keys), plane_of(values), lead};
  return Cache{at<uint8_t>(tails), slots, at<uint8_t>(pages), page_count, page_bytes, kv_heads, head_dim, half, layout};
}

// Op calls with all their arguments, to be run again as one call: what a CUDA graph is to a GPU. The addresses must stay valid.
struct Graph {
  std::vector<std::function<void()>> calls;

  void replay() const {
    for (const auto& call : calls) call();
  }
};

// An op is bound twice: as a function that runs now, and as a method of Graph that notes the call.
struct Binder {
  nb::module_& module;
  nb::class_<Graph>& graph;

  template <class... Args>
  void operator()(const char* name, void (*op)(Args...)) const {
    module.def(name, op, nb::call_guard<nb::gil_scoped_release>());
    graph.def(name, [op](Graph& graph, Args... args) { graph.calls.push_back([=] { op(args...); }); });
  }
};

template <void (*OP)(const GateUp&, float*)>
void gated(Address gate, int64_t gate_row, Address up, int64_t up_row, int rows, int features, Address out) {
  OP(GateUp{at<float>(gate), gate_row, at<float>(up), up_row, rows, features}, at<float>(out));
}

void bind_rows(const Binder& bind) {
  bind("linear", +[](Address x, int64_t x_row, int rows, int kind, Address w, int depth, int columns, Address out) {
    linear(at<float>(x), x_row, rows, kind, at<uint8_t>(w), depth, columns, at<float>(out));
  });
  bind("linear_rows", +[](int kind, Address w, int depth, int columns, Address ids, int count, float scale, Address out) {
    linear_rows(kind, at<uint8_t>(w), depth, columns, at<int64_t>(ids), count, scale, at<float>(out));
  });
  bind("add_bias", +[](Address y, int rows, int columns, Address bias) { add_bias(at<float>(y), rows, columns, at<float>(bias)); });
  bind("rms_norm", +[](Address x, int64_t x_row, int rows, int heads, Address weight, int dim, float eps, Address out) {
    rms_norm(at<float>(x), x_row, rows, heads, at<float>(weight), dim, eps, at<float>(out));
  });
  bind("add_rms_norm", +[](Address x, Address y, int rows, Address weight, int dim, float eps, Address total, Address out) {
    add_rms_norm(at<float>(x), at<float>(y), rows, at<float>(weight), dim, eps, at<float>(total), at<float>(out));
  });
  bind("layer_norm", +[](Address x, int64_t x_row, int rows, Address weight, Address bias, int dim, float eps, Address out) {
    layer_norm(at<float>(x), x_row, rows, at<float>(weight), at<float>(bias), dim, eps, at<float>(out));
  });
  bind("silu_mul", gated<silu_mul>);
  bind("gelu_tanh_mul", gated<gelu_tanh_mul>);
  bind("gelu_erf_mul", gated<gelu_erf_mul>);
  bind("route", +[](Address logits, int rows, int experts, int top_k, bool renormalise, Address ids, Address weights) {
    route(at<float>(logits), rows, experts, top_k, renormalise, at<int64_t>(ids), at<float>(weights));
  });
  bind("softcap", +[](Address x, int rows, int columns, float cap, Address out) {
    softcap(at<float>(x), rows, columns, cap, at<float>(out));
  });
  bind("rotate", +[](Address x, int64_t x_row, int rows, Address positions, Address cos, Address sin, int context, int heads, int head_dim,
                     bool interleaved, Address out) {
    rotate(at<float>(x), x_row, rows, at<int32_t>(positions), at<float>(cos), at<float>(sin), context, heads, head_dim, interleaved,
           at<float>(out));
  });
  bind("hadamard", +[](Address x, int64_t x_row, int rows, int heads, int dim, Address out) {
    hadamard(at<float>(x), x_row, rows, heads, dim, at<float>(out));
  });
  bind("clear", +[](Address out, int64_t count) { std::fill_n(at<float>(out), count, 0.0f); });
}

void bind_packed(nb::module_& m, const Binder& bind) {
  bind("packed_linear", +[](Address x, int64_t x_row, int rows, int kind, Address w, int depth, int columns, int precision, Address out,
                            int64_t out_row) {
    packed_linear(at<float>(x), x_row, rows, kind, at<uint8_t>(w), depth, columns, precision, at<float>(out), out_row);
  });
  bind("packed_rows", +[](int kind, Address w, int depth, int columns, Address ids, int count, float scale, Address out) {
    packed_rows(kind, at<uint8_t>(w), depth, columns, at<int64_t>(ids), count, scale, at<float>(out));
  });
  nb::call_guard<nb::gil_scoped_release> unlocked;
  m.def("packed_bytes", [](int kind, int depth, int columns) { return (columns + 15) / 16 * packed_panel_bytes(kind, depth); });
  m.def("pack_blocks", [](int format, Address source, int rows, int depth, int first, Address out) {
    return pack_blocks(format, at<uint8_t>(source), rows, depth, first, at<uint8_t>(out));
  }, unlocked);
  m.def("pack_int8", [](Address values, Address scales, int rows, int depth, Address out) {
    pack_int8(at<int8_t>(values), at<float>(scales), rows, depth, at<uint8_t>(out));
  }, unlocked);
}

void bind_attention(const Binder& bind) {
  bind("append", +[](Address k, int64_t k_row, Address v, int64_t v_row, int rows, Address tails, int slots, int kv_heads, int head_dim,
                     bool half, Address items, int count) {
    append(at<float>(k), k_row, at<float>(v), v_row, rows, cache_of(tails, slots, 0, 0, 0, kv_heads, head_dim, half, 0, 0, 0),
           at<Item>(items), count);
  });
  bind("seal", +[](Address tails, int slots, Address pages, int page_count, int64_t page_bytes, int kv_heads, int head_dim, bool half,
                   int keys, int values, int lead, Address items, int count, Address table, int table_size) {
    seal(cache_of(tails, slots, pages, page_count, page_bytes, kv_heads, head_dim, half, keys, values, lead), at<Item>(items), count,
         at<int32_t>(table), table_size);
  });
  bind("paged_attention", +[](Address q, int64_t q_row, int rows, int heads, Address tails, int slots, Address pages, int page_count,
                              int64_t page_bytes, int kv_heads, int head_dim, bool half, int keys, int values, int lead, Address items,
                              int count, Address table, int table_size, float scale, float softcap, int window,
                              int temperature_length, bool cap_first, Address out) {
    paged_attention(Queries{at<float>(q), q_row, rows, heads, scale, softcap, window, temperature_length, cap_first},
                    cache_of(tails, slots, pages, page_count, page_bytes, kv_heads, head_dim, half, keys, values, lead), at<Item>(items),
                    count, at<int32_t>(table), table_size, at<float>(out));
  });
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Pitstop's CPU kernels. Use them through pitstop.ops.";
  nb::call_guard<nb::gil_scoped_release> unlocked;
  nb::class_<Graph> graph(m, "Graph");
  graph.def(nb::init<>()).def("replay", &Graph::replay, unlocked).def("__len__", [](const Graph& g) { return g.calls.size(); });
  Binder bind{m, graph};
  bind_rows(bind);
  bind_packed(m, bind);
  bind_attention(bind);
  m.def("exp", [](Address x, Address out, int64_t count) { kernels().exp(at<float>(x), at<float>(out), count); }, unlocked);
  m.def("read", [](Address x, int64_t count) { return read(at<float>(x), count); }, unlocked);
  m.def("set_threads", &set_threads, "threads"_a, unlocked);
  m.def("threads", &threads, unlocked);
  m.def("available_isas", &available_isas);
  m.def("set_isa", &set_isa, "name"_a);
  m.def("isa", [] { return std::string(kernels().name); });
  m.def("has_fma", [] { return kernels().fma; });
}
