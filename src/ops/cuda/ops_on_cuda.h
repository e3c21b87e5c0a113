// The tuned kernels of kernels/cuda for the forms of ops that they take; the plain set does the rest. Internal to ops/cuda.
//
// Which of the two runs an op decides its form alone (why_not_sm90(), ops/kernel_registry.h), so that it is known when a
// model is loaded and is the same for a row alone and in any batch: what else a tuned kernel asks of its arguments, dense or
// aligned rows, bf16 queries, scales in another order, is arranged by copies. The chains, routing and rounding alone may also
// turn to the plain set for other reasons, because there both give the same bits.
#pragma once

#include <optional>
#include <string_view>

#include "base/check.h"
#include "kernels/cuda/gemm/gemm_f32.h"
#include "kernels/cuda/gemm/gemm_mxfp4.h"
#include "kernels/cuda/index/index_scores.h"
#include "kernels/cuda/moe/moe.h"
#include "kernels/cuda/rows/quantize_fp8.h"
#include "ops/cuda/plain_cuda.h"
#include "ops/index_topk.h"
#include "ops/moe.h"
#include "tensor/cuda/device.h"

namespace levin {

cuda::PageTables page_tables(std::string_view op, const PagedRows& cache);

// Codes [T, K] and their scales [T, ceil(K / 128)] as kernels write them.
cuda::QuantizedRows rounded_rows(std::string_view op, const View& codes, const View& scale);
// The same, or with scales by block (ops/quantize.h).
cuda::QuantizedRows rounded_rows(std::string_view op, const View& codes, const View& scale, bool scale_by_block);

// 16-byte aligned, with rows whose distance is a multiple of so many bytes.
bool is_aligned_16(const void* p);
bool has_aligned_rows(const View& rows);

// As many rows at a time as make the fewest slices of n_rows, which have at most `most` rows, or one: about as many in each.
int64_t even_step(int64_t n_rows, int64_t most);

// Counts of the scores of as many rows as index_topk() takes at a time, in the bins of kernels/cuda/index/topk.h.
constexpr int64_t kCountedRows = 4096;
constexpr int64_t kHistogramBins = 2048;
constexpr int64_t kScoreCountBytes = kCountedRows * kHistogramBins * 4;

// Weights of one product, or of one for each expert.
struct ProductWeights {
  DType dtype = DType::kF8E4M3;  // or kMxfp4
  const std::byte* data = nullptr;
  const float* scales = nullptr;
  bool has_wide_scales = false;
  int n = 0;
  int k = 0;
  int n_groups = 1;
};

// What a product multiplies them with.
struct ProductRows {
  cuda::QuantizedRows x;  // codes and scales for e4m3, values for mxfp4
  int n_rows = 0;
  int rows_per_group = 0;                // on average
  const int32_t* group_begin = nullptr;  // as in gemm_fp8.h,
  bool groups_settled = false;           // this too
};

// A product of f32 rows, and the kernel for it.
struct F32Product {
  cuda::GemmF32 a;
  cuda::GemmF32Shape shape;
  cuda::GemmF32Plan plan;
};

class OpsOnCuda final : public PlainCuda {
 public:
  static Result<std::unique_ptr<CudaBackend>> create(const CudaOptions& options, cuda::DeviceInfo device);

  Result<Matrix> upload(const RowMajorWeights& source) override;
  Result<ops::ExpertStack> upload_experts(std::span<const ExpertRows> experts) override;

  void index_scores(const ops::IndexScores& a) override;
  void index_topk(const ops::IndexTopk& a) override;
  int64_t index_plan_words(const ops::PlanIndex& a) const override;
  void plan_index(const ops::PlanIndex& a) override;
  void select_topk(const ops::SelectTopk& a) override;
  void take_all(const ops::TakeAll& a) override;
  void sparse_attention(const ops::SparseAttention& a) override;
  void quantize_fp8(const ops::QuantizeFp8& a) override;
  void matmul(const ops::Matmul& a) override;
  void matmul_per_head(const ops::MatmulPerHead& a) override;
  bool reads_scales_by_block(const Matrix& w) const override;
  void route_experts(const ops::RouteExperts& a) override;
  void ffn(const ops::Ffn& a) override;
  void expert_ffn(const ops::ExpertFfn& a) override;
  void norm_rows(const ops::NormRows& a) override;
  void rotate_queries(const ops::RotateQueries& a) override;
  void write_latent(const ops::WriteLatent& a) override;
  void index_queries(const ops::IndexQueries& a) override;
  void write_index_keys(const ops::WriteIndexKeys& a) override;
  bool norm_and_append(const ops::NormAndAppend& a) override;
  bool attention_queries(const ops::AttentionQueries& a) override;
  bool matmul_per_head_rounded(const ops::MatmulPerHead& a) override;
  bool add_expert_ffn(const ops::ExpertFfn& a) override;
  bool routed_ffn(const ops::RoutedFfn& a) override;
  DType query_type(const LatentFormat& rows, int64_t n_heads, int64_t n_topk) const override;

 private:
  // Takes what was allocated in its scope back.
  class Scratch {
   public:
    explicit Scratch(cuda::DeviceArena& arena) : arena_(arena), mark_(arena.mark()) {}
    ~Scratch() { arena_.release(mark_); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    cuda::DeviceArena& arena_;
    int64_t mark_;
  };
  // The weights of experts or of one block.
  struct BlockWeights {
    DType dtype = DType::kF8E4M3;
    ProductWeights gate, up, down;
    ProductWeights gate_up;  // instead of the first two, where they stand together; n = 2 F
    int64_t d_hidden = 0;    // F
    bool joined() const { return gate_up.n > 0; }
  };

  OpsOnCuda() = default;
  View aligned_rows(const View& rows);  // the same, or a dense copy in scratch
  // Where an op's result [T, N] may be written, dense and aligned: there, or in scratch; copied then by finish().
  View dense_out(const View& out);
  void finish(const View& written, const View& out);
  void copy_view(const View& from, const View& to);
  View bf16_queries(std::string_view op, const View& q);
  cuda::IndexShape index_shape(int64_t n_rows, int tokens_together, int64_t max_length) const;
  // The schedule of a query's scores; rows that see up to skip_length slots need none.
  cuda::IndexPlan index_plan(std::string_view op, const ops::IndexQuery& q, const cuda::IndexShape& shape,
                             int64_t skip_length);
  int64_t rows_at_once(int64_t max_length, int tokens_together) const;
  void topk_of_rows(const ops::IndexTopk& a, int64_t max_length);
  void attend(const ops::SparseAttention& a);
  cuda::QuantizedRows allocate_rounded(DType weights, int64_t n_rows, int64_t k);
  cuda::QuantizedRows round_input(std::string_view op, const View& x, DType weights);
  cuda::QuantizedRows product_rows(std::string_view op, const View& codes, const View& scale, bool scale_by_block);
  void multiply(const ProductRows& x, const ProductWeights& w, void* out, bool out_is_f32);
  // What such a product is; `out` is the caller's. None where the kernel does not take it.
  std::optional<F32Product> f32_product(std::string_view op, const View& x, const cuda::plain::Weights& w) const;
  bool multiply_f32(std::string_view op, const View& x, const cuda::plain::Weights& w, const View& out);
  cuda::QuantizedRows hidden_rows(const ProductRows& x, const BlockWeights& w, float limit);
  void run_block(const ProductRows& x, const BlockWeights& w, float limit, void* out, bool out_is_f32);
  void run_ffn(const ops::Ffn& a);
  // `route`: of tokens that are to be routed by the same launch; may be null.
  ProductRows expert_rows(const ops::ExpertFfn& a, DType weights, const cuda::PlanRows& plan,
                          const cuda::RouteTokens* route);
  static std::optional<BlockWeights> with_shared(const ops::ExpertFfn& a, const BlockWeights& experts);
  void run_experts(const ops::ExpertFfn& a, const BlockWeights& experts, const cuda::RouteTokens* route = nullptr);
  // All tokens, as many at a time as there is room for.
  void run_all_experts(const ops::ExpertFfn& a);
  BlockWeights weights_of_experts(const ops::ExpertFfn& a);
  int64_t tokens_at_once(const ops::ExpertFfn& a, const BlockWeights& experts) const;
  static bool takes_experts(const ops::ExpertFfn& a);
  static BlockWeights stack_weights(const ops::ExpertFfn& a);
  static BlockWeights block_weights(const ops::FfnWeights& w);
  static BlockWeights expert_weights(const ops::ExpertFfn& a);
  // Of n blocks of one shape.
  static BlockWeights blocks_weights(const ops::FfnWeights& first, const ops::FfnWeights& last, int64_t n);

  cuda::DeviceArena arena_;
  int64_t scratch_bytes_ = 0;
  cuda::DeviceBuffer attention_scratch_;
  cuda::DeviceBuffer score_counts_;  // [kCountedRows, kHistogramBins] u32 of index_topk(), all 0 between its launches
};

}  // namespace levin
