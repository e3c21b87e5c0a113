#include "model/op_forms.h"

#include <algorithm>

#include "model/architecture.h"

namespace levin {
namespace {

void add(std::vector<OpForm>& forms, const OpForm& form) {
  const std::string text = form.describe();
  if (std::ranges::none_of(forms, [&](const OpForm& f) { return f.describe() == text; })) forms.push_back(form);
}

void add_rows(std::vector<OpForm>& forms, const LatentFormat& rows) {
  if (rows.row_bytes > 0) add(forms, {.op = "write_latent", .rows = rows});
}

void add_indexer(std::vector<OpForm>& forms, const ModelConfig& c, const Numerics& numerics,
                 const IndexKeyFormat& keys) {
  OpForm heads{.keys = keys, .hadamard = numerics.hadamard(), .fp4 = numerics.fp4_index};
  heads.op = "write_index_keys";
  add(forms, heads);
  heads.op = "index_queries", heads.n_heads = c.n_index_heads;
  add(forms, heads);
  add(forms, {.op = "index_topk", .keys = keys, .n_heads = c.n_index_heads, .n_topk = c.n_topk});
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

}  // namespace

std::vector<OpForm> op_forms(const ModelConfig& c, const Numerics& numerics) {
  std::vector<OpForm> forms = {{.op = "norm_rows"}, {.op = "matmul"}, {.op = "rotate_queries", .n_heads = c.n_heads}};
  for (int layer = 0; layer < c.n_layers + c.n_mtp_layers; ++layer) {
    const LayerCacheFormat format = c.family->layer_cache(c, numerics, layer);
    if (format.index) add_indexer(forms, c, numerics, *format.index);
    if (format.compressed) add(forms, {.op = "pool_windows"});
    if (format.recurrent) {
      add_linear_attention(forms, *format.recurrent);
      continue;
    }
    add_attention(forms, c, format);
  }
  if (c.n_experts == 0 || c.n_dense_layers > 0) add(forms, {.op = "ffn"});
  if (c.n_experts > 0) {
    add(forms, {.op = "route_experts", .n_experts = c.n_experts, .n_active = c.n_active, .n_groups = c.n_groups});
    add(forms, {.op = "expert_ffn", .n_experts = c.n_experts, .n_active = c.n_active, .n_groups = c.n_groups});
  }
  if (c.n_streams > 1) {
    for (const char* op : {"stream_weights", "read_streams", "write_streams"}) {
      add(forms, {.op = op, .n_streams = c.n_streams});
    }
  }
  return forms;
}

}  // namespace levin
