// A backend runs the ops: one virtual function per op. It owns its device's memory, threads or stream, and kernels.
//
//   CpuBackend cpu(pool, arena, Isa::kAvx2);         // ops/cpu_backend.h
//   auto cuda = open_cuda({.device_index = 0});      // ops/cuda_backend.h
//   OpContext ctx = op_context(cpu);                 // or op_context(*cuda.value())
//   ops::matmul(ctx, {.x = x, .w = &w, .out = out});
//
// Models and engine call ops::, never a backend: an op's function in ops/*.h checks the contract, which is the same on every
// device, takes the time if somebody measures, and calls the backend of its context. A backend so gets arguments whose
// shapes and types fit together; what it checks itself is what only it can know.
//
// Order     as if each op ran when it is called; a CUDA backend enqueues, and synchronize() waits
// Threads   one at a time
#pragma once

#include "base/result.h"
#include "ops/context.h"
#include "ops/op_times.h"

namespace levin {

class Matrix;
struct LatentFormat;

namespace ops {
struct AcceptDrafts;
struct CarryDrafts;
struct AddInto;
struct AppendIndexKeys;
struct AppendLatent;
struct Argmax;
struct AttentionQueries;
struct ChooseTokens;
struct ContinueDrafts;
struct CopyRows;
struct DeltaRule;
struct Embed;
struct ExpandTopk;
struct ExpertFfn;
struct Ffn;
struct GateStreams;
struct Hadamard;
struct IndexQueries;
struct IndexScores;
struct IndexTopk;
struct KeepBlocks;
struct LayerNorm;
struct MarkUnusable;
struct Matmul;
struct MatmulPerHead;
struct MeanStreams;
struct NgramRows;
struct NormAndAppend;
struct NormRows;
struct PlanIndex;
struct PoolWindows;
struct QuantizeFp8;
struct ReadStreams;
struct ReadTableSoon;
struct RmsNorm;
struct Rope;
struct RopeTable;
struct RotateQueries;
struct RoundToBf16;
struct RoundToFp4;
struct RoundToFp8;
struct RoundToNvfp4;
struct RouteExperts;
struct RoutedFfn;
struct ScaleRows;
struct SelectBlocks;
struct SelectTopk;
struct ShortConv;
struct SigmoidMul;
struct SiluMul;
struct SparseAttention;
struct StreamWeights;
struct TableRows;
struct TakeAll;
struct WindowTokens;
struct WriteIndexKeys;
struct WriteLatent;
struct WriteStreams;
}  // namespace ops

class Backend {
 public:
  virtual ~Backend() = default;

  virtual DeviceId device_id() const = 0;       // where the tensors of its ops lie
  virtual Arena& arena() = 0;                   // scratch there, of models and ops
  virtual Status synchronize() = 0;             // waits for the ops called so far; an error where the device failed
  virtual OpClock* clock() { return nullptr; }  // of ops that are enqueued; null: they are done when their calls return

  virtual void accept_drafts(const ops::AcceptDrafts& a) = 0;
  virtual void carry_drafts(const ops::CarryDrafts& a) = 0;
  virtual void add_into(const ops::AddInto& a) = 0;
  virtual void append_index_keys(const ops::AppendIndexKeys& a) = 0;
  virtual void append_latent(const ops::AppendLatent& a) = 0;
  virtual void argmax(const ops::Argmax& a) = 0;
  virtual void choose_tokens(const ops::ChooseTokens& a) = 0;
  virtual void continue_drafts(const ops::ContinueDrafts& a) = 0;
  virtual void copy_rows(const ops::CopyRows& a) = 0;
  virtual void delta_rule(const ops::DeltaRule& a) = 0;
  virtual void embed(const ops::Embed& a) = 0;
  virtual void expand_topk(const ops::ExpandTopk& a) = 0;
  virtual void expert_ffn(const ops::ExpertFfn& a) = 0;
  virtual void ffn(const ops::Ffn& a) = 0;
  virtual void hadamard(const ops::Hadamard& a) = 0;
  virtual void index_scores(const ops::IndexScores& a) = 0;
  virtual void index_topk(const ops::IndexTopk& a) = 0;
  virtual void keep_state(const ops::WindowTokens& a) = 0;
  virtual void layer_norm(const ops::LayerNorm& a) = 0;
  virtual void mark_unusable(const ops::MarkUnusable& a) = 0;
  virtual void matmul(const ops::Matmul& a) = 0;
  virtual void matmul_per_head(const ops::MatmulPerHead& a) = 0;
  virtual void mean_streams(const ops::MeanStreams& a) = 0;
  virtual void pool_windows(const ops::PoolWindows& a) = 0;
  virtual void quantize_fp8(const ops::QuantizeFp8& a) = 0;
  virtual void read_streams(const ops::ReadStreams& a) = 0;
  virtual void rms_norm(const ops::RmsNorm& a) = 0;
  virtual void rope(const ops::Rope& a) = 0;
  virtual void rope_table(const ops::RopeTable& a) = 0;
  virtual void round_to_bf16(const ops::RoundToBf16& a) = 0;
  virtual void round_to_fp4(const ops::RoundToFp4& a) = 0;
  virtual void route_experts(const ops::RouteExperts& a) = 0;
  virtual void scale_rows(const ops::ScaleRows& a) = 0;
  virtual void select_topk(const ops::SelectTopk& a) = 0;
  virtual void short_conv(const ops::ShortConv& a) = 0;
  virtual void sigmoid_mul(const ops::SigmoidMul& a) = 0;
  virtual void silu_mul(const ops::SiluMul& a) = 0;
  virtual void sparse_attention(const ops::SparseAttention& a) = 0;
  virtual void stream_weights(const ops::StreamWeights& a) = 0;
  virtual void take_all(const ops::TakeAll& a) = 0;
  virtual void take_most_recent(const ops::TakeAll& a) = 0;
  virtual void write_streams(const ops::WriteStreams& a) = 0;

  // Chains (ops/row_chains.h) of f32 rows, as the small ops above.
  virtual void norm_rows(const ops::NormRows& a);
  virtual void rotate_queries(const ops::RotateQueries& a);
  virtual void write_latent(const ops::WriteLatent& a);
  virtual void index_queries(const ops::IndexQueries& a);
  virtual void write_index_keys(const ops::WriteIndexKeys& a);

  // Several ops in one launch, with their bits: whether this backend has one for these. Otherwise it has done nothing, and the
  // ops are called one after another.
  virtual bool norm_and_append(const ops::NormAndAppend&) { return false; }
  virtual bool attention_queries(const ops::AttentionQueries&) { return false; }
  virtual bool matmul_per_head_rounded(const ops::MatmulPerHead&) { return false; }  // out bf16, or codes
  virtual bool add_expert_ffn(const ops::ExpertFfn&) { return false; }
  virtual bool routed_ffn(const ops::RoutedFfn&) { return false; }

  // What sparse_attention() with selected rows of one such cache multiplies queries as; it takes f32 in any case.
  virtual DType query_type(const LatentFormat&, [[maybe_unused]] int64_t n_heads,
                           [[maybe_unused]] int64_t n_topk) const {
    return DType::kF32;
  }

  // Whether the products with these weights read the scales of e4m3 rows block by block (QuantizeFp8::scale_by_block).
  virtual bool reads_scales_by_block(const Matrix&) const { return false; }

  // A backend whose index_topk() has no use for a plan needs no body of these.
  virtual int64_t index_plan_words(const ops::PlanIndex&) const { return 0; }
  virtual void plan_index(const ops::PlanIndex&) {}

  // Of DeepSeek-V4.1. A backend without them is not given models that call them (Architecture::cuda_lacks).
  virtual void gate_streams(const ops::GateStreams& a);
  virtual void keep_blocks(const ops::KeepBlocks& a);
  virtual void ngram_rows(const ops::NgramRows& a);
  virtual void read_table_soon(const ops::ReadTableSoon& a);
  virtual void round_to_fp8(const ops::RoundToFp8& a);
  virtual void round_to_nvfp4(const ops::RoundToNvfp4& a);
  virtual void select_blocks(const ops::SelectBlocks& a);
  virtual void table_rows(const ops::TableRows& a);

  // What an op reads and computes, for OpTimes; nothing where a backend does not count.
  virtual OpWork work(const ops::ExpertFfn&) const { return {}; }
  virtual OpWork work(const ops::Ffn&) const { return {}; }
  virtual OpWork work(const ops::IndexScores&) const { return {}; }
  virtual OpWork work(const ops::IndexTopk&) const { return {}; }
  virtual OpWork work(const ops::Matmul&) const { return {}; }
  virtual OpWork work(const ops::MatmulPerHead&) const { return {}; }
  virtual OpWork work(const ops::SparseAttention&) const { return {}; }
};

inline OpContext op_context(Backend& backend) { return {.backend = &backend, .arena = &backend.arena()}; }

}  // namespace levin
