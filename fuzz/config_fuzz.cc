// Any text as config.json: a model or an error of the model, and what is accepted is sane.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "arch/deepseek_v4/architecture.h"
#include "arch/deepseek_v4/config.h"
#include "arch/load_config.h"
#include "base/check.h"
#include "model/memory_plan.h"

using namespace levin;

namespace {

void check_frequencies(const ModelConfig& config, const std::vector<float>& frequencies) {
  LEVIN_CHECK(static_cast<int64_t>(frequencies.size()) == config.d_rope / 2, "{} frequencies", frequencies.size());
  for (const float f : frequencies) LEVIN_CHECK(std::isfinite(f) && f >= 0, "frequency {}", f);
}

void check_rope(const ModelConfig& config) {
  check_frequencies(config, config.rope_frequencies());
  if (config.family == &kDeepseekV4) check_frequencies(config, compressed_rope_frequencies(config));
  LEVIN_CHECK(std::isfinite(config.attention_scale()) && config.attention_scale() > 0, "scale {}",
              config.attention_scale());
  LEVIN_CHECK(std::isfinite(config.index_scale()) && config.index_scale() > 0, "scale {}", config.index_scale());
}

void check_plan(const ModelConfig& config) {
  const int64_t n_rows = int64_t{config.n_layers} * config.n_experts;
  if (n_rows > 2000) return;  // large tables are slow, not different
  for (const NumericsMode mode : {NumericsMode::kReference, NumericsMode::kOfficial, NumericsMode::kFast}) {
    const Result<Numerics> numerics = make_numerics(mode, "auto");
    const MemoryPlan plan = plan_memory(config, *numerics, nullptr, {});
    LEVIN_CHECK(plan.weights_bytes > 0 && plan.n_parameters > 0, "{} bytes, {} parameters", plan.weights_bytes,
                plan.n_parameters);
    LEVIN_CHECK(plan.total_bytes(config.max_position) > plan.weights_bytes, "caches of {} positions overflow",
                config.max_position);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Result<ParsedConfig> parsed = parse_model_config({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!parsed.ok()) {
    LEVIN_CHECK(parsed.error().kind == ErrorKind::kModelInvalid && !parsed.error().message.empty(), "{}",
                parsed.error().message);
    return 0;
  }
  const ModelConfig& config = parsed->config;
  LEVIN_CHECK(config.family != &kDeepseekV4 || static_cast<int>(deepseek_v4::own(config).compression.size()) ==
                                                   config.n_layers + config.n_mtp_layers,
              "{} layers with {} kinds", config.n_layers, deepseek_v4::own(config).compression.size());
  check_rope(config);
  check_plan(config);
  return 0;
}
