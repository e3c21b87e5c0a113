#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "base/memory.h"
#include "model/architecture.h"
#include "model/weight_table.h"

namespace levin {
namespace {

// A row with what it is made of.
struct Item {
  const WeightRow* row = nullptr;
  const io::StoredTensor* tensor = nullptr;
  std::optional<StoredScales> scales;  // of a quantised matrix
};

// In the order of the files, so that a disk is read from front to back.
std::vector<Item> reading_order(const std::vector<WeightRow>& rows, const io::Checkpoint& checkpoint) {
  std::vector<Item> items;
  items.reserve(rows.size());
  for (const WeightRow& row : rows) {
    const StoredWeight stored = find_weight(row, checkpoint);
    Item& item = items.emplace_back(Item{.row = &row, .tensor = stored.tensor, .scales = {}});
    if (is_quantised(stored.tensor->dtype)) item.scales = stored.scales_for_store();
  }
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    if (a.tensor->file_idx != b.tensor->file_idx) return a.tensor->file_idx < b.tensor->file_idx;
    return a.tensor->bytes.data() < b.tensor->bytes.data();
  });
  return items;
}

// Stores all items; which thread stores which does not show in the result. The errors, by the order of the items.
std::vector<std::string> store_all(const std::vector<Item>& items, MatrixForm form, ThreadPool& pool,
                                   const LoadProgress& progress) {
  int64_t total_bytes = 0;
  for (const Item& item : items) total_bytes += static_cast<int64_t>(item.tensor->bytes.size());
  std::atomic<size_t> next{0};
  std::atomic<int64_t> done_bytes{0};
  std::mutex mutex;
  std::vector<std::pair<size_t, std::string>> faults;
  pool.run([&](int thread) {
    for (size_t i = next++; i < items.size(); i = next++) {
      read_soon(items[i].tensor->bytes);
      const Status status = items[i].row->store(*items[i].tensor, items[i].scales ? &*items[i].scales : nullptr, form);
      if (!status.ok()) {
        const std::lock_guard lock(mutex);
        faults.emplace_back(i, status.error().message);
      }
      done_bytes += static_cast<int64_t>(items[i].tensor->bytes.size());
      if (thread == 0 && progress.on_bytes) progress.on_bytes(done_bytes, total_bytes);
    }
  });
  if (progress.on_bytes) progress.on_bytes(total_bytes, total_bytes);
  std::sort(faults.begin(), faults.end());
  std::vector<std::string> messages;
  messages.reserve(faults.size());
  for (auto& [place, message] : faults) messages.push_back(std::move(message));
  return messages;
}

}  // namespace

Status check_numerics(const ModelConfig& config, const Numerics& numerics) {
  const bool power_of_two = (config.d_index & (config.d_index - 1)) == 0;
  if (numerics.hadamard() && !power_of_two) {
    return Error{ErrorKind::kUsage,
                 fmt::format("--numerics {} keeps FP8 index keys after a Hadamard rotation, which needs a power of two "
                             "as index_head_dim; "
                             "the model has {}: use --numerics reference, or fast with --kv-cache-dtype bf16",
                             numerics_mode_name(numerics.mode), config.d_index)};
  }
  return {};
}

Result<ModelWeights> load_weights(const ModelConfig& config, const Numerics& numerics, const io::Checkpoint& checkpoint,
                                  ThreadPool& pool, const LoadProgress& progress, std::vector<std::string>* warnings,
                                  MatrixForm form) {
  LEVIN_TRY(check_numerics(config, numerics));
  const WeightReport report = validate_weights(config, checkpoint);
  if (!report.errors.empty()) return weights_error(checkpoint, "the tensors do not fit config.json", report.errors);
  if (warnings != nullptr) warnings->insert(warnings->end(), report.warnings.begin(), report.warnings.end());

  ModelWeights weights;
  std::vector<WeightRow> rows = weight_table(config, &numerics, &weights);
  if (!report.has_mtp) {
    std::erase_if(rows, [](const WeightRow& row) { return row.mtp; });
    weights.own->drop_mtp();
  }
  std::erase_if(rows, [](const WeightRow& row) { return row.storage == Storage::kMappedTable; });  // they are not read
  const std::vector<std::string> faults = store_all(reading_order(rows, checkpoint), form, pool, progress);
  if (!faults.empty()) return weights_error(checkpoint, "tensors have invalid values", faults);
  if (config.family->attach_files != nullptr) LEVIN_TRY(config.family->attach_files(config, &checkpoint, weights));
  return weights;
}

void add_draft_head(const Numerics& numerics, ThreadPool& pool, ModelWeights& weights) {
  if (!numerics.fp8_draft_head || !weights.own->has_mtp()) return;
  weights.draft_head = Linear{.w = round_matrix_to_e4m3(weights.head.w, pool), .input = numerics.fp8_input};
}

}  // namespace levin
