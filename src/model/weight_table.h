// One table of tensors per family. Loader, validator, memory plan and `levin inspect` all read it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "io/safetensors.h"
#include "model/config.h"
#include "model/numerics.h"
#include "model/weights.h"

namespace levin {

// How a tensor may be stored. A matrix that may be FP8 has a companion `<name>_scale_inv` [ceil(N/128), ceil(K/128)]
// F32 exactly when it is stored as F8_E4M3.
enum class Storage : uint8_t {
  kMatrix,       // BF16, F32, F16, or F8_E4M3 with block scales
  kPlainMatrix,  // BF16, F32 or F16: never quantised (router, indexer head weights, MTP join, embedding, head)
  kVector,       // BF16, F32 or F16
};

struct WeightRow {
  std::string name;  // checkpoint name
  std::vector<int64_t> shape;
  Storage storage = Storage::kMatrix;
  bool mtp = false;  // belongs to the MTP layer: may be absent with all of its kind
  // Packs the stored tensor (and its scales, or null) into its place; empty in tables made without weights.
  std::function<Status(const io::StoredTensor& tensor, const io::StoredTensor* scales)> store;
};

std::string layer_prefix(int layer);  // "model.layers.3."

// Rows in the order of the forward pass. With `weights`, rows know where to put their tensor and `numerics` decides the
// input type of every product; without, the table only describes.
std::vector<WeightRow> weight_table(const ModelConfig& config, const Numerics* numerics, ModelWeights* weights);

// What validation found: the checkpoint's tensors against the table.
struct WeightReport {
  std::vector<std::string>
      errors;  // "name: expected ..., found ..."; missing, surplus, misshapen, wrongly typed; all of them
  std::vector<std::string> warnings;  // MTP layer absent; tolerated duplicates by name
  bool has_mtp = false;
};
WeightReport validate_weights(const ModelConfig& config, const io::Checkpoint& checkpoint);
Status check_weights(const ModelConfig& config, const io::Checkpoint& checkpoint);  // its errors as one

// One error of many faults: the folder, what is wrong, how many, and the first ten, one a line.
Error weights_error(const io::Checkpoint& checkpoint, std::string_view what, const std::vector<std::string>& faults);

std::string scale_name_of(std::string_view weight_name);  // "<name>_scale_inv"

struct LoadProgress {
  std::function<void(int64_t bytes_done, int64_t bytes_total)>
      on_bytes;  // called from the loading thread; may be empty
};

// What the ops ask of the shapes in a numerics mode, beyond what makes a config consistent.
Status check_numerics(const ModelConfig& config, const Numerics& numerics);

// Validates, then reads everything. Errors are kModelInvalid with the first ten faults by name.
Result<ModelWeights> load_weights(const ModelConfig& config, const Numerics& numerics, const io::Checkpoint& checkpoint,
                                  ThreadPool& pool, const LoadProgress& progress, std::vector<std::string>* warnings);

// Random weights from a fixed seed, in the dtypes of a release of this config: every value depends on its tensor's name
// and place alone.
Result<ModelWeights> dummy_weights(const ModelConfig& config, const Numerics& numerics);

}  // namespace levin
