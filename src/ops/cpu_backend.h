// The ops on the CPU: a kernel set (kernels/cpu/kernels.h) on the threads of a pool, each op cut over them so that the cut
// shows in no bit. An op has run when it returns.
//
//   ThreadPool pool(8);
//   Arena arena;
//   CpuBackend cpu(pool, arena, usable_isas().back());
//
// The bodies are in ops/cpu.
#pragma once

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "ops/backend.h"

namespace levin {

namespace kernels {
struct CpuKernels;
}

class CpuBackend final : public Backend {
 public:
  // Pool and arena must outlive it; the processor must have `isa`.
  CpuBackend(ThreadPool& pool, Arena& arena, Isa isa);
  // With kernels of one's own choice, which must outlive it too.
  CpuBackend(ThreadPool& pool, Arena& arena, const kernels::CpuKernels& kernels);

  DeviceId device_id() const override { return {.kind = Device::kCpu}; }
  Arena& arena() override { return arena_; }
  Status synchronize() override { return {}; }

  ThreadPool& pool() const { return pool_; }
  const kernels::CpuKernels& kernels() const { return kernels_; }

  void accept_drafts(const ops::AcceptDrafts& a) override;
  void carry_drafts(const ops::CarryDrafts& a) override;
  void add_into(const ops::AddInto& a) override;
  void append_index_keys(const ops::AppendIndexKeys& a) override;
  void append_latent(const ops::AppendLatent& a) override;
  void argmax(const ops::Argmax& a) override;
  void choose_tokens(const ops::ChooseTokens& a) override;
  void continue_drafts(const ops::ContinueDrafts& a) override;
  void copy_rows(const ops::CopyRows& a) override;
  void delta_rule(const ops::DeltaRule& a) override;
  void embed(const ops::Embed& a) override;
  void expand_topk(const ops::ExpandTopk& a) override;
  void expert_ffn(const ops::ExpertFfn& a) override;
  void ffn(const ops::Ffn& a) override;
  void gate_streams(const ops::GateStreams& a) override;
  void hadamard(const ops::Hadamard& a) override;
  void index_queries(const ops::IndexQueries& a) override;
  void index_scores(const ops::IndexScores& a) override;
  void index_topk(const ops::IndexTopk& a) override;
  void keep_blocks(const ops::KeepBlocks& a) override;
  void keep_state(const ops::WindowTokens& a) override;
  void layer_norm(const ops::LayerNorm& a) override;
  void mark_unusable(const ops::MarkUnusable& a) override;
  void matmul(const ops::Matmul& a) override;
  void matmul_per_head(const ops::MatmulPerHead& a) override;
  void mean_streams(const ops::MeanStreams& a) override;
  void ngram_rows(const ops::NgramRows& a) override;
  void norm_rows(const ops::NormRows& a) override;
  void pool_windows(const ops::PoolWindows& a) override;
  void quantize_fp8(const ops::QuantizeFp8& a) override;
  void read_streams(const ops::ReadStreams& a) override;
  void read_table_soon(const ops::ReadTableSoon& a) override;
  void rms_norm(const ops::RmsNorm& a) override;
  void rope(const ops::Rope& a) override;
  void rope_table(const ops::RopeTable& a) override;
  void rotate_queries(const ops::RotateQueries& a) override;
  void round_to_bf16(const ops::RoundToBf16& a) override;
  void round_to_fp4(const ops::RoundToFp4& a) override;
  void round_to_fp8(const ops::RoundToFp8& a) override;
  void round_to_nvfp4(const ops::RoundToNvfp4& a) override;
  void route_experts(const ops::RouteExperts& a) override;
  void scale_rows(const ops::ScaleRows& a) override;
  void select_blocks(const ops::SelectBlocks& a) override;
  void select_topk(const ops::SelectTopk& a) override;
  void short_conv(const ops::ShortConv& a) override;
  void sigmoid_mul(const ops::SigmoidMul& a) override;
  void silu_mul(const ops::SiluMul& a) override;
  void sparse_attention(const ops::SparseAttention& a) override;
  void stream_weights(const ops::StreamWeights& a) override;
  void table_rows(const ops::TableRows& a) override;
  void take_all(const ops::TakeAll& a) override;
  void take_most_recent(const ops::TakeAll& a) override;
  void write_index_keys(const ops::WriteIndexKeys& a) override;
  void write_latent(const ops::WriteLatent& a) override;
  void write_streams(const ops::WriteStreams& a) override;

  OpWork work(const ops::ExpertFfn& a) const override;
  OpWork work(const ops::Ffn& a) const override;
  OpWork work(const ops::IndexScores& a) const override;
  OpWork work(const ops::IndexTopk& a) const override;
  OpWork work(const ops::Matmul& a) const override;
  OpWork work(const ops::MatmulPerHead& a) const override;
  OpWork work(const ops::SparseAttention& a) const override;

 private:
  ThreadPool& pool_;
  Arena& arena_;
  const kernels::CpuKernels& kernels_;
};

}  // namespace levin
