#include "model/gguf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
#include "model/architecture.h"
#include "model/gguf_keys.h"
#include "model/weight_store.h"
#include "tensor/formats.h"

namespace levin {
namespace {

using io::GgufSink;
using io::GgufType;
using io::StoredDtype;
using io::StoredTensor;

// ---- names -------------------------------------------------------------------------------------------------------

std::optional<std::string_view> find_name(std::span<const Renamed> names, std::string_view name) {
  const auto found = std::find_if(names.begin(), names.end(), [&](const Renamed& r) { return r.name == name; });
  return found == names.end() ? std::nullopt : std::optional(found->gguf);
}

// "mlp.experts.12.up_proj.weight" -> "mlp.experts.*.up_proj.weight"
std::string without_expert(std::string_view name) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t begin = name.find(kExperts);
  if (begin == std::string_view::npos) return std::string(name);
  const size_t number = begin + kExperts.size(), end = std::min(name.find('.', number), name.size());
  return fmt::format("{}*{}", name.substr(0, number), name.substr(end));
}

std::string gguf_name(const ModelConfig& config, const std::string& name) {
  if (const auto top = find_name(config.family->gguf->tensors->outside, name)) return std::string(*top);
  for (int layer = config.n_layers; layer >= 0; --layer) {
    const std::string prefix = layer_prefix(config, layer);
    if (!name.starts_with(prefix)) continue;
    const std::string rest = without_expert(std::string_view(name).substr(prefix.size()));
    const auto found = find_name(config.family->gguf->tensors->in_layer, rest);
    if (found) return fmt::format("blk.{}.{}", layer, *found);
  }
  LEVIN_CHECK(false, "tensor {} has no name in GGUF", name);
  return {};
}

// ---- values ------------------------------------------------------------------------------------------------------

// What all tensors of a file are written with.
struct Context {
  const ModelConfig& config;
  TensorSource source;
  GgufType matrices;
  std::shared_ptr<GgufRounding> rounding;
};
using SharedContext = std::shared_ptr<const Context>;

template <class T>
Status hand_over(const std::vector<T>& values, const GgufSink& sink) {
  return sink(std::as_bytes(std::span(values)));
}

Status write_halves(std::span<const float> values, uint16_t (*narrow)(float), float (*widen)(uint16_t),
                    GgufRounding& rounding, const GgufSink& sink) {
  std::vector<uint16_t> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    out[i] = narrow(values[i]);
    rounding.n_rounded += widen(out[i]) != values[i];
  }
  return hand_over(out, sink);
}

Status write_values(std::span<const float> values, GgufType type, GgufRounding& rounding, const GgufSink& sink) {
  rounding.n_values += std::ssize(values);
  if (type == GgufType::kBF16) return write_halves(values, f32_to_bf16, bf16_to_f32, rounding, sink);
  if (type == GgufType::kF16) return write_halves(values, f32_to_f16, f16_to_f32, rounding, sink);
  return sink(std::as_bytes(values));
}

// As write_values(), of the tensor of this name; an error where f16 would make a value infinite.
Status write_rounded(const std::string& name, std::span<const float> values, GgufType type, GgufRounding& rounding,
                     const GgufSink& sink) {
  const auto beyond = [](float x) { return std::abs(x) >= 65520.0f; };
  if (type != GgufType::kF16 || std::none_of(values.begin(), values.end(), beyond))
    return write_values(values, type, rounding, sink);
  return Error{ErrorKind::kModelInvalid,
               fmt::format("{} has values beyond 65504, the largest of f16; write bf16 or f32 instead", name)};
}

// Rows begin .. end-1 of a tensor; of one in blocks, `begin` is the first row of a block.
StoredTensor row_slice(const StoredTensor& tensor, int64_t begin, int64_t end) {
  StoredTensor slice = tensor;
  const size_t row_bytes = tensor.bytes.size() / static_cast<size_t>(tensor.shape[0]);
  slice.shape[0] = end - begin;
  slice.bytes =
      tensor.bytes.subspan(static_cast<size_t>(begin) * row_bytes, static_cast<size_t>(end - begin) * row_bytes);
  return slice;
}

constexpr int64_t kSliceValues = int64_t{1} << 24;  // of a matrix that are held as f32 at a time

// A matrix or vector as f32, some rows at a time, so that no whole embedding is held.
Status for_each_slice(const StoredTensor& tensor, const StoredScales* scales,
                      const std::function<Status(const std::vector<float>&)>& use) {
  const int64_t n_rows = tensor.shape[0];
  const bool nvfp4 = tensor.dtype == StoredDtype::kU8;
  const int64_t width = static_cast<int64_t>(tensor.bytes.size() / io::dtype_bytes(tensor.dtype)) / n_rows;
  const int64_t scale_rows = nvfp4 ? 1 : kWeightBlock;  // rows of the matrix to one of its scales
  const int64_t step = std::max<int64_t>(kSliceValues / width / kWeightBlock, 1) * kWeightBlock;
  for (int64_t begin = 0; begin < n_rows; begin += step) {
    const int64_t end = std::min(n_rows, begin + step);
    StoredTensor of_blocks;
    StoredScales slice_scales{.of_blocks = &of_blocks};
    if (scales != nullptr) {
      of_blocks = row_slice(*scales->of_blocks, begin / scale_rows, (end + scale_rows - 1) / scale_rows);
      slice_scales.factor = scales->factor;
    }
    LEVIN_ASSIGN(const std::vector<float> values,
                 dequantise(row_slice(tensor, begin, end), scales != nullptr ? &slice_scales : nullptr));
    LEVIN_TRY(use(values));
  }
  return {};
}

Status write_matrix(const StoredTensor& tensor, const StoredScales* scales, GgufType type, GgufRounding& rounding,
                    const GgufSink& sink) {
  return for_each_slice(tensor, scales, [&](const std::vector<float>& values) {
    return write_rounded(tensor.name, values, type, rounding, sink);
  });
}

// Groups of 32 codes: a pair of neighbours a byte in the checkpoint, the first half next to the second here.
Status write_mxfp4(const StoredTensor& tensor, const StoredTensor& scales, const GgufSink& sink) {
  constexpr int64_t kHalf = io::kGgufMxfp4Group / 2;
  const int64_t n_groups = std::ssize(scales.bytes);
  if (std::find(scales.bytes.begin(), scales.bytes.end(), std::byte{0xFF}) != scales.bytes.end())
    return Error{ErrorKind::kModelInvalid, fmt::format("{} has a scale that is NaN", scales.name)};
  const auto code = [](const std::byte* pairs, int64_t i) {
    return pairs[i / 2] >> (i % 2 == 0 ? 0 : 4) & std::byte{0x0F};
  };
  std::vector<std::byte> out(static_cast<size_t>(n_groups * io::kGgufMxfp4Bytes));
  for (int64_t g = 0; g < n_groups; ++g) {
    const std::byte* pairs = tensor.bytes.data() + g * kHalf;
    std::byte* to = out.data() + g * io::kGgufMxfp4Bytes;
    to[0] = scales.bytes[static_cast<size_t>(g)];
    for (int64_t i = 0; i < kHalf; ++i) to[1 + i] = code(pairs, i) | code(pairs, i + kHalf) << 4;
  }
  return hand_over(out, sink);
}

Status write_ids(const StoredTensor& tensor, const GgufSink& sink) {
  std::vector<int32_t> ids(tensor.bytes.size() / sizeof(int64_t));
  for (size_t i = 0; i < ids.size(); ++i) {
    int64_t id;
    std::memcpy(&id, tensor.bytes.data() + i * sizeof(id), sizeof(id));
    ids[i] = static_cast<int32_t>(id);
  }
  return hand_over(ids, sink);
}

// ---- tensors -----------------------------------------------------------------------------------------------------

bool is_router(const WeightRow& row) { return row.name.ends_with(".gate.weight"); }

GgufType type_of(const Context& context, const WeightRow& row) {
  const StoredDtype stored = context.source.dtype(row);
  if (row.storage == Storage::kExpertIds) return GgufType::kI32;
  if (stored == StoredDtype::kI8) return GgufType::kMxfp4;
  const bool small = row.storage == Storage::kVector || is_router(row);
  return small || (stored == StoredDtype::kF32 && !may_be_quantised(row.storage)) ? GgufType::kF32 : context.matrices;
}

Status write_row(const Context& context, const WeightRow& row, GgufType type, const GgufSink& sink) {
  return context.source.read(row, [&](const StoredTensor& tensor, const StoredScales* scales) -> Status {
    if (type == GgufType::kI32) return write_ids(tensor, sink);
    if (type == GgufType::kMxfp4) return write_mxfp4(tensor, *scales->of_blocks, sink);
    return write_matrix(tensor, scales, type, *context.rounding, sink);
  });
}

// One tensor of one row, or of the rows of all experts.
io::GgufTensor whole_tensor(const SharedContext& context, std::string name, std::vector<WeightRow> rows) {
  std::vector<int64_t> shape = rows.front().shape;
  if (rows.size() > 1 || name.ends_with("_exps.weight")) shape.insert(shape.begin(), std::ssize(rows));
  const GgufType type = type_of(*context, rows.front());
  return {.name = std::move(name), .type = type, .shape = shape, .write = [=](const GgufSink& sink) -> Status {
            for (const WeightRow& row : rows) LEVIN_TRY(write_row(*context, row, type, sink));
            return {};
          }};
}

// kv_b_proj, [H * (Dn + Dv), Rk]: its keys as [H, Rk, Dn], its values as [H, Dv, Rk].
enum class UpPart : uint8_t { kKeys, kValues };

Status write_up_part(const Context& context, const WeightRow& row, UpPart part, const GgufSink& sink) {
  const ModelConfig& c = context.config;
  const int64_t n = c.d_nope + c.d_value, k = c.d_latent;
  return context.source.read(row, [&](const StoredTensor& tensor, const StoredScales* scales) -> Status {
    LEVIN_ASSIGN(const std::vector<float> values, dequantise(tensor, scales));
    std::vector<float> out;
    for (int64_t head = 0; head < c.n_heads; ++head) {
      const float* rows = values.data() + head * n * k;
      if (part == UpPart::kValues) {
        out.insert(out.end(), rows + c.d_nope * k, rows + n * k);
        continue;
      }
      for (int64_t col = 0; col < k; ++col) {
        for (int64_t i = 0; i < c.d_nope; ++i) out.push_back(rows[i * k + col]);
      }
    }
    return write_rounded(row.name, out, context.matrices, *context.rounding, sink);
  });
}

void add_up_projection(const SharedContext& context, const std::string& name, const WeightRow& row,
                       io::GgufWriter& file) {
  const ModelConfig& c = context->config;
  const std::string block = name.substr(0, name.find("attn_kv_b"));
  const auto add = [&](const char* part_name, UpPart part, std::vector<int64_t> shape) {
    file.add({.name = block + part_name,
              .type = context->matrices,
              .shape = std::move(shape),
              .write = [=](const GgufSink& sink) { return write_up_part(*context, row, part, sink); }});
  };
  add("attn_k_b.weight", UpPart::kKeys, {c.n_heads, c.d_latent, c.d_nope});
  add("attn_v_b.weight", UpPart::kValues, {c.n_heads, c.d_value, c.d_latent});
}

Status check_groups(const Context& context, const WeightRow& row) {
  if (context.source.dtype(row) != StoredDtype::kI8 || row.shape[1] % io::kGgufMxfp4Group == 0) return {};
  return Error{ErrorKind::kModelInvalid, fmt::format("{} is MXFP4 with {} columns; GGUF holds whole groups of {} only",
                                                     row.name, row.shape[1], io::kGgufMxfp4Group)};
}

// MXFP4 is written as it is, and the experts of a layer are one tensor.
Status check_one_type(const Context& context, const WeightRow& first, const WeightRow& other) {
  const StoredDtype a = context.source.dtype(first), b = context.source.dtype(other);
  if ((a == StoredDtype::kI8) == (b == StoredDtype::kI8)) return {};
  return Error{
      ErrorKind::kModelInvalid,
      fmt::format("{} is {}, {} {}; the experts of a layer are one tensor in GGUF: store all as MXFP4, or none",
                  other.name, io::dtype_name(b), first.name, io::dtype_name(a))};
}

Status add_tensors(const SharedContext& context, bool with_mtp, io::GgufWriter& file) {
  std::vector<std::string> names;                      // in the order of the forward pass
  std::map<std::string, std::vector<WeightRow>> rows;  // by name: one, or one of each expert
  for (const WeightRow& row : weight_table(context->config, nullptr, nullptr)) {
    if (row.mtp && !with_mtp) continue;
    LEVIN_TRY(check_groups(*context, row));
    const std::string name = gguf_name(context->config, row.name);
    std::vector<WeightRow>& same = rows[name];
    if (same.empty()) names.push_back(name);
    same.push_back(row);
    LEVIN_TRY(check_one_type(*context, same.front(), row));
  }
  for (const std::string& name : names) {
    if (name.ends_with("attn_kv_b.weight")) {
      add_up_projection(context, name, rows[name].front(), file);
    } else {
      file.add(whole_tensor(context, name, std::move(rows[name])));
    }
  }
  return {};
}

}  // namespace

Result<GgufExport> export_gguf(const ModelConfig& config, const TensorSource& source, const GgufOptions& options) {
  if (config.family->gguf == nullptr) {
    return Error{ErrorKind::kUsage, fmt::format("{} (model_type \"{}\") cannot be written as GGUF: its tensors have no "
                                                "names there",
                                                config.family->name, config.family->model_type)};
  }
  const GgufNames& names = *config.family->gguf;
  const std::span<const std::string_view> known = names.architectures;
  const std::string architecture = options.architecture.empty() ? std::string(known.front()) : options.architecture;
  if (std::find(known.begin(), known.end(), architecture) == known.end()) {
    return Error{ErrorKind::kUsage, fmt::format("architecture '{}': {} can be written as {}", architecture,
                                                config.family->name, fmt::join(known, " or "))};
  }
  if (names.check != nullptr) LEVIN_TRY(names.check(config, architecture));
  GgufExport out{.file = {}, .rounding = std::make_shared<GgufRounding>(), .warnings = {}};
  const bool leaves_mtp = source.has_mtp && !names.has_mtp;
  if (leaves_mtp)
    out.warnings.emplace_back("the draft layers are not exported: other programs do not agree on their tensors");
  if (architecture != known.front())
    out.warnings.push_back(
        fmt::format("as {} the indexer rotates other pairs: for speed, not for answers", architecture));
  const bool with_mtp = source.has_mtp && !leaves_mtp;
  set_gguf_keys(config, architecture, with_mtp, &out.file);
  const SharedContext context = std::make_shared<const Context>(
      Context{.config = config, .source = source, .matrices = options.matrices, .rounding = out.rounding});
  LEVIN_TRY(add_tensors(context, with_mtp, out.file));
  return out;
}

TensorSource checkpoint_tensors(const io::Checkpoint& checkpoint, bool has_mtp) {
  const auto find = [&checkpoint](const WeightRow& row) {
    const StoredWeight stored = find_weight(row, checkpoint);
    LEVIN_CHECK(stored.tensor != nullptr, "the checkpoint has no {}", row.name);
    return stored;
  };
  return {
      .dtype = [find](const WeightRow& row) { return find(row).tensor->dtype; },
      .read =
          [find](const WeightRow& row, const TensorUser& use) {
            const StoredWeight stored = find(row);
            const StoredScales scales = stored.scales_for_store();
            return use(*stored.tensor, is_quantised(stored.tensor->dtype) ? &scales : nullptr);
          },
      .has_mtp = has_mtp,
  };
}

}  // namespace levin
