// What surrounds the ops: memory, copies, weights.
#include "ops/cuda/plain_cuda.h"

#include <fmt/core.h>

#include <new>
#include <utility>

#include "base/numbers.h"
#include "kernels/cuda/plain/copies.h"
#include "kernels/cuda/plain/dummies.h"
#include "kernels/cuda/plain/graph_condition.h"
#include "kernels/cuda/plain/time_stamp.h"
#include "ops/cuda/ops_on_cuda.h"
#include "ops/moe.h"
#include "tensor/cuda/upload.h"

namespace levin {
namespace {

// Where the program has no memory for, it ends as it does where the host's is used up.
Buffer scratch_block(int64_t n_bytes) {
  Result<cuda::DeviceBuffer> block = cuda::DeviceBuffer::create(n_bytes);
  if (!block.ok()) throw std::bad_alloc();
  return std::move(block).value().to_buffer();
}

class GraphOnStream final : public RecordedWork {
 public:
  GraphOnStream(cuda::Graph graph, const cuda::Stream& stream) : graph_(std::move(graph)), stream_(stream) {}
  void replay() override { graph_.launch(stream_); }
  int64_t n_parts() const override { return graph_.n_nodes(); }
  int64_t n_kernels() const override { return graph_.n_kernels(); }

 private:
  cuda::Graph graph_;
  const cuda::Stream& stream_;
};

class EventOnStream final : public WorkMark {
 public:
  EventOnStream(cuda::Event event, const cuda::Stream& stream) : event_(std::move(event)), stream_(stream) {}
  void set() override { event_.record(stream_); }
  bool is_past() override { return event_.is_past(); }
  Status wait() override { return event_.synchronize(); }

 private:
  cuda::Event event_;
  const cuda::Stream& stream_;
};

class CopiesOnStream final : public CopyStream {
 public:
  struct Parts {
    cuda::Stream copies;
    cuda::Event computed, copied;
  };
  CopiesOnStream(Parts parts, const cuda::Stream& stream) : own_(std::move(parts)), stream_(stream) {}
  ~CopiesOnStream() override { static_cast<void>(own_.copies.synchronize()); }  // a lost device has told others

  void copy_bytes_out(void* to, const std::byte* from, int64_t n_bytes) override {
    if (n_bytes > 0) cuda::copy_to_host(own_.copies, to, from, n_bytes);
  }
  Result<std::unique_ptr<WorkMark>> make_mark() override {
    LEVIN_ASSIGN(cuda::Event event, cuda::Event::create());
    return std::unique_ptr<WorkMark>(std::make_unique<EventOnStream>(std::move(event), own_.copies));
  }
  void follow() override {
    own_.computed.record(stream_);
    own_.copies.wait(own_.computed);
  }
  void hold() override {
    own_.copied.record(own_.copies);
    stream_.wait(own_.copied);
  }

 private:
  Parts own_;
  const cuda::Stream& stream_;
};

// What a kernel copies, between two others: the copy engine takes ten microseconds for its turn.
bool is_few_words(const void* at, int64_t n_bytes) {
  constexpr int64_t kWordBytes = 4;
  return n_bytes > 0 && n_bytes <= cuda::plain::kMostCopiedWordsBytes && n_bytes % kWordBytes == 0 &&
         reinterpret_cast<uintptr_t>(at) % kWordBytes == 0;
}

int64_t row_bytes(DType dtype, int64_t k) { return row_major_bytes(dtype, 1, k); }

}  // namespace

Result<std::unique_ptr<CudaBackend>> open_cuda(const CudaOptions& options) {
  LEVIN_ASSIGN(cuda::DeviceInfo device, cuda::find_device(options.device_index, options.kernels));
  if (options.kernels == cuda::KernelSet::kPlain) return PlainCuda::create(std::move(device));
  return OpsOnCuda::create(options, std::move(device));
}

Result<std::unique_ptr<CudaBackend>> PlainCuda::create(cuda::DeviceInfo device) {
  std::unique_ptr<PlainCuda> ops(new PlainCuda);
  LEVIN_TRY(ops->open(std::move(device)));
  return std::unique_ptr<CudaBackend>(std::move(ops));
}

Status PlainCuda::open(cuda::DeviceInfo device) {
  LEVIN_TRY(cuda::use_device(device.index));
  device_ = std::move(device);
  LEVIN_ASSIGN(stream_, cuda::Stream::create());
  LEVIN_ASSIGN(ring_, cuda::UploadRing::create());
  scratch_ = Arena(scratch_block, cuda::kDeviceAlignment);
  return {};
}

Result<Buffer> PlainCuda::allocate(int64_t n_bytes) {
  LEVIN_ASSIGN(cuda::DeviceBuffer buffer, cuda::DeviceBuffer::create(n_bytes));
  if (n_bytes > 0) cuda::fill_bytes(stream_, buffer.data(), 0, n_bytes);
  return std::move(buffer).to_buffer();
}

Result<Buffer> PlainCuda::allocate_pinned(int64_t n_bytes) {
  LEVIN_ASSIGN(cuda::PinnedBuffer buffer, cuda::PinnedBuffer::create(n_bytes));
  return std::move(buffer).to_buffer();
}

void PlainCuda::copy_bytes_in(std::byte* to, const void* from, int64_t n_bytes) {
  if (!is_few_words(to, n_bytes)) return ring_.copy(stream_, to, from, n_bytes);
  cuda::plain::copy_words({.from = ring_.put(stream_, from, n_bytes), .to = to, .n_bytes = n_bytes}, stream_.handle());
}

Status PlainCuda::copy_all_in(std::span<const CopyIn> copies, ThreadPool& pool) {
  return cuda::upload(stream_, device_.index, copies, pool);
}

void PlainCuda::make_dummies(std::byte* to, const DummyTensor& tensor, int64_t n) {
  cuda::plain::make_dummies({.tensor = tensor, .n = n, .to = to}, stream_.handle());
}

void PlainCuda::copy_bytes_out(void* to, const std::byte* from, int64_t n_bytes) {
  if (n_bytes == 0) return;
  if (!is_few_words(to, n_bytes) || !is_few_words(from, n_bytes) || !cuda::is_pinned(to))
    return cuda::copy_to_host(stream_, to, from, n_bytes);
  cuda::plain::copy_words({.from = from, .to = static_cast<std::byte*>(to), .n_bytes = n_bytes}, stream_.handle());
}

void PlainCuda::copy_in(const View& to, const View& from) {
  LEVIN_CHECK(from.device() == Device::kCpu && from.contiguous() && from.dtype() == to.dtype() &&
                  from.n_elements() == to.n_elements(),
              "copy_in: from {} to {}", from.describe(), to.describe());
  copy_bytes_in(dense_bytes("copy_in", "to", to), from.bytes(), from.n_elements() * dtype_bytes(from.dtype()));
}

Status PlainCuda::copy_out(const View& to, const View& from) {
  LEVIN_CHECK(to.device() == Device::kCpu && to.contiguous() && from.dtype() == to.dtype() &&
                  from.n_elements() == to.n_elements(),
              "copy_out: from {} to {}", from.describe(), to.describe());
  copy_bytes_out(to.bytes(), dense_bytes("copy_out", "from", from), to.n_elements() * dtype_bytes(to.dtype()));
  return synchronize();
}

Status PlainCuda::synchronize() {
  LEVIN_TRY(stream_.synchronize());
  clock_.add_times();
  return {};
}

void PlainCuda::stamp_time(int64_t* out) { cuda::plain::stamp_time(out, stream_.handle()); }

Result<std::unique_ptr<RecordedWork>> PlainCuda::record(const std::function<void()>& enqueue) {
  LEVIN_ASSIGN(cuda::Graph graph, cuda::Graph::capture(stream_, enqueue));
  return std::unique_ptr<RecordedWork>(std::make_unique<GraphOnStream>(std::move(graph), stream_));
}

Result<std::unique_ptr<RecordedWork>> PlainCuda::record_for_rows(const View& seq,
                                                                 const std::function<void()>& enqueue) {
  const int32_t* rows = dense_data<int32_t>("record_for_rows", "seq", seq);
  const auto decide = [&](cuda::GraphCondition condition) {
    cuda::plain::set_if_has_rows({.condition = condition, .seq = rows, .n = seq.dim(0)}, stream_.handle());
  };
  LEVIN_ASSIGN(cuda::Graph graph, cuda::Graph::capture_if(stream_, decide, enqueue));
  return std::unique_ptr<RecordedWork>(std::make_unique<GraphOnStream>(std::move(graph), stream_));
}

Result<std::unique_ptr<WorkMark>> PlainCuda::make_mark() {
  LEVIN_ASSIGN(cuda::Event event, cuda::Event::create());
  return std::unique_ptr<WorkMark>(std::make_unique<EventOnStream>(std::move(event), stream_));
}

Result<std::unique_ptr<CopyStream>> PlainCuda::open_copy_stream() {
  LEVIN_ASSIGN(cuda::Stream copies, cuda::Stream::create());
  LEVIN_ASSIGN(cuda::Event computed, cuda::Event::create());
  LEVIN_ASSIGN(cuda::Event copied, cuda::Event::create());
  CopiesOnStream::Parts parts{std::move(copies), std::move(computed), std::move(copied)};
  return std::unique_ptr<CopyStream>(std::make_unique<CopiesOnStream>(std::move(parts), stream_));
}

Result<Matrix> PlainCuda::upload(const RowMajorWeights& source) {
  std::vector<float> widened;
  DeviceMatrix parts{.dtype = source.dtype, .n = source.n, .k = source.k, .data = {}, .scales = {}};
  const void* data = source.data;
  if (source.dtype == DType::kF16) {
    for (int64_t i = 0; i < source.n * source.k; ++i) {
      widened.push_back(f16_to_f32(static_cast<const uint16_t*>(source.data)[i]));
    }
    parts.dtype = DType::kF32, data = widened.data();
  }
  const int64_t n_bytes = source.n * row_bytes(parts.dtype, source.k);
  LEVIN_ASSIGN(parts.data, allocate(n_bytes));
  copy_bytes_in(parts.data.data(), data, n_bytes);
  const auto blocks = [](int64_t n, int64_t step) { return (n + step - 1) / step; };
  if (source.scales != nullptr) {
    const int64_t n_scales = blocks(source.n, kWeightBlock) * blocks(source.k, kWeightBlock);
    LEVIN_ASSIGN(parts.scales, allocate(n_scales * 4));
    copy_bytes_in(parts.scales.data(), source.scales, n_scales * 4);
  } else if (source.group_scales != nullptr) {
    std::vector<std::byte> scales(static_cast<size_t>(group_scale_bytes(source.dtype, source.n, source.k)));
    copy_group_scales(source, scales.data());
    LEVIN_ASSIGN(parts.scales, allocate(std::ssize(scales)));
    copy_bytes_in(parts.scales.data(), scales.data(), std::ssize(scales));
    parts.factor = source.factor;
  }
  return matrix_on_device(std::move(parts));
}

Result<ops::ExpertStack> PlainCuda::upload_experts(std::span<const ExpertRows> experts) {
  return Error{ErrorKind::kRuntime,
               fmt::format("{} experts in the layout of the tuned kernels; the plain ones take them matrix by matrix",
                           experts.size())};
}

const float* PlainCuda::frequencies_on_device(const std::vector<float>& frequencies) {
  Buffer& here = frequencies_[frequencies];
  if (here.empty()) {
    const int64_t n_bytes = std::ssize(frequencies) * static_cast<int64_t>(sizeof(float));
    here = scratch_block(n_bytes);
    copy_bytes_in(here.data(), frequencies.data(), n_bytes);
  }
  return reinterpret_cast<const float*>(here.data());
}

// ---- arguments ----

std::byte* device_bytes(std::string_view op, std::string_view name, const View& v) {
  LEVIN_CHECK(v.device() == Device::kCuda, "{}: {} is {}, expected it on cuda", op, name, v.describe());
  return v.bytes();
}

std::byte* dense_bytes(std::string_view op, std::string_view name, const View& v) {
  LEVIN_CHECK(v.contiguous(), "{}: {} is {} with gaps between its rows; on CUDA it is dense", op, name, v.describe());
  return device_bytes(op, name, v);
}

cuda::plain::PagedCache plain_cache(std::string_view op, const PagedRows& cache) {
  return {.pages = cache.pages,
          .page_bytes = cache.page_bytes,
          .tables = device_data<int32_t>(op, "cache.tables", cache.tables),
          .tables_ld = cache.tables.stride(0)};
}

cuda::plain::Rotation plain_rotation(std::string_view op, const View& cos, const View& sin, ops::RopePairing pairing) {
  LEVIN_CHECK(cos.stride(0) == sin.stride(0), "{}: cos is {}, sin {}, with rows at other strides", op, cos.describe(),
              sin.describe());
  return {.cos = device_data<float>(op, "cos", cos),
          .sin = device_data<float>(op, "sin", sin),
          .ld = cos.stride(0),
          .half_split = pairing == ops::RopePairing::kHalfSplit};
}

cuda::plain::Weights plain_weights(const Matrix& w) {
  const bool groups = is_fp4(w.dtype());
  return {.data = w.device_data(),
          .dtype = w.dtype(),
          .scales = groups ? nullptr : w.device_scales(),
          .group_scales = groups ? reinterpret_cast<const uint8_t*>(w.device_scales()) : nullptr,
          .n = w.n(),
          .k = w.k()};
}

cuda::plain::Weights plain_weights(std::string_view op, const Matrix& first, const Matrix& last, int64_t n) {
  const int64_t n_bytes = first.n() * row_bytes(first.dtype(), first.k());
  cuda::plain::Weights w = plain_weights(first);
  w.step = n > 1 && last.device_data() == first.device_data() + 2 * (n - 1) * n_bytes ? 2 : 1;
  LEVIN_CHECK(last.device_data() == first.device_data() + w.step * (n - 1) * n_bytes && last.dtype() == first.dtype(),
              "{}: {} matrices [{}, {}] that do not stand one after another on the device", op, n, first.n(),
              first.k());
  return w;
}

}  // namespace levin
