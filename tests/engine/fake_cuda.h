// A CUDA device that is none: its memory is the host's, and what is enqueued runs when somebody waits. So what an engine does
// with a device (copies in and out, recorded passes, where rows lie, when it waits) is tested where there is no GPU.
//
// Late    nothing has run before synchronize(), or before a mark after it is waited for: who reads a result without waiting
//         reads what was there before
// Aside   copies of a CopyStream run as early as they may, or as late as they may: what does not wait for them, or what they do not
//         wait for, shows
// Views   are tagged as the device's, so that host code which looks into one ends the process
// Ops     those that a fake model (fake_model.h) and the engine call; its passes are enqueued by enqueue()
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/thread_pool.h"
#include "ops/copies.h"
#include "ops/cpu_backend.h"
#include "ops/cuda_backend.h"
#include "ops/draft_steps.h"
#include "ops/expand_topk.h"
#include "ops/index_topk.h"
#include "ops/linear_attention.h"
#include "ops/logits.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "ops/norm.h"
#include "ops/pool_windows.h"
#include "ops/quantize.h"
#include "ops/rope.h"
#include "ops/row_chains.h"
#include "ops/sparse_attention.h"
#include "ops/streams.h"

namespace levin::test {

// The same memory as the host's own, for what runs as if on the device.
inline View seen_from_device(const View& view) {
  if (view.empty() || view.device() == Device::kCpu) return view;
  if (view.rank() == 1) return View(view.bytes(), view.dtype(), {view.dim(0)});
  LEVIN_CHECK(view.rank() == 2, "a fake device is given {}", view.describe());
  return View(view.bytes(), view.dtype(), {view.dim(0), view.stride(0)}).slice_last(0, view.dim(1));
}

inline ops::EditedStep seen_from_device(ops::EditedStep step) {
  for (View* values : {&step.tokens, &step.positions, &step.seq, &step.slot, &step.visible, &step.window})
    *values = seen_from_device(*values);
  return step;
}

class FakeCuda final : public CudaBackend {
 public:
  FakeCuda() : arena_([this](int64_t n_bytes) { return block(n_bytes); }, kAlignment) { info_.name = "fake device"; }

  // Runs `work` when somebody waits, or whenever what is being recorded is replayed.
  void enqueue(std::function<void()> work) {
    if (recording_ != nullptr) return recording_->push_back(std::move(work));
    queue_.push_back(std::move(work));
  }
  int64_t n_enqueued() const { return n_run_ + std::ssize(queue_); }  // works so far

  int64_t n_synchronized() const { return n_synchronized_; }
  // Work that nobody has waited for yet; and how often somebody waited for other work alone.
  int64_t n_outstanding() const { return std::ssize(queue_); }
  int64_t n_waits_ahead() const { return n_waits_ahead_; }
  // Works for n waits more, and never again.
  void fail_after(int64_t n) { fails_after_ = n_synchronized_ + n; }

  const cuda::DeviceInfo& device() const override { return info_; }
  Arena& arena() override { return arena_; }
  Status synchronize() override { return run_until(n_enqueued()); }
  Result<std::unique_ptr<WorkMark>> make_mark() override {
    return std::unique_ptr<WorkMark>(std::make_unique<Mark>(*this));
  }
  bool copies_aside_late = false;
  int64_t n_copies_aside() const { return n_copies_aside_; }  // that have begun
  int64_t n_waits_aside() const { return n_waits_aside_; }    // for such copies
  Result<std::unique_ptr<CopyStream>> open_copy_stream() override {
    return std::unique_ptr<CopyStream>(std::make_unique<Aside>(*this));
  }
  int64_t n_graphs_left = std::numeric_limits<int64_t>::max();  // for which there is memory
  Result<std::unique_ptr<RecordedWork>> record(const std::function<void()>& enqueue_ops) override {
    return record_for_rows({}, enqueue_ops);
  }

  Result<std::unique_ptr<RecordedWork>> record_for_rows(const View& seq,
                                                        const std::function<void()>& enqueue_ops) override {
    auto work = std::make_unique<Recorded>(*this);
    work->seq = seen_from_device(seq);
    recording_ = &work->parts;
    enqueue_ops();
    recording_ = nullptr;
    if (n_graphs_left == 0) return Error{ErrorKind::kOutOfMemory, "instantiating a graph: out of memory"};
    --n_graphs_left;
    return std::unique_ptr<RecordedWork>(std::move(work));
  }

  Result<Buffer> allocate(int64_t n_bytes) override { return block(n_bytes); }
  Result<Buffer> allocate_pinned(int64_t n_bytes) override { return Buffer(n_bytes); }
  int64_t available_bytes() const override { return int64_t{1} << 30; }
  void copy_bytes_in(std::byte* to, const void* from, int64_t n_bytes) override {
    const auto* bytes = static_cast<const std::byte*>(from);
    LEVIN_CHECK(recording_ == nullptr, "a copy from the host is recorded");
    enqueue(
        [to, staged = std::vector<std::byte>(bytes, bytes + n_bytes)] { std::copy(staged.begin(), staged.end(), to); });
  }
  Status copy_all_in(std::span<const CopyIn> copies, ThreadPool&) override {
    for (const CopyIn& copy : copies) copy_bytes_in(copy.to, copy.from, copy.n_bytes);
    return {};
  }
  void make_dummies(std::byte* to, const DummyTensor& tensor, int64_t n) override {
    enqueue([to, tensor, n] { draw_dummy_values(tensor, 0, n, to); });
  }
  void copy_bytes_out(void* to, const std::byte* from, int64_t n_bytes) override {
    LEVIN_CHECK(recording_ == nullptr, "a copy to the host is recorded");
    enqueue([to, from, n_bytes] { std::memcpy(to, from, static_cast<size_t>(n_bytes)); });
  }
  void copy_in(const View& to, const View& from) override {
    copy_bytes_in(to.bytes(), from.bytes(), from.n_elements() * dtype_bytes(from.dtype()));
  }
  Status copy_out(const View& to, const View& from) override {
    copy_bytes_out(to.bytes(), from.bytes(), from.n_elements() * dtype_bytes(from.dtype()));
    return synchronize();
  }
  // A clock that steps with every stamp.
  void stamp_time(int64_t* out) override {
    enqueue([this, out] { *out = ++now_ * 1000; });
  }
  Result<Matrix> upload(const RowMajorWeights&) override { return refusal(); }
  Result<ops::ExpertStack> upload_experts(std::span<const ExpertRows>) override { return refusal(); }

  void accept_drafts(const ops::AcceptDrafts& a) override {
    enqueue([this, a] {
      cpu_.accept_drafts({.chosen = seen_from_device(a.chosen),
                          .faults = seen_from_device(a.faults),
                          .sequences = seen_from_device(a.sequences),
                          .chains = seen_from_device(a.chains),
                          .step = seen_from_device(a.step),
                          .wanted = seen_from_device(a.wanted)});
    });
  }
  void carry_drafts(const ops::CarryDrafts& a) override {
    enqueue([this, a] {
      cpu_.carry_drafts({.chosen = seen_from_device(a.chosen),
                         .chains = seen_from_device(a.chains),
                         .which = seen_from_device(a.which),
                         .step = seen_from_device(a.step),
                         .rows_each = a.rows_each,
                         .shift = a.shift,
                         .rules = seen_from_device(a.rules),
                         .sequences = seen_from_device(a.sequences),
                         .next = seen_from_device(a.next)});
    });
  }
  void continue_drafts(const ops::ContinueDrafts& a) override {
    enqueue([this, a] {
      cpu_.continue_drafts({.chosen = seen_from_device(a.chosen),
                            .chains = seen_from_device(a.chains),
                            .step = seen_from_device(a.step),
                            .min_confidence = a.min_confidence});
    });
  }
  void argmax(const ops::Argmax& a) override {
    enqueue([this, a] { cpu_.argmax({.x = seen_from_device(a.x), .out = seen_from_device(a.out)}); });
  }
  void choose_tokens(const ops::ChooseTokens& a) override {
    enqueue([this, a] {
      cpu_.choose_tokens(
          {.x = seen_from_device(a.x), .rules = seen_from_device(a.rules), .out = seen_from_device(a.out)});
    });
  }
  void copy_rows(const ops::CopyRows& a) override {
    enqueue([this, a] {
      cpu_.copy_rows({.x = seen_from_device(a.x),
                      .rows = seen_from_device(a.rows),
                      .repeat = a.repeat,
                      .out = seen_from_device(a.out)});
    });
  }
  void mark_unusable(const ops::MarkUnusable& a) override {
    enqueue([this, a] { cpu_.mark_unusable({.x = seen_from_device(a.x), .faults = seen_from_device(a.faults)}); });
  }
  void matmul(const ops::Matmul& a) override {
    LEVIN_CHECK(a.w->dtype() == DType::kF32, "a fake device multiplies with f32 weights");
    enqueue([x = seen_from_device(a.x), out = seen_from_device(a.out), w = a.w] {
      const auto* weights = reinterpret_cast<const float*>(w->device_data());  // [N, K]
      for (int64_t t = 0; t < x.dim(0); ++t) {
        for (int64_t n = 0; n < w->n(); ++n) {
          const float* row = weights + n * w->k();
          out.row<float>(t)[n] = std::inner_product(row, row + w->k(), x.row<float>(t), 0.0f);
        }
      }
    });
  }
  void add_into(const ops::AddInto&) override { refuse("add_into"); }
  void append_index_keys(const ops::AppendIndexKeys&) override { refuse("append_index_keys"); }
  void append_latent(const ops::AppendLatent&) override { refuse("append_latent"); }
  void delta_rule(const ops::DeltaRule&) override { refuse("delta_rule"); }
  void embed(const ops::Embed&) override { refuse("embed"); }
  void expand_topk(const ops::ExpandTopk&) override { refuse("expand_topk"); }
  void expert_ffn(const ops::ExpertFfn&) override { refuse("expert_ffn"); }
  void ffn(const ops::Ffn&) override { refuse("ffn"); }
  void hadamard(const ops::Hadamard&) override { refuse("hadamard"); }
  void index_queries(const ops::IndexQueries&) override { refuse("index_queries"); }
  void index_scores(const ops::IndexScores&) override { refuse("index_scores"); }
  void index_topk(const ops::IndexTopk&) override { refuse("index_topk"); }
  void keep_state(const ops::WindowTokens&) override { refuse("keep_state"); }
  void layer_norm(const ops::LayerNorm&) override { refuse("layer_norm"); }
  void matmul_per_head(const ops::MatmulPerHead&) override { refuse("matmul_per_head"); }
  void mean_streams(const ops::MeanStreams&) override { refuse("mean_streams"); }
  void norm_rows(const ops::NormRows&) override { refuse("norm_rows"); }
  void pool_windows(const ops::PoolWindows&) override { refuse("pool_windows"); }
  void quantize_fp8(const ops::QuantizeFp8&) override { refuse("quantize_fp8"); }
  void read_streams(const ops::ReadStreams&) override { refuse("read_streams"); }
  void rms_norm(const ops::RmsNorm&) override { refuse("rms_norm"); }
  void rope(const ops::Rope&) override { refuse("rope"); }
  void rope_table(const ops::RopeTable&) override { refuse("rope_table"); }
  void rotate_queries(const ops::RotateQueries&) override { refuse("rotate_queries"); }
  void round_to_bf16(const ops::RoundToBf16&) override { refuse("round_to_bf16"); }
  void round_to_fp4(const ops::RoundToFp4&) override { refuse("round_to_fp4"); }
  void route_experts(const ops::RouteExperts&) override { refuse("route_experts"); }
  void scale_rows(const ops::ScaleRows&) override { refuse("scale_rows"); }
  void select_topk(const ops::SelectTopk&) override { refuse("select_topk"); }
  void short_conv(const ops::ShortConv&) override { refuse("short_conv"); }
  void sigmoid_mul(const ops::SigmoidMul&) override { refuse("sigmoid_mul"); }
  void silu_mul(const ops::SiluMul&) override { refuse("silu_mul"); }
  void sparse_attention(const ops::SparseAttention&) override { refuse("sparse_attention"); }
  void stream_weights(const ops::StreamWeights&) override { refuse("stream_weights"); }
  void take_all(const ops::TakeAll&) override { refuse("take_all"); }
  void take_most_recent(const ops::TakeAll&) override { refuse("take_most_recent"); }
  void write_index_keys(const ops::WriteIndexKeys&) override { refuse("write_index_keys"); }
  void write_latent(const ops::WriteLatent&) override { refuse("write_latent"); }
  void write_streams(const ops::WriteStreams&) override { refuse("write_streams"); }

 private:
  struct Recorded final : RecordedWork {
    explicit Recorded(FakeCuda& fake) : device(fake) {}
    // Decided when the work's turn has come, which the ops in it may change.
    void replay() override {
      if (!seq.empty())
        device.enqueue([this] {
          runs = std::any_of(seq.data<int32_t>(), seq.data<int32_t>() + seq.dim(0), [](int32_t s) { return s >= 0; });
        });
      for (const std::function<void()>& part : parts) {
        device.enqueue([this, &part] {
          if (runs) part();
        });
      }
    }
    FakeCuda& device;
    std::vector<std::function<void()>> parts;
    View seq;  // of rows that may be padding; empty: it runs anyway
    bool runs = true;
  };

  struct Mark final : WorkMark {
    explicit Mark(FakeCuda& fake) : device(fake) {}
    void set() override { n_before = device.n_enqueued(); }
    bool is_past() override { return device.n_run_ >= n_before; }
    Status wait() override { return device.run_until(n_before); }
    FakeCuda& device;
    int64_t n_before = 0;
  };

  // Copies next to the queue: each of them after so many works of the queue.
  struct Aside final : CopyStream {
    struct Copy {
      int64_t after = 0;
      std::function<void()> run;
    };
    struct AsideMark final : WorkMark {
      explicit AsideMark(Aside& copies) : aside(copies) {}
      void set() override { n_before = aside.n_begun(); }
      bool is_past() override { return aside.n_done >= n_before; }
      Status wait() override {
        if (!is_past()) ++aside.device.n_waits_aside_;
        if (aside.device.has_failed()) return failure();
        LEVIN_TRY(aside.device.work_until(aside.after));
        aside.run_until(n_before);
        return {};
      }
      Aside& aside;
      int64_t n_before = 0;
    };
    explicit Aside(FakeCuda& fake) : device(fake) { device.asides_.push_back(this); }
    ~Aside() override { std::erase(device.asides_, this); }
    void copy_bytes_out(void* to, const std::byte* from, int64_t n_bytes) override {
      ++device.n_copies_aside_;
      copies.push_back({after, [=] { std::memcpy(to, from, static_cast<size_t>(n_bytes)); }});
      run_what_may();
    }
    Result<std::unique_ptr<WorkMark>> make_mark() override {
      return std::unique_ptr<WorkMark>(std::make_unique<AsideMark>(*this));
    }
    void follow() override { after = device.n_enqueued(); }
    void hold() override {
      device.enqueue([this, n = n_begun()] { run_until(n); });
    }
    int64_t n_begun() const { return n_done + std::ssize(copies); }
    void run_until(int64_t n) {
      for (; n_done < n; ++n_done) {
        copies.front().run();
        copies.pop_front();
      }
    }
    void run_what_may() {
      while (!device.copies_aside_late && !copies.empty() && copies.front().after <= device.n_run_)
        run_until(n_done + 1);
    }
    FakeCuda& device;
    std::deque<Copy> copies;
    int64_t n_done = 0, after = 0;
  };

  Status run_until(int64_t n) {
    LEVIN_CHECK(recording_ == nullptr, "somebody waits while work is recorded");
    if (has_failed()) return failure();
    ++n_synchronized_;
    return work_until(n);
  }

  Status work_until(int64_t n) {
    try {
      while (n_run_ < n) {
        const std::function<void()> work = std::move(queue_.front());
        queue_.pop_front();
        ++n_run_;
        work();
        for (Aside* aside : asides_) aside->run_what_may();
      }
      n_waits_ahead_ += queue_.empty() ? 0 : 1;
    } catch (...) {  // what follows a failure never runs
      n_run_ = n_enqueued();
      queue_.clear();
      throw;
    }
    return {};
  }

  bool has_failed() const { return fails_after_ == n_synchronized_; }
  static Error failure() { return {ErrorKind::kRuntime, "the fake device failed"}; }
  static Error refusal() { return {ErrorKind::kRuntime, "the fake device holds no weights"}; }
  static void refuse(std::string_view op) { LEVIN_CHECK(false, "the fake device has no {}", op); }

  Buffer block(int64_t n_bytes) {
    blocks_.push_back(std::make_unique<Buffer>(std::max<int64_t>(n_bytes, 1)));
    return Buffer::borrowed(blocks_.back()->data(), n_bytes, Device::kCuda);
  }

  cuda::DeviceInfo info_;
  std::vector<std::unique_ptr<Buffer>> blocks_;
  Arena arena_, host_arena_;
  ThreadPool pool_{1};
  CpuBackend cpu_{pool_, host_arena_, Isa::kPlain};
  std::deque<std::function<void()>> queue_;
  int64_t n_run_ = 0;
  std::vector<std::function<void()>>* recording_ = nullptr;
  std::vector<Aside*> asides_;
  int64_t n_copies_aside_ = 0;
  int64_t n_waits_aside_ = 0;
  int64_t n_synchronized_ = 0;
  int64_t n_waits_ahead_ = 0;
  int64_t fails_after_ = -1;
  int64_t now_ = 0;
};

}  // namespace levin::test
