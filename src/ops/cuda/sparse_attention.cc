#include "ops/sparse_attention.h"

#include "base/check.h"
#include "kernels/cuda/sparse_mla.h"
#include "ops/cuda/ops_on_cuda.h"

namespace levin {
namespace {

constexpr std::string_view kOp = "sparse_attention";

void check_form(const ops::SparseAttention& a) {
  LEVIN_CHECK(a.format.dtype == CacheDType::kFp8 && !a.format.rope_in_value,
              "{}: cache rows on CUDA are fp8 latent rows, not {}{}", kOp, cache_dtype_name(a.format.dtype),
              a.format.rope_in_value ? " key-value rows" : "");
  LEVIN_CHECK(a.q_latent.dtype() == DType::kBF16, "{}: q_latent is {}; on CUDA queries are bf16", kOp,
              a.q_latent.describe());
  LEVIN_CHECK(!a.rows.topk.empty() && a.more.empty() && a.sink.empty(),
              "{}: on CUDA rows are selected; there is no kernel for runs of rows, a second cache or sinks", kOp);
  check_supported(kOp,
                  cuda::sparse_mla_support(static_cast<int>(a.q_latent.dim(1)), static_cast<int>(a.format.d_latent),
                                           static_cast<int>(a.format.d_rope), static_cast<int>(a.rows.topk.dim(1))));
  for (const auto& [name, q] :
       {std::pair<std::string_view, const View&>{"q_latent", a.q_latent}, {"q_rope", a.q_rope}}) {
    LEVIN_CHECK(q.dim(1) == 1 || q.stride(1) == q.dim(2),
                "{}: heads of {} are {} elements apart; on CUDA they are dense", kOp, name, q.stride(1));
  }
}

}  // namespace

void OpsOnCuda::sparse_attention(const ops::SparseAttention& a) {
  check_form(a);
  cuda::SparseMla rows;
  rows.q_latent = device_bytes(kOp, "q_latent", a.q_latent);
  rows.q_rope = device_bytes(kOp, "q_rope", a.q_rope);
  rows.q_latent_row_stride = a.q_latent.stride(0);
  rows.q_rope_row_stride = a.q_rope.stride(0);
  rows.topk = dense_data<int32_t>(kOp, "topk", a.rows.topk);
  rows.tables = page_tables(kOp, a.rows.cache);
  rows.table_row = dense_data<int32_t>(kOp, "seq", a.seq);
  rows.format = cuda::LatentRows::kFp8;
  rows.cache = a.rows.cache.pages;
  rows.page_bytes = a.rows.cache.page_bytes;
  rows.out = dense_bytes(kOp, "out", a.out);
  rows.out_f32 = a.out.dtype() == DType::kF32;
  rows.scratch = attention_scratch_.data();
  rows.n_rows = a.q_latent.dim(0);
  rows.n_heads = static_cast<int>(a.q_latent.dim(1));
  rows.n_topk = static_cast<int>(a.rows.topk.dim(1));
  rows.scale = a.scale;
  const int64_t n_tables = a.rows.cache.tables.dim(0);
  const int64_t converted_bytes = cuda::converted_latent_bytes(rows.tables, n_tables);
  const Scratch scratch(arena_);
  if (cuda::is_worth_converting(rows, n_tables) && converted_bytes <= scratch_bytes_ / 2)
    rows = cuda::convert_latent_rows(rows, n_tables, arena_.allocate_bytes(converted_bytes), stream_.handle());
  cuda::sparse_mla(rows, stream_.handle());
}

}  // namespace levin
