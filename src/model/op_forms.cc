#include "model/op_forms.h"

#include <algorithm>
#include <compare>
#include <optional>
#include <span>
#include <string_view>

#include "model/architecture.h"
#include "model/weight_store.h"
#include "model/weight_table.h"

namespace levin {
namespace {

void add(std::vector<OpForm>& forms, const OpForm& form) {
  const std::string text = form.describe();
  if (std::ranges::none_of(forms, [&](const OpForm& f) { return f.describe() == text; })) forms.push_back(form);
}

void add_rows(std::vector<OpForm>& forms, const LatentFormat& rows) {
  if (rows.row_bytes > 0) add(forms, {.op = "write_latent", .rows = rows});
}

// How many indices the indexer selects: where attention reads the tokens of a pool instead of its entry, as many pools as
// fit into a row of n_topk tokens.
int64_t n_selected(const ModelConfig& c, const LayerCacheFormat& layer) {
  const bool keys_alone = layer.compressed && layer.compressed->entries.row_bytes == 0;
  return keys_alone ? c.n_topk / layer.compressed->ratio : c.n_topk;
}

void add_indexer(std::vector<OpForm>& forms, const ModelConfig& c, const Numerics& numerics,
                 const LayerCacheFormat& layer) {
  const IndexKeyFormat& keys = *layer.index;
  OpForm heads{.keys = keys, .hadamard = numerics.hadamard(), .fp4 = numerics.fp4_index};
  heads.op = "write_index_keys";
  add(forms, heads);
  heads.op = "index_queries", heads.n_heads = c.n_index_heads;
  add(forms, heads);
  add(forms, {.op = "index_topk", .keys = keys, .n_heads = c.n_index_heads, .n_topk = n_selected(c, layer)});
}

void add_attention(std::vector<OpForm>& forms, const ModelConfig& c, const LayerCacheFormat& layer) {
  add_rows(forms, layer.latent);
  if (layer.compressed && layer.compressed->entries.row_bytes > 0) add_rows(forms, layer.compressed->entries);
  if (layer.compressed && layer.compressed->entries.row_bytes == 0) add(forms, {.op = "expand_topk"});  // of keys alone
  add(forms, {.op = "sparse_attention", .rows = layer.latent, .n_heads = c.n_heads, .n_topk = c.n_topk});
}

void add_linear_attention(std::vector<OpForm>& forms, const RecurrentFormat& state) {
  for (const char* op : {"short_conv", "delta_rule", "sigmoid_mul"}) add(forms, {.op = op, .n_heads = state.n_heads});
}

// ---- products ----

// What a product, or a block of them, is called with.
struct ProductForm {
  std::string_view op;
  std::optional<DType> weights;
  bool fp8_input = false;
  int64_t n = 0, k = 0;
  auto operator<=>(const ProductForm&) const = default;
};

bool is_matrix(const WeightRow& row) {
  return row.storage == Storage::kMatrix || row.storage == Storage::kExpertMatrix ||
         row.storage == Storage::kPlainMatrix;
}

bool is_block(std::string_view op) { return op == "ffn" || op == "expert_ffn"; }

// Model, numerics and what its matrices are stored as.
struct Products {
  const ModelConfig& config;
  const Numerics& numerics;
  const io::Checkpoint* checkpoint = nullptr;
  std::vector<ProductForm> found = {};

  void add(const ProductForm& form) {
    if (std::ranges::find(found, form) == found.end()) found.push_back(form);
  }
  bool is_fp8(const WeightRow& row, io::StoredDtype stored) const {
    return !row.f32_input && takes_fp8_input(stored) && numerics.fp8_input == ops::Operand::kFp8;
  }
  void add_matrix(const WeightRow& row) {
    const io::StoredDtype stored = stored_dtype(row, config, checkpoint);
    const bool other_blocks = stored == io::StoredDtype::kF8_E4M3 && row.block != kWeightBlock;  // kept as BF16
    if (row.parts.empty() && other_blocks) return add({row.op, DType::kBF16, false, row.shape[0], row.shape[1]});
    if (row.parts.empty()) return add({row.op, kept_dtype(stored), is_fp8(row, stored), row.shape[0], row.shape[1]});
    for (const MatrixParts& part : row.parts) {
      const bool whole = stored == io::StoredDtype::kF8_E4M3 && part.between_blocks;
      const DType dequantised = stored == io::StoredDtype::kF32 ? DType::kF32 : DType::kBF16;
      add({"matmul_per_head", whole ? DType::kF8E4M3 : dequantised, false, part.n, part.k});
    }
  }
  // The matrices of a block, or of all experts of a layer, which one call takes; gate comes first.
  void add_block(std::span<const WeightRow> rows) {
    const WeightRow& gate = rows.front();
    const io::StoredDtype first = stored_dtype(gate, config, checkpoint);
    const bool same =
        std::ranges::all_of(rows, [&](const WeightRow& row) { return stored_dtype(row, config, checkpoint) == first; });
    add({gate.op, same ? std::optional(kept_dtype(first)) : std::nullopt, same && is_fp8(gate, first), gate.shape[0],
         gate.shape[1]});
  }
};

std::vector<ProductForm> product_forms(const ModelConfig& c, const Numerics& numerics,
                                       const io::Checkpoint* checkpoint) {
  Products products{c, numerics, checkpoint};
  std::vector<WeightRow> rows = weight_table(c, nullptr, nullptr);
  std::erase_if(rows, [&](const WeightRow& row) {
    return !is_matrix(row) || (row.mtp && checkpoint != nullptr && !has_weight(row, *checkpoint));
  });
  for (size_t i = 0; i < rows.size();) {
    size_t end = i + 1;
    if (!is_block(rows[i].op)) {
      products.add_matrix(rows[i]);
    } else {
      while (end < rows.size() && rows[end].op == rows[i].op) ++end;
      products.add_block(std::span(rows).subspan(i, end - i));
    }
    i = end;
  }
  return std::move(products.found);
}

}  // namespace

std::vector<OpForm> op_forms(const ModelConfig& c, const Numerics& numerics, const io::Checkpoint* checkpoint) {
  std::vector<OpForm> forms = {{.op = "norm_rows"}, {.op = "rotate_queries", .n_heads = c.n_heads}};
  for (int layer = 0; layer < c.n_layers + c.n_mtp_layers; ++layer) {
    const LayerCacheFormat format = c.family->layer_cache(c, numerics, layer);
    if (format.index) add_indexer(forms, c, numerics, format);
    if (format.compressed) add(forms, {.op = "pool_windows"});
    if (format.recurrent) {
      add_linear_attention(forms, *format.recurrent);
      continue;
    }
    add_attention(forms, c, format);
  }
  if (c.n_experts > 0) {
    add(forms, {.op = "route_experts",
                .n_experts = c.n_experts,
                .n_active = c.n_active,
                .n_groups = c.n_groups,
                .other_scores = c.expert_score != ops::ExpertScore::kSigmoid});
  }
  if (c.n_streams > 1) {
    for (const char* op : {"stream_weights", "read_streams", "write_streams"}) {
      add(forms, {.op = op, .n_streams = c.n_streams});
    }
  }
  for (const ProductForm& p : product_forms(c, numerics, checkpoint)) {
    OpForm form{.op = p.op, .weights = p.weights, .fp8_input = p.fp8_input, .n = p.n, .k = p.k};
    if (p.op == "expert_ffn") {
      form.n_experts = c.n_experts, form.n_active = c.n_active, form.n_groups = c.n_groups;
      form.weigh_hidden = numerics.weigh_hidden;
    }
    forms.push_back(form);
  }
  return forms;
}

}  // namespace levin
