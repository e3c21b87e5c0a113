#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

#include "model/architecture.h"
#include "model/weight_store.h"
#include "model/weight_table.h"

namespace levin {
namespace {

using io::Checkpoint;
using io::StoredDtype;
using io::StoredTensor;

bool has_name(const Checkpoint& checkpoint, std::string_view name) {
  return std::binary_search(checkpoint.names().begin(), checkpoint.names().end(), name);
}

std::vector<int64_t> fp4_shape(const WeightRow& row) { return {row.shape[0], row.shape[1] / 2}; }

bool accepts(const WeightRow& row, const StoredTensor& tensor) {
  switch (tensor.dtype) {
    case StoredDtype::kI8:
      return may_be_mxfp4(row) && tensor.shape == fp4_shape(row);
    case StoredDtype::kU8:
      return may_be_nvfp4(row) && tensor.shape == fp4_shape(row);
    case StoredDtype::kF8_E4M3:
      return may_be_quantised(row.storage) && tensor.shape == row.shape;
    case StoredDtype::kI64:
      return row.storage == Storage::kExpertIds && tensor.shape == row.shape;
    case StoredDtype::kBF16:
    case StoredDtype::kF32:
    case StoredDtype::kF16:
      return row.storage != Storage::kExpertIds && row.storage != Storage::kMappedTable && tensor.shape == row.shape;
    default:
      return false;
  }
}

std::string expected_text(const WeightRow& row) {
  if (row.storage == Storage::kExpertIds) return "I64 " + io::shape_text(row.shape);
  if (row.storage == Storage::kMappedTable) return "F8_E4M3 " + io::shape_text(row.shape);
  const std::string mxfp4 = may_be_mxfp4(row) ? fmt::format("I8 {} (MXFP4), ", io::shape_text(fp4_shape(row))) : "";
  return fmt::format("{}{}BF16, F32 or F16 {}", mxfp4, may_be_quantised(row.storage) ? "F8_E4M3, " : "",
                     io::shape_text(row.shape));
}

std::string found_text(const StoredTensor& tensor) {
  return fmt::format("{} {}", io::dtype_name(tensor.dtype), io::shape_text(tensor.shape));
}

std::string fault(std::string_view name, std::string_view expected, std::string_view found) {
  return fmt::format("{}: expected {}, found {}", name, expected, found);
}

bool is_one_number(const StoredTensor& tensor) {
  return tensor.shape.empty() || tensor.shape == std::vector<int64_t>{1};
}

// Names of an NVFP4 matrix's companions, for errors.
std::string companion(const StoredTensor& tensor, std::string_view modelopt, std::string_view compressed_tensors) {
  const bool packed = tensor.name.ends_with(".weight_packed");
  return tensor.name.substr(0, tensor.name.rfind('.')).append(packed ? compressed_tensors : modelopt);
}

void check_nvfp4(const WeightRow& row, const StoredWeight& stored, std::vector<std::string>* errors) {
  const auto check = [&](const StoredTensor* found, const std::string& name, bool fits, std::string_view expected) {
    if (fits) return;
    errors->push_back(found != nullptr ? fault(name, expected, found_text(*found))
                                       : fault(name, fmt::format("{} with an NVFP4 matrix", expected), "nothing"));
  };
  const StoredTensor& tensor = *stored.tensor;
  const std::vector<int64_t> groups = scale_shape(row, StoredDtype::kU8);
  check(stored.scales, companion(tensor, ".weight_scale", ".weight_scale"),
        stored.scales != nullptr && stored.scales->dtype == StoredDtype::kF8_E4M3 && stored.scales->shape == groups,
        "F8_E4M3 " + io::shape_text(groups));
  // ModelOpt writes the factor as [], compressed-tensors as [1]; tools that rewrite checkpoints turn one into the other.
  check(stored.factor, companion(tensor, ".weight_scale_2", ".weight_global_scale"),
        stored.factor != nullptr && stored.factor->dtype == StoredDtype::kF32 && is_one_number(*stored.factor),
        stored.divides ? "F32 [1]" : "F32 []");
}

// Faults of one tensor and its scales.
void check_row(const WeightRow& row, const Checkpoint& checkpoint, std::vector<std::string>* errors) {
  const StoredWeight stored = find_weight(row, checkpoint);
  const StoredTensor* tensor = stored.tensor;
  if (tensor == nullptr) return errors->push_back(fault(row.name, expected_text(row), "nothing"));
  if (!accepts(row, *tensor)) {
    return errors->push_back(fault(tensor->name, expected_text(row), found_text(*tensor)));
  }
  if (!is_quantised(tensor->dtype)) return;
  if (tensor->dtype == StoredDtype::kU8) return check_nvfp4(row, stored, errors);
  const bool pow2 = tensor->dtype == StoredDtype::kI8 || row.storage == Storage::kMappedTable;
  const std::vector<int64_t> shape = scale_shape(row, tensor->dtype);
  const std::string expected = fmt::format("{} {}", pow2 ? "F8_E8M0" : "F32 or F8_E8M0", io::shape_text(shape));
  const StoredTensor* scales = stored.scales;
  if (scales == nullptr) {
    const std::string needed =
        fmt::format("{} with an {} matrix", expected, tensor->dtype == StoredDtype::kI8 ? "MXFP4" : "FP8");
    return errors->push_back(fault(row.scale_name, needed, "nothing"));
  }
  const bool fits = scales->dtype == StoredDtype::kF8_E8M0 || (scales->dtype == StoredDtype::kF32 && !pow2);
  if (!fits || scales->shape != shape) errors->push_back(fault(row.scale_name, expected, found_text(*scales)));
}

// Gate and up matrix of one feed-forward block share their rounded input, so both take the same.
void check_pairs(const std::vector<WeightRow>& rows, const Checkpoint& checkpoint, std::vector<std::string>* errors) {
  for (const WeightRow& row : rows) {
    if (row.stored_like.empty()) continue;
    const StoredTensor* gate = checkpoint.find(row.stored_like);
    const StoredTensor* up = checkpoint.find(row.name);
    if (gate == nullptr || up == nullptr || takes_fp8_input(gate->dtype) == takes_fp8_input(up->dtype)) continue;
    errors->push_back(fault(row.name,
                            fmt::format("the storage of {}, {}", row.stored_like, io::dtype_name(gate->dtype)),
                            io::dtype_name(up->dtype)));
  }
}

class Validation {
 public:
  Validation(const ModelConfig& config, const Checkpoint& checkpoint) : config_(config), checkpoint_(checkpoint) {}

  WeightReport run() {
    std::vector<WeightRow> rows = weight_table(config_, nullptr, nullptr);
    drop_absent_mtp(rows);
    for (const WeightRow& row : rows) {
      known_.insert(row.name);
      if (!checkpoint_.has_tensors()) {
        check_name(row);
      } else {
        check_row(row, checkpoint_, &report_.errors);
        know_companions(row);
      }
    }
    if (checkpoint_.has_tensors()) check_pairs(rows, checkpoint_, &report_.errors);
    tolerate();
    tolerate_unused_indexers();
    for (const std::string& name : checkpoint_.names()) {
      if (!known_.contains(name)) surplus(name);
    }
    return std::move(report_);
  }

 private:
  // What stands with a quantised matrix, whether it is read or not.
  void know_companions(const WeightRow& row) {
    const StoredWeight stored = find_weight(row, checkpoint_);
    if (stored.tensor == nullptr || !is_quantised(stored.tensor->dtype)) return;
    if (stored.tensor->dtype != StoredDtype::kU8) {
      known_.insert(row.scale_name);
    } else {
      for (std::string& name : nvfp4_names(row, stored.divides)) known_.insert(std::move(name));
    }
  }

  // An MTP layer of which no tensor is there is not an error: the model runs without speculation.
  void drop_absent_mtp(std::vector<WeightRow>& rows) {
    report_.has_mtp = std::any_of(rows.begin(), rows.end(),
                                  [&](const WeightRow& row) { return row.mtp && has_name(checkpoint_, row.name); });
    if (report_.has_mtp || config_.n_mtp_layers == 0) return;
    std::erase_if(rows, [](const WeightRow& row) { return row.mtp; });
    report_.warnings.push_back(fmt::format(
        "the checkpoint has no {} ({}*), though config.json says that it has; running without speculation",
        config_.n_draft_block > 0 ? "block drafter" : "MTP layer", layer_prefix(config_, config_.n_layers)));
  }

  // With the index alone, dtypes are unknown: a matrix may have scales or not.
  void check_name(const WeightRow& row) {
    if (!has_weight(row, checkpoint_)) report_.errors.push_back(fault(row.name, expected_text(row), "nothing"));
    if (!row.scale_name.empty()) known_.insert(row.scale_name);
    for (std::string& name : nvfp4_names(row, !has_name(checkpoint_, row.name))) known_.insert(std::move(name));
  }

  // Names that begin and end alike.
  void tolerate_all(const UnusedTensor& tolerated) {
    const size_t star = tolerated.name.find('*');
    const std::string_view begin = std::string_view(tolerated.name).substr(0, star),
                           end = std::string_view(tolerated.name).substr(star + 1);
    int64_t n = 0;
    for (const std::string& name : checkpoint_.names()) {
      if (name.size() < begin.size() + end.size() || !name.starts_with(begin) || !name.ends_with(end)) continue;
      known_.insert(name);
      ++n;
    }
    if (n == 0) return;
    report_.warnings.push_back(
        fmt::format("{} ({} tensor{}) is not used: {}", tolerated.name, n, n == 1 ? "" : "s", tolerated.why));
  }

  void tolerate() {
    if (config_.family->unused_tensors == nullptr) return;
    for (const UnusedTensor& tolerated : config_.family->unused_tensors(config_)) {
      if (tolerated.name.find('*') != std::string::npos) {
        tolerate_all(tolerated);
        continue;
      }
      if (!has_name(checkpoint_, tolerated.name)) continue;
      known_.insert(tolerated.name);
      const StoredTensor* tensor = checkpoint_.find(tolerated.name);
      if (tensor != nullptr && !tolerated.shape.empty() && tensor->shape != tolerated.shape) {
        report_.errors.push_back(fault(tolerated.name, io::shape_text(tolerated.shape), found_text(*tensor)));
        continue;
      }
      report_.warnings.push_back(fmt::format("{} is not used: {}", tolerated.name, tolerated.why));
    }
  }

  // Some converters keep indexers of layers that share top-k indices. The config decides.
  void tolerate_unused_indexers() {
    ModelConfig all = config_;
    all.owns_indexer.assign(config_.owns_indexer.size(), true);
    int64_t n_unused = 0;
    for (const WeightRow& row : weight_table(all, nullptr, nullptr)) {
      if (row.mtp || known_.contains(row.name) || !has_name(checkpoint_, row.name)) continue;
      known_.insert(row.name);
      if (!row.scale_name.empty()) known_.insert(row.scale_name);
      ++n_unused;
    }
    if (n_unused == 0) return;
    report_.warnings.push_back(fmt::format(
        "{} indexer tensors are not used: their layers share the top-k indices of a layer below (config.json)",
        n_unused));
  }

  void surplus(const std::string& name) {
    const StoredTensor* tensor = checkpoint_.find(name);
    const bool beyond = config_.n_mtp_layers == 0 && name.starts_with(layer_prefix(config_, config_.n_layers));
    report_.errors.push_back(fault(name, beyond ? "no such tensor (num_nextn_predict_layers is 0)" : "no such tensor",
                                   tensor != nullptr ? found_text(*tensor) : "it in the index"));
  }

  const ModelConfig& config_;
  const Checkpoint& checkpoint_;
  WeightReport report_;
  std::unordered_set<std::string> known_;
};

}  // namespace

WeightReport validate_weights(const ModelConfig& config, const Checkpoint& checkpoint) {
  return Validation(config, checkpoint).run();
}

Status check_weights(const ModelConfig& config, const Checkpoint& checkpoint) {
  const WeightReport report = validate_weights(config, checkpoint);
  if (report.errors.empty()) return {};
  return weights_error(checkpoint, "the tensors do not fit config.json", report.errors);
}

Error weights_error(const Checkpoint& checkpoint, std::string_view what, const std::vector<std::string>& faults) {
  constexpr size_t kListed = 10;
  std::string out = fmt::format("{}: {} ({} fault{}):", checkpoint.path().string(), what, faults.size(),
                                faults.size() == 1 ? "" : "s");
  for (size_t i = 0; i < std::min(faults.size(), kListed); ++i) out += "\n  " + faults[i];
  if (faults.size() > kListed) out += fmt::format("\n  and {} more", faults.size() - kListed);
  return {ErrorKind::kModelInvalid, std::move(out)};
}

}  // namespace levin
