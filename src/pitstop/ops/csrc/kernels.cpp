// Compiled once per instruction set, with PITSTOP_TABLE naming the table to define (see CMakeLists.txt).
#include "kernels.h"

#include "attention_kernels.h"
#include "packed_kernels.h"
#include "tile.h"
#include "vec.h"

namespace {

template <class W>
void linear_of(const float* x, ptrdiff_t x_row, int rows, const W* w, int depth, int panels, int columns, float* out,
            ptrdiff_t out_row) {
  ptrdiff_t w_panel = (ptrdiff_t)depth * LANES;
  int whole = columns / LANES;
  if (whole) multiply(Product<W, 0>{x, x_row, w, LANES, depth, out, out_row, false, 0, {}, w_panel}, rows, whole);
  if (whole == panels) return;
  // The last, partial panel goes through a buffer, a tile's rows at a time.
  float buffer[TILE_ROWS * LANES];
  for (int row = 0; row < rows; row += TILE_ROWS) {
    int count = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
    multiply(Product<W, 0>{x + row * x_row, x_row, w + whole * w_panel, LANES, depth, buffer, LANES, false}, count, 1);
    for (int r = 0; r < count; ++r)
      for (int c = whole * LANES; c < columns; ++c) out[(row + r) * out_row + c] = buffer[r * LANES + c - whole * LANES];
  }
}

void linear(const float* x, ptrdiff_t x_row, int rows, Floats kind, const void* w, int depth, int panels, int columns, float* out,
            ptrdiff_t out_row) {
  if (kind == Floats::fp32) return linear_of(x, x_row, rows, (const float*)w, depth, panels, columns, out, out_row);
  if (kind == Floats::fp16) return linear_of(x, x_row, rows, (const Half*)w, depth, panels, columns, out, out_row);
  linear_of(x, x_row, rows, (const BFloat*)w, depth, panels, columns, out, out_row);
}

template <class W>
void row_of(const W* panel, int depth, int lane, float* out) {
  float lanes[LANES];
  for (int k = 0; k < depth; ++k) store(lanes, load(panel + k * LANES)), out[k] = lanes[lane];
}

void linear_row(Floats kind, const void* panel, int depth, int lane, float* out) {
  if (kind == Floats::fp32) return row_of((const float*)panel, depth, lane, out);
  if (kind == Floats::fp16) return row_of((const Half*)panel, depth, lane, out);
  row_of((const BFloat*)panel, depth, lane, out);
}

void rms_norm(const float* x, ptrdiff_t x_row, int rows, const float* weight, int dim, float eps, float* out) {
  int whole = dim / LANES * LANES, left = dim - whole;
  for (int r = 0; r < rows; ++r, x += x_row, out += dim) {
    Vec squares = broadcast(0.0f);
    for (int i = 0; i < whole; i += LANES) {
      Vec v = load(x + i);
      squares = fma(v, v, squares);
    }
    if (left) {
      Vec v = load_first(x + whole, left);
      squares = fma(v, v, squares);
    }
    Vec factor = broadcast(1.0f / __builtin_sqrtf(sum(squares) / (float)dim + eps));
    for (int i = 0; i < whole; i += LANES) store(out + i, mul(mul(load(x + i), factor), load(weight + i)));
    if (left) store_first(out + whole, mul(mul(load_first(x + whole, left), factor), load_first(weight + whole, left)), left);
  }
}

// The mean and the mean of squares around it are sums of 16 chains each; lanes behind the last column hold the mean, and add nothing.
void layer_norm(const float* x, ptrdiff_t x_row, int rows, const float* weight, const float* bias, int dim, float eps, float* out) {
  int whole = dim / LANES * LANES, left = dim - whole;
  for (int r = 0; r < rows; ++r, x += x_row, out += dim) {
    Vec total = load_first(x + whole, left);
    for (int i = 0; i < whole; i += LANES) total = add(total, load(x + i));
    Vec mean = broadcast(sum(total) / (float)dim), last = mean, squares = broadcast(0.0f);
    if (left) {
      float lanes[LANES];
      store(lanes, mean);
      for (int i = 0; i < left; ++i) lanes[i] = x[whole + i];
      last = load(lanes);
    }
    for (int i = 0; i < whole; i += LANES) {
      Vec v = sub(load(x + i), mean);
      squares = fma(v, v, squares);
    }
    last = sub(last, mean);
    Vec factor = broadcast(1.0f / __builtin_sqrtf(sum(fma(last, last, squares)) / (float)dim + eps));
    for (int i = 0; i < whole; i += LANES)
      store(out + i, fma(mul(sub(load(x + i), mean), factor), load(weight + i), load(bias + i)));
    if (!left) continue;
    store_first(out + whole, fma(mul(last, factor), load_first(weight + whole, left), load_first(bias + whole, left)), left);
  }
}

INLINE Vec silu_times(Vec gate, Vec up) {
  Vec denominator = add(broadcast(1.0f), exp(sub(broadcast(0.0f), gate)));
  return mul(div(gate, denominator), up);
}

// gate / 2 (1 + tanh z) = gate / (1 + e^-2z), which has no difference of near equals; z = sqrt(2 / pi) (gate + 0.044715 gate^3).
INLINE Vec gelu_tanh_times(Vec gate, Vec up) {
  Vec exponent = mul(gate, fma(mul(gate, gate), broadcast(-0.071354816f), broadcast(-1.5957691f)));
  return mul(div(gate, add(broadcast(1.0f), exp(exponent))), up);
}

// gate Phi(gate), and Phi(-t) = erfc(t / sqrt 2) / 2 = e^(-t^2 / 2) / (1 + 5 t / 4) p(q), q = (t - 4) / (t + 4), p of degree 9 interpolating
// at Chebyshev nodes for t up to 16, where all is 0. t^2 comes in two parts, since e^x makes relative errors of absolute ones.
INLINE Vec gelu_erf_times(Vec gate, Vec up) {
  Vec t = smaller(broadcast(16.0f), larger(gate, sub(broadcast(0.0f), gate)));
  Vec square = mul(t, t), rest = fma(t, t, sub(broadcast(0.0f), square));
  Vec e = exp(mul(square, broadcast(-0.5f)));
  e = fma(mul(e, broadcast(-0.5f)), rest, e);
  Vec q = div(sub(t, broadcast(4.0f)), add(t, broadcast(4.0f)));
  Vec p = fma(broadcast(0x1.ffefdap-14f), q, broadcast(0x1.e70e28p-11f));
  p = fma(p, q, broadcast(-0x1.698322p-11f));
  p = fma(p, q, broadcast(-0x1.a5b21ep-8f));
  p = fma(p, q, broadcast(0x1.92dfe6p-6f));
  p = fma(p, q, broadcast(-0x1.88c808p-5f));
  p = fma(p, q, broadcast(0x1.b7af2p-5f));
  p = fma(p, q, broadcast(-0x1.bd891cp-7f));
  p = fma(p, q, broadcast(-0x1.40a246p-4f));
  p = fma(p, q, broadcast(0x1.22078ep-1f));
  Vec tail = div(mul(e, p), fma(t, broadcast(1.25f), broadcast(1.0f)));
  UNROLL for (int i = 0; i < PARTS; ++i) tail.part[i] = gate.part[i] < 0 ? tail.part[i] : 1 - tail.part[i];
  return mul(mul(gate, tail), up);
}

template <Vec (*TIMES)(Vec, Vec)>
void gated(const GateUp& x, float* out) {
  int whole = x.features / LANES * LANES, left = x.features - whole;
  for (int r = 0; r < x.rows; ++r, out += x.features) {
    const float *gate = x.gate + r * x.gate_row, *up = x.up + r * x.up_row;
    for (int i = 0; i < whole; i += LANES) store(out + i, TIMES(load(gate + i), load(up + i)));
    if (left) store_first(out + whole, TIMES(load_first(gate + whole, left), load_first(up + whole, left)), left);
  }
}

INLINE Vec capped(Vec x, Vec cap) { return mul(cap, tanh(div(x, cap))); }

void softcap(const float* x, float cap, ptrdiff_t count, float* out) {
  ptrdiff_t i = 0;
  for (; i + LANES <= count; i += LANES) store(out + i, capped(load(x + i), broadcast(cap)));
  if (i < count) store_first(out + i, capped(load_first(x + i, (int)(count - i)), broadcast(cap)), (int)(count - i));
}

// Products and differences are rounded one by one, as in the reference: the two agree to the bit.
void rotate(const float* x, const float* cos, const float* sin, int heads, int head_dim, bool interleaved, float* out) {
  int half = head_dim / 2;
  int first = interleaved ? 2 : 1, second = interleaved ? 1 : half;
  int whole = interleaved ? 0 : half / LANES * LANES;
  for (int h = 0; h < heads; ++h, x += head_dim, out += head_dim) {
    for (int i = 0; i < whole; i += LANES) {
      Vec a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
      store(out + i, sub(mul(a, c), mul(b, s)));
      store(out + half + i, add(mul(b, c), mul(a, s)));
    }
    for (int i = whole; i < half; ++i) {
      float a = x[i * first], b = x[i * first + second];
      out[i * first] = a * cos[i] - b * sin[i];
      out[i * first + second] = b * cos[i] + a * sin[i];
    }
  }
}

// Lane i + STEP where i has that bit clear, lane i - STEP where it is set.
template <int STEP>
INLINE Vec swap_lanes(Vec v) {
  Vec r;
  if constexpr (STEP >= WIDTH) {
    UNROLL for (int i = 0; i < PARTS; ++i) r.part[i] = v.part[i ^ STEP / WIDTH];
  } else {
    NativeInt order;
    UNROLL for (int i = 0; i < WIDTH; ++i) order[i] = i ^ STEP;
#if defined(__clang__)
    for (int part = 0; part < PARTS; ++part)
      UNROLL for (int i = 0; i < WIDTH; ++i) r.part[part][i] = v.part[part][i ^ STEP];
#else
    UNROLL for (int i = 0; i < PARTS; ++i) r.part[i] = __builtin_shuffle(v.part[i], order);
#endif
  }
  return r;
}

// Sums where the lane's bit STEP is clear, differences where it is set: y - x as y + (-x), which is the same.
template <int STEP>
INLINE Vec butterfly(Vec x) {
  Vec y = swap_lanes<STEP>(x);
  UNROLL for (int i = 0; i < PARTS; ++i) {
    NativeInt sign;
    UNROLL for (int j = 0; j < WIDTH; ++j) sign[j] = (i * WIDTH + j) & STEP ? INT32_MIN : 0;
    y.part[i] = y.part[i] + (Native)((NativeInt)x.part[i] ^ sign);
  }
  return y;
}

// dim may be less than 16.
INLINE void hadamard_small(const float* x, int dim, float factor, float* out) {
  for (int i = 0; i < dim; ++i) out[i] = x[i];
  for (int step = 1; step < dim; step *= 2)
    for (int i = 0; i < dim; ++i)
      if (!(i & step)) {
        float a = out[i], b = out[i + step];
        out[i] = a + b, out[i + step] = a - b;
      }
  for (int i = 0; i < dim; ++i) out[i] *= factor;
}

void hadamard(const float* x, int heads, int dim, float* out) {
  float factor = (float)(1 / __builtin_sqrt((double)dim));
  for (int h = 0; h < heads; ++h, x += dim, out += dim) {
    if (dim < LANES) {
      hadamard_small(x, dim, factor, out);
      continue;
    }
    for (int i = 0; i < dim; i += LANES) store(out + i, butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(load(x + i))))));
    for (int step = LANES; step < dim; step *= 2)
      for (int first = 0; first < dim; first += 2 * step)
        for (int i = first; i < first + step; i += LANES) {
          Vec a = load(out + i), b = load(out + i + step);
          store(out + i, add(a, b)), store(out + i + step, sub(a, b));
        }
    for (int i = 0; i < dim; i += LANES) store(out + i, mul(load(out + i), broadcast(factor)));
  }
}

void exp_all(const float* x, float* out, ptrdiff_t count) {
  ptrdiff_t i = 0;
  for (; i + LANES <= count; i += LANES) store(out + i, exp(load(x + i)));
  if (i < count) store_first(out + i, exp(load_first(x + i, (int)(count - i))), (int)(count - i));
}

float sum_all(const float* x, ptrdiff_t count) {
  Vec sums[4] = {broadcast(0.0f), broadcast(0.0f), broadcast(0.0f), broadcast(0.0f)};
  for (ptrdiff_t i = 0; i + 4 * LANES <= count; i += 4 * LANES) {
    UNROLL for (int j = 0; j < 4; ++j) sums[j] = add(sums[j], load(x + i + j * LANES));
  }
  return sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

#if defined(__AVX2__) || defined(__aarch64__)
constexpr bool HAS_FMA = true;
#else
constexpr bool HAS_FMA = false;
#endif

}  // namespace

#define PITSTOP_STRING2(x) #x
#define PITSTOP_STRING(x) PITSTOP_STRING2(x)
#define PITSTOP_JOIN2(a, b) a##b
#define PITSTOP_JOIN(a, b) PITSTOP_JOIN2(a, b)

extern const Kernels PITSTOP_JOIN(kernels_, PITSTOP_TABLE) = {
    PITSTOP_STRING(PITSTOP_TABLE), PACKED_ROWS, HAS_FMA, linear, packed_linear, packed_linear_fp32, dequantize_group, quantize, form, linear_row, rms_norm, layer_norm, gated<silu_times>, gated<gelu_tanh_times>, gated<gelu_erf_times>, softcap, rotate, hadamard, append, encode_plane, attend_segment, merge, finish, exp_all, sum_all,
};
