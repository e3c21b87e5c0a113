// Where the tensors of a weight table come from, one at a time: a checkpoint, or dummies of a config.
#pragma once

#include <functional>

#include "base/result.h"
#include "io/safetensors.h"
#include "model/config.h"
#include "model/weight_table.h"

namespace levin {

// `scales` is null unless the tensor is quantised (weight_table.h). Both are gone when the call returns.
using TensorUser = std::function<Status(const io::StoredTensor& tensor, const StoredScales* scales)>;

struct TensorSource {
  std::function<io::StoredDtype(const WeightRow& row)> dtype;
  std::function<Status(const WeightRow& row, const TensorUser& use)> read;
  bool has_mtp = false;
};

// The checkpoint must fit the table (check_weights()) and outlive the source.
TensorSource checkpoint_tensors(const io::Checkpoint& checkpoint, bool has_mtp);
// Random ones from a fixed seed, in the dtypes of a release of this config: every value depends on its tensor's name and
// place alone. The config must outlive the source.
TensorSource dummy_tensors(const ModelConfig& config);

}  // namespace levin
