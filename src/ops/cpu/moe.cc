// ffn and expert_ffn of ops/moe.h: all blocks of a step (the experts that any row selected, then the shared one) go
// through the same four stages together, so that threads are busy whether one token selected eight experts or a thousand
// tokens selected all of them.
//
//   round      the input once per type; each block takes the rows that selected it
//   gate, up   one loop over the panels of all blocks
//   hidden     silu(gate) * up, rounded
//   down       one loop over the panels of all blocks
#include "ops/moe.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "ops/cpu/fp8_groups.h"
#include "ops/cpu/products.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"
#include "ops/quantize.h"
#include "tensor/formats.h"

namespace levin {
namespace {

// One feed-forward block and the rows that go through it.
struct Block {
  const ops::FfnWeights* weights = nullptr;
  const int32_t* rows = nullptr;  // of x; null: all
  int64_t n_rows = 0;
  float* out = nullptr;  // [n_rows, D]
  int64_t out_stride = 0;
  const float* hidden_weights = nullptr;  // [n_rows], of the hidden values; null: all 1
};

// x rounded to an operand type, and widened to what the kernels multiply, so that blocks only gather plain rows.
InputRows round_input(CpuBackend& cpu, const View& x, ops::Operand operand, const Matrix& w) {
  const int64_t n_rows = x.dim(0), k = x.dim(1);
  InputRows rows = {.x = x.bytes(), .stride = x.stride(0), .n_rows = n_rows, .k = k};
  if (operand == ops::Operand::kBF16 || operand == ops::Operand::kFp8By32) {
    const View out = cpu.arena().allocate(DType::kBF16, {n_rows, k});
    if (operand == ops::Operand::kBF16) {
      cpu.round_to_bf16({.x = x, .out = out});
    } else {
      cpu.round_to_fp8({.x = x, .group = kFp8Group, .out = out});
    }
    rows = {.x = out.bytes(), .dtype = DType::kBF16, .stride = k, .n_rows = n_rows, .k = k};
  } else if (operand == ops::Operand::kFp8) {
    const int64_t n_scales = (k + kQuantBlock - 1) / kQuantBlock;
    const View out = cpu.arena().allocate(DType::kF8E4M3, {n_rows, k});
    const View scale = cpu.arena().allocate(DType::kF32, {n_rows, n_scales});
    cpu.quantize_fp8({.x = x, .out = out, .scale = scale});
    rows = {.x = out.bytes(),
            .dtype = DType::kF8E4M3,
            .stride = k,
            .scale = scale.data<float>(),
            .scale_stride = n_scales,
            .n_rows = n_rows,
            .k = k};
  }
  return widen_rows(cpu, rows, operand_dtype(cpu, rows.dtype, w));
}

// The inputs of the blocks: x in each rounding that some block asks for, made once.
class RoundedInputs {
 public:
  RoundedInputs(CpuBackend& cpu, const View& x) : cpu_(cpu), x_(x) {}

  const InputRows& get(ops::Operand operand, const Matrix& w) {
    InputRows& rows = rows_[static_cast<size_t>(operand)][w.dtype() == DType::kF32 ? 0 : 1];
    if (rows.x == nullptr) rows = round_input(cpu_, x_, operand, w);
    return rows;
  }

 private:
  CpuBackend& cpu_;
  View x_;
  std::array<std::array<InputRows, 2>, 4> rows_;
};

// The hidden rows of one block.
struct Hidden {
  float* gate = nullptr;           // [n_rows, F], silu(gate) * up after the activation
  float* up = nullptr;             // [n_rows, F]
  InputRows rounded;               // the same as the input of `down`
  const float* weights = nullptr;  // [n_rows] to multiply by; null: all 1
  bool fp8_groups = false;         // values are rounded to fp8 in groups before they become bf16
};

Hidden allocate_hidden(CpuBackend& cpu, const Block& block) {
  const int64_t n_rows = block.n_rows, f = block.weights->gate.n();
  Hidden h;
  h.gate = cpu.arena().allocate(DType::kF32, {n_rows, f}).data<float>();
  h.up = cpu.arena().allocate(DType::kF32, {n_rows, f}).data<float>();
  h.weights = block.hidden_weights;
  h.rounded = {.x = h.gate, .stride = f, .n_rows = n_rows, .k = f};
  if (block.weights->hidden == ops::Operand::kF32) return h;
  h.fp8_groups = block.weights->hidden == ops::Operand::kFp8By32;
  h.rounded.dtype = block.weights->hidden == ops::Operand::kFp8 ? DType::kF8E4M3 : DType::kBF16;
  h.rounded.x = cpu.arena().allocate(h.rounded.dtype, {n_rows, f}).bytes();
  if (h.rounded.dtype == DType::kF8E4M3) {
    h.rounded.scale_stride = (f + kQuantBlock - 1) / kQuantBlock;
    h.rounded.scale = cpu.arena().allocate(DType::kF32, {n_rows, h.rounded.scale_stride}).data<float>();
  }
  return h;
}

// A block's rows of `input` as an operand of `w`; gate and up share one where they can.
const PreparedRows* take_rows(const CpuBackend& cpu, const InputRows& input, const Block& block, const Matrix& w,
                              std::vector<PreparedRows>& rows) {
  PreparedRows taken = {.input = input, .dtype = operand_dtype(cpu, input.dtype, w)};
  taken.input.rows = block.rows;
  taken.input.n_rows = block.n_rows;
  const bool shared = !rows.empty() && rows.back().input.x == taken.input.x &&
                      rows.back().input.rows == taken.input.rows && rows.back().dtype == taken.dtype;
  if (!shared) rows.push_back(taken);
  return &rows.back();
}

std::vector<Hidden> run_gate_up(CpuBackend& cpu, const View& x, std::span<const Block> blocks) {
  std::vector<Hidden> hidden;
  std::vector<PreparedRows> rows;
  std::vector<Product> products;
  rows.reserve(2 * blocks.size());  // products keep pointers into it
  RoundedInputs inputs(cpu, x);
  for (const Block& b : blocks) {
    const ops::FfnWeights& w = *b.weights;
    const Hidden h = hidden.emplace_back(allocate_hidden(cpu, b));
    const int64_t f = w.gate.n();
    products.push_back({take_rows(cpu, inputs.get(w.input, w.gate), b, w.gate, rows), &w.gate, h.gate, f});
    products.push_back({take_rows(cpu, inputs.get(w.input, w.up), b, w.up, rows), &w.up, h.up, f});
  }
  prepare_rows(cpu, rows);
  run_products(cpu, products);
  return hidden;
}

// silu(gate) * up, weighted and rounded, for rows begin .. end-1 of a block.
void activate_rows(const kernels::CpuKernels& cpu, const Hidden& h, float limit, Share rows) {
  const InputRows& out = h.rounded;
  const int64_t f = out.k, n_rows = rows.end - rows.begin;
  float* gate = h.gate + rows.begin * f;
  cpu.rows.silu_mul({.gate = gate,
                     .gate_stride = f,
                     .up = h.up + rows.begin * f,
                     .up_stride = f,
                     .limit = limit,
                     .out = gate,
                     .out_stride = f,
                     .n_rows = n_rows,
                     .d = f});
  for (int64_t r = 0; h.weights != nullptr && r < n_rows; ++r) {
    for (int64_t i = 0; i < f; ++i) gate[r * f + i] *= h.weights[rows.begin + r];
  }
  if (out.dtype == DType::kF32) return;
  for (int64_t r = 0; h.fp8_groups && r < n_rows; ++r) round_to_fp8_groups(gate + r * f, f, kFp8Group);
  const kernels::RoundRows job = {
      .x = gate,
      .x_stride = f,
      .out = static_cast<std::byte*>(const_cast<void*>(out.x)) + rows.begin * f * dtype_bytes(out.dtype),
      .out_stride = f,
      .scale = const_cast<float*>(out.scale) + rows.begin * out.scale_stride,
      .scale_stride = out.scale_stride,
      .n_rows = n_rows,
      .k = f};
  if (out.dtype == DType::kBF16) return cpu.matmul.round_to_bf16(job);
  cpu.matmul.quantize_fp8(job);
}

void activate(CpuBackend& cpu, std::span<const Hidden> hidden, float limit) {
  std::vector<int64_t> first_row = {0};
  int64_t n_values = 0;
  for (const Hidden& h : hidden) {
    first_row.push_back(first_row.back() + h.rounded.n_rows);
    n_values += h.rounded.n_rows * h.rounded.k;
  }
  const int64_t n_rows = first_row.back();
  cpu.pool().parallel_for(n_rows, n_values <= kFewValues ? n_rows : 1, [&](int64_t begin, int64_t end, int) {
    for (size_t i = 0; i < hidden.size(); ++i) {
      const int64_t from = std::max(begin, first_row[i]), to = std::min(end, first_row[i + 1]);
      if (from < to) activate_rows(cpu.kernels(), hidden[i], limit, {from - first_row[i], to - first_row[i]});
    }
  });
}

void run_blocks(CpuBackend& cpu, const View& x, std::span<const Block> blocks, float limit) {
  const std::vector<Hidden> hidden = run_gate_up(cpu, x, blocks);
  activate(cpu, hidden, limit);
  std::vector<PreparedRows> rows;
  std::vector<Product> products;
  rows.reserve(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Matrix& down = blocks[i].weights->down;
    const InputRows& input = hidden[i].rounded;
    rows.push_back({.input = input, .dtype = operand_dtype(cpu, input.dtype, down)});
    products.push_back({&rows.back(), &down, blocks[i].out, blocks[i].out_stride});
  }
  prepare_rows(cpu, rows);
  run_products(cpu, products);
}

// The rows of each expert that any row of `topk` chose, experts ascending.
struct Grouping {
  std::vector<int32_t> rows;    // [T * A], token of each pair, by expert then token
  std::vector<int32_t> places;  // [T, A], where pair (t, a) stands in `rows`
  std::vector<int64_t> first;   // [E + 1]
};

Grouping group_by_expert(const View& topk, int64_t n_experts) {
  const int64_t n_tokens = topk.dim(0), n_active = topk.dim(1);
  Grouping g;
  g.rows.resize(static_cast<size_t>(n_tokens * n_active));
  g.places.resize(g.rows.size());
  g.first.resize(static_cast<size_t>(n_experts + 1));
  for (int64_t t = 0; t < n_tokens; ++t) {
    const int32_t* row = topk.row<int32_t>(t);
    for (int64_t a = 0; a < n_active; ++a) {
      LEVIN_CHECK(row[a] >= 0 && row[a] < n_experts && (a == 0 || row[a - 1] < row[a]),
                  "expert_ffn: topk[{}, {}] is {}, expected ascending ids below {}", t, a, row[a], n_experts);
      ++g.first[row[a] + 1];
    }
  }
  for (int64_t e = 0; e < n_experts; ++e) g.first[e + 1] += g.first[e];
  std::vector<int64_t> next(g.first.begin(), g.first.end() - 1);
  for (int64_t t = 0; t < n_tokens; ++t) {
    for (int64_t a = 0; a < n_active; ++a) {
      const int64_t place = next[topk.row<int32_t>(t)[a]]++;
      g.rows[place] = static_cast<int32_t>(t);
      g.places[t * n_active + a] = static_cast<int32_t>(place);
    }
  }
  return g;
}

// Weights in the order of g.rows.
const float* grouped_weights(CpuBackend& cpu, const View& weights, const Grouping& g) {
  const int64_t n_active = weights.dim(1);
  float* out = cpu.arena().allocate(DType::kF32, {static_cast<int64_t>(g.rows.size())}).data<float>();
  for (int64_t t = 0; t < weights.dim(0); ++t) {
    for (int64_t a = 0; a < n_active; ++a) out[g.places[t * n_active + a]] = weights.row<float>(t)[a];
  }
  return out;
}

// The tokens of a whose scratch memory fits.
int64_t tokens_at_once(const ops::ExpertFfn& a) {
  const int64_t d = a.x.dim(1), n_active = a.topk.dim(1);
  const int64_t f = a.experts.empty() ? 0 : a.experts[0].gate.n();
  const int64_t f_shared = a.shared == nullptr ? 0 : a.shared->gate.n();
  // x as rounded, gathered and widened (at most 8 bytes a value), gate, up and hidden likewise, and the block's output.
  const int64_t token_bytes = n_active * (12 * d + 16 * f) + 12 * d + 16 * f_shared;
  return std::max<int64_t>(1, ops::kExpertScratchBytes / token_bytes);
}

// The tokens of `a` from `begin` on that are run together.
ops::ExpertFfn slice_at(const ops::ExpertFfn& a, int64_t begin) {
  const int64_t n = std::min(tokens_at_once(a), a.x.dim(0) - begin);
  ops::ExpertFfn slice = a;
  slice.x = a.x.slice_first(begin, n);
  slice.topk = a.topk.slice_first(begin, n);
  slice.weights = a.weights.slice_first(begin, n);
  slice.out = a.out.slice_first(begin, n);
  return slice;
}

void expert_ffn_slice(CpuBackend& cpu, const ops::ExpertFfn& a) {
  const int64_t n_tokens = a.x.dim(0), d = a.x.dim(1), n_experts = static_cast<int64_t>(a.experts.size());
  const ArenaScope scope(cpu.arena());
  const Grouping g = group_by_expert(a.topk, n_experts);
  float* y = cpu.arena().allocate(DType::kF32, {static_cast<int64_t>(g.rows.size()), d}).data<float>();
  const float* weights = a.weigh_hidden ? grouped_weights(cpu, a.weights, g) : nullptr;
  std::vector<Block> blocks;
  for (int64_t e = 0; e < n_experts; ++e) {
    const int64_t first = g.first[e], n_rows = g.first[e + 1] - first;
    if (n_rows == 0) continue;
    blocks.push_back({.weights = &a.experts[e],
                      .rows = g.rows.data() + first,
                      .n_rows = n_rows,
                      .out = y + first * d,
                      .out_stride = d,
                      .hidden_weights = weights == nullptr ? nullptr : weights + first});
  }
  const float* shared = nullptr;
  if (a.shared != nullptr) {
    float* out = cpu.arena().allocate(DType::kF32, {n_tokens, d}).data<float>();
    blocks.push_back({.weights = a.shared, .n_rows = n_tokens, .out = out, .out_stride = d});
    shared = out;
  }
  run_blocks(cpu, a.x, blocks, a.limit);
  const int64_t n_active = a.topk.dim(1);
  const std::vector<float> ones(static_cast<size_t>(n_active), 1.0f);
  cpu.pool().parallel_for(n_tokens, row_grain(n_tokens, n_active * d), [&](int64_t begin, int64_t end, int) {
    cpu.kernels().matmul.combine({.y = y,
                                  .rows = g.places.data() + begin * n_active,
                                  .weights = a.weigh_hidden ? ones.data() : a.weights.row<float>(begin),
                                  .weights_stride = a.weigh_hidden ? 0 : a.weights.stride(0),
                                  .n_terms = n_active,
                                  .last = shared == nullptr ? nullptr : shared + begin * d,
                                  .last_stride = d,
                                  .out = a.out.row<float>(begin),
                                  .out_stride = a.out.stride(0),
                                  .n_rows = end - begin,
                                  .d = d});
  });
}

OpWork ffn_work(const CpuBackend& cpu, const ops::FfnWeights& w, int64_t n_rows) {
  const auto operand = [&](ops::Operand rounded, const Matrix& m) {
    constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kBF16};  // of what is multiplied
    return operand_dtype(cpu, kTypes[static_cast<size_t>(rounded)], m);
  };
  OpWork work = product_work(operand(w.input, w.gate), w.gate, n_rows);
  work += product_work(operand(w.input, w.up), w.up, n_rows);
  return work += product_work(operand(w.hidden, w.down), w.down, n_rows);
}

// Each expert that a token selected, and the shared one.
OpWork experts_work(const CpuBackend& cpu, const ops::ExpertFfn& a) {
  std::vector<int64_t> n_rows(a.experts.size());
  for (int64_t t = 0; t < a.topk.dim(0); ++t) {
    for (int64_t i = 0; i < a.topk.dim(1); ++i) ++n_rows[static_cast<size_t>(a.topk.row<int32_t>(t)[i])];
  }
  OpWork work;
  for (size_t e = 0; e < n_rows.size(); ++e) {
    if (n_rows[e] > 0) work += ffn_work(cpu, a.experts[e], n_rows[e]);
  }
  if (a.shared != nullptr) work += ffn_work(cpu, *a.shared, a.x.dim(0));
  return work;
}

}  // namespace

void CpuBackend::ffn(const ops::Ffn& a) {
  LEVIN_CHECK(a.x.dtype() == DType::kF32, "ffn: x is {}, on the CPU f32", a.x.describe());
  const ArenaScope scope(arena_);
  const Block block = {
      .weights = a.weights, .n_rows = a.x.dim(0), .out = a.out.data<float>(), .out_stride = a.out.stride(0)};
  run_blocks(*this, a.x, {&block, 1}, a.limit);
}

OpWork CpuBackend::work(const ops::Ffn& a) const { return ffn_work(*this, *a.weights, a.x.dim(0)); }

void CpuBackend::expert_ffn(const ops::ExpertFfn& a) {
  LEVIN_CHECK(a.stack == nullptr && a.x.dtype() == DType::kF32, "expert_ffn: x is {}, {} a stack; on the CPU f32, none",
              a.x.describe(), a.stack == nullptr ? "without" : "with");
  for (int64_t t = 0; t < a.x.dim(0); t += tokens_at_once(a)) expert_ffn_slice(*this, slice_at(a, t));
}

OpWork CpuBackend::work(const ops::ExpertFfn& a) const {
  OpWork work;
  for (int64_t t = 0; t < a.x.dim(0); t += tokens_at_once(a)) work += experts_work(*this, slice_at(a, t));
  return work;
}

}  // namespace levin
