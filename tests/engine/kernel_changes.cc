#include "engine/kernel_changes.h"

#include <utility>
#include <vector>

#include "engine/build_step.h"
#include "kernels/cuda/gemm/gemm_f32.h"
#include "kernels/cuda/gemm/gemm_fp8.h"
#include "kernels/cuda/gemm/gemm_mxfp4.h"
#include "kernels/cuda/index/topk.h"
#include "kernels/cuda/moe/moe.h"
#include "kernels/cuda/sparse_mla/sparse_mla.h"
#include "model/op_forms.h"
#include "ops/kernel_registry.h"

namespace levin::test {
namespace {

// What adds thresholds to a set.
class Thresholds {
 public:
  Thresholds(const ModelConfig& config, int64_t most_rows, int64_t n_visible, int n_sms)
      : config_(config), most_rows_(most_rows), n_visible_(n_visible), n_sms_(n_sms) {}

  void add(const OpForm& form) {
    if (form.op == "matmul" && form.fp8_input) add(fp8_product(form.n, form.k, 1));
    if (form.op.starts_with("matmul") && !form.fp8_input) add(f32_product(form));
    if (form.op == "ffn" && form.fp8_input) {
      add(fp8_product(form.n, form.k, 1));
      add(fp8_product(form.k, form.n, 1));
    }
    if (form.op == "expert_ffn") add_experts(form);
    if (form.op == "sparse_attention") {
      add(cuda::sparse_mla_thresholds(static_cast<int>(form.n_heads), static_cast<int>(form.n_topk), most_rows_));
    }
    if (form.op == "index_topk") {
      add(cuda::select_topk_thresholds(n_visible_, most_rows_));
      for (int64_t rows = 1; rows < kMostRowsTogether; rows *= 2) add({rows + 1});
    }
  }
  // The products of one input that are one.
  void add_joined() {
    const ModelConfig& c = config_;
    for (const int64_t d_index : {int64_t{0}, c.d_index})
      add(fp8_product(c.d_q_lora + d_index + c.d_latent + c.d_rope, c.d_model, 1));
  }

  const std::set<int64_t>& found() const { return found_; }

 private:
  void add(const std::vector<int64_t>& rows) { found_.insert(rows.begin(), rows.end()); }

  std::vector<int64_t> fp8_product(int64_t n, int64_t k, int64_t n_groups) const {
    return cuda::gemm_fp8_thresholds({.rows_per_group = 0,
                                      .n = static_cast<int>(n),
                                      .k = static_cast<int>(k),
                                      .n_groups = static_cast<int>(n_groups),
                                      .n_sms = n_sms_},
                                     most_rows_);
  }
  std::vector<int64_t> f32_product(const OpForm& form) const {
    return cuda::gemm_f32_thresholds({.w_type = form.weights.value_or(DType::kF32),
                                      .n = static_cast<int>(form.n),
                                      .k = static_cast<int>(form.k),
                                      .n_heads = form.op == "matmul" ? 1 : static_cast<int>(config_.n_heads),
                                      .n_sms = n_sms_},
                                     most_rows_);
  }
  // Tokens with more than rows - 1 pairs for each of the experts, where `rows` of these are a threshold.
  void add_experts(const OpForm& form) {
    const int64_t n_experts = config_.n_experts;
    const auto of_tokens = [&](const std::vector<int64_t>& thresholds) {
      for (const int64_t rows : thresholds) add({(rows - 1) * n_experts / config_.n_active + 1});
    };
    of_tokens(fp8_product(form.n, form.k, n_experts));
    if (form.weights == DType::kMxfp4) of_tokens(cuda::gemm_mxfp4_thresholds(most_rows_, static_cast<int>(n_experts)));
    add({cuda::kMaxTokensOfShared + 1, cuda::kMaxTokensRouted + 1, cuda::kMaxTokensTogether + 1});
  }

  const ModelConfig& config_;
  int64_t most_rows_, n_visible_;
  int n_sms_;
  std::set<int64_t> found_;
};

}  // namespace

std::set<int64_t> rows_where_kernels_change(const Model& model, int64_t most_rows, int64_t n_visible, int n_sms) {
  Thresholds thresholds(model.config(), most_rows, n_visible, n_sms);
  for (const OpForm& form : op_forms(model.config(), model.numerics())) {
    if (why_not_sm90(form).empty()) thresholds.add(form);
  }
  thresholds.add_joined();
  std::set<int64_t> rows;
  for (const int64_t t : thresholds.found()) {
    for (const int64_t looked_at : {t - 1, t, t + 1}) {
      if (looked_at >= 1 && looked_at <= most_rows) rows.insert(looked_at);
    }
  }
  return rows;
}

}  // namespace levin::test
