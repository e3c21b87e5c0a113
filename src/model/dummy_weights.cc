#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/dummy_values.h"
#include "base/numbers.h"
#include "model/architecture.h"
#include "model/tensor_source.h"
#include "model/weight_table.h"

namespace levin {
namespace {

using io::StoredDtype;

// A tensor and its bytes.
struct Drawn {
  io::StoredTensor tensor;
  std::vector<std::byte> bytes;

  template <class T>
  void set(std::string name, StoredDtype dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
    bytes.resize(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    tensor = {.name = std::move(name), .dtype = dtype, .shape = std::move(shape), .bytes = bytes};
  }
};

float width_of(const WeightRow& row) { return std::sqrt(3.0f / static_cast<float>(row.shape[1])); }

// Width sqrt(3 / K), so that products keep the size of their input; FP8 codes are of magnitude 1/16 to 240 and any codes of
// four bits occur, which scales bring to that width.
DummyTensor dummy_of(const WeightRow& row, StoredDtype dtype) {
  DummyTensor dummy{.type = DummyType::kBF16, .key = dummy_key(row.name), .width = width_of(row)};
  if (dtype == StoredDtype::kF8_E4M3) dummy.type = DummyType::kE4M3;
  if (dtype == StoredDtype::kI8 || dtype == StoredDtype::kU8) dummy.type = DummyType::kFp4Pairs;
  if (!is_quantised(dtype) && row.plain == StoredDtype::kF32) dummy.type = DummyType::kF32;
  return dummy;
}

// Without values yet.
io::StoredTensor unmade_matrix(const WeightRow& row, StoredDtype dtype) {
  const DummyTensor dummy = dummy_of(row, dtype);
  const bool pairs = dummy.type == DummyType::kFp4Pairs;
  const StoredDtype plain = dummy.type == DummyType::kF32 ? StoredDtype::kF32 : StoredDtype::kBF16;
  return {.name = row.name,
          .dtype = is_quantised(dtype) ? dtype : plain,
          .shape = {row.shape[0], pairs ? row.shape[1] / 2 : row.shape[1]},
          .bytes = {},
          .dummies = dummy};
}

Drawn draw_matrix(const WeightRow& row, StoredDtype dtype) {
  Drawn drawn{.tensor = unmade_matrix(row, dtype), .bytes = {}};
  const DummyTensor dummy = *std::exchange(drawn.tensor.dummies, std::nullopt);
  const int64_t n = drawn.tensor.shape[0] * drawn.tensor.shape[1];
  drawn.bytes.resize(static_cast<size_t>(n * dummy_bytes(dummy.type)));
  draw_dummy_values(dummy, 0, n, drawn.bytes.data());
  drawn.tensor.bytes = drawn.bytes;
  return drawn;
}

// Norm weights near one, all others near zero.
Drawn draw_vector(const WeightRow& row) {
  const uint64_t key = dummy_key(row.name);
  const float centre = row.name.ends_with("norm.weight") ? 1.0f : 0.0f;
  std::vector<float> values(static_cast<size_t>(n_elements(row)));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = centre + 0.05f * dummy_uniform(key, static_cast<int64_t>(i));
  }
  Drawn drawn;
  drawn.set(row.name, StoredDtype::kF32, row.shape, values);
  return drawn;
}

// The scale that brings the codes of `dtype` to the width of dummy_of().
Drawn draw_scales(const WeightRow& row, StoredDtype dtype) {
  const float width = width_of(row);
  const std::vector<int64_t> shape = scale_shape(row, dtype);
  const auto n = static_cast<size_t>(shape[0] * shape[1]);
  Drawn drawn;
  if (dtype == StoredDtype::kI8) {
    const uint32_t bits = std::bit_cast<uint32_t>(e2m1_pow2_scale(width));
    drawn.set(row.scale_name, StoredDtype::kF8_E8M0, shape, std::vector<uint8_t>(n, static_cast<uint8_t>(bits >> 23)));
  } else if (dtype == StoredDtype::kU8) {  // one: the factor is the scale
    drawn.set(row.name + "_scale", StoredDtype::kF8_E4M3, shape, std::vector<uint8_t>(n, f32_to_e4m3(1)));
  } else {
    const float scale = e4m3_pow2_scale(width * kE4m3Max / 240.0f);
    drawn.set(row.scale_name, StoredDtype::kF32, shape, std::vector<float>(n, scale));
  }
  return drawn;
}

// As many ids in a row as there are columns, each once.
Drawn draw_expert_ids(const WeightRow& row, int64_t n_experts) {
  const uint64_t key = dummy_key(row.name);
  std::vector<int64_t> ids;
  for (int64_t token = 0; token < row.shape[0]; ++token) {
    const auto first = static_cast<int64_t>(dummy_word(key, token) % static_cast<uint64_t>(n_experts));
    for (int64_t a = 0; a < row.shape[1]; ++a) ids.push_back((first + a) % n_experts);
  }
  Drawn drawn;
  drawn.set(row.name, StoredDtype::kI64, row.shape, ids);
  return drawn;
}

// Whether a matrix or table comes to lie on a device as it is stored, element by element.
bool stays_as_stored(const WeightRow& row, StoredDtype dtype) {
  if (row.storage == Storage::kVector || dtype == StoredDtype::kI64 || !row.parts.empty()) return false;
  return dtype != StoredDtype::kF8_E4M3 || row.block == kWeightBlock;
}

// In place are those that are left to the device. All others are drawn here, for no longer than they are being stored.
MatrixForm own_form(const WeightRow& row, const ModelConfig& config, MatrixForm form) {
  const bool drawn_here = form == MatrixForm::kRowsInPlace && !stays_as_stored(row, released_dtype(row, config));
  return drawn_here ? MatrixForm::kRows : form;
}

Drawn draw(const WeightRow& row, const ModelConfig& config, StoredDtype dtype, MatrixForm form) {
  if (form == MatrixForm::kRowsInPlace) return {.tensor = unmade_matrix(row, dtype), .bytes = {}};
  if (dtype == StoredDtype::kI64) return draw_expert_ids(row, config.n_experts);
  return row.storage == Storage::kVector ? draw_vector(row) : draw_matrix(row, dtype);
}

Status read_dummy(const WeightRow& row, const ModelConfig& config, MatrixForm form, const TensorUser& use) {
  if (row.storage == Storage::kMappedTable) return {};  // stays in a file, of which there is none
  const StoredDtype dtype = released_dtype(row, config);
  const Drawn drawn = draw(row, config, dtype, form);
  if (!is_quantised(dtype)) return use(drawn.tensor, nullptr);
  const Drawn scales = draw_scales(row, dtype);
  StoredScales stored{.of_blocks = &scales.tensor, .block = row.block};
  if (dtype == StoredDtype::kU8) stored.factor = e2m1_pow2_scale(width_of(row));
  return use(drawn.tensor, &stored);
}

// The largest first, so that no thread ends with a large one while the others have nothing left.
std::vector<const WeightRow*> by_size(const std::vector<WeightRow>& rows) {
  std::vector<const WeightRow*> out;
  for (const WeightRow& row : rows) out.push_back(&row);
  std::stable_sort(out.begin(), out.end(),
                   [](const WeightRow* a, const WeightRow* b) { return n_elements(*a) > n_elements(*b); });
  return out;
}

// Which thread stores which row does not show in the result. The error of the first row that has one.
Status store_all(const std::vector<WeightRow>& rows, const ModelConfig& config, MatrixForm form, ThreadPool& pool) {
  const std::vector<const WeightRow*> order = by_size(rows);
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::map<const WeightRow*, Status> faults;
  pool.run([&](int) {
    for (size_t i = next++; i < order.size(); i = next++) {
      const WeightRow& row = *order[i];
      const MatrixForm own = own_form(row, config, form);
      const auto store = [&](const io::StoredTensor& tensor, const StoredScales* scales) {
        return row.store(tensor, scales, own);
      };
      const Status status = read_dummy(row, config, own, store);
      if (status.ok()) continue;
      const std::lock_guard lock(mutex);
      faults.emplace(&row, status);
    }
  });
  return faults.empty() ? Status() : faults.begin()->second;
}

}  // namespace

TensorSource dummy_tensors(const ModelConfig& config) {
  return {
      .dtype = [&config](const WeightRow& row) { return released_dtype(row, config); },
      .read = [&config](const WeightRow& row,
                        const TensorUser& use) { return read_dummy(row, config, MatrixForm::kRows, use); },
      .has_mtp = config.n_mtp_layers > 0,
  };
}

Result<ModelWeights> dummy_weights(const ModelConfig& config, const Numerics& numerics, ThreadPool& pool,
                                   MatrixForm form) {
  LEVIN_TRY(check_numerics(config, numerics));
  ModelWeights weights;
  LEVIN_TRY(store_all(weight_table(config, &numerics, &weights), config, form, pool));
  if (config.family->attach_files != nullptr) LEVIN_TRY(config.family->attach_files(config, nullptr, weights));
  return weights;
}

}  // namespace levin
