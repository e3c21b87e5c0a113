// Which tokens top-k, top-p and min-p leave of a row of logits, found without ranking the vocabulary; and which of them
// the noise chooses.
//
// Rank    by (l/T descending, id ascending)
// Blocks  one pass notes the largest logit of every kBlock tokens. A search for the tokens above a bound looks only into
//         blocks that reach it
// Top-p   the rule (decode/sampling.h) compares sums in rank order with a share of their total. The total is known from
//         any order to about 1e-9 of it, and that decides all but the rarest rows; then only the tokens that are kept
//         are ranked. Where a sum comes too near to the share, all are. The outcome is the rule's in every case
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "decode/noise.h"

namespace levin {

constexpr double kNever = -std::numeric_limits<double>::infinity();  // the logit of a token that may not be chosen

struct Candidate {
  double logit = 0;  // after penalties; divided by T where sampling is meant
  int32_t token = -1;
};

// (logit descending, id ascending); -0 and +0 compare equal as they are.
inline bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// T: float as a model gives logits, double after penalties. Minus infinity: may not be chosen.
template <class T>
class LogitRow {
 public:
  explicit LogitRow(std::span<const T> logits);

  // Whether the row can be chosen from: no NaN and no +infinity, and something above -infinity. Only then may the rest
  // be called.
  bool has_numbers() const { return n_nan_ == 0 && top_ < std::numeric_limits<T>::infinity(); }
  bool has_candidates() const { return top_ > -std::numeric_limits<T>::infinity(); }

  Candidate argmax() const;  // the first of the largest

  // Ranked by top_p alone.
  std::vector<Candidate> survivors(double temperature, int64_t top_k, double top_p, double min_p) const;
  // What of exp(l) the most likely token has, to 1e-3; 0 if that is less than `least`.
  double max_prob(double least) const;
  // Of all tokens the one whose l/T with its noise is largest.
  Candidate gumbel_max(double temperature, const NoisePlace& place) const;

 private:
  static constexpr int64_t kBlock = 64;

  std::span<const T> block(size_t b) const;
  struct Band {  // lowest <= l/T < below; infinity: no bound
    double lowest;
    double below;
  };
  void gather(double temperature, const Band& band, std::vector<Candidate>& out) const;
  std::vector<Candidate> top_k(double temperature, int64_t k) const;
  std::vector<Candidate> top_p(double temperature, double p) const;
  double rough_total_of(size_t b, double scale) const;
  float coarse_total_of(size_t b) const;
  double rough_total(double temperature) const;

  std::span<const T> logits_;
  std::vector<T> largest_;  // of each block
  T top_ = 0;               // of all
  int64_t n_nan_ = 0;
};

// Of `candidates` the one whose logit with its noise is largest.
Candidate gumbel_max_of(std::span<const Candidate> candidates, const NoisePlace& place);

}  // namespace levin
