// The chains of a backend that has no kernels for them.
#include "ops/backend.h"

#include <string_view>

#include "base/check.h"
#include "ops/cache_rows.h"
#include "ops/copies.h"
#include "ops/norm.h"
#include "ops/quantize.h"
#include "ops/rope.h"
#include "ops/row_chains.h"

namespace levin {
namespace {

void has_no_kernel(std::string_view op) { LEVIN_CHECK(false, "{}: this backend has no kernel for it", op); }

void check_f32(std::string_view op, const View& x) {
  LEVIN_CHECK(x.dtype() == DType::kF32, "{}: x is {}; this backend has the chain for f32 alone", op, x.describe());
}

void rotate(Backend& b, const View& heads, const ops::Rotation& r) {  // [T, H, Dr] in place
  if (r.cos.empty()) return;
  b.rope({.x = heads, .cos = r.cos, .sin = r.sin, .pairing = r.pairing});
}

// Heads of an indexer's query or key, [T, H, Di] in place.
template <class Chain>
void rotate_index_heads(Backend& b, const View& heads, const Chain& a) {
  if (!a.rotation.cos.empty()) {
    rotate(b, heads.slice_last(a.rope_column, 2 * a.rotation.cos.dim(1)), a.rotation);
  }
  if (a.hadamard) b.hadamard({.x = heads});
  if (a.fp4) b.round_to_fp4({.x = heads.merged_first()});
}

}  // namespace

void Backend::gate_streams(const ops::GateStreams&) { has_no_kernel("gate_streams"); }
void Backend::keep_blocks(const ops::KeepBlocks&) { has_no_kernel("keep_blocks"); }
void Backend::ngram_rows(const ops::NgramRows&) { has_no_kernel("ngram_rows"); }
void Backend::read_table_soon(const ops::ReadTableSoon&) { has_no_kernel("read_table_soon"); }
void Backend::round_to_fp8(const ops::RoundToFp8&) { has_no_kernel("round_to_fp8"); }
void Backend::round_to_nvfp4(const ops::RoundToNvfp4&) { has_no_kernel("round_to_nvfp4"); }
void Backend::select_blocks(const ops::SelectBlocks&) { has_no_kernel("select_blocks"); }
void Backend::table_rows(const ops::TableRows&) { has_no_kernel("table_rows"); }

void Backend::norm_rows(const ops::NormRows& a) {
  check_f32("norm_rows", a.x);
  const ArenaScope scratch(arena());
  if (!a.residual.empty()) add_into({.x = a.residual, .y = a.x});
  const View x = a.residual.empty() ? a.x : a.residual;
  const bool is_out = !a.normed.empty() && a.normed.dtype() == DType::kF32;
  const View normed = is_out ? a.normed : arena().allocate(DType::kF32, {x.dim(0), x.dim(1)});
  rms_norm({.x = x, .weight = a.weight, .eps = a.eps, .out = normed});
  if (!a.normed.empty() && !is_out) round_to_bf16({.x = normed, .out = a.normed});
  if (!a.codes.empty())
    quantize_fp8({.x = normed, .out = a.codes, .scale = a.scale, .scale_by_block = a.scale_by_block});
}

void Backend::rotate_queries(const ops::RotateQueries& a) {
  LEVIN_CHECK(a.out.dtype() == DType::kF32, "rotate_queries: out is {}; this backend has the chain for f32 alone",
              a.out.describe());
  rotate(*this, a.out, a.rotation);
}

void Backend::write_latent(const ops::WriteLatent& a) {
  check_f32("write_latent", a.x);
  const int64_t n_rows = a.x.dim(0), d_latent = a.format.d_latent, d_rope = a.format.d_rope;
  const ArenaScope scratch(arena());
  const View row = arena().allocate(DType::kF32, {n_rows, d_latent + d_rope});
  const View latent = row.slice_last(0, d_latent), rope = row.slice_last(d_latent, d_rope);
  const int64_t n_normed = a.weight.empty() ? 0 : a.weight.dim(0);
  if (n_normed > 0) {
    const View out = row.slice_last(0, n_normed);
    rms_norm({.x = a.x.slice_last(0, n_normed), .weight = a.weight, .eps = a.eps, .out = out});
  }
  if (const int64_t n = row.dim(1) - n_normed; n > 0) {
    copy_rows({.x = a.x.slice_last(n_normed, n), .out = row.slice_last(n_normed, n)});
  }
  if (d_rope > 0) rotate(*this, rope.split_last(1, d_rope), a.rotation);
  append_latent({.c_kv = latent, .k_rope = rope, .seq = a.seq, .slot = a.slot, .format = a.format, .cache = a.cache});
}

void Backend::index_queries(const ops::IndexQueries& a) {
  check_f32("index_queries", a.x);
  const int64_t n_rows = a.x.dim(0), n_heads = a.x.dim(1), d = a.x.dim(2);
  const ArenaScope scratch(arena());
  const bool is_out = a.q.dtype() == DType::kF32;
  const View q = is_out ? a.q : arena().allocate(DType::kF32, {n_rows, n_heads, d});
  // Slices of wider rows, whose heads do not all lie at one stride, one by one.
  const int64_t step = a.x.stride(0) == n_heads * a.x.stride(1) ? n_rows : 1;
  for (int64_t t = 0; t < n_rows && q.bytes() != a.x.bytes(); t += step) {
    copy_rows({.x = a.x.slice_first(t, step).merged_first(), .out = q.slice_first(t, step).merged_first()});
  }
  rotate_index_heads(*this, q, a);
  View scale;  // [T, Hi]
  if (a.q.dtype() == DType::kBF16) round_to_bf16({.x = q.merged_first(), .out = a.q.merged_first()});
  if (a.q.dtype() == DType::kF8E4M3) {
    LEVIN_CHECK(d <= kQuantBlock, "index_queries: heads of {} with one scale, at most {} columns share one", d,
                kQuantBlock);
    scale = arena().allocate(DType::kF32, {n_rows, n_heads});
    quantize_fp8({.x = q.merged_first(), .out = a.q.merged_first(), .scale = scale.reshaped({n_rows * n_heads, 1})});
  }
  scale_rows({.x = a.w, .factor = a.factor, .scale = scale, .out = a.weights});
}

void Backend::write_index_keys(const ops::WriteIndexKeys& a) {
  check_f32("write_index_keys", a.x);
  const int64_t n_rows = a.x.dim(0), d = a.format.d_index;
  const ArenaScope scratch(arena());
  const View keys = arena().allocate(DType::kF32, {n_rows, d});
  if (a.weight.empty()) {
    copy_rows({.x = a.x, .out = keys});
  } else if (a.bias.empty()) {
    rms_norm({.x = a.x, .weight = a.weight, .eps = a.eps, .out = keys});
  } else {
    layer_norm({.x = a.x, .weight = a.weight, .bias = a.bias, .eps = a.eps, .out = keys});
  }
  rotate_index_heads(*this, keys.split_last(1, d), a);
  append_index_keys({.keys = keys, .seq = a.seq, .slot = a.slot, .format = a.format, .cache = a.cache});
}

}  // namespace levin
