// Device memory, streams, events and graphs. No CUDA header is needed to include this one.
//
// Errors    Making something returns a Result (out of memory, no device). Enqueueing returns nothing: a wrong argument
//           is our bug and stops the process; a fault of the device is sticky, and synchronize() reports it.
// Threads   a Stream, Arena or Graph belongs to one thread at a time
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>

#include "base/result.h"
#include "tensor/buffer.h"
#include "tensor/view.h"

struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;

namespace levin::cuda {

using StreamHandle = CUstream_st*;  // a cudaStream_t

constexpr int64_t kDeviceAlignment = 256;  // bytes; what cudaMalloc gives, and enough for every copy engine

// Makes `index` the calling thread's device. Ask find_device() first for a better message.
Status use_device(int index);

class Event;

class Stream {
 public:
  static Result<Stream> create();

  StreamHandle handle() const { return stream_.get(); }
  Status synchronize() const;           // waits; reports any device fault since the last time
  void wait(const Event& event) const;  // later work starts after the event

 private:
  struct Destroy {
    void operator()(CUstream_st* stream) const;
  };
  std::unique_ptr<CUstream_st, Destroy> stream_;
};

class Event {
 public:
  static Result<Event> create();

  void record(const Stream& stream) const;
  Status synchronize() const;
  bool is_past() const;                        // synchronize() would not wait
  float ms_since(const Event& earlier) const;  // both recorded and complete
  CUevent_st* handle() const { return event_.get(); }

 private:
  struct Destroy {
    void operator()(CUevent_st* event) const;
  };
  std::unique_ptr<CUevent_st, Destroy> event_;
};

// Device memory, not cleared. Movable, not copyable.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  static Result<DeviceBuffer> create(int64_t n_bytes);

  std::byte* data() const { return data_.get(); }
  int64_t n_bytes() const { return n_bytes_; }
  Buffer to_buffer() &&;  // the same memory as a Buffer, which frees it

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t n_bytes_ = 0;
};

// Host memory the copy engines read and write without a detour; for step metadata and results.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  static Result<PinnedBuffer> create(int64_t n_bytes);

  std::byte* data() const { return data_.get(); }
  int64_t n_bytes() const { return n_bytes_; }
  Buffer to_buffer() &&;  // the same memory as a Buffer, which frees it

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t n_bytes_ = 0;
};

int64_t free_device_bytes();       // of the calling thread's device, that nobody has
bool is_pinned(const void* host);  // whether kernels may write to this memory of the host

void copy_to_device(const Stream& stream, std::byte* to, const void* from, int64_t n_bytes);
void copy_to_host(const Stream& stream, void* to, const std::byte* from, int64_t n_bytes);
// n_rows rows of row_bytes each, to_pitch and from_pitch bytes apart.
struct CopyRows {
  std::byte* to = nullptr;
  int64_t to_pitch = 0;
  const std::byte* from = nullptr;
  int64_t from_pitch = 0;
  int64_t row_bytes = 0;
  int64_t n_rows = 0;
};
void copy_rows_on_device(const Stream& stream, const CopyRows& a);
void fill_bytes(const Stream& stream, std::byte* to, uint8_t value, int64_t n_bytes);

// Copies from any host memory to the device, through a ring of pinned parts: the host waits only for a part that is still
// being read, never for a copy of its own.
class UploadRing {
 public:
  static constexpr int64_t kPartBytes = int64_t{8} << 20;
  static Result<UploadRing> create();

  void copy(const Stream& stream, std::byte* to, const void* from, int64_t n_bytes);
  // Up to kPartBytes in pinned memory, 16-byte aligned, to be read by what is enqueued on the stream before the next call.
  const std::byte* put(const Stream& stream, const void* from, int64_t n_bytes);

 private:
  struct Part {
    PinnedBuffer memory;
    Event read;  // what the device has read when it may be written again
  };
  void next_part(const Stream& stream);

  std::array<Part, 4> parts_;
  size_t part_ = 0;       // that is being filled
  int64_t n_filled_ = 0;  // bytes of it
};

// Scratch on the device: one block reserved when the model is loaded, handed out in order, taken back all at once. It
// never grows, so addresses stay valid in captured graphs; running over the reserve is a wrong scratch_bytes() and
// stops the process.
class DeviceArena {
 public:
  DeviceArena() = default;
  static Result<DeviceArena> create(int64_t n_bytes);

  View allocate(DType dtype, std::initializer_list<int64_t> shape);
  std::byte* allocate_bytes(int64_t n_bytes);  // aligned to kDeviceAlignment

  int64_t mark() const { return offset_; }
  void release(int64_t mark) { offset_ = mark; }
  int64_t peak_bytes() const { return peak_; }

 private:
  DeviceBuffer block_;
  int64_t offset_ = 0;
  int64_t peak_ = 0;
};

// What a kernel sets to 0 to leave out work of the graph that it runs in: a cudaGraphConditionalHandle.
using GraphCondition = unsigned long long;

// Recorded work that runs again with the same addresses: what changes between runs is read from device memory.
class Graph {
 public:
  // Records what `enqueue` puts on the stream (and on streams it forks to and joins from) instead of running it. All device memory
  // that launches need is taken here; kOutOfMemory where there is too little. What `enqueue` throws leaves the stream as it was.
  static Result<Graph> capture(const Stream& stream, const std::function<void()>& enqueue);
  // The same, of work that runs if the condition is not 0. `decide` puts one kernel on the stream, which sets it.
  static Result<Graph> capture_if(const Stream& stream, const std::function<void(GraphCondition)>& decide,
                                  const std::function<void()>& enqueue);

  void launch(const Stream& stream) const;
  int64_t n_nodes() const { return n_nodes_; }      // kernels, copies and fills
  int64_t n_kernels() const { return n_kernels_; }  // of these

 private:
  struct Destroy {
    void operator()(CUgraph_st* graph) const;
    void operator()(CUgraphExec_st* graph) const;
  };
  using Template = std::unique_ptr<CUgraph_st, Destroy>;

  void count_nodes(CUgraph_st* graph);
  Status instantiate(Template graph, const Stream& stream);

  int64_t n_nodes_ = 0;
  int64_t n_kernels_ = 0;
  Template template_;  // its conditions belong to it
  std::unique_ptr<CUgraphExec_st, Destroy> graph_;
};

}  // namespace levin::cuda
