// What touches the paged caches: new rows, the indexer, attention.
#include <algorithm>

#include "kernels/cuda/plain/attention.h"
#include "kernels/cuda/plain/cache_rows.h"
#include "kernels/cuda/plain/index.h"
#include "ops/cache_rows.h"
#include "ops/cuda/plain_cuda.h"
#include "ops/expand_topk.h"
#include "ops/index_topk.h"
#include "ops/sparse_attention.h"

namespace levin {
namespace {

namespace plain = cuda::plain;

constexpr int64_t kScoreBytes = int64_t{256} << 20;  // of index scores at a time,
constexpr int64_t kScoreRows = 65535;                // and rows, which a grid has in its second dimension

template <class Append>
plain::CacheSlots cache_slots(std::string_view op, const Append& a) {
  return {.seq = dense_data<int32_t>(op, "seq", a.seq),
          .slot = dense_data<int32_t>(op, "slot", a.slot),
          .cache = plain_cache(op, a.cache)};
}

plain::IndexQuery index_query(std::string_view op, const ops::IndexQuery& q) {
  return {.q = device_bytes(op, "q", q.q),
          .q_dtype = q.q.dtype(),
          .q_ld = q.q.stride(0),
          .q_head_ld = q.q.stride(1),
          .w = device_data<float>(op, "w", q.w),
          .w_ld = q.w.stride(0),
          .seq = dense_data<int32_t>(op, "seq", q.seq),
          .visible = dense_data<int32_t>(op, "visible", q.visible),
          .first = q.first,
          .format = q.format,
          .cache = plain_cache(op, q.cache),
          .n_rows = q.q.dim(0),
          .n_heads = q.q.dim(1)};
}

// Rows begin .. begin + n - 1.
plain::IndexQuery rows_of(const plain::IndexQuery& q, int64_t begin, int64_t n) {
  plain::IndexQuery some = q;
  some.q = static_cast<const std::byte*>(q.q) + begin * q.q_ld * dtype_bytes(q.q_dtype);
  some.w += begin * q.w_ld;
  some.seq += begin;
  some.visible += begin;
  some.n_rows = n;
  return some;
}

plain::AttentionRows attention_rows(std::string_view op, const ops::AttentionRows& rows) {
  if (rows.empty()) return {};
  plain::AttentionRows out{.cache = plain_cache(op, rows.cache)};
  if (!rows.topk.empty()) {
    out.topk = dense_data<int32_t>(op, "topk", rows.topk);
    out.n_topk = rows.topk.dim(1);
    return out;
  }
  out.begin = optional_data<int32_t>(op, "begin", rows.begin);
  out.end = dense_data<int32_t>(op, "end", rows.end);
  return out;
}

plain::TakeAll pick_rows(std::string_view op, const ops::TakeAll& a) {
  return {.visible = dense_data<int32_t>(op, "visible", a.visible),
          .first = a.first,
          .topk = dense_data<int32_t>(op, "topk", a.topk),
          .n_topk = a.topk.dim(1),
          .n_rows = a.topk.dim(0)};
}

}  // namespace

void PlainCuda::append_latent(const ops::AppendLatent& a) {
  constexpr std::string_view kOp = "append_latent";
  plain::append_latent({.c_kv = device_data<float>(kOp, "c_kv", a.c_kv),
                        .c_kv_ld = a.c_kv.stride(0),
                        .k_rope = device_data<float>(kOp, "k_rope", a.k_rope),
                        .k_rope_ld = a.k_rope.stride(0),
                        .format = a.format,
                        .to = cache_slots(kOp, a),
                        .n_rows = a.slot.dim(0)},
                       stream_.handle());
}

void PlainCuda::append_index_keys(const ops::AppendIndexKeys& a) {
  constexpr std::string_view kOp = "append_index_keys";
  plain::append_index_keys({.keys = device_data<float>(kOp, "keys", a.keys),
                            .keys_ld = a.keys.stride(0),
                            .format = a.format,
                            .to = cache_slots(kOp, a),
                            .n_rows = a.slot.dim(0)},
                           stream_.handle());
}

void PlainCuda::index_scores(const ops::IndexScores& a) {
  plain::index_scores({.query = index_query("index_scores", a.query),
                       .score = device_data<float>("index_scores", "score", a.score),
                       .score_ld = a.score.stride(0),
                       .n_slots = a.score.dim(1)},
                      stream_.handle());
}

// As many rows at a time as kScoreBytes has room for, up to kScoreRows; at least one.
void PlainCuda::index_topk(const ops::IndexTopk& a) {
  constexpr std::string_view kOp = "index_topk";
  const plain::IndexQuery query = index_query(kOp, a.query);
  const int64_t n_slots = a.query.cache.tables.dim(1) * kPageTokens, n_topk = a.topk.dim(1);
  int32_t* topk = dense_data<int32_t>(kOp, "topk", a.topk);
  auto* faults = optional_data<int32_t>(kOp, "faults", a.faults);
  const int64_t step = std::clamp<int64_t>(kScoreBytes / (n_slots * 4), 1, kScoreRows);
  for (int64_t row = 0; row < query.n_rows; row += step) {
    const int64_t n = std::min(step, query.n_rows - row);
    const ArenaScope scope(arena());
    plain::index_topk({.query = rows_of(query, row, n),
                       .score = reinterpret_cast<float*>(arena().allocate_bytes(n * n_slots * 4)),
                       .n_slots = n_slots,
                       .topk = topk + row * n_topk,
                       .n_topk = n_topk,
                       .fault = faults == nullptr ? nullptr : faults + row},
                      stream_.handle());
  }
}

void PlainCuda::select_topk(const ops::SelectTopk& a) {
  constexpr std::string_view kOp = "select_topk";
  plain::select_topk({.score = device_data<float>(kOp, "score", a.score),
                      .score_ld = a.score.stride(0),
                      .begin = dense_data<int32_t>(kOp, "begin", a.begin),
                      .end = dense_data<int32_t>(kOp, "end", a.end),
                      .topk = dense_data<int32_t>(kOp, "topk", a.topk),
                      .n_topk = a.topk.dim(1),
                      .n_rows = a.topk.dim(0),
                      .fault = optional_data<int32_t>(kOp, "faults", a.faults)},
                     stream_.handle());
}

void PlainCuda::expand_topk(const ops::ExpandTopk& a) {
  constexpr std::string_view kOp = "expand_topk";
  plain::expand_topk({.entries = dense_data<int32_t>(kOp, "entries", a.entries),
                      .n_entries = a.entries.dim(1),
                      .end = dense_data<int32_t>(kOp, "end", a.end),
                      .visible = dense_data<int32_t>(kOp, "visible", a.visible),
                      .ratio = a.ratio,
                      .first_token = a.first_token,
                      .topk = dense_data<int32_t>(kOp, "topk", a.topk),
                      .n_rows = a.topk.dim(0)},
                     stream_.handle());
}

void PlainCuda::take_all(const ops::TakeAll& a) { plain::take_all(pick_rows("take_all", a), stream_.handle()); }

void PlainCuda::take_most_recent(const ops::TakeAll& a) {
  plain::take_most_recent(pick_rows("take_most_recent", a), stream_.handle());
}

void PlainCuda::sparse_attention(const ops::SparseAttention& a) {
  constexpr std::string_view kOp = "sparse_attention";
  plain::sparse_attention({.q_latent = device_bytes(kOp, "q_latent", a.q_latent),
                           .q_rope = device_bytes(kOp, "q_rope", a.q_rope),
                           .q_dtype = a.q_latent.dtype(),
                           .q_latent_ld = a.q_latent.stride(0),
                           .q_latent_head_ld = a.q_latent.stride(1),
                           .q_rope_ld = a.q_rope.stride(0),
                           .q_rope_head_ld = a.q_rope.stride(1),
                           .seq = dense_data<int32_t>(kOp, "seq", a.seq),
                           .scale = a.scale,
                           .format = a.format,
                           .rows = attention_rows(kOp, a.rows),
                           .more = attention_rows(kOp, a.more),
                           .sink = optional_data<float>(kOp, "sink", a.sink),
                           .out = device_data<float>(kOp, "out", a.out),
                           .out_ld = a.out.stride(0),
                           .out_head_ld = a.out.stride(1),
                           .n_rows = a.q_latent.dim(0),
                           .n_heads = a.q_latent.dim(1)},
                          stream_.handle());
}

}  // namespace levin
