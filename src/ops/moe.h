// Mixture of experts: choosing experts, running them, and the feed-forward block itself.
//
//   silu_mul        out = silu(gate) * up,  silu(z) = z / (1 + exp(-z)); with a limit, min(gate, limit) for gate and up
//                   cut off at +-limit
//   route_experts   s = sigmoid(x . gate), or sqrt(softplus(x . gate));  b = s + bias;  groups of E/n_groups
//                   consecutive experts score the sum of their two largest b; outside the best n_groups_kept groups
//                   b = -inf;  the A best b win, or those that are given;  weight = s / (sum of winners' s + 1e-20)
//                   * factor
//   expert_ffn      out[t,:] = sum_e weight[t,e] * down_e(silu_mul(gate_e(x_t), up_e(x_t))), e ascending, then +
//                   shared(x_t); with weigh_hidden sum_e down_e(weight[t,e] * silu_mul(gate_e(x_t), up_e(x_t))), which
//                   differs where the input of down is rounded
//   routed_ffn      route_experts, then expert_ffn
//
// Selections  by (value descending, index ascending), -0 counting as +0; selects are handed on in ascending expert id,
//             weights with them
// Tree        silu, sigmoid, softplus: one f32 formula (kernels/cpu/simd_math.h). Sum of the winners' s: ascending
//             expert id; weight = s / (sum + 1e-20) * factor in that order, s * factor if they are not normalised. A
//             row with a score that is NaN gets the first experts with weight 0 and is marked in faults. out: fma(weight, y_e, total) ascending e from zero, then total + shared; with
//             weigh_hidden the hidden values are multiplied once, and the weight here is 1. What is to be added to out is
//             complete before that: out + total, the last addition. Products as in ops/matmul.h.
// Memory      expert_ffn takes as many tokens at a time as fit kExpertScratchBytes of scratch; at least one
// CUDA        route_experts of sigmoid scores, up to 512 experts, 16 selects and 32 groups, with the bits of the CPU; ffn and
//             expert_ffn of e4m3 weights with fp8 inputs (Operand::kFp8), widths multiples of 16, the experts one after
//             another or in an ExpertStack, which may be mxfp4. Values between the roundings are bf16 there, not f32: gate
//             and up, and what an expert and the shared block give
// Source      model_spec.md 5
#pragma once

#include <limits>
#include <span>

#include "ops/context.h"
#include "tensor/matrix.h"
#include "tensor/view.h"

namespace levin::ops {

constexpr int64_t kExpertScratchBytes = int64_t{256} << 20;
constexpr float kNoLimit = std::numeric_limits<float>::infinity();

struct SiluMul {
  View gate;  // [T, F] f32
  View up;    // [T, F] f32
  float limit = kNoLimit;
  View out;  // [T, F] f32; may be gate or up
};
void silu_mul(OpContext& ctx, const SiluMul& a);

enum class ExpertScore : uint8_t { kSigmoid, kSqrtSoftplus };

struct RouteExperts {
  View logits;  // [T, E] f32, x . gate
  ExpertScore score = ExpertScore::kSigmoid;
  View bias;  // [E]    f32; empty: none
  // [V, A] i32: the winners by token id, in any order, which are not looked for then; empty: the best
  View chosen;
  View tokens;  // [T] i32, rows of `chosen`; may be empty, for row t
  // [T] i32, may be empty. A row with slot < 0 is padding, of which nobody reads a result: its indices and weights are those of any
  // other row, or its indices are -1 and its weights 0, where the backend's expert_ffn() then reads no expert for it
  View slot = {};
  int n_groups = 1;
  int n_groups_kept = 1;
  bool normalize = true;  // divide the winners' weights by their sum
  float factor = 1;       // routed_scaling_factor
  View topk;              // [T, A] i32, written, ascending
  View weights;           // [T, A] f32, written
  View faults = {};       // [T] i32, row status (ops/context.h); may be empty
};
void route_experts(OpContext& ctx, const RouteExperts& a);

// The type a product's input is rounded to before it is multiplied.
// kFp8By32: e4m3 with a scale to 32 columns; the values, which bf16 holds exactly, are multiplied as bf16. CPU alone.
enum class Operand : uint8_t { kF32, kBF16, kFp8, kFp8By32 };

struct FfnWeights {
  Matrix gate;                     // [F, D]
  Matrix up;                       // [F, D]
  Matrix down;                     // [D, F]
  Operand input = Operand::kF32;   // of gate and up; they share their rounded input
  Operand hidden = Operand::kF32;  // of down
};

// The experts of a layer on a CUDA device, one after another (CudaBackend::upload_experts).
struct ExpertStack {
  DType dtype = DType::kF8E4M3;  // or kMxfp4
  int64_t n_experts = 0;         // E
  int64_t d_model = 0;           // D
  int64_t d_hidden = 0;          // F
  Buffer gate_up;                // [E, 2 F, D]: gate, then up
  Buffer gate_up_scales;         // e4m3: [E, 2 F / 128, ceil(D / 128)] f32
  Buffer down;                   // [E, D, F]
  Buffer down_scales;            // e4m3: [E, ceil(D / 128), F / 128] f32
  bool has_wide_scales = false;  // mxfp4: one is 2 or more

  int64_t n_bytes() const {
    return gate_up.n_bytes() + gate_up_scales.n_bytes() + down.n_bytes() + down_scales.n_bytes();
  }
};

// One feed-forward block applied to all rows: out[t,:] = down(silu_mul(gate(x_t), up(x_t))).
struct Ffn {
  View x;  // [T, D] f32; bf16 too where a tuned kernel of CUDA runs it
  const FfnWeights* weights = nullptr;
  float limit = kNoLimit;  // of silu_mul
  View out;                // [T, D] f32, overwritten,
  bool add = false;        // or added to
};
void ffn(OpContext& ctx, const Ffn& a);

// Scratch of the tuned CUDA kernels for a token of expert_ffn, bytes: for each index and once, rounded inputs, gate and up,
// hidden values, what experts give.
struct ExpertWidths {
  int64_t d_model = 0;
  int64_t d_hidden = 0;
  int64_t d_shared = 0;  // hidden width of the shared block; 0: none
  int64_t n_active = 0;
};
int64_t tuned_token_bytes(const ExpertWidths& w);

struct ExpertFfn {
  View x;                               // [T, D] f32; bf16 too where a tuned kernel of CUDA runs it
  View topk;                            // [T, A] i32, ascending expert ids
  View weights;                         // [T, A] f32
  std::span<const FfnWeights> experts;  // E of them; on CUDA one after another in one memory
  const ExpertStack* stack = nullptr;   // of upload_experts(), instead of `experts`
  const FfnWeights* shared = nullptr;   // may be null
  float limit = kNoLimit;               // of silu_mul, the shared block's too
  bool weigh_hidden = false;            // weights multiply what goes into down instead of what comes out
  View out;                             // [T, D] f32, overwritten,
  bool add = false;                     // or added to
};
void expert_ffn(OpContext& ctx, const ExpertFfn& a);

// The choice of experts and what they give, for backends that have them together; others run one op after the other.
struct RoutedFfn {
  RouteExperts route;
  ExpertFfn experts;  // of the same tokens: topk and weights are those that `route` writes
};
void routed_ffn(OpContext& ctx, const RoutedFfn& a);

}  // namespace levin::ops
