// A small checkpoint, spoiled as the input says: it loads, or is refused as an invalid model.
//
// The first byte's lowest bits: whether matrices are quantised, and whose checkpoint it is. Each step after it is four
// bytes: what to do, which tensor (two bytes), and how.
#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "arch/deepseek_v3/weights.h"
#include "arch/deepseek_v4/architecture.h"
#include "arch/deepseek_v4/weights.h"
#include "arch/load_config.h"
#include "base/check.h"
#include "io/safetensors.h"
#include "model/weight_table.h"

using namespace levin;
using io::StoredDtype;

namespace {

constexpr const char* kDeepseekV32 =
    R"({"model_type": "deepseek_v32", "vocab_size": 8, "hidden_size": 130, "intermediate_size": 6,
  "moe_intermediate_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2, "n_shared_experts": 1, "n_routed_experts": 4,
  "routed_scaling_factor": 2.5, "kv_lora_rank": 6, "q_lora_rank": 5, "qk_rope_head_dim": 4, "v_head_dim": 3, "qk_nope_head_dim": 2,
  "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "norm_topk_prob": true, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
  "index_topk": 4, "index_head_dim": 8, "index_n_heads": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "rope_theta": 1e4})";

// A layer of each kind, the first with experts by token id.
constexpr const char* kDeepseekV4 =
    R"({"model_type": "deepseek_v4", "vocab_size": 8, "hidden_size": 130, "moe_intermediate_size": 34, "num_hidden_layers": 3,
  "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6, "qk_rope_head_dim": 4, "q_lora_rank": 5, "o_groups": 2,
  "o_lora_rank": 3, "sliding_window": 4, "compress_ratios": [128, 4, 0, 0], "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4,
  "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "norm_topk_prob": true, "routed_scaling_factor": 1.5,
  "num_hash_layers": 1, "scoring_func": "sqrtsoftplus", "swiglu_limit": 10, "hc_mult": 2, "hc_sinkhorn_iters": 3, "hc_eps": 1e-6,
  "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "num_nextn_predict_layers": 1, "rope_theta": 1e4,
  "compress_rope_theta": 16e4, "expert_dtype": "fp4"})";

constexpr StoredDtype kDtypes[] = {StoredDtype::kF32, StoredDtype::kBF16, StoredDtype::kF16,     StoredDtype::kF8_E4M3,
                                   StoredDtype::kI8,  StoredDtype::kF64,  StoredDtype::kF8_E8M0, StoredDtype::kI64};

struct Tensor {
  StoredDtype dtype = StoredDtype::kBF16;
  std::vector<int64_t> shape;
  std::map<size_t, uint8_t> bytes;  // set apart from zero
};
using Tensors = std::map<std::string, Tensor>;

const ModelConfig& config(bool v4) {
  static const ModelConfig parsed[] = {parse_model_config(kDeepseekV32, "fuzz")->config,
                                       parse_model_config(kDeepseekV4, "fuzz")->config};
  return parsed[v4 ? 1 : 0];
}

Tensor unit_scales(const std::vector<int64_t>& shape, bool e8m0) {
  Tensor scales{.dtype = e8m0 ? StoredDtype::kF8_E8M0 : StoredDtype::kF32, .shape = shape, .bytes = {}};
  for (int64_t i = 0; i < shape[0] * shape[1]; ++i) {
    if (e8m0) {
      scales.bytes[static_cast<size_t>(i)] = 127;
    } else {
      scales.bytes[static_cast<size_t>(4 * i + 2)] = 0x80;  // 1.0f
      scales.bytes[static_cast<size_t>(4 * i + 3)] = 0x3F;
    }
  }
  return scales;
}

Tensor sound_tensor(const WeightRow& row, StoredDtype dtype) {
  Tensor tensor{.dtype = dtype, .shape = row.shape, .bytes = {}};
  if (dtype == StoredDtype::kI8) tensor.shape[1] /= 2;
  if (dtype != StoredDtype::kI64) return tensor;
  for (int64_t i = 0; i < row.shape[0] * row.shape[1]; ++i) {  // 0, 1, ... in every row
    tensor.bytes[static_cast<size_t>(8 * i)] = static_cast<uint8_t>(i % row.shape[1]);
  }
  return tensor;
}

Tensors sound_tensors(const ModelConfig& config, bool quantised) {
  Tensors tensors;
  ModelConfig stored = config;
  stored.fp8_blocks = quantised;
  stored.mxfp4_experts = quantised && config.mxfp4_experts;
  for (const WeightRow& row : weight_table(config, nullptr, nullptr)) {
    const StoredDtype dtype = released_dtype(row, stored);
    tensors[row.name] = sound_tensor(row, dtype);
    if (!is_quantised(dtype)) continue;
    tensors[row.scale_name] = unit_scales(scale_shape(row, dtype), config.family == &levin::kDeepseekV4);
  }
  return tensors;
}

void spoil(Tensors& tensors, const uint8_t* step) {
  if (tensors.empty()) return;
  const auto place = std::next(tensors.begin(), (step[1] | step[2] << 8) % static_cast<int>(tensors.size()));
  const uint8_t how = step[3];
  Tensor& tensor = place->second;
  switch (step[0] % 6) {
    case 0:
      tensors.erase(place);
      break;
    case 1:
      tensor.dtype = kDtypes[how % std::size(kDtypes)];
      break;
    case 2:
      if (!tensor.shape.empty()) tensor.shape[how % tensor.shape.size()] += how % 2 == 0 ? 1 : -1;
      break;
    case 3:
      tensor.shape.push_back(how % 3);
      break;
    case 4:
      tensor.bytes[how] = static_cast<uint8_t>(step[2] ^ 0xFF);
      break;
    case 5:
      tensors[place->first.substr(0, how % (place->first.size() + 1))] = tensor;
      break;
  }
  for (auto& [name, t] : tensors) {
    for (int64_t& d : t.shape) d = d < 0 ? 0 : d;
  }
}

std::filesystem::path scratch_folder() {
  static const std::string folder = [] {
    std::string name = (std::filesystem::exists("/dev/shm") ? "/dev/shm/levin-fuzz-XXXXXX" : "/tmp/levin-fuzz-XXXXXX");
    LEVIN_CHECK(mkdtemp(name.data()) != nullptr, "cannot make {}", name);
    return name;
  }();
  return folder;
}

void write(const Tensors& tensors, const std::filesystem::path& file) {
  io::SafetensorsWriter writer;
  std::vector<std::vector<std::byte>> data;
  data.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    data.emplace_back(static_cast<size_t>(*io::tensor_bytes(tensor.dtype, tensor.shape)));
    for (const auto& [at, value] : tensor.bytes) {
      if (at < data.back().size()) data.back()[at] = static_cast<std::byte>(value);
    }
    writer.add({.name = name, .dtype = tensor.dtype, .shape = tensor.shape, .bytes = data.back()});
  }
  const Status written = writer.write(file);
  LEVIN_CHECK(written.ok(), "{}", written.error().message);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const bool v4 = (data[0] & 2) != 0;
  Tensors tensors = sound_tensors(config(v4), data[0] % 2 == 0);
  for (size_t at = 1; at + 4 <= size && at < 4 * 16; at += 4) spoil(tensors, data + at);
  write(tensors, scratch_folder() / "model.safetensors");

  const Result<io::Checkpoint> checkpoint = io::Checkpoint::open(scratch_folder());
  if (!checkpoint.ok()) return 0;  // an empty name, say
  static ThreadPool pool(1);
  const Result<Numerics> numerics = make_numerics(NumericsMode::kFast, "auto");
  std::vector<std::string> warnings;
  const Result<ModelWeights> weights = load_weights(config(v4), *numerics, *checkpoint, pool, {}, &warnings);
  if (!weights.ok()) {
    LEVIN_CHECK(weights.error().kind == ErrorKind::kModelInvalid && !weights.error().message.empty(), "{}",
                weights.error().message);
    return 0;
  }
  if (v4) {
    const DeepseekV4Weights& own = deepseek_v4::own(*weights);
    LEVIN_CHECK(own.layers.size() == 3, "{} layers", own.layers.size());
    LEVIN_CHECK(own.layers[1].attention.out_down.size() == 2, "weights of another shape");
    LEVIN_CHECK(own.layers[0].moe.hash_experts.dim(0) == 8, "expert ids of another shape");
  } else {
    const MlaWeights& own = mla::own(*weights);
    LEVIN_CHECK(own.layers.size() == 2, "{} layers", own.layers.size());
    LEVIN_CHECK(own.layers[0].attention.k_up.size() == 2, "weights of another shape");
  }
  LEVIN_CHECK(weights->head.w.n() == 8 && weights->head.w.k() == 130, "head of another shape");
  return 0;
}
