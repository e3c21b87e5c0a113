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
#include "tensor/matrix.h"

namespace levin {

// How a tensor may be stored. Which of the ways it is, its own dtype says and nothing else. A quantised matrix [N, K]
// has a companion with its scales:
//   F8_E4M3   [N, K], scales F32 or F8_E8M0 [ceil(N/b), ceil(K/b)], b the block of the family, 128 or 32
//   MXFP4     I8 [N, K/2], two e2m1 codes a byte, the even column in the low nibble; scales F8_E8M0 [N, ceil(K/32)]
//   NVFP4     U8 [N, K/2], the same pairs, K a multiple of 16; scales F8_E4M3 [N, K/16] and a factor, F32 [] or [1]. Of a
//             matrix "x.weight" ModelOpt calls them x.weight_scale and x.weight_scale_2, compressed-tensors, which calls
//             the codes x.weight_packed, x.weight_scale and x.weight_global_scale, the reciprocal of the factor
enum class Storage : uint8_t {
  kMatrix,        // BF16, F32, F16, F8_E4M3 or, kept whole, NVFP4
  kExpertMatrix,  // the same or MXFP4
  kPlainMatrix,   // BF16, F32 or F16: never quantised (router, indexer head weights, output head)
  kTable,         // likewise, of rows that are looked up, as the embedding
  kVector,        // BF16, F32 or F16
  kExpertIds,     // I64
  kMappedTable,   // F8_E4M3 [n, d] with scales F8_E8M0 [n, d / b]: rows that are looked up where the file is mapped
};
bool may_be_quantised(Storage storage);

// What a quantised matrix is stored with.
struct StoredScales {
  const io::StoredTensor* of_blocks = nullptr;  // or of groups
  int64_t block = kWeightBlock;                 // rows and columns of a block; FP8 only
  float factor = 1;                             // of the whole matrix; NVFP4 only
};

// Matrices that a stored one is cut into. Where the cuts are between its blocks, they stay FP8; otherwise they are
// dequantised.
struct MatrixParts {
  int64_t count = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool between_blocks = false;
};

struct WeightRow {
  std::string name;            // checkpoint name
  std::vector<int64_t> shape;  // of the values, [N, K] also in MXFP4
  Storage storage = Storage::kMatrix;
  io::StoredDtype plain = io::StoredDtype::kBF16;  // how releases store it where it is not quantised
  std::string scale_name;                          // of the companion, if the matrix may be quantised
  int64_t block = kWeightBlock;                    // rows and columns that share a scale in FP8
  std::string stored_like;                         // if not empty, the row that must have the same dtype
  std::vector<MatrixParts> parts;                  // empty: kept whole, as stored; otherwise of products per head
  std::string_view op = "matmul";                  // of a matrix: what multiplies with it (model/op_forms.h)
  bool f32_input = false;                          // a matrix whose input is never rounded
  bool mtp = false;                                // belongs to the MTP layer: may be absent with all of its kind
  // Puts the stored tensor (and its scales, null unless it is quantised) into its place, a matrix in the given form; empty
  // in tables made without weights.
  std::function<Status(const io::StoredTensor& tensor, const StoredScales* scales, MatrixForm form)> store;
};

// Begins the names of a layer's tensors, "model.layers.3."; layer n_layers is the MTP layer.
std::string layer_prefix(const ModelConfig& config, int layer);

int64_t n_elements(const WeightRow& row);
bool is_quantised(io::StoredDtype dtype);  // a matrix stored so has scales
bool may_be_nvfp4(const WeightRow& row);
bool may_be_mxfp4(const WeightRow& row);  // two columns share a byte, so an odd number of them has no such form

// The tensors of a row in a checkpoint that holds tensors; null where it lacks them.
struct StoredWeight {
  const io::StoredTensor* tensor = nullptr;
  const io::StoredTensor* scales = nullptr;  // of a quantised matrix
  const io::StoredTensor* factor = nullptr;  // of NVFP4
  bool divides = false;                      // the factor's reciprocal is stored
  int64_t block = kWeightBlock;              // of FP8

  StoredScales scales_for_store() const;  // NVFP4's factor must be one F32
};
StoredWeight find_weight(const WeightRow& row, const io::Checkpoint& checkpoint);
bool has_weight(const WeightRow& row, const io::Checkpoint& checkpoint);  // by names alone
// The tensors of a matrix in NVFP4 besides row.name, those that nothing reads as well (x.input_scale,
// x.input_global_scale), as compressed-tensors names them if `packed`, as ModelOpt if not.
std::vector<std::string> nvfp4_names(const WeightRow& row, bool packed);

// How a release of this config stores the tensor, as far as the config says.
io::StoredDtype released_dtype(const WeightRow& row, const ModelConfig& config);
// As the checkpoint stores it, or else as a release does. `checkpoint` may be null or contain names only.
io::StoredDtype stored_dtype(const WeightRow& row, const ModelConfig& config, const io::Checkpoint* checkpoint);
// The type of a matrix that is kept whole.
DType kept_dtype(io::StoredDtype stored);
// What validation expects of a quantised matrix's companion.
std::vector<int64_t> scale_shape(const WeightRow& row, io::StoredDtype dtype);

// Rows in the order of the forward pass. With `weights`, rows know where to put their tensor and `numerics` decides the
// input type of every product; without, the table only describes.
std::vector<WeightRow> weight_table(const ModelConfig& config, const Numerics* numerics, ModelWeights* weights);

// A tensor that a checkpoint may carry and nothing reads.
struct UnusedTensor {
  std::string name;            // with a *: all that begin and end so
  std::vector<int64_t> shape;  // empty: any
  std::string why;
};

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

struct LoadProgress {
  std::function<void(int64_t bytes_done, int64_t bytes_total)>
      on_bytes;  // called from the loading thread; may be empty
};

// What the ops ask of the shapes in a numerics mode, beyond what makes a config consistent.
Status check_numerics(const ModelConfig& config, const Numerics& numerics);

// Validates, then reads everything. Errors are kModelInvalid with the first ten faults by name. Of weights in place the
// checkpoint must last until they are on their device (place_weights.h).
Result<ModelWeights> load_weights(const ModelConfig& config, const Numerics& numerics, const io::Checkpoint& checkpoint,
                                  ThreadPool& pool, const LoadProgress& progress, std::vector<std::string>* warnings,
                                  MatrixForm form = MatrixForm::kPanels);

// Where the numerics say so and there is an MTP layer, the head once more in e4m3, for drafts.
void add_draft_head(const Numerics& numerics, ThreadPool& pool, ModelWeights& weights);

// Random weights from a fixed seed, in the dtypes of a release of this config: every value depends on its tensor's name
// and place alone. In place means that the device they are moved to makes those which lie there as they are stored.
Result<ModelWeights> dummy_weights(const ModelConfig& config, const Numerics& numerics, ThreadPool& pool,
                                   MatrixForm form = MatrixForm::kPanels);

}  // namespace levin
