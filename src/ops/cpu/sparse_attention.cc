#include "ops/sparse_attention.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "ops/cpu/products.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"

namespace levin {
namespace {

constexpr double kLog2OfE = 1.4426950408889634;

// A step of fewer query rows than this per thread is cut inside rows, between heads: a tile of indices is then gathered
// once per thread, but all threads have work. In runs of as many heads as the kernels take at a time.
constexpr int64_t kRowsPerThread = 4;
// Rows of one sequence that have not chosen yet, because all of their context still fits, see the same slots but for the
// newest. Such rows are gathered for together, with up to this many heads in all; what a tile is multiplied with then
// stays in the cache next to it.
constexpr int64_t kMaxLines = 128;
constexpr int64_t kMaxTokens = 32;

// Counts the top-k indices of row t, which must ascend.
int64_t count_topk(const ops::AttentionRows& rows, int64_t t) {
  const int32_t* topk = rows.topk.row<int32_t>(t);
  int64_t n = 0, previous = -1;
  bool ascending = true;
  for (; n < rows.topk.dim(1) && topk[n] >= 0; ++n) {
    ascending = ascending && topk[n] > previous;
    previous = topk[n];
  }
  LEVIN_CHECK(ascending, "sparse_attention: top-k indices of row {} do not ascend", t);
  return n;
}

// The candidates of row t, which must be slots of the sequence; padding has none.
kernels::CandidateRows candidates(const ops::AttentionRows& rows, int64_t t, int64_t seq) {
  if (rows.empty() || seq == -1) return {};
  LEVIN_CHECK(seq >= 0 && seq < rows.cache.tables.dim(0), "sparse_attention: row {} is of seq {}, cache.tables is {}",
              t, seq, rows.cache.tables.describe());
  kernels::CandidateRows out{
      .pages = rows.cache.pages, .page_bytes = rows.cache.page_bytes, .table = rows.cache.tables.row<int32_t>(seq)};
  int64_t last = -1;
  if (!rows.topk.empty()) {
    out.topk = rows.topk.row<int32_t>(t);
    out.n = count_topk(rows, t);
    if (out.n > 0) last = out.topk[out.n - 1];
  } else {
    out.first = rows.begin.empty() ? 0 : rows.begin.data<int32_t>()[t];
    out.n = std::max<int64_t>(0, rows.end.data<int32_t>()[t] - out.first);
    last = out.first + out.n - 1;
    LEVIN_CHECK(out.first >= 0, "sparse_attention: row {} begins at slot {}", t, out.first);
  }
  LEVIN_CHECK(last < rows.cache.tables.dim(1) * kPageTokens,
              "sparse_attention: row {} selects slot {} of seq {}, cache.tables is {}", t, last, seq,
              rows.cache.tables.describe());
  return out;
}

// Whether `some` are the first of `all`.
bool begin_as(const kernels::CandidateRows& all, const kernels::CandidateRows& some) {
  if (all.table != some.table || all.n < some.n) return false;
  return all.topk == nullptr ? all.first == some.first : std::equal(some.topk, some.topk + some.n, all.topk);
}

// What the kernels gather for together: row t, and of the rows after it, up to `end`, those that see what it sees, and
// maybe more.
struct SharedCandidates {
  kernels::CandidateRows rows, more;  // of the last of them
  int64_t n_tokens = 1;
  std::array<int64_t, kMaxTokens> n_seen{};

  SharedCandidates(const ops::SparseAttention& a, int64_t t, int64_t end) {
    const auto of = [&](const ops::AttentionRows& source, int64_t row) {
      return candidates(source, row, a.seq.data<int32_t>()[row]);
    };
    rows = of(a.rows, t), more = of(a.more, t);
    n_seen[0] = rows.n + more.n;
    const int64_t n_fit = std::min(end - t, max_tokens(a.q_latent.dim(1)));
    for (; more.n == 0 && n_tokens < n_fit; ++n_tokens) {
      const kernels::CandidateRows next = of(a.rows, t + n_tokens);
      if (!begin_as(next, rows) || of(a.more, t + n_tokens).n > 0) return;
      rows = next;
      n_seen[static_cast<size_t>(n_tokens)] = next.n;
    }
  }

  static int64_t max_tokens(int64_t n_heads) { return std::clamp<int64_t>(kMaxLines / n_heads, 1, kMaxTokens); }
};

OpWork attention_work(const CpuBackend& cpu, const ops::SparseAttention& a) {
  double n_seen = 0;  // by all rows
  for (int64_t t = 0; t < a.q_latent.dim(0); ++t) {
    const int32_t seq = a.seq.data<int32_t>()[t];
    n_seen += static_cast<double>(candidates(a.rows, t, seq).n + candidates(a.more, t, seq).n);
  }
  const LatentFormat& f = a.format;
  const double flop = 2 * n_seen * static_cast<double>(a.q_latent.dim(1) * (f.d_latent + f.d_rope + f.d_value()));
  OpWork work{.bytes = n_seen * static_cast<double>(f.row_bytes)};
  (f.dtype == CacheDType::kBF16 && multiplies_bf16(cpu) ? work.bf16_flop : work.f32_flop) = flop;
  return work;
}

}  // namespace

void CpuBackend::sparse_attention(const ops::SparseAttention& a) {
  LEVIN_CHECK(a.out.dtype() == DType::kF32, "sparse_attention: out is {}, on the CPU f32", a.out.describe());
  const int64_t n_rows = a.q_latent.dim(0), n_heads = a.q_latent.dim(1), n_threads = pool_.n_threads();
  const kernels::AttentionKernels& kernels = kernels_.attention;
  const int64_t n_lines = std::min(n_rows, SharedCandidates::max_tokens(n_heads)) * n_heads;
  const int64_t scratch_bytes = (kernels.scratch_bytes(a.format, n_lines) + kAlignment - 1) / kAlignment * kAlignment;
  const ArenaScope scope(arena_);
  std::byte* scratch = arena_.allocate_bytes(scratch_bytes * n_threads);

  const auto attend = [&](const SharedCandidates& shared, int64_t t, int64_t head, int64_t head_end, int thread) {
    const bool f32 = a.q_latent.dtype() == DType::kF32;
    const auto head_of = [&](const View& q) {
      return f32 ? static_cast<const void*>(q.row<float>(t, head)) : static_cast<const void*>(q.row<uint16_t>(t, head));
    };
    kernels.attend({.q_latent = head_of(a.q_latent),
                    .q_rope = head_of(a.q_rope),
                    .q_dtype = a.q_latent.dtype(),
                    .q_latent_strides = {a.q_latent.stride(0), a.q_latent.stride(1)},
                    .q_rope_strides = {a.q_rope.stride(0), a.q_rope.stride(1)},
                    .n_tokens = shared.n_tokens,
                    .n_heads = head_end - head,
                    .rows = shared.rows,
                    .more = shared.more,
                    .n_seen = shared.n_seen.data(),
                    .scale_log2 = static_cast<float>(static_cast<double>(a.scale) * kLog2OfE),
                    .sink = a.sink.empty() ? nullptr : a.sink.data<float>() + head,
                    .format = a.format,
                    .out = a.out.row<float>(t, head),
                    .out_strides = {a.out.stride(0), a.out.stride(1)},
                    .scratch = scratch + scratch_bytes * thread});
  };
  // All heads of all rows in a line, cut at heads or at rows; only whole rows share.
  const int64_t grain = n_rows >= kRowsPerThread * n_threads ? n_heads : std::min(n_heads, kernels.n_lines);
  pool_.parallel_for(n_rows * n_heads, grain, [&](int64_t begin, int64_t end, int thread) {
    while (begin < end) {
      const int64_t t = begin / n_heads, head = begin % n_heads, head_end = std::min(end - t * n_heads, n_heads);
      const bool whole = head == 0 && head_end == n_heads;
      const SharedCandidates shared(a, t, whole ? end / n_heads : t + 1);
      attend(shared, t, head, head_end, thread);
      begin = t * n_heads + (whole ? shared.n_tokens * n_heads : head_end);
    }
  });
}

OpWork CpuBackend::work(const ops::SparseAttention& a) const { return attention_work(*this, a); }

}  // namespace levin
