// CudaBackend on the plain kernels (kernels/cuda/plain): every op, any shape and type. Internal to ops/cuda.
#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "kernels/cuda/plain/paged_cache.h"
#include "kernels/cuda/plain/products.h"
#include "kernels/cuda/plain/rows.h"
#include "ops/cuda/device_views.h"
#include "ops/cuda/event_clock.h"
#include "ops/cuda_backend.h"
#include "ops/rope.h"
#include "tensor/cuda/device.h"
#include "tensor/formats.h"

namespace levin {

class PlainCuda : public CudaBackend {
 public:
  static Result<std::unique_ptr<CudaBackend>> create(cuda::DeviceInfo device);

  const cuda::DeviceInfo& device() const override { return device_; }
  Arena& arena() override { return scratch_; }

  Result<Buffer> allocate(int64_t n_bytes) override;
  Result<Buffer> allocate_pinned(int64_t n_bytes) override;
  int64_t available_bytes() const override { return cuda::free_device_bytes(); }
  void copy_bytes_in(std::byte* to, const void* from, int64_t n_bytes) override;
  Status copy_all_in(std::span<const CopyIn> copies, ThreadPool& pool) override;
  void make_dummies(std::byte* to, const DummyTensor& tensor, int64_t n) override;
  void copy_bytes_out(void* to, const std::byte* from, int64_t n_bytes) override;
  void copy_in(const View& to, const View& from) override;
  Status copy_out(const View& to, const View& from) override;
  void stamp_time(int64_t* out) override;
  Status synchronize() override;
  OpClock* clock() override { return &clock_; }
  Result<std::unique_ptr<RecordedWork>> record(const std::function<void()>& enqueue) override;
  Result<std::unique_ptr<RecordedWork>> record_for_rows(const View& seq, const std::function<void()>& enqueue) override;
  Result<std::unique_ptr<WorkMark>> make_mark() override;
  Result<std::unique_ptr<CopyStream>> open_copy_stream() override;
  Result<Matrix> upload(const RowMajorWeights& source) override;
  Result<ops::ExpertStack> upload_experts(std::span<const ExpertRows> experts) override;
  double measure_read_gb_per_s() override;

  // Bytes alone. What only the device knows is taken as it comes out on average or at most: as many experts as tokens hit that
  // choose evenly, as many keys as the tables of a step have room for, all the rows that may be selected.
  OpWork work(const ops::ExpertFfn& a) const override;
  OpWork work(const ops::Ffn& a) const override;
  OpWork work(const ops::IndexScores& a) const override;
  OpWork work(const ops::IndexTopk& a) const override;
  OpWork work(const ops::Matmul& a) const override;
  OpWork work(const ops::MatmulPerHead& a) const override;
  OpWork work(const ops::SparseAttention& a) const override;

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
  void hadamard(const ops::Hadamard& a) override;
  void index_queries(const ops::IndexQueries& a) override;
  void index_scores(const ops::IndexScores& a) override;
  void index_topk(const ops::IndexTopk& a) override;
  void keep_state(const ops::WindowTokens& a) override;
  void layer_norm(const ops::LayerNorm& a) override;
  void mark_unusable(const ops::MarkUnusable& a) override;
  void matmul(const ops::Matmul& a) override;
  void matmul_per_head(const ops::MatmulPerHead& a) override;
  void mean_streams(const ops::MeanStreams& a) override;
  void norm_rows(const ops::NormRows& a) override;
  void pool_windows(const ops::PoolWindows& a) override;
  void quantize_fp8(const ops::QuantizeFp8& a) override;
  void read_streams(const ops::ReadStreams& a) override;
  void rms_norm(const ops::RmsNorm& a) override;
  void rope(const ops::Rope& a) override;
  void rope_table(const ops::RopeTable& a) override;
  void rotate_queries(const ops::RotateQueries& a) override;
  void round_to_bf16(const ops::RoundToBf16& a) override;
  void round_to_fp4(const ops::RoundToFp4& a) override;
  void route_experts(const ops::RouteExperts& a) override;
  void scale_rows(const ops::ScaleRows& a) override;
  void select_topk(const ops::SelectTopk& a) override;
  void short_conv(const ops::ShortConv& a) override;
  void sigmoid_mul(const ops::SigmoidMul& a) override;
  void silu_mul(const ops::SiluMul& a) override;
  void sparse_attention(const ops::SparseAttention& a) override;
  void stream_weights(const ops::StreamWeights& a) override;
  void take_all(const ops::TakeAll& a) override;
  void take_most_recent(const ops::TakeAll& a) override;
  void write_index_keys(const ops::WriteIndexKeys& a) override;
  void write_latent(const ops::WriteLatent& a) override;
  void write_streams(const ops::WriteStreams& a) override;

 protected:
  PlainCuda() = default;
  // What every set needs: the stream, the ring and the arena.
  Status open(cuda::DeviceInfo device);

  cuda::DeviceInfo device_;
  cuda::Stream stream_;

 private:
  const float* frequencies_on_device(const std::vector<float>& frequencies);

  EventClock clock_{stream_};
  cuda::UploadRing ring_;
  Arena scratch_;
  std::map<std::vector<float>, Buffer> frequencies_;  // of rotations, on the device
};

// ---- arguments of ops as the plain kernels take them ----

cuda::plain::PagedCache plain_cache(std::string_view op, const PagedRows& cache);
cuda::plain::Rotation plain_rotation(std::string_view op, const View& cos, const View& sin, ops::RopePairing pairing);
cuda::plain::Weights plain_weights(const Matrix& w);
// n matrices of one shape that stand one after another, as place_weights() leaves heads and experts, or as gates and ups do where
// each gate is followed by its up.
cuda::plain::Weights plain_weights(std::string_view op, const Matrix& first, const Matrix& last, int64_t n);

}  // namespace levin
