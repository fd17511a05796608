/* Complex exponentials, logarithms, roots, circular and hyperbolic functions: C99's, with its infinities and zeros.
 *
 * complex64 goes through complex128 and is rounded once: within 1 ulp of each part. complex128 is within 6 ulp of
 * each part, but for `expm1`, where parts cancel, `pow` and `exp2`, whose angle is a rounded product: as NumPy's.
 * W. Kahan, "Branch cuts for complex elementary functions" (1987), has the inverse functions and the tangent.
 */
#ifndef GE2_COMPLEX_MATHS_CUH
#define GE2_COMPLEX_MATHS_CUH

#include "ge2/cast.cuh"
#include "ge2/complex.cuh"

#define GE2_LN2 0.693147180559945309417
#define GE2_HALF_PI 1.57079632679489661923
#define GE2_HUGE 0x1p500 /* its square is a number, and 1 cannot be seen beside it */

GE2_FN ge2_c128 ge2_times_i(ge2_c128 z) { return {-z.im, z.re}; }
GE2_FN ge2_c128 ge2_times_minus_i(ge2_c128 z) { return {z.im, -z.re}; }

/* ---- exponentials: exp(x) * factor * unit, where neither is too large by itself */

GE2_FN ge2_c128 ge2_times_exp(double x, double factor, ge2_c128 unit) {
    const double first = x < 700 ? x : 700, more = x < 700 ? 1 : exp(x - 700), size = exp(first) * factor;
    return {unit.re * size * more, unit.im * size * more};
}

GE2_FN ge2_c128 ge2_exp_c128(ge2_c128 z) {
    if (z.im == 0) return {exp(z.re), z.im};
    if (z.re == -GE2_INFINITY_F64 && !ge2_isfinite_f64(z.im)) return {0, copysign(0.0, z.im)};
    if (z.re == GE2_INFINITY_F64 && !ge2_isfinite_f64(z.im)) return {z.re, z.im - z.im};
    return ge2_times_exp(z.re, 1, {cos(z.im), sin(z.im)});
}

GE2_FN ge2_c128 ge2_exp2_c128(ge2_c128 z) { return ge2_exp_c128(ge2_times_c128(z, GE2_LN2)); }

/* as NumPy does it, infinities and all */
GE2_FN ge2_c128 ge2_expm1_c128(ge2_c128 z) {
    const double half = sin(z.im / 2);
    return {expm1(z.re) * cos(z.im) - 2 * half * half, exp(z.re) * sin(z.im)};
}

GE2_FN ge2_c128 ge2_sinh_c128(ge2_c128 z) {
    const double x = z.re, y = z.im;
    if (y == 0) return {sinh(x), y};
    if (!ge2_isfinite_f64(y)) return {ge2_isinf_f64(x) ? fabs(x) : x == 0 ? x : y - y, y - y};
    if (!(fabs(x) > 700)) return {sinh(x) * cos(y), cosh(x) * sin(y)};
    return ge2_times_exp(fabs(x), 0.5, {copysign(1.0, x) * cos(y), sin(y)});
}

GE2_FN ge2_c128 ge2_cosh_c128(ge2_c128 z) {
    const double x = z.re, y = z.im;
    if (y == 0) return {cosh(x), x != x ? y : copysign(1.0, x) * y};
    if (!ge2_isfinite_f64(y)) return {ge2_isinf_f64(x) ? fabs(x) : y - y, x == 0 ? 0 : y - y};
    if (!(fabs(x) > 700)) return {cosh(x) * cos(y), sinh(x) * sin(y)};
    return ge2_times_exp(fabs(x), 0.5, {cos(y), copysign(1.0, x) * sin(y)});
}

GE2_FN ge2_c128 ge2_tanh_c128(ge2_c128 z) {
    const double x = z.re, y = z.im;
    if (y == 0) return {tanh(x), y};
    if (ge2_isinf_f64(x) && !ge2_isfinite_f64(y)) return {copysign(1.0, x), copysign(0.0, y)};
    if (!ge2_isfinite_f64(y)) return {x == 0 ? x : y - y, y - y};
    if (fabs(x) > 22) return {copysign(1.0, x), 4 * (sin(y) * cos(y)) * exp(-2 * fabs(x))};
    const double t = tan(y), beta = fma(t, t, 1.0), s = sinh(x), below = fma(beta * s, s, 1.0);
    return {beta * sqrt(fma(s, s, 1.0)) * s / below, t / below};
}

GE2_FN ge2_c128 ge2_sin_c128(ge2_c128 z) { return ge2_times_i(ge2_sinh_c128(ge2_times_minus_i(z))); }
GE2_FN ge2_c128 ge2_cos_c128(ge2_c128 z) { return ge2_cosh_c128(ge2_times_i(z)); }
GE2_FN ge2_c128 ge2_tan_c128(ge2_c128 z) { return ge2_times_minus_i(ge2_tanh_c128(ge2_times_i(z))); }

/* ---- logarithms */

/* log(1 + a + b + c) / 2 of squares and products known with what rounding took from them: nothing cancels unseen */
GE2_FN double ge2_half_log1p(double a, double b, double c, double rests) {
    const double first = a + b, taken = first - a, lost = (a - (first - taken)) + (b - taken);
    const double sum = first + c, given = sum - first, more = (first - (sum - given)) + (c - given);
    return 0.5 * log1p(sum + (lost + more + rests));
}

GE2_FN double ge2_log_abs(ge2_c128 z) {
    if (ge2_isinf_c128(z)) return GE2_INFINITY_F64;
    const double c = fabs(z.re), d = fabs(z.im), most = c < d ? d : c;
    const double scale = most > GE2_HUGE ? 0x1p-600 : most < 1 / GE2_HUGE ? 0x1p600 : 1;
    const double x = c * scale, y = d * scale, p = x * x, q = y * y;
    if (p + q > 0.5 && p + q < 3) return ge2_half_log1p(p < q ? q : p, -1, p < q ? p : q, fma(x, x, -p) + fma(y, y, -q));
    return 0.5 * log(p + q) + (scale == 1 ? 0 : scale < 1 ? 600 * GE2_LN2 : -600 * GE2_LN2);
}

GE2_FN ge2_c128 ge2_log_c128(ge2_c128 z) { return {ge2_log_abs(z), atan2(z.im, z.re)}; }
GE2_FN ge2_c128 ge2_log2_c128(ge2_c128 z) { return ge2_times_c128(ge2_log_c128(z), 1.442695040888963407360); }
GE2_FN ge2_c128 ge2_log10_c128(ge2_c128 z) { return ge2_times_c128(ge2_log_c128(z), 0.434294481903251827651); }

/* NumPy's adds 1 first, which forgets small numbers; here where that is exact, or they are large */
GE2_FN ge2_c128 ge2_log1p_c128(ge2_c128 z) {
    const double x = z.re, y = z.im, p = x * x, q = y * y;
    if (!(x > -0.5 && x < 2 && fabs(y) < 2)) return ge2_log_c128({x + 1, y});
    return {ge2_half_log1p(2 * x, p < q ? q : p, p < q ? p : q, fma(x, x, -p) + fma(y, y, -q)), atan2(y, x + 1)};
}

/* ---- roots and powers */

GE2_FN ge2_c128 ge2_sqrt_c128(ge2_c128 z) {
    if (ge2_isinf_f64(z.im)) return {GE2_INFINITY_F64, z.im};
    if (ge2_isinf_f64(z.re)) {
        const double none = z.im != z.im ? z.im : 0;
        return z.re > 0 ? ge2_c128{z.re, copysign(none, z.im)} : ge2_c128{none, copysign(z.re, z.im)};
    }
    if (z.re == 0 && z.im == 0) return {0, z.im};
    const double most = fmax(fabs(z.re), fabs(z.im));
    const double scale = most > GE2_HUGE ? 0x1p-600 : most < 1 / GE2_HUGE ? 0x1p600 : 1;
    const double back = most > GE2_HUGE ? 0x1p300 : most < 1 / GE2_HUGE ? 0x1p-300 : 1;
    const double x = z.re * scale, y = z.im * scale, size = sqrt(0.5 * (fabs(x) + hypot(x, y)));
    const double other = 0.5 * fabs(y) / size * back;
    return x < 0 ? ge2_c128{other, copysign(size * back, y)} : ge2_c128{size * back, copysign(other, y)};
}

GE2_FN ge2_c128 ge2_rsqrt_c128(ge2_c128 z) { return ge2_div_c128({1, 0}, ge2_sqrt_c128(z)); }

/* one part of a factor where either is infinite: 1 for an infinity, else 0 */
GE2_FN double ge2_boxed(double part, bool endless) {
    return copysign(endless && ge2_isinf_f64(part) ? 1.0 : endless || part != part ? 0.0 : part, part);
}

/* a product in which infinities outweigh NaN, as annex G of C99 has it */
GE2_FN ge2_c128 ge2_endless_product(ge2_c128 a, ge2_c128 b) {
    const ge2_c128 y = ge2_unfused_c128(a, b);
    const bool left = ge2_isinf_c128(a), right = ge2_isinf_c128(b);
    if (y.re == y.re || y.im == y.im || !(left || right)) return y;
    const ge2_c128 c = {ge2_boxed(a.re, left), ge2_boxed(a.im, left)};
    const ge2_c128 d = {ge2_boxed(b.re, right), ge2_boxed(b.im, right)};
    return ge2_times_c128(ge2_unfused_c128(c, d), GE2_INFINITY_F64);
}

/* the power by logarithm and exponential */
GE2_FN ge2_c128 ge2_power_c128(ge2_c128 a, ge2_c128 b) {
    return ge2_exp_c128(ge2_endless_product(b, ge2_log_c128(a)));
}

/* ---- inverse functions. Where the number is huge, 1 cannot be seen beside it. */

GE2_FN bool ge2_is_huge(ge2_c128 z) { return fabs(z.re) > GE2_HUGE || fabs(z.im) > GE2_HUGE; }

GE2_FN ge2_c128 ge2_asin_c128(ge2_c128 z) {
    if (z.re == 0 && z.im != z.im) return z;
    if (ge2_is_huge(z)) return {atan2(z.re, fabs(z.im)), copysign(ge2_log_abs(z) + GE2_LN2, z.im)};
    const ge2_c128 a = ge2_sqrt_c128({1 - z.re, -z.im}), b = ge2_sqrt_c128({1 + z.re, z.im});
    return {atan2(z.re, a.re * b.re - a.im * b.im), asinh(a.re * b.im - a.im * b.re)};
}

GE2_FN ge2_c128 ge2_acos_c128(ge2_c128 z) {
    if (z.re == 0 && z.im != z.im) return {GE2_HALF_PI, z.im};
    if (ge2_is_huge(z)) return {atan2(fabs(z.im), z.re), -copysign(ge2_log_abs(z) + GE2_LN2, z.im)};
    const ge2_c128 a = ge2_sqrt_c128({1 - z.re, -z.im}), b = ge2_sqrt_c128({1 + z.re, z.im});
    return {2 * atan2(a.re, b.re), asinh(b.re * a.im - b.im * a.re)};
}

GE2_FN ge2_c128 ge2_atanh_c128(ge2_c128 z) {
    const double x = fabs(z.re), y = z.im;
    if (x == 0 && y != y) return z;
    if (ge2_is_huge(z)) {
        const double re = ge2_isinf_c128(z) ? 0 : ge2_reciprocal_c128(z).re;
        return {copysign(re, z.re), copysign(y != y ? y : GE2_HALF_PI, y)};
    }
    const double from_1 = 1 - x, square = from_1 * from_1 + y * y;
    const double re = x == 1 && fabs(y) < 0x1p-500 ? 0.5 * (GE2_LN2 - log(fabs(y))) : 0.25 * log1p(4 * x / square);
    return {copysign(re, z.re), 0.5 * atan2(2 * y, from_1 * (1 + x) - y * y)};
}

GE2_FN ge2_c128 ge2_asinh_c128(ge2_c128 z) { return ge2_times_i(ge2_asin_c128(ge2_times_minus_i(z))); }
GE2_FN ge2_c128 ge2_atan_c128(ge2_c128 z) { return ge2_times_minus_i(ge2_atanh_c128(ge2_times_i(z))); }

GE2_FN ge2_c128 ge2_acosh_c128(ge2_c128 z) {
    const ge2_c128 y = ge2_acos_c128(z);
    return {fabs(y.im), copysign(y.re, z.im)};
}

/* ---- complex64, by way of complex128 */

#define GE2_THROUGH_C128(name) \
    GE2_FN ge2_c64 ge2_##name##_c64(ge2_c64 z) { \
        return ge2_cast_c128_c64(ge2_##name##_c128(ge2_cast_c64_c128(z))); \
    }

GE2_THROUGH_C128(exp)
GE2_THROUGH_C128(exp2)
GE2_THROUGH_C128(expm1)
GE2_THROUGH_C128(log)
GE2_THROUGH_C128(log2)
GE2_THROUGH_C128(log10)
GE2_THROUGH_C128(log1p)
GE2_THROUGH_C128(sqrt)
GE2_THROUGH_C128(rsqrt)
GE2_THROUGH_C128(sin)
GE2_THROUGH_C128(cos)
GE2_THROUGH_C128(tan)
GE2_THROUGH_C128(asin)
GE2_THROUGH_C128(acos)
GE2_THROUGH_C128(atan)
GE2_THROUGH_C128(sinh)
GE2_THROUGH_C128(cosh)
GE2_THROUGH_C128(tanh)
GE2_THROUGH_C128(asinh)
GE2_THROUGH_C128(acosh)
GE2_THROUGH_C128(atanh)

GE2_FN ge2_c64 ge2_power_c64(ge2_c64 a, ge2_c64 b) {
    return ge2_cast_c128_c64(ge2_power_c128(ge2_cast_c64_c128(a), ge2_cast_c64_c128(b)));
}

/* Whole exponents below 100 by products, which from the fourth on begin with one by 1, as NumPy has it. */
#define GE2_COMPLEX_POW(t, T, F, NAN_) \
    GE2_FN T ge2_pow_##t(T a, T b) { \
        const F c = b.re; \
        if (!ge2_truth_##t(b)) return {1, 0}; \
        if (!ge2_truth_##t(a)) return c > 0 ? T{0, 0} : T{NAN_, NAN_}; \
        if (b.im != 0 || !(c > -100 && c < 100) || c != (F)(int)c) return ge2_power_##t(a, b); \
        if (c == 1) return a; \
        if (c == 2) return ge2_unfused_##t(a, a); \
        if (c == 3) return ge2_unfused_##t(a, ge2_unfused_##t(a, a)); \
        T y = {1, 0}; \
        for (int left = c < 0 ? -(int)c : (int)c; left;) { \
            if (left & 1) y = ge2_unfused_##t(y, a); \
            if (left >>= 1) a = ge2_unfused_##t(a, a); \
        } \
        return c < 0 ? ge2_div_##t({1, 0}, y) : y; \
    }

GE2_COMPLEX_POW(c64, ge2_c64, float, GE2_NAN_F32)
GE2_COMPLEX_POW(c128, ge2_c128, double, GE2_NAN_F64)

#endif
