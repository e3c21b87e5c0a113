#include "base/math.h"

#include "base/math_formulas.h"

// std::fma and std::nearbyint are calls into libm where the compiler may not count on the instructions, and give the same
// bits.
#define LEVIN_WITH_FMA [[gnu::target("fma,sse4.1")]]

namespace levin {
namespace {

const bool kHasFma = [] {
  __builtin_cpu_init();
  return __builtin_cpu_supports("fma") && __builtin_cpu_supports("sse4.1");
}();

LEVIN_WITH_FMA double exp_with_fma(double x) { return exp_of(x); }
LEVIN_WITH_FMA double log_with_fma(double x) { return log_of(x); }
LEVIN_WITH_FMA SinCos sin_cos_with_fma(double x) { return sin_cos_of(x); }

}  // namespace

double exp_exact(double x) { return kHasFma ? exp_with_fma(x) : exp_of(x); }
double log_exact(double x) { return kHasFma ? log_with_fma(x) : log_of(x); }
double pow_exact(double base, double exponent) { return exp_exact(exponent * log_exact(base)); }
SinCos sin_cos_exact(double x) { return kHasFma ? sin_cos_with_fma(x) : sin_cos_of(x); }

}  // namespace levin
