#include "decode/candidates.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/math.h"

namespace levin {
namespace {

constexpr double kBand = 2;           // of l/T: tokens are ranked band by band
constexpr double kAllBands = 40;      // what lies deeper below the largest is one band
constexpr double kMinExponent = -50;  // smaller terms are beyond the precision of a rough total
constexpr double kFarBelow = -20;     // 400,000 terms of this and less are 1e-3 of the largest

// Of a rough total: its terms are good to 2e-10 (below), sums of a million terms in any order to 2e-10, and the rule's own
// l/T are rounded.
double doubt_of_total(double largest) { return 1e-9 + 1e-15 * (std::abs(largest) + std::abs(kMinExponent)); }

// exp(x) to 2e-10 for kMinExponent <= x <= 0, in a form that compilers turn into vector instructions: 2^n by its bits,
// the rest by its Taylor series to the eighth power.
double rough_exp(double x) {
  constexpr double kShift =
      0x1.8p52;  // whose sum with a small number has that number's nearest integer in its last bits
  const double shifted = x * 0x1.71547652b82fep0 + kShift;
  const double r = x - (shifted - kShift) * 0x1.62e42fefa39efp-1;
  constexpr double kCoefficients[] = {1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0};
  double sum = 0;
  for (const double c : kCoefficients) sum = sum * r + c;
  return sum * std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);
}

// exp(-x) in f32 to 3e-6 for x >= 0, at least exp(kMinExponent). Numbers that are not negative are in the order of their
// bits, and compilers turn the smaller of two integers into vector instructions, but not that of two floats.
float coarse_exp_of_minus(float x) {
  constexpr int32_t kMost = std::bit_cast<int32_t>(static_cast<float>(-kMinExponent));
  const int32_t bits = std::bit_cast<int32_t>(x);
  const float y = -std::bit_cast<float>(bits < kMost ? bits : kMost);
  constexpr float kShift = 0x1.8p23f;
  const float shifted = y * 0x1.715476p0f + kShift;
  const float r = y - (shifted - kShift) * 0x1.62e43p-1f;
  constexpr float kCoefficients[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  float sum = 0;
  for (const float c : kCoefficients) sum = sum * r + c;
  return sum * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127) << 23);
}

// The shortest prefix of the ranked candidates that holds at least p of their mass. Terms that no longer change the sum
// end it: later ones are smaller.
void keep_ranked_top_p(std::vector<Candidate>& ranked, double p) {
  const double largest = ranked.front().logit;
  double total = 0;
  for (const Candidate& c : ranked) {
    const double sum = total + exp_exact(c.logit - largest);
    if (sum == total) break;
    total = sum;
  }
  double held = 0;
  size_t kept = 0;
  while (kept < ranked.size() && held < p * total) held += exp_exact(ranked[kept++].logit - largest);
  ranked.resize(std::max<size_t>(kept, 1));
}

// `best` or the candidate with the noise that its 32 random bits stand for.
void challenge(Candidate& best, const Candidate& c, uint32_t bits) {
  if (c.logit + gumbel_bound(bits) < best.logit) return;
  const Candidate noisy{c.logit + gumbel_of(bits), c.token};
  if (best.token < 0 || ranks_before(noisy, best)) best = noisy;
}

}  // namespace

// Vocabularies are long and this runs for every token of every request, so the largest are sought by halves, which
// compilers turn into vector instructions.
template <class T>
LogitRow<T>::LogitRow(std::span<const T> logits)
    : logits_(logits), largest_((logits.size() + kBlock - 1) / kBlock), top_(-std::numeric_limits<T>::infinity()) {
  for (size_t b = 0; b < largest_.size(); ++b) {
    const std::span<const T> values = block(b);
    std::array<T, kBlock> most;
    std::copy(values.begin(), values.end(), most.begin());
    std::fill(most.begin() + std::ssize(values), most.end(), -std::numeric_limits<T>::infinity());
    int n_nan = 0;
    for (size_t j = 0; j < kBlock; ++j) n_nan += most[j] != most[j] ? 1 : 0;
    for (size_t n = kBlock / 2; n > 0; n /= 2) {
      for (size_t j = 0; j < n; ++j) most[j] = most[j + n] > most[j] ? most[j + n] : most[j];
    }
    n_nan_ += n_nan;
    largest_[b] = most.front();
    top_ = std::max(top_, largest_[b]);
  }
}

template <class T>
std::span<const T> LogitRow<T>::block(size_t b) const {
  const size_t begin = b * kBlock;
  return logits_.subspan(begin, std::min<size_t>(kBlock, logits_.size() - begin));
}

template <class T>
Candidate LogitRow<T>::argmax() const {
  const size_t b = static_cast<size_t>(std::find(largest_.begin(), largest_.end(), top_) - largest_.begin());
  const std::span<const T> values = block(b);
  const auto first = std::find(values.begin(), values.end(), top_) - values.begin();
  return {top_, static_cast<int32_t>(b * kBlock) + static_cast<int32_t>(first)};
}

// Adds the tokens of the band, in order of id. Division keeps the order of logits, so blocks are judged by their largest.
template <class T>
void LogitRow<T>::gather(double temperature, const Band& band, std::vector<Candidate>& out) const {
  for (size_t b = 0; b < largest_.size(); ++b) {
    if (largest_[b] / temperature < band.lowest) continue;
    const std::span<const T> values = block(b);
    for (size_t i = 0; i < values.size(); ++i) {
      const double logit = values[i] / temperature;
      if (logit < band.lowest || (logit >= band.below && band.below < -kNever) || logit == kNever) continue;
      out.push_back({logit, static_cast<int32_t>(b * kBlock + i)});
    }
  }
}

// As many blocks reach the k-th largest of their maxima, so as many tokens do.
template <class T>
std::vector<Candidate> LogitRow<T>::top_k(double temperature, int64_t k) const {
  double lowest = kNever;
  if (k <= std::ssize(largest_)) {
    std::vector<T> maxima = largest_;
    std::nth_element(maxima.begin(), maxima.begin() + (k - 1), maxima.end(), std::greater<>());
    lowest = maxima[static_cast<size_t>(k - 1)] / temperature;
  }
  std::vector<Candidate> out;
  gather(temperature, {.lowest = lowest, .below = -kNever}, out);
  if (std::ssize(out) <= k) return out;
  std::nth_element(out.begin(), out.begin() + (k - 1), out.end(), ranks_before);
  out.resize(static_cast<size_t>(k));
  return out;
}

// Sum of exp((l - max) * scale) over a block, each term good to 2e-10 and at least exp(kMinExponent).
template <class T>
double LogitRow<T>::rough_total_of(size_t b, double scale) const {
  const std::span<const T> values = block(b);
  const double top = top_;
  std::array<double, kBlock> terms{};
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = (values[i] - top) * scale;
    terms[i] = rough_exp(x > kMinExponent ? x : kMinExponent);
  }
  std::array<double, 8> sums{};
  for (size_t i = 0; i < kBlock; i += 8) {
    for (size_t j = 0; j < 8; ++j) sums[j] += terms[i + j];
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Sum of exp(l - max) over a block, good to 1e-5 of it.
template <class T>
float LogitRow<T>::coarse_total_of(size_t b) const {
  const std::span<const T> values = block(b);
  std::array<float, kBlock> terms;
  terms.fill(static_cast<float>(-kMinExponent));
  for (size_t i = 0; i < values.size(); ++i) terms[i] = static_cast<float>(top_ - values[i]);
  for (float& term : terms) term = coarse_exp_of_minus(term);
  for (size_t n = kBlock / 2; n > 0; n /= 2) {
    for (size_t j = 0; j < n; ++j) terms[j] += terms[j + n];
  }
  return terms[0];
}

// Sum of exp(l/T - max), good to doubt_of_total().
template <class T>
double LogitRow<T>::rough_total(double temperature) const {
  double total = 0;
  for (size_t b = 0; b < largest_.size(); ++b) total += rough_total_of(b, 1 / temperature);
  return total;
}

template <class T>
double LogitRow<T>::max_prob(double least) const {
  double total = 0;
  for (size_t b = 0; b < largest_.size() && total * least <= 1; ++b) {
    if (largest_[b] - top_ >= kFarBelow) total += coarse_total_of(b);
  }
  return total * least <= 1 ? 1 / total : 0;
}

template <class T>
std::vector<Candidate> LogitRow<T>::top_p(double temperature, double p) const {
  const double largest = top_ / temperature;
  const double share = p * rough_total(temperature), doubt = share * doubt_of_total(largest);
  std::vector<Candidate> out;
  double held = 0, below = -kNever;
  size_t n_held = 0;
  for (double depth = kBand; below > kNever; depth += kBand) {
    const double lowest = depth < kAllBands ? largest - depth : kNever;
    gather(temperature, {.lowest = lowest, .below = below}, out);
    std::sort(out.begin() + static_cast<int64_t>(n_held), out.end(), ranks_before);
    for (; n_held < out.size() && held < share + doubt; ++n_held) {
      if (held >= share - doubt) {  // too near to say
        out.clear();
        gather(temperature, {.lowest = kNever, .below = -kNever}, out);
        std::sort(out.begin(), out.end(), ranks_before);
        keep_ranked_top_p(out, p);
        return out;
      }
      held += exp_exact(out[n_held].logit - largest);
    }
    if (held >= share + doubt) break;
    below = lowest;
  }
  out.resize(n_held);
  return out;
}

template <class T>
std::vector<Candidate> LogitRow<T>::survivors(double temperature, int64_t k, double p, double min_p) const {
  const double lowest = min_p > 0 ? top_ / temperature + log_exact(min_p) : kNever;
  std::vector<Candidate> out;
  if (k > 0) {
    out = top_k(temperature, k);
    if (p < 1) {
      std::sort(out.begin(), out.end(), ranks_before);
      keep_ranked_top_p(out, p);
    }
  } else if (p < 1) {
    out = top_p(temperature, p);
  } else {
    gather(temperature, {.lowest = lowest, .below = -kNever}, out);
  }
  std::erase_if(out, [lowest](const Candidate& c) { return c.logit < lowest; });
  return out;
}

template <class T>
Candidate LogitRow<T>::gumbel_max(double temperature, const NoisePlace& place) const {
  const Candidate first = argmax();  // whose noise few others beat
  const Candidate scaled{first.logit / temperature, first.token};
  Candidate best = gumbel_max_of({&scaled, 1}, place);
  for (size_t b = 0; b < largest_.size(); ++b) {
    if (largest_[b] / temperature + kMaxGumbelNoise < best.logit) continue;
    const std::span<const T> values = block(b);
    for (size_t i = 0; i < values.size(); i += 4) {
      const int32_t token = static_cast<int32_t>(b * kBlock + i);
      const PhiloxBlock bits = noise_bits(place, static_cast<uint32_t>(token));
      for (size_t lane = 0; lane < 4 && i + lane < values.size(); ++lane) {
        if (values[i + lane] == kNever) continue;
        challenge(best, {values[i + lane] / temperature, token + static_cast<int32_t>(lane)}, bits[lane]);
      }
    }
  }
  return best;
}

template class LogitRow<float>;
template class LogitRow<double>;

Candidate gumbel_max_of(std::span<const Candidate> candidates, const NoisePlace& place) {
  Candidate best{.logit = kNever};
  for (const Candidate& c : candidates) {
    if (c.logit + kMaxGumbelNoise < best.logit) continue;  // no noise could lift it
    const uint32_t token = static_cast<uint32_t>(c.token);
    challenge(best, c, noise_bits(place, token)[token % 4]);
  }
  return best;
}

}  // namespace levin
