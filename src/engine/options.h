// Options of the engine, as plain data: filled by the option parser or by a program that embeds the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "arch/config_override.h"
#include "arch/registry.h"
#include "base/cpu.h"
#include "engine/draft_depth.h"
#include "model/numerics.h"
#include "ops/context.h"

namespace levin {

enum class LoadFormat : uint8_t {
  kAuto,   // the checkpoint's safetensors
  kDummy,  // random weights from a fixed seed; only config.json is needed
};

enum class DeviceKernels : uint8_t {
  kAuto,   // the tuned kernels where the device and the numerics have some, the plain ones for the rest
  kPlain,  // the plain ones alone
};

struct EngineOptions {
  std::string model_folder;                          // contains config.json
  const Registry* registry = &Registry::built_in();  // the known model families
  std::vector<ConfigOverride> overrides;             // of keys of config.json, each key once
  LoadFormat load_format = LoadFormat::kAuto;
  Device device = Device::kCpu;
  DeviceKernels kernels = DeviceKernels::kAuto;  // of a GPU
  // Steps on a GPU: replay passes as graphs (engine/runner.h); record them all at load instead of at first use.
  bool graphs = true;
  bool graphs_at_load = false;
  bool overlap = true;  // the host reads the results of a step while the next one is computed (engine/step_loop.h)
  int n_threads = 1;
  std::optional<Isa> isa;  // CPU kernel set; empty: the fastest that the processor supports
  NumericsMode numerics = NumericsMode::kFast;
  std::string kv_cache_dtype = "auto";            // auto, bf16 or fp8; see make_numerics()
  int64_t chunk_tokens = 512;                     // maximum prefill rows of a sequence per step
  int64_t cache_tokens = 0;                       // capacity for all sequences together; 0: one of the longest context
  int n_spec_steps = 0;                           // maximum drafts per round; 0: no speculation
  bool adapt_spec_depth = false;                  // adapt the number of drafts, down to 0, to what is fastest
  double min_confidence = kDefaultMinConfidence;  // a chain of drafts stops below it (engine/step_loop.h)
  // Maximum number of running requests; more wait. For models with windows and state per sequence (DeepSeek-V4 and V4.1,
  // GLM-5.3-Flash) the memory of all of them is allocated at load.
  int64_t max_running = 1;
  bool share_prefixes = true;  // reuse the cache rows of earlier requests with the same prefix
  // Host memory for prefixes if cache pages cannot be shared (DeepSeek-V4 and V4.1, GLM-5.3-Flash); empty: choose_prefix_bytes()
  std::optional<int64_t> prefix_memory_bytes;
  std::string cache_dir;                              // prefix cache on disk (kv/page_store.h); empty: none
  int64_t cache_dir_bytes = int64_t{16} << 30;        // its maximum size
  std::function<void(const std::string& line)> note;  // receives later warnings, from any thread; may be empty
  int64_t max_model_len_tokens = 0;  // prompt and answer together; 0: as many as the model and the memory allow
};

}  // namespace levin
