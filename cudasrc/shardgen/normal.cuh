// Quantiles of the normal distribution in +, -, *, / and square roots: the twin,
// bit for bit, of Go's package runtime/random. Algorithm AS 241, PPND16
// (Wichura, 1988).
#pragma once

namespace shardgen {

// horner evaluates a polynomial, highest power first.
__device__ inline double horner(double, double sum) { return sum; }

template <class... Rest>
__device__ inline double horner(double x, double sum, double next, Rest... rest) {
  return horner(x, sum * x + next, rest...);
}

// naturalLog returns the logarithm of a positive normal number: with x = 2^e * m
// and m in [sqrt(1/2), sqrt(2)), it is e*log 2 + 2*atanh((m-1)/(m+1)), the series
// of atanh cut after its 21st power.
__device__ inline double naturalLog(double x) {
  const auto bits = static_cast<unsigned long long>(__double_as_longlong(x));
  long long exponent = static_cast<long long>(bits >> 52) - 1023;
  double m = __longlong_as_double(static_cast<long long>((bits & ((1ull << 52) - 1)) | 1023ull << 52));
  if (m >= 1.41421356237309504880) {
    m = m / 2;
    exponent++;
  }
  const double s = (m - 1) / (m + 1);
  const double square = s * s;
  const double series = horner(square, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3);
  const double e = static_cast<double>(exponent), twice = 2 * s;
  const double small = e * 0x1.a39ef35793c76p-33 + twice * (series * square);  // the lower bits of log 2
  return e * 0x1.62e42fee00000p-1 + (twice + small);                           // its upper bits
}

__device__ inline double centralQuantile(double q) {
  const double r = 0.180625 - q * q;
  return q *
         horner(r, 2.5090809287301226727e+3, 3.3430575583588128105e+4, 6.7265770927008700853e+4, 4.5921953931549871457e+4,
                1.3731693765509461125e+4, 1.9715909503065514427e+3, 1.3314166789178437745e+2, 3.3871328727963666080e+0) /
         horner(r, 5.2264952788528545610e+3, 2.8729085735721942674e+4, 3.9307895800092710610e+4, 2.1213794301586595867e+4,
                5.3941960214247511077e+3, 6.8718700749205790830e+2, 4.2313330701600911252e+1, 1.0);
}

__device__ inline double middleQuantile(double r) {
  return horner(r, 7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e+0,
                3.64784832476320460504e+0, 5.76949722146069140550e+0, 4.63033784615654529590e+0, 1.42343711074968357734e+0) /
         horner(r, 1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
                6.89767334985100004550e-1, 1.67638483018380384940e+0, 2.05319162663775882187e+0, 1.0);
}

__device__ inline double tailQuantile(double r) {
  return horner(r, 2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
                2.96560571828504891230e-1, 1.78482653991729133580e+0, 5.46378491116411436990e+0, 6.65790464350110377720e+0) /
         horner(r, 2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
                1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0);
}

// quantile returns the z below which a standard normal number is with
// probability p, for p in (0, 1).
__device__ inline double quantile(double p) {
  const double q = p - 0.5;
  if (fabs(q) <= 0.425) {
    return centralQuantile(q);
  }
  const double r = sqrt(-naturalLog(p < 1 - p ? p : 1 - p));
  return copysign(r <= 5 ? middleQuantile(r - 1.6) : tailQuantile(r - 5), q);
}

}  // namespace shardgen
