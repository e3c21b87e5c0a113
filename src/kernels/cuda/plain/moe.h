// Mixture of experts. Contracts and trees: ops/moe.h.
//
// Padding   an index of -1 is no expert: its pair is not multiplied and adds nothing
// Faults    a row with a score that is NaN goes to the experts 0 .. A-1 with weight 0 and has kNanExpertScore set
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cuda/plain/faults.h"
#include "kernels/cuda/plain/products.h"

namespace levin::cuda::plain {

constexpr float kNoLimit = std::numeric_limits<float>::infinity();

struct SiluMul {
  const float* gate = nullptr;  // [T, F], dense
  const float* up = nullptr;    // [T, F], dense
  float limit = kNoLimit;
  const float* row_weights = nullptr;  // [T] that multiply the results; null: ones
  float* out = nullptr;                // [T, F], dense; may be gate or up
  int64_t n_rows = 0;
  int64_t d = 0;
};
void silu_mul(const SiluMul& a, StreamHandle stream);

struct RouteExperts {
  const float* logits = nullptr;  // [T, E], rows logits_ld apart
  int64_t logits_ld = 0;
  bool softplus = false;            // scores are sqrt(softplus(logit)), not sigmoid(logit)
  const float* bias = nullptr;      // [E]; null: none
  const int32_t* chosen = nullptr;  // the winners by hash: [V, A], row token[t], in any order; null: the best
  const int32_t* tokens = nullptr;  // [T], with chosen; null: row t
  const int32_t* slot = nullptr;    // [T]; a row with slot < 0 is padding and gets top-k indices -1; null: none is
  int n_groups = 1;
  int n_groups_kept = 1;
  bool normalize = true;
  float factor = 1;
  int32_t* topk = nullptr;   // [T, A], dense, ascending
  float* weights = nullptr;  // [T, A], dense
  int64_t n_rows = 0;
  int64_t n_experts = 0;     // a multiple of n_groups
  int64_t n_active = 0;      // A
  int32_t* fault = nullptr;  // [T], may be null
};
void route_experts(const RouteExperts& a, StreamHandle stream);

// The type a product's input is rounded to before it is multiplied.
enum class Operand : uint8_t { kF32, kBF16, kFp8 };

struct FfnWeights {
  Weights gate;                    // [F, D], or E of them
  Weights up;                      // [F, D]
  Weights down;                    // [D, F]
  Operand input = Operand::kF32;   // of gate and up
  Operand hidden = Operand::kF32;  // of down
};

// out[t,:] = down(silu_mul(gate(x_t), up(x_t)))
struct Ffn {
  const float* x = nullptr;  // [T, D], rows x_ld apart
  int64_t x_ld = 0;
  FfnWeights weights;
  float limit = kNoLimit;
  float* out = nullptr;  // [T, D], rows out_ld apart
  int64_t out_ld = 0;
  int64_t n_rows = 0;
  std::byte* scratch = nullptr;  // ffn_scratch_bytes(), aligned to 256
};
int64_t ffn_scratch_bytes(const FfnWeights& weights, int64_t n_rows);
void ffn(const Ffn& a, StreamHandle stream);

struct ExpertFfn {
  const float* x = nullptr;  // [T, D], rows x_ld apart
  int64_t x_ld = 0;
  const int32_t* topk = nullptr;       // [T, A], dense, ascending; -1: none
  const float* weights = nullptr;      // [T, A], dense
  int64_t n_active = 0;                // A
  FfnWeights experts;                  // E of them, one after another
  int64_t n_experts = 0;               // E
  const FfnWeights* shared = nullptr;  // in host memory; may be null
  float limit = kNoLimit;
  bool weigh_hidden = false;
  float* out = nullptr;  // [T, D], rows out_ld apart
  int64_t out_ld = 0;
  int64_t n_rows = 0;
  std::byte* scratch = nullptr;  // expert_ffn_scratch_bytes(), aligned to 256
};
int64_t expert_ffn_scratch_bytes(const ExpertFfn& a);  // of its shapes
void expert_ffn(const ExpertFfn& a, StreamHandle stream);

}  // namespace levin::cuda::plain
