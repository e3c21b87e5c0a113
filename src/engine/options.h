// What the engine is asked to do, as plain data: filled by the option parser or by a program that embeds the engine,
// printed at start.
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

struct EngineOptions {
  std::string model_folder;                          // with config.json in it
  const Registry* registry = &Registry::built_in();  // the families of models to look for
  std::vector<ConfigOverride> overrides;             // of config.json, each key once
  LoadFormat load_format = LoadFormat::kAuto;
  Device device = Device::kCpu;
  int n_threads = 1;
  std::optional<Isa> isa;  // kernel set; empty: the best the processor has
  NumericsMode numerics = NumericsMode::kFast;
  std::string kv_cache_dtype = "auto";            // auto, bf16 or fp8; see make_numerics()
  int64_t chunk_tokens = 512;                     // prefill tokens per step
  int64_t cache_tokens = 0;                       // of all sequences together; 0: one of the longest context
  int n_spec_steps = 0;                           // drafts a round at most; 0: off
  bool adapt_spec_depth = false;                  // fewer drafts, down to none, where that is faster
  double min_confidence = kDefaultMinConfidence;  // of the drafts that get another behind them (engine/step_loop.h)
  // Requests that have part in steps; more wait. Where a model keeps windows and state per sequence, as DeepSeek-V4 does,
  // each of them takes memory from the start.
  int64_t max_running = 1;
  bool share_prefixes = true;  // requests go on from cache rows of others whose prompts begin alike
  // Memory for prefixes where cache pages cannot be shared, as DeepSeek-V4's cannot; empty: choose_prefix_bytes()
  std::optional<int64_t> prefix_memory_bytes;
  std::string cache_dir;  // prefixes on disk (kv/page_store.h); empty: none
  int64_t cache_dir_bytes = int64_t{16} << 30;
  std::function<void(const std::string& line)> note;  // what is to be known of later, from any thread; may be empty
  int64_t max_model_len_tokens = 0;  // prompt and answer together; 0: as many as the model and the memory allow
};

}  // namespace levin
