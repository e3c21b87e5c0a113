#include "model/gguf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/numbers.h"
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

struct Renamed {
  std::string_view name;  // in the checkpoint, behind the prefix of the layer; experts.*: of every expert
  std::string_view gguf;  // behind "blk.<layer>."
};

constexpr std::array kMlaNames = {
    Renamed{"input_layernorm.weight", "attn_norm.weight"},
    Renamed{"self_attn.q_a_proj.weight", "attn_q_a.weight"},
    Renamed{"self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight"},
    Renamed{"self_attn.q_b_proj.weight", "attn_q_b.weight"},
    Renamed{"self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"},
    Renamed{"self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"},
    Renamed{"self_attn.kv_b_proj.weight", "attn_kv_b.weight"},
    Renamed{"self_attn.o_proj.weight", "attn_output.weight"},
    Renamed{"self_attn.indexer.wq_b.weight", "indexer.attn_q_b.weight"},
    Renamed{"self_attn.indexer.wk.weight", "indexer.attn_k.weight"},
    Renamed{"self_attn.indexer.k_norm.weight", "indexer.k_norm.weight"},
    Renamed{"self_attn.indexer.k_norm.bias", "indexer.k_norm.bias"},
    Renamed{"self_attn.indexer.weights_proj.weight", "indexer.proj.weight"},
    Renamed{"post_attention_layernorm.weight", "ffn_norm.weight"},
    Renamed{"mlp.gate_proj.weight", "ffn_gate.weight"},
    Renamed{"mlp.up_proj.weight", "ffn_up.weight"},
    Renamed{"mlp.down_proj.weight", "ffn_down.weight"},
    Renamed{"mlp.gate.weight", "ffn_gate_inp.weight"},
    Renamed{"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    Renamed{"mlp.experts.*.gate_proj.weight", "ffn_gate_exps.weight"},
    Renamed{"mlp.experts.*.up_proj.weight", "ffn_up_exps.weight"},
    Renamed{"mlp.experts.*.down_proj.weight", "ffn_down_exps.weight"},
    Renamed{"mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"},
    Renamed{"mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"},
    Renamed{"mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"},
    Renamed{"enorm.weight", "nextn.enorm.weight"},
    Renamed{"hnorm.weight", "nextn.hnorm.weight"},
    Renamed{"eh_proj.weight", "nextn.eh_proj.weight"},
    Renamed{"shared_head.norm.weight", "nextn.shared_head_norm.weight"},
};

constexpr std::array kV4Names = {
    Renamed{"hc_attn_fn", "hc_attn_fn.weight"},
    Renamed{"hc_attn_base", "hc_attn_base.weight"},
    Renamed{"hc_attn_scale", "hc_attn_scale.weight"},
    Renamed{"hc_ffn_fn", "hc_ffn_fn.weight"},
    Renamed{"hc_ffn_base", "hc_ffn_base.weight"},
    Renamed{"hc_ffn_scale", "hc_ffn_scale.weight"},
    Renamed{"attn_norm.weight", "attn_norm.weight"},
    Renamed{"ffn_norm.weight", "ffn_norm.weight"},
    Renamed{"attn.attn_sink", "attn_sinks.weight"},
    Renamed{"attn.wq_a.weight", "attn_q_a.weight"},
    Renamed{"attn.q_norm.weight", "attn_q_a_norm.weight"},
    Renamed{"attn.wq_b.weight", "attn_q_b.weight"},
    Renamed{"attn.wkv.weight", "attn_kv.weight"},
    Renamed{"attn.kv_norm.weight", "attn_kv_a_norm.weight"},
    Renamed{"attn.wo_a.weight", "attn_output_a.weight"},
    Renamed{"attn.wo_b.weight", "attn_output_b.weight"},
    Renamed{"attn.compressor.ape", "attn_compressor_ape.weight"},
    Renamed{"attn.compressor.wkv.weight", "attn_compressor_kv.weight"},
    Renamed{"attn.compressor.wgate.weight", "attn_compressor_gate.weight"},
    Renamed{"attn.compressor.norm.weight", "attn_compressor_norm.weight"},
    Renamed{"attn.indexer.wq_b.weight", "indexer.attn_q_b.weight"},
    Renamed{"attn.indexer.weights_proj.weight", "indexer.proj.weight"},
    Renamed{"attn.indexer.compressor.ape", "indexer_compressor_ape.weight"},
    Renamed{"attn.indexer.compressor.wkv.weight", "indexer_compressor_kv.weight"},
    Renamed{"attn.indexer.compressor.wgate.weight", "indexer_compressor_gate.weight"},
    Renamed{"attn.indexer.compressor.norm.weight", "indexer_compressor_norm.weight"},
    Renamed{"ffn.gate.weight", "ffn_gate_inp.weight"},
    Renamed{"ffn.gate.bias", "exp_probs_b.bias"},
    Renamed{"ffn.gate.tid2eid", "ffn_gate_tid2eid.weight"},
    Renamed{"ffn.experts.*.w1.weight", "ffn_gate_exps.weight"},
    Renamed{"ffn.experts.*.w3.weight", "ffn_up_exps.weight"},
    Renamed{"ffn.experts.*.w2.weight", "ffn_down_exps.weight"},
    Renamed{"ffn.shared_experts.w1.weight", "ffn_gate_shexp.weight"},
    Renamed{"ffn.shared_experts.w3.weight", "ffn_up_shexp.weight"},
    Renamed{"ffn.shared_experts.w2.weight", "ffn_down_shexp.weight"},
};

// Outside of the layers, of all families.
constexpr std::array kTopNames = {
    Renamed{"model.embed_tokens.weight", "token_embd.weight"},
    Renamed{"model.norm.weight", "output_norm.weight"},
    Renamed{"lm_head.weight", "output.weight"},
    Renamed{"embed.weight", "token_embd.weight"},
    Renamed{"norm.weight", "output_norm.weight"},
    Renamed{"head.weight", "output.weight"},
    Renamed{"hc_head_fn", "output_hc_fn.weight"},
    Renamed{"hc_head_base", "output_hc_base.weight"},
    Renamed{"hc_head_scale", "output_hc_scale.weight"},
};

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
  if (const auto top = find_name(kTopNames, name)) return std::string(*top);
  for (int layer = config.n_layers; layer >= 0; --layer) {
    const std::string prefix = layer_prefix(config, layer);
    if (!name.starts_with(prefix)) continue;
    const std::string rest = without_expert(std::string_view(name).substr(prefix.size()));
    const auto found =
        config.family == ModelFamily::kDeepseekV4 ? find_name(kV4Names, rest) : find_name(kMlaNames, rest);
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

Error too_large(const std::string& name) {
  return {ErrorKind::kModelInvalid,
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
Status for_each_slice(const StoredTensor& tensor, const StoredTensor* scales,
                      const std::function<Status(const std::vector<float>&)>& use) {
  const int64_t n_rows = tensor.shape[0];
  const int64_t width = static_cast<int64_t>(tensor.bytes.size() / io::dtype_bytes(tensor.dtype)) / n_rows;
  const int64_t step = std::max<int64_t>(kSliceValues / width / kWeightBlock, 1) * kWeightBlock;
  for (int64_t begin = 0; begin < n_rows; begin += step) {
    const int64_t end = std::min(n_rows, begin + step);
    std::optional<StoredTensor> slice_scales;
    if (scales != nullptr) {
      slice_scales = row_slice(*scales, begin / kWeightBlock, (end + kWeightBlock - 1) / kWeightBlock);
    }
    LEVIN_ASSIGN(const std::vector<float> values,
                 dequantise(row_slice(tensor, begin, end), slice_scales ? &*slice_scales : nullptr));
    LEVIN_TRY(use(values));
  }
  return {};
}

Status write_matrix(const StoredTensor& tensor, const StoredTensor* scales, GgufType type, GgufRounding& rounding,
                    const GgufSink& sink) {
  return for_each_slice(tensor, scales, [&](const std::vector<float>& values) -> Status {
    const auto beyond = [](float x) { return std::abs(x) >= 65520.0f; };
    if (type == GgufType::kF16 && std::any_of(values.begin(), values.end(), beyond)) return too_large(tensor.name);
    return write_values(values, type, rounding, sink);
  });
}

// Groups of 32 codes: a pair of neighbours a byte in the checkpoint, the first half beside the second here.
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
  return context.source.read(row, [&](const StoredTensor& tensor, const StoredTensor* scales) -> Status {
    if (type == GgufType::kI32) return write_ids(tensor, sink);
    if (type == GgufType::kMxfp4) return write_mxfp4(tensor, *scales, sink);
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
  return context.source.read(row, [&](const StoredTensor& tensor, const StoredTensor* scales) -> Status {
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
    return write_values(out, context.matrices, *context.rounding, sink);
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

std::vector<std::string> gguf_architectures(ModelFamily family) {
  switch (family) {
    case ModelFamily::kDeepseekV32:
      return {"deepseek32", "glm-dsa"};
    case ModelFamily::kGlmMoeDsa:
      return {"glm-dsa"};
    case ModelFamily::kDeepseekV4:
      return {"deepseek4"};
  }
  return {};
}

Result<GgufExport> export_gguf(const ModelConfig& config, const TensorSource& source, const GgufOptions& options) {
  const std::vector<std::string> known = gguf_architectures(config.family);
  const std::string architecture = options.architecture.empty() ? known.front() : options.architecture;
  if (std::find(known.begin(), known.end(), architecture) == known.end()) {
    return Error{ErrorKind::kUsage, fmt::format("architecture '{}': {} can be written as {}", architecture,
                                                family_name(config.family), fmt::join(known, " or "))};
  }
  GgufExport out{.file = {}, .rounding = std::make_shared<GgufRounding>(), .warnings = {}};
  const bool leaves_mtp = source.has_mtp && config.family == ModelFamily::kDeepseekV4;
  if (leaves_mtp) out.warnings.emplace_back("the MTP layer is left out: other programs do not agree on its tensors");
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
  const auto find = [&checkpoint](const std::string& name) -> const StoredTensor& {
    const StoredTensor* tensor = checkpoint.find(name);
    LEVIN_CHECK(tensor != nullptr, "the checkpoint has no {}", name);
    return *tensor;
  };
  return {
      .dtype = [find](const WeightRow& row) { return find(row.name).dtype; },
      .read =
          [find](const WeightRow& row, const TensorUser& use) {
            const StoredTensor& tensor = find(row.name);
            return use(tensor, is_quantised(tensor.dtype) ? &find(row.scale_name) : nullptr);
          },
      .has_mtp = has_mtp,
  };
}

}  // namespace levin
