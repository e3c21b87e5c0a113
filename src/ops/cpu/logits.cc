#include "ops/logits.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "base/check.h"
#include "base/math.h"
#include "base/philox.h"
#include "kernels/cpu/kernels.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"

namespace levin {
namespace {

// Columns of a row that one thread looks at. Fixed, and merged in ascending order, so that threads cannot matter.
constexpr int64_t kPiece = 8192;

// As the kernels, for values of which some are NaN; has_nan: all are.
kernels::ArgmaxResult argmax_of_numbers(const float* x, int64_t n) {
  kernels::ArgmaxResult best{.value = 0, .index = 0, .has_nan = true};
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] == x[i] && (best.has_nan || x[i] > best.value)) best = {.value = x[i], .index = i};
  }
  return best;
}

double noise_of(const ChoiceRule& rule, int64_t token) {
  const PhiloxBlock bits = philox4x32_10({static_cast<uint32_t>(token / 4), rule.position, rule.choice, 0},
                                         {static_cast<uint32_t>(rule.seed), static_cast<uint32_t>(rule.seed >> 32)});
  const double u = (static_cast<double>(bits[static_cast<size_t>(token % 4)]) + 0.5) * 0x1p-32;
  return -log_exact(-log_exact(u));
}

ChosenToken choose_token(std::span<const float> x, const ChoiceRule& rule) {
  const auto is_wrong = [](float l) { return !(l < std::numeric_limits<float>::infinity()); };
  if (std::any_of(x.begin(), x.end(), is_wrong)) return {};
  const double largest = *std::max_element(x.begin(), x.end());
  if (largest == -std::numeric_limits<double>::infinity()) return {};
  const bool greedy = rule.temperature < kGreedyTemperature;
  ChosenToken out{.token = -1, .sound = 1};
  double best = 0, sum = 0;
  for (int64_t v = 0; v < std::ssize(x); ++v) {
    const double l = x[static_cast<size_t>(v)];
    sum += std::exp(l - largest);
    const double value = greedy ? l : l / rule.temperature + noise_of(rule, v);
    if (out.token >= 0 && value <= best) continue;
    best = value;
    out.token = static_cast<int32_t>(v);
  }
  out.probability = std::min(static_cast<float>(1 / sum), kMostProbability);
  return out;
}

}  // namespace

void CpuBackend::embed(const ops::Embed& a) {
  const int64_t n_rows = a.ids.dim(0), n_vocab = a.table.dim(0), d = a.table.dim(1);
  pool_.parallel_for(n_rows, row_grain(n_rows, d), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t id = a.ids.data<int32_t>()[t];
      LEVIN_CHECK(id >= 0 && id < n_vocab, "embed: ids[{}] is {}, the table has {} rows", t, id, n_vocab);
      if (a.table.dtype() == DType::kF32) {
        std::memcpy(a.out.row<float>(t), a.table.row<float>(id), static_cast<size_t>(d) * sizeof(float));
      } else {
        kernels_.rows.widen_bf16(a.table.row<uint16_t>(id), a.out.row<float>(t), d);
      }
    }
  });
}

void CpuBackend::argmax(const ops::Argmax& a) {
  const int64_t n_rows = a.x.dim(0), n = a.x.dim(1), n_pieces = (n + kPiece - 1) / kPiece;
  const ArenaScope scope(arena_);
  auto* best = reinterpret_cast<kernels::ArgmaxResult*>(
      arena_.allocate_bytes(n_rows * n_pieces * static_cast<int64_t>(sizeof(kernels::ArgmaxResult))));
  pool_.parallel_for(n_rows * n_pieces, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / n_pieces, column = i % n_pieces * kPiece;
      best[i] = kernels_.rows.argmax(a.x.row<float>(t) + column, std::min(kPiece, n - column));
      if (best[i].has_nan) best[i] = argmax_of_numbers(a.x.row<float>(t) + column, std::min(kPiece, n - column));
      best[i].index += column;
    }
  });
  for (int64_t t = 0; t < n_rows; ++t) {
    kernels::ArgmaxResult row = best[t * n_pieces];
    for (int64_t piece = 0; piece < n_pieces; ++piece) {
      const kernels::ArgmaxResult& other = best[t * n_pieces + piece];
      if (!other.has_nan && (row.has_nan || other.value > row.value)) row = other;
    }
    a.out.data<int32_t>()[t] = row.has_nan ? 0 : static_cast<int32_t>(row.index);
  }
}

void CpuBackend::choose_tokens(const ops::ChooseTokens& a) {
  pool_.parallel_for(a.x.dim(0), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      ChoiceRule rule;
      std::memcpy(static_cast<void*>(&rule), a.rules.row<int32_t>(t), sizeof(rule));
      const ChosenToken chosen = choose_token({a.x.row<float>(t), static_cast<size_t>(a.x.dim(1))}, rule);
      std::memcpy(a.out.row<int32_t>(t), &chosen, sizeof(chosen));
    }
  });
}

void CpuBackend::mark_unusable(const ops::MarkUnusable& a) {
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  pool_.parallel_for(n_rows, row_grain(n_rows, d), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* row = a.x.row<float>(t);
      float sum = 0;  // of zeros, or NaN
      for (int64_t i = 0; i < d; ++i) sum += row[i] - row[i];
      if (sum != 0) mark_fault(a.faults, t);
    }
  });
}

}  // namespace levin
