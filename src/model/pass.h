// One forward pass over one step: the ops with their context, step and scratch memory filled in, so that a layer reads
// like its equations.
//
// A thin forwarder: it allocates outputs from the arena, rounds inputs of products to the type the weight asks for, and
// calls ops::. It knows no layer.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

#include "kv/cache.h"
#include "model/numerics.h"
#include "model/step.h"
#include "model/weights.h"
#include "ops/context.h"
#include "ops/index_topk.h"
#include "ops/rope.h"
#include "ops/row_chains.h"
#include "tensor/view.h"

namespace levin {

// Called as a pass goes along, for traces and tests; empty functions cost nothing. The pass continues with what the rows hold
// afterwards, so that a test may put other values in the place of x and of choices; a Runner hands out copies of them.
struct Probe {
  std::function<void(int layer, View x)> on_layer_output;  // x [T, D] f32, residual stream after the layer
  std::function<void(int layer, View topk)> on_topk;       // topk [T, K] i32, slots that the layer attends to
  // Of models with windows: x [T, Dh] f32, the rows that a layer appends to its own.
  std::function<void(int layer, View x)> on_window_rows;
  // Of models that draft in blocks, what the draft layers are given of the trunk: part 0 [T, Nt * D] f32 as it is, part 1
  // [T, D] f32 joined.
  std::function<void(int part, View x)> on_taps;
  // Before on_topk, unless every slot is taken: what the layer's indexer ranks its tokens by, where the model runs.
  std::function<void(const ops::IndexQuery& query)> on_index_query = {};
  // Of each layer that chooses experts, in order: logits [T, E] f32, experts [T, A] i32, weights [T, A] f32, where the model runs.
  std::function<void(View logits, View experts, View weights)> on_experts = {};
};

// cos and sin of some positions, [N, Dr/2] each.
struct Rotation {
  View cos;
  View sin;
  ops::Rotation of(ops::RopePairing pairing) const { return {.cos = cos, .sin = sin, .pairing = pairing}; }
};

// Rows that several products read, rounded once for all whose weights ask for the same type.
struct ProductInput {
  View x;                                     // [T, K] f32; empty where one product alone reads the rows, `rounded`
  ops::Operand operand = ops::Operand::kF32;  // what `rounded` was made for
  View rounded = {};                          // [T, K]; with kF32 not looked at
  View scale = {};                            // of e4m3
  bool scale_by_block = false;                // ops/quantize.h
};

// [T, K] -> [T, N], rounding the input as `w` says.
View matmul(OpContext& ctx, View x, const Linear& w);

class Pass {
 public:
  Pass(OpContext& ctx, const Numerics& numerics, const Step& step, const KvCache& cache, const Probe* probe);

  // The rest of a pass for some of its tokens: `step` is step_of_rows() of this one's.
  Pass of_rows(const Step& step, View rows);

  const Numerics& numerics() const { return numerics_; }
  const Step& step() const { return step_; }
  const KvCache& cache() const { return cache_; }
  const Probe* probe() const { return probe_; }
  void show_taps(int part, View x) const {  // to the probe, if it asks for them
    if (probe_ != nullptr && probe_->on_taps) probe_->on_taps(part, x);
  }
  OpContext& ctx() { return ctx_; }
  int64_t n_tokens() const { return step_.n_tokens(); }

  View allocate(DType dtype, std::initializer_list<int64_t> shape) { return ctx_.arena->allocate(dtype, shape); }

  Rotation rotation(View positions, const std::vector<float>& frequencies);  // positions [N] i32
  Rotation inverse(const Rotation& r);
  // The rotation of the step's positions; prepare it once before the first layer that asks for it.
  void prepare_rope(const std::vector<float>& frequencies) { rope_ = rotation(step_.positions, frequencies); }
  const Rotation& step_rotation() const { return rope_; }

  // What layers that select n_topk of the step's slots share; make it once before the first. Empty where none is needed.
  void plan_index(int64_t n_topk);
  View index_plan() const { return index_plan_; }

  View rows_of(View x, View rows);                                     // [T, D] f32, [N] i32 -> [N, D], a copy
  View embed(View table);                                              // -> [T, D]
  View concatenate(View a, View b);                                    // [T, N], [T, M] f32 -> [T, N + M]
  View rms_norm(View x, const Vector& weight, float eps);              // [T, D] -> [T, D]
  View rms_norm(View x, float eps);                                    // the same without a weight
  View add_and_norm(View x, View y, const Vector& weight, float eps);  // x += y -> rms_norm of x
  void rms_norm_into(View out, View x, const Vector& weight, float eps);
  View layer_norm(View x, const Vector& weight, const Vector& bias, float eps);
  void rms_norm_heads(View x, float eps);  // [T, H, D] in place, every head for itself, without a weight
  // The same, and rounded as the input of `w`.
  ProductInput norm_input(View x, const Vector& weight, float eps, const Linear& w);
  // The same for `norm`, x and weight, by norm_and_append() with its other parts as they are.
  ProductInput norm_input_and_append(ops::NormAndAppend a, const Linear& w);
  View matmul(View x, const Linear& w);                 // the same as the function
  View matmul(const ProductInput& x, const Linear& w);  // the same
  // The same with several weights, by one call where these stand together (WeightVisitor::of_one_input).
  std::vector<View> matmuls(const ProductInput& x, std::initializer_list<const Linear*> w);
  void matmul_into(View out, View x, const Linear& w);  // the same into given memory
  void matmul_into(View out, const ProductInput& x, const Linear& w);
  // [T, H, K] -> [T, H, N] f32, or bf16, inputs rounded as numerics.absorbed says
  View matmul_per_head(View x, std::span<const Matrix> w, DType out = DType::kF32);
  // The same as rows [T, H * N] that are the input of `w`.
  ProductInput matmul_per_head_input(View x, std::span<const Matrix> heads, const Linear& w);
  void rotate(View x, const Rotation& r,
              ops::RopePairing pairing = ops::RopePairing::kInterleaved);  // [N, H, Dr] in place
  void add_into(View x, View y);                                           // x += y
  ArenaScope scope() { return ArenaScope(*ctx_.arena); }                   // frees what the rest of the block allocates

 private:
  OpContext& ctx_;
  const Numerics& numerics_;
  const Step& step_;
  const KvCache& cache_;
  const Probe* probe_;
  Rotation rope_;
  View index_plan_;
};

}  // namespace levin
