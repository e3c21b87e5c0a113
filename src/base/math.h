// Elementary functions in double precision, our own so that every build and processor gives the same bits (libm does
// not promise that). Relative error below 2^-50 over the ranges the engine uses; used for tables and sampling noise,
// not in inner loops (those have f32 versions in kernels/cpu).
#pragma once

namespace levin {

double exp_exact(double x);                      // underflows to 0, overflows to infinity
double log_exact(double x);                      // x > 0 and finite
double pow_exact(double base, double exponent);  // base > 0

struct SinCos {
  double sin;
  double cos;
};
SinCos sin_cos_exact(double x);  // |x| < 2^31

}  // namespace levin
