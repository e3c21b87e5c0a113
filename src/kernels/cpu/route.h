// The choice of experts from their scores; the scores themselves come from each kernel set. Contract in ops/moe.h.
#pragma once

#include "base/host_device.h"
#include "kernels/cpu/rows.h"

namespace levin::kernels {
namespace {

// The sum of a group's two largest values.
LEVIN_HOST_DEVICE inline float best_two(const float* x, int64_t n) {
  float first = x[0] > x[1] ? x[0] : x[1], second = x[0] > x[1] ? x[1] : x[0];
  for (int64_t i = 2; i < n; ++i) {
    if (x[i] > first) {
      second = first;
      first = x[i];
    } else if (x[i] > second) {
      second = x[i];
    }
  }
  return first + second;
}

// Sets to -infinity what lies outside the best groups. A group stays if fewer than n_groups_kept are better.
LEVIN_HOST_DEVICE inline void mask_groups(const RouteRows& a, float* biased, float* group_score) {
  const int64_t size = a.n_experts / a.n_groups;
  for (int64_t g = 0; g < a.n_groups; ++g) group_score[g] = best_two(biased + g * size, size);
  for (int64_t g = 0; g < a.n_groups; ++g) {
    int64_t n_better = 0;
    for (int64_t other = 0; other < a.n_groups; ++other) {
      n_better += group_score[other] > group_score[g] || (group_score[other] == group_score[g] && other < g);
    }
    if (n_better < a.n_groups_kept) continue;
    for (int64_t e = g * size; e < (g + 1) * size; ++e) biased[e] = -__builtin_inff();
  }
}

// The experts with the largest values, ties to the lower id, in ascending id.
LEVIN_HOST_DEVICE inline void pick_experts(const float* biased, int64_t n_experts, int64_t n_active, int32_t* topk) {
  int64_t n = 0;  // top-k indices so far, best first; an equal one does not displace an earlier one
  for (int64_t e = 0; e < n_experts; ++e) {
    if (n == n_active && !(biased[e] > biased[topk[n - 1]])) continue;
    int64_t at = n < n_active ? n++ : n - 1;
    for (; at > 0 && biased[e] > biased[topk[at - 1]]; --at) topk[at] = topk[at - 1];
    topk[at] = static_cast<int32_t>(e);
  }
  for (int64_t i = 1; i < n_active; ++i) {
    const int32_t pick = topk[i];
    int64_t at = i;
    for (; at > 0 && topk[at - 1] > pick; --at) topk[at] = topk[at - 1];
    topk[at] = pick;
  }
}

LEVIN_HOST_DEVICE inline void weigh_experts(const RouteRows& a, const float* score, const int32_t* topk,
                                            float* weights) {
  float sum = 0;
  for (int64_t i = 0; i < a.n_active; ++i) sum += score[topk[i]];
  const float divisor = a.normalize ? sum + 1e-20f : 1.0f;
  for (int64_t i = 0; i < a.n_active; ++i) weights[i] = score[topk[i]] / divisor * a.factor;
}

// score_row(logits, score) fills the scores of one row.
template <class ScoreRow>
inline int64_t route_rows(const RouteRows& a, const ScoreRow& score_row) {
  float* score = a.scratch;
  float* biased = a.scratch + a.n_experts;
  for (int64_t t = 0; t < a.n_rows; ++t) {
    score_row(a.logits + t * a.logits_stride, score);
    bool has_nan = false;
    for (int64_t e = 0; e < a.n_experts; ++e) {
      biased[e] = a.bias != nullptr ? score[e] + a.bias[e] : score[e];
      has_nan |= biased[e] != biased[e];
    }
    if (has_nan) return t;
    int32_t* topk = a.topk + t * a.topk_stride;
    if (a.chosen != nullptr) {
      for (int64_t i = 0; i < a.n_active; ++i) topk[i] = a.chosen[t * a.chosen_stride + i];
    } else {
      if (a.n_groups > 1) mask_groups(a, biased, a.scratch + 2 * a.n_experts);
      pick_experts(biased, a.n_experts, a.n_active, topk);
    }
    weigh_experts(a, score, topk, a.weights + t * a.weights_stride);
  }
  return kNoRow;
}

}  // namespace
}  // namespace levin::kernels
