// A library that the CUDA driver loads into a program to write down when each kernel and copy on the device started and ended,
// inside graphs too, by the profiling interface of the toolkit (CUPTI):
//
//   CUDA_INJECTION64_PATH=DIR/liblaunch_times.so LAUNCH_TIMES=FILE levin bench ...
//   python3 bench/kernels/cuda/launch_times.py FILE        (docs/gpu.md)
//
// FILE has a line for each: start and end in nanoseconds, the node of its graph or 0, thread blocks, name. A step of a large model
// takes as long with it as without.
#include <cupti.h>
#include <cxxabi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace {

constexpr size_t kBufferBytes = size_t{16} << 20;

std::FILE* file = nullptr;

void give_buffer(uint8_t** buffer, size_t* n_bytes, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *n_bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;  // as many as fit
}

void write_line(uint64_t start, uint64_t end, uint64_t node, int64_t n_blocks, const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                             &std::free);
  std::fprintf(file, "%llu,%llu,%llu,%lld,%s\n", static_cast<unsigned long long>(start),
               static_cast<unsigned long long>(end), static_cast<unsigned long long>(node),
               static_cast<long long>(n_blocks), status == 0 ? readable.get() : name);
}

void write_record(const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto* k = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      return write_line(k->start, k->end, k->graphNodeId, int64_t{k->gridX} * k->gridY * k->gridZ, k->name);
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      return write_line(copy->start, copy->end, copy->graphNodeId, 0, "copy");
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      return write_line(fill->start, fill->end, fill->graphNodeId, 0, "fill");
    }
    default:
      return;
  }
}

void take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t n_valid_bytes) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, n_valid_bytes, &record) == CUPTI_SUCCESS) write_record(record);
  std::free(buffer);
}

void write_rest() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  std::fclose(file);
}

}  // namespace

// What the driver calls.
extern "C" int InitializeInjection() {
  const char* path = std::getenv("LAUNCH_TIMES");
  file = path == nullptr ? nullptr : std::fopen(path, "w");
  if (file == nullptr) {
    std::fprintf(stderr, "launch_times: LAUNCH_TIMES is %s, where no file can be written; nothing is recorded\n",
                 path == nullptr ? "not set" : path);
    return 0;
  }
  CUptiResult result = cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET})
    if (result == CUPTI_SUCCESS) result = cuptiActivityEnable(kind);
  if (result != CUPTI_SUCCESS) {
    const char* why = "unknown";
    cuptiGetResultString(result, &why);
    std::fprintf(stderr, "launch_times: CUPTI records no launches: %s\n", why);
  }
  std::atexit(write_rest);
  return 1;
}
