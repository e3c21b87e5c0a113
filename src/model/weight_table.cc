#include "model/weight_table.h"

#include <fmt/core.h>

#include "model/architecture.h"
#include "tensor/matrix.h"

namespace levin {
bool may_be_quantised(Storage storage) { return storage == Storage::kMatrix || storage == Storage::kExpertMatrix; }

bool is_quantised(io::StoredDtype dtype) { return dtype == io::StoredDtype::kF8_E4M3 || dtype == io::StoredDtype::kI8; }

io::StoredDtype released_dtype(const WeightRow& row, const ModelConfig& config) {
  using io::StoredDtype;
  if (row.storage == Storage::kExpertIds) return StoredDtype::kI64;
  if (row.storage == Storage::kExpertMatrix && config.mxfp4_experts) return StoredDtype::kI8;
  return may_be_quantised(row.storage) && config.fp8_blocks ? StoredDtype::kF8_E4M3 : row.plain;
}

std::vector<int64_t> scale_shape(const WeightRow& row, io::StoredDtype dtype) {
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  if (dtype == io::StoredDtype::kI8) return {row.shape[0], ceil_div(row.shape[1], kMxGroup)};
  return {ceil_div(row.shape[0], kWeightBlock), ceil_div(row.shape[1], kWeightBlock)};
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
