#include "tensor/cuda/device.h"

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace levin::cuda {
namespace {

// The runtime also keeps the code as its last one. Who lacks memory may continue, and synchronize() must not take that for a launch
// that was refused.
Error cuda_error(cudaError_t code, const std::string& what) {
  const ErrorKind kind = code == cudaErrorMemoryAllocation ? ErrorKind::kOutOfMemory : ErrorKind::kRuntime;
  if (kind == ErrorKind::kOutOfMemory) cudaGetLastError();
  return Error{kind, fmt::format("{}: {} ({})", what, cudaGetErrorString(code), cudaGetErrorName(code))};
}

// After an enqueue. Wrong arguments are our bug; device faults wait for synchronize(). The runtime also keeps the code of the former
// as its last one, which must not look like a fault there to who recovers from the check.
void check_enqueued(cudaError_t code, const char* what) {
  const bool ours = code == cudaErrorInvalidValue || code == cudaErrorInvalidResourceHandle ||
                    code == cudaErrorInvalidMemcpyDirection || code == cudaErrorStreamCaptureUnsupported;
  if (ours) cudaGetLastError();
  LEVIN_CHECK(!ours, "{}: {}", what, cudaGetErrorString(code));
}

Error out_of_memory(int64_t n_bytes, const char* where, cudaError_t code) {
  size_t free_bytes = 0, total_bytes = 0;
  cudaGetLastError();
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return cuda_error(code, where);
  return cuda_error(
      code, fmt::format("{} of {} bytes failed, {} of {} free on the device", where, n_bytes, free_bytes, total_bytes));
}

// A capture that has begun. It ends with its owner where what was to be recorded throws: the stream could not be waited for.
class OpenCapture {
 public:
  // `owns_graph`: the graph is made by the capture, and goes with one that nobody ends.
  OpenCapture(const Stream& stream, bool owns_graph) : stream_(stream), owns_graph_(owns_graph) {}
  ~OpenCapture() {
    if (has_ended_) return;
    cudaGraph_t recorded = nullptr;
    cudaStreamEndCapture(stream_.handle(), &recorded);
    if (owns_graph_ && recorded != nullptr) cudaGraphDestroy(recorded);
    cudaGetLastError();  // what was thrown may have made the capture invalid
  }
  OpenCapture(const OpenCapture&) = delete;
  OpenCapture& operator=(const OpenCapture&) = delete;

  Result<cudaGraph_t> end() {
    has_ended_ = true;
    cudaGraph_t recorded = nullptr;
    if (const cudaError_t code = cudaStreamEndCapture(stream_.handle(), &recorded); code != cudaSuccess)
      return cuda_error(code, "ending a graph capture");
    return recorded;
  }

 private:
  const Stream& stream_;
  bool owns_graph_;
  bool has_ended_ = false;
};

Status capture_into(const Stream& stream, cudaGraph_t graph, const std::function<void()>& enqueue) {
  if (const cudaError_t code =
          cudaStreamBeginCaptureToGraph(stream.handle(), graph, nullptr, nullptr, 0, cudaStreamCaptureModeThreadLocal);
      code != cudaSuccess)
    return cuda_error(code, "beginning the capture of a part of a graph");
  OpenCapture capture(stream, false);
  enqueue();
  const Result<cudaGraph_t> recorded = capture.end();
  return recorded.ok() ? Status() : Status(recorded.error());
}

// After the one node of the graph, whose kernel sets the condition. Returns what is to hold the work, which belongs to the graph.
Result<cudaGraph_t> add_branch(cudaGraph_t graph, GraphCondition condition) {
  cudaGraphNode_t decision = nullptr, branch = nullptr;
  size_t n_nodes = 1;
  cudaGraphGetNodes(graph, &decision, &n_nodes);
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = condition;
  params.conditional.type = cudaGraphCondTypeIf;
  params.conditional.size = 1;
#if CUDART_VERSION >= 13000
  const cudaError_t code = cudaGraphAddNode(&branch, graph, &decision, nullptr, 1, &params);
#else
  const cudaError_t code = cudaGraphAddNode(&branch, graph, &decision, 1, &params);
#endif
  if (code != cudaSuccess) return cuda_error(code, "adding a branch to a graph");
  return params.conditional.phGraph_out[0];
}

}  // namespace

Status use_device(int index) {
  if (const cudaError_t code = cudaSetDevice(index); code != cudaSuccess) {
    Error error = cuda_error(code, fmt::format("CUDA device {}", index));
    error.kind = ErrorKind::kNoDevice;
    return error;
  }
  return {};
}

void Stream::Destroy::operator()(CUstream_st* stream) const { cudaStreamDestroy(stream); }

Result<Stream> Stream::create() {
  cudaStream_t raw = nullptr;
  if (const cudaError_t code = cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking); code != cudaSuccess)
    return cuda_error(code, "creating a CUDA stream");
  Stream stream;
  stream.stream_.reset(raw);
  return stream;
}

Status Stream::synchronize() const {
  cudaError_t code = cudaStreamSynchronize(handle());
  if (code == cudaSuccess) code = cudaGetLastError();  // a launch that was refused
  if (code != cudaSuccess) return cuda_error(code, "the CUDA device failed");
  return {};
}

void Stream::wait(const Event& event) const {
  check_enqueued(cudaStreamWaitEvent(handle(), event.handle(), 0), "stream wait");
}

void Event::Destroy::operator()(CUevent_st* event) const { cudaEventDestroy(event); }

Result<Event> Event::create() {
  cudaEvent_t raw = nullptr;
  if (const cudaError_t code = cudaEventCreate(&raw); code != cudaSuccess)
    return cuda_error(code, "creating a CUDA event");
  Event event;
  event.event_.reset(raw);
  return event;
}

void Event::record(const Stream& stream) const {
  check_enqueued(cudaEventRecord(handle(), stream.handle()), "event record");
}

Status Event::synchronize() const {
  cudaError_t code = cudaEventSynchronize(handle());
  if (code == cudaSuccess) code = cudaGetLastError();  // a launch that was refused
  if (code != cudaSuccess) return cuda_error(code, "the CUDA device failed");
  return {};
}

bool Event::is_past() const {
  if (cudaPeekAtLastError() != cudaSuccess) return false;  // synchronize() tells; the answer below would cover it up
  if (cudaEventQuery(handle()) != cudaErrorNotReady) return true;
  cudaGetLastError();  // it is an answer and no error
  return false;
}

float Event::ms_since(const Event& earlier) const {
  float ms = 0;
  check_enqueued(cudaEventElapsedTime(&ms, earlier.handle(), handle()), "event time");
  return ms;
}

void DeviceBuffer::Free::operator()(std::byte* data) const { cudaFree(data); }

Result<DeviceBuffer> DeviceBuffer::create(int64_t n_bytes) {
  DeviceBuffer buffer;
  if (n_bytes == 0) return buffer;
  void* raw = nullptr;
  if (const cudaError_t code = cudaMalloc(&raw, static_cast<size_t>(n_bytes)); code != cudaSuccess)
    return out_of_memory(n_bytes, "device allocation", code);
  buffer.data_.reset(static_cast<std::byte*>(raw));
  buffer.n_bytes_ = n_bytes;
  return buffer;
}

Buffer DeviceBuffer::to_buffer() && {
  const int64_t n_bytes = std::exchange(n_bytes_, 0);
  return Buffer::of_device(data_.release(), n_bytes, [](std::byte* data) { cudaFree(data); });
}

void PinnedBuffer::Free::operator()(std::byte* data) const { cudaFreeHost(data); }

Result<PinnedBuffer> PinnedBuffer::create(int64_t n_bytes) {
  PinnedBuffer buffer;
  if (n_bytes == 0) return buffer;
  void* raw = nullptr;
  if (const cudaError_t code = cudaHostAlloc(&raw, static_cast<size_t>(n_bytes), cudaHostAllocDefault);
      code != cudaSuccess)
    return out_of_memory(n_bytes, "pinned host allocation", code);
  buffer.data_.reset(static_cast<std::byte*>(raw));
  buffer.n_bytes_ = n_bytes;
  return buffer;
}

Buffer PinnedBuffer::to_buffer() && {
  const int64_t n_bytes = std::exchange(n_bytes_, 0);
  return Buffer::of_host(data_.release(), n_bytes, [](std::byte* data) { cudaFreeHost(data); });
}

int64_t free_device_bytes() {
  size_t free_bytes = 0, total_bytes = 0;
  check_enqueued(cudaMemGetInfo(&free_bytes, &total_bytes), "free device memory");
  return static_cast<int64_t>(free_bytes);
}

void copy_to_device(const Stream& stream, std::byte* to, const void* from, int64_t n_bytes) {
  check_enqueued(cudaMemcpyAsync(to, from, static_cast<size_t>(n_bytes), cudaMemcpyHostToDevice, stream.handle()),
                 "copy to device");
}

void copy_to_host(const Stream& stream, void* to, const std::byte* from, int64_t n_bytes) {
  check_enqueued(cudaMemcpyAsync(to, from, static_cast<size_t>(n_bytes), cudaMemcpyDeviceToHost, stream.handle()),
                 "copy to host");
}

bool is_pinned(const void* host) {
  cudaPointerAttributes attributes{};
  check_enqueued(cudaPointerGetAttributes(&attributes, host), "look at a pointer");
  return attributes.type == cudaMemoryTypeHost && attributes.devicePointer == host;
}

void copy_rows_on_device(const Stream& stream, const CopyRows& a) {
  check_enqueued(cudaMemcpy2DAsync(a.to, static_cast<size_t>(a.to_pitch), a.from, static_cast<size_t>(a.from_pitch),
                                   static_cast<size_t>(a.row_bytes), static_cast<size_t>(a.n_rows),
                                   cudaMemcpyDeviceToDevice, stream.handle()),
                 "copy of rows");
}

void fill_bytes(const Stream& stream, std::byte* to, uint8_t value, int64_t n_bytes) {
  check_enqueued(cudaMemsetAsync(to, value, static_cast<size_t>(n_bytes), stream.handle()), "fill");
}

Result<UploadRing> UploadRing::create() {
  UploadRing ring;
  for (Part& part : ring.parts_) {
    LEVIN_ASSIGN(part.memory, PinnedBuffer::create(kPartBytes));
    LEVIN_ASSIGN(part.read, Event::create());
  }
  return ring;
}

void UploadRing::next_part(const Stream& stream) {
  parts_[part_].read.record(stream);
  part_ = (part_ + 1) % parts_.size();
  n_filled_ = 0;
  // A fault of the device is for synchronize() to report, and so is a launch that failed before, which Event::synchronize() would
  // make the runtime forget. An event that was never recorded has happened.
  static_cast<void>(cudaEventSynchronize(parts_[part_].read.handle()));
}

const std::byte* UploadRing::put(const Stream& stream, const void* from, int64_t n_bytes) {
  constexpr int64_t kAlignment = 16;
  n_filled_ = (n_filled_ + kAlignment - 1) / kAlignment * kAlignment;
  if (n_filled_ + n_bytes > kPartBytes) next_part(stream);
  std::byte* pinned = parts_[part_].memory.data() + n_filled_;
  std::memcpy(pinned, from, static_cast<size_t>(n_bytes));
  n_filled_ += n_bytes;
  return pinned;
}

void UploadRing::copy(const Stream& stream, std::byte* to, const void* from, int64_t n_bytes) {
  const auto* source = static_cast<const std::byte*>(from);
  while (n_bytes > 0) {
    const int64_t n = std::min(n_bytes, kPartBytes);
    copy_to_device(stream, to, put(stream, source, n), n);
    to += n, source += n, n_bytes -= n;
  }
}

Result<DeviceArena> DeviceArena::create(int64_t n_bytes) {
  LEVIN_ASSIGN(DeviceBuffer block, DeviceBuffer::create(n_bytes));
  DeviceArena arena;
  arena.block_ = std::move(block);
  return arena;
}

std::byte* DeviceArena::allocate_bytes(int64_t n_bytes) {
  const int64_t begin = (offset_ + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
  LEVIN_CHECK(n_bytes >= 0 && begin + n_bytes <= block_.n_bytes(),
              "device arena: {} bytes wanted at offset {}, {} reserved", n_bytes, begin, block_.n_bytes());
  offset_ = begin + n_bytes;
  peak_ = offset_ > peak_ ? offset_ : peak_;
  return block_.data() + begin;
}

View DeviceArena::allocate(DType dtype, std::initializer_list<int64_t> shape) {
  int64_t n_bytes = dtype_bytes(dtype);
  for (const int64_t extent : shape) n_bytes *= extent;
  return View(allocate_bytes(n_bytes), dtype, shape, Device::kCuda);
}

void Graph::Destroy::operator()(CUgraph_st* graph) const { cudaGraphDestroy(graph); }
void Graph::Destroy::operator()(CUgraphExec_st* graph) const { cudaGraphExecDestroy(graph); }

Result<Graph> Graph::capture(const Stream& stream, const std::function<void()>& enqueue) {
  if (const cudaError_t code = cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeThreadLocal);
      code != cudaSuccess)
    return cuda_error(code, "beginning a graph capture");
  OpenCapture capture(stream, true);
  enqueue();
  LEVIN_ASSIGN(const cudaGraph_t recorded, capture.end());
  Graph graph;
  graph.count_nodes(recorded);
  LEVIN_TRY(graph.instantiate(Template(recorded), stream));
  return graph;
}

Result<Graph> Graph::capture_if(const Stream& stream, const std::function<void(GraphCondition)>& decide,
                                const std::function<void()>& enqueue) {
  cudaGraph_t made = nullptr;
  if (const cudaError_t code = cudaGraphCreate(&made, 0); code != cudaSuccess)
    return cuda_error(code, "making a graph");
  Template whole(made);
  GraphCondition condition = 0;
  if (const cudaError_t code = cudaGraphConditionalHandleCreate(&condition, whole.get()); code != cudaSuccess)
    return cuda_error(code, "making a condition of a graph");
  LEVIN_TRY(capture_into(stream, whole.get(), [&] { decide(condition); }));
  LEVIN_ASSIGN(const cudaGraph_t body, add_branch(whole.get(), condition));
  LEVIN_TRY(capture_into(stream, body, enqueue));
  Graph graph;
  graph.count_nodes(body);
  LEVIN_TRY(graph.instantiate(std::move(whole), stream));
  return graph;
}

void Graph::count_nodes(CUgraph_st* graph) {
  size_t n_nodes = 0;
  cudaGraphGetNodes(graph, nullptr, &n_nodes);
  std::vector<cudaGraphNode_t> nodes(n_nodes);
  cudaGraphGetNodes(graph, nodes.data(), &n_nodes);
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    cudaGraphNodeGetType(node, &type);
    ++n_nodes_;
    n_kernels_ += type == cudaGraphNodeTypeKernel;
  }
}

// The upload takes the device memory that the first launch otherwise takes.
Status Graph::instantiate(Template graph, const Stream& stream) {
  cudaGraphExec_t raw = nullptr;
  if (const cudaError_t code = cudaGraphInstantiate(&raw, graph.get(), 0); code != cudaSuccess)
    return cuda_error(code, "instantiating a graph");
  template_ = std::move(graph);
  graph_.reset(raw);
  if (const cudaError_t code = cudaGraphUpload(raw, stream.handle()); code != cudaSuccess)
    return cuda_error(code, "uploading a graph");
  return {};
}

void Graph::launch(const Stream& stream) const {
  check_enqueued(cudaGraphLaunch(graph_.get(), stream.handle()), "graph launch");
}

}  // namespace levin::cuda
