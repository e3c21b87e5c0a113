#include "model/weight_table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "model/architecture.h"
#include "tensor/matrix.h"

namespace levin {
namespace {

constexpr std::string_view kWeight = ".weight";

std::string with_suffix(const WeightRow& row, std::string_view suffix) {
  return row.name.substr(0, row.name.size() - kWeight.size()).append(suffix);
}

bool is_routed_expert(const WeightRow& row) { return row.name.find(".experts.") != std::string::npos; }

}  // namespace

bool may_be_quantised(Storage storage) {
  return storage == Storage::kMatrix || storage == Storage::kExpertMatrix || storage == Storage::kMappedTable;
}

bool is_quantised(io::StoredDtype dtype) {
  return dtype == io::StoredDtype::kF8_E4M3 || dtype == io::StoredDtype::kI8 || dtype == io::StoredDtype::kU8;
}

bool may_be_nvfp4(const WeightRow& row) {
  return may_be_quantised(row.storage) && row.storage != Storage::kMappedTable && row.parts.empty() &&
         row.shape[1] % kNvGroup == 0 && row.name.ends_with(kWeight);
}

bool may_be_mxfp4(const WeightRow& row) { return row.storage == Storage::kExpertMatrix && row.shape[1] % 2 == 0; }

StoredScales StoredWeight::scales_for_store() const {
  StoredScales out{.of_blocks = scales, .block = block};
  if (factor == nullptr) return out;
  std::memcpy(&out.factor, factor->bytes.data(), sizeof(out.factor));
  if (divides) out.factor = 1 / out.factor;
  return out;
}

StoredWeight find_weight(const WeightRow& row, const io::Checkpoint& checkpoint) {
  StoredWeight out{.tensor = checkpoint.find(row.name), .block = row.block};
  if (out.tensor == nullptr && may_be_nvfp4(row)) {
    out.tensor = checkpoint.find(with_suffix(row, ".weight_packed"));
    out.divides = out.tensor != nullptr;
  }
  if (out.tensor == nullptr || !is_quantised(out.tensor->dtype)) return out;
  if (out.tensor->dtype != io::StoredDtype::kU8) {
    out.scales = checkpoint.find(row.scale_name);
  } else if (may_be_nvfp4(row)) {
    out.scales = checkpoint.find(with_suffix(row, ".weight_scale"));
    out.factor = checkpoint.find(with_suffix(row, out.divides ? ".weight_global_scale" : ".weight_scale_2"));
  }
  return out;
}

bool has_weight(const WeightRow& row, const io::Checkpoint& checkpoint) {
  const auto has = [&](const std::string& name) {
    return std::binary_search(checkpoint.names().begin(), checkpoint.names().end(), name);
  };
  return has(row.name) || (may_be_nvfp4(row) && has(with_suffix(row, ".weight_packed")));
}

std::vector<std::string> nvfp4_names(const WeightRow& row, bool packed) {
  if (!may_be_nvfp4(row)) return {};
  const auto name = [&](std::string_view suffix) { return with_suffix(row, suffix); };
  if (packed) {
    return {name(".weight_packed"), name(".weight_scale"), name(".weight_global_scale"), name(".input_global_scale")};
  }
  return {name(".weight_scale"), name(".weight_scale_2"), name(".input_scale")};
}

io::StoredDtype released_dtype(const WeightRow& row, const ModelConfig& config) {
  using io::StoredDtype;
  if (row.storage == Storage::kExpertIds) return StoredDtype::kI64;
  if (row.storage == Storage::kMappedTable) return StoredDtype::kF8_E4M3;
  if (config.nvfp4_experts && !row.mtp && is_routed_expert(row) && may_be_nvfp4(row)) return StoredDtype::kU8;
  if (config.mxfp4_experts && may_be_mxfp4(row)) return StoredDtype::kI8;
  return may_be_quantised(row.storage) && config.fp8_blocks ? StoredDtype::kF8_E4M3 : row.plain;
}

io::StoredDtype stored_dtype(const WeightRow& row, const ModelConfig& config, const io::Checkpoint* checkpoint) {
  const io::StoredTensor* tensor = checkpoint != nullptr ? find_weight(row, *checkpoint).tensor : nullptr;
  return tensor != nullptr ? tensor->dtype : released_dtype(row, config);
}

DType kept_dtype(io::StoredDtype stored) {
  using io::StoredDtype;
  switch (stored) {
    case StoredDtype::kF8_E4M3:
      return DType::kF8E4M3;
    case StoredDtype::kI8:
      return DType::kMxfp4;
    case StoredDtype::kU8:
      return DType::kNvfp4;
    case StoredDtype::kBF16:
      return DType::kBF16;
    default:
      return DType::kF32;
  }
}

std::vector<int64_t> scale_shape(const WeightRow& row, io::StoredDtype dtype) {
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  if (dtype == io::StoredDtype::kI8) return {row.shape[0], ceil_div(row.shape[1], kMxGroup)};
  if (dtype == io::StoredDtype::kU8) return {row.shape[0], row.shape[1] / kNvGroup};
  const int64_t rows = row.storage == Storage::kMappedTable ? 1 : row.block;  // that share a scale
  return {ceil_div(row.shape[0], rows), ceil_div(row.shape[1], row.block)};
}

int64_t n_elements(const WeightRow& row) {
  int64_t n = 1;
  for (const int64_t d : row.shape) n *= d;
  return n;
}

std::string layer_prefix(const ModelConfig& config, int layer) { return config.family->layer_prefix(config, layer); }

std::vector<WeightRow> weight_table(const ModelConfig& config, const Numerics* numerics, ModelWeights* weights) {
  if (weights != nullptr) return config.family->weight_rows(config, numerics, *weights);
  ModelWeights nowhere;
  std::vector<WeightRow> rows = config.family->weight_rows(config, numerics, nowhere);
  for (WeightRow& row : rows) row.store = nullptr;
  return rows;
}

}  // namespace levin
