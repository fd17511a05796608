/* The functions of numbers that CUDA has without a header: those of the C library, and some of its own. */
#ifndef GE2_SHIM_FUNCTIONS_H
#define GE2_SHIM_FUNCTIONS_H

/* Declared here, for reading the system's headers takes longer than compiling most kernels. */
#define GE2_SHIM_UNARY(NAME)                                                                                \
    extern "C" double NAME(double) noexcept;                                                                \
    extern "C" float NAME##f(float) noexcept;                                                               \
    static inline float NAME(float x) { return NAME##f(x); }
#define GE2_SHIM_BINARY(NAME)                                                                               \
    extern "C" double NAME(double, double) noexcept;                                                        \
    extern "C" float NAME##f(float, float) noexcept;                                                        \
    static inline float NAME(float x, float y) { return NAME##f(x, y); }

GE2_SHIM_UNARY(acos) GE2_SHIM_UNARY(acosh) GE2_SHIM_UNARY(asin) GE2_SHIM_UNARY(asinh) GE2_SHIM_UNARY(atan)
GE2_SHIM_UNARY(atanh) GE2_SHIM_UNARY(cbrt) GE2_SHIM_UNARY(ceil) GE2_SHIM_UNARY(cos) GE2_SHIM_UNARY(cosh)
GE2_SHIM_UNARY(erf) GE2_SHIM_UNARY(erfc) GE2_SHIM_UNARY(exp) GE2_SHIM_UNARY(exp2) GE2_SHIM_UNARY(expm1)
GE2_SHIM_UNARY(fabs) GE2_SHIM_UNARY(floor) GE2_SHIM_UNARY(lgamma) GE2_SHIM_UNARY(log) GE2_SHIM_UNARY(log10)
GE2_SHIM_UNARY(log1p) GE2_SHIM_UNARY(log2) GE2_SHIM_UNARY(logb) GE2_SHIM_UNARY(nearbyint) GE2_SHIM_UNARY(rint)
GE2_SHIM_UNARY(round) GE2_SHIM_UNARY(sin) GE2_SHIM_UNARY(sinh) GE2_SHIM_UNARY(sqrt) GE2_SHIM_UNARY(tan)
GE2_SHIM_UNARY(tanh) GE2_SHIM_UNARY(tgamma) GE2_SHIM_UNARY(trunc)
GE2_SHIM_BINARY(atan2) GE2_SHIM_BINARY(copysign) GE2_SHIM_BINARY(fdim) GE2_SHIM_BINARY(fmax) GE2_SHIM_BINARY(fmin)
GE2_SHIM_BINARY(fmod) GE2_SHIM_BINARY(hypot) GE2_SHIM_BINARY(nextafter) GE2_SHIM_BINARY(pow) GE2_SHIM_BINARY(remainder)

extern "C" {
double fma(double, double, double) noexcept;
float fmaf(float, float, float) noexcept;
double ldexp(double, int) noexcept;
float ldexpf(float, int) noexcept;
double scalbn(double, int) noexcept;
float scalbnf(float, int) noexcept;
double frexp(double, int *) noexcept;
float frexpf(float, int *) noexcept;
double modf(double, double *) noexcept;
float modff(float, float *) noexcept;
int ilogb(double) noexcept;
int ilogbf(float) noexcept;
long lrint(double) noexcept;
long lrintf(float) noexcept;
long long llrint(double) noexcept;
long long llrintf(float) noexcept;
int abs(int) noexcept;
long labs(long) noexcept;
long long llabs(long long) noexcept;
void *memcpy(void *, const void *, size_t) noexcept;
void *memset(void *, int, size_t) noexcept;
int printf(const char *, ...);
}
#undef GE2_SHIM_UNARY
#undef GE2_SHIM_BINARY

/* Not in a namespace: there they would hide those above. */

static inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
static inline float ldexp(float x, int n) { return ldexpf(x, n); }
static inline float scalbn(float x, int n) { return scalbnf(x, n); }
static inline float frexp(float x, int *n) { return frexpf(x, n); }
static inline float modf(float x, float *whole) { return modff(x, whole); }
static inline long abs(long x) { return labs(x); }
static inline long long abs(long long x) { return llabs(x); }
static inline float abs(float x) { return fabsf(x); }
static inline double abs(double x) { return fabs(x); }

/* These are macros in C; the built-in functions take either type. */
#define GE2_SHIM_TEST(NAME)                                                                                 \
    static inline bool NAME(float x) { return __builtin_##NAME(x); }                                               \
    static inline bool NAME(double x) { return __builtin_##NAME(x); }
GE2_SHIM_TEST(isnan) GE2_SHIM_TEST(isinf) GE2_SHIM_TEST(isfinite) GE2_SHIM_TEST(signbit)
#undef GE2_SHIM_TEST

static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float rsqrtf(float x) { return (float)(1.0 / sqrt((double)x)); }
static inline float rsqrt(float x) { return rsqrtf(x); }
static inline double rcbrt(double x) { return 1.0 / cbrt(x); }
static inline float rcbrtf(float x) { return (float)(1.0 / cbrt((double)x)); }
static inline double exp10(double x) { return pow(10.0, x); }
static inline float exp10f(float x) { return (float)pow(10.0, (double)x); }
/* In units of pi, without whole turns, and exact. */
static inline double ge2_shim_turned(double x) { return x - 2.0 * nearbyint(0.5 * x); }
static inline double sinpi(double x) {
    double t = ge2_shim_turned(x);
    t = t > 0.5 ? 1.0 - t : t < -0.5 ? -1.0 - t : t;
    return t == 0.0 ? copysign(0.0, x) : sin(3.141592653589793 * t);
}
static inline double cospi(double x) {
    double t = fabs(ge2_shim_turned(x));
    return t < 0.25 ? cos(3.141592653589793 * t) : sin(3.141592653589793 * (0.5 - t));
}
static inline float sinpif(float x) { return (float)sinpi((double)x); }
static inline float cospif(float x) { return (float)cospi((double)x); }
static inline void sincos(double x, double *s, double *c) { *s = sin(x), *c = cos(x); }
static inline void sincosf(float x, float *s, float *c) { *s = sinf(x), *c = cosf(x); }
static inline void sincospi(double x, double *s, double *c) { *s = sinpi(x), *c = cospi(x); }
static inline void sincospif(float x, float *s, float *c) { *s = sinpif(x), *c = cospif(x); }
static inline double normcdf(double x) { return 0.5 * erfc(-x * 0.7071067811865476); }
static inline float normcdff(float x) { return (float)normcdf((double)x); }

/* The quick ones are as exact here as the others: no kernel may count on their errors. */
static inline float __expf(float x) { return expf(x); }
static inline float __exp10f(float x) { return exp10f(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __log10f(float x) { return log10f(x); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __tanf(float x) { return tanf(x); }
static inline float __powf(float x, float y) { return powf(x, y); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __saturatef(float x) { return x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f; }

/* min and max of the types that C++ makes of both; of floats, a number rather than NaN. */
#define GE2_SHIM_EXTREMES(T)                                                                                \
    static constexpr T min(T a, T b) { return b < a ? b : a; }                                                     \
    static constexpr T max(T a, T b) { return a < b ? b : a; }
#define GE2_SHIM_MIXED(A, B, T)                                                                             \
    static constexpr T min(A a, B b) { return min((T)a, (T)b); }                                                   \
    static constexpr T max(A a, B b) { return max((T)a, (T)b); }                                                   \
    static constexpr T min(B a, A b) { return min((T)a, (T)b); }                                                   \
    static constexpr T max(B a, A b) { return max((T)a, (T)b); }
GE2_SHIM_EXTREMES(int) GE2_SHIM_EXTREMES(unsigned) GE2_SHIM_EXTREMES(long) GE2_SHIM_EXTREMES(unsigned long)
GE2_SHIM_EXTREMES(long long) GE2_SHIM_EXTREMES(unsigned long long)
GE2_SHIM_MIXED(int, unsigned, unsigned) GE2_SHIM_MIXED(long, unsigned long, unsigned long)
GE2_SHIM_MIXED(long long, unsigned long long, unsigned long long)
#undef GE2_SHIM_EXTREMES
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(float a, double b) { return fmin((double)a, b); }
static inline double max(float a, double b) { return fmax((double)a, b); }
static inline double min(double a, float b) { return fmin(a, (double)b); }
static inline double max(double a, float b) { return fmax(a, (double)b); }
#undef GE2_SHIM_MIXED
static inline unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
static inline unsigned umax(unsigned a, unsigned b) { return a > b ? a : b; }
static inline long long llmin(long long a, long long b) { return a < b ? a : b; }
static inline long long llmax(long long a, long long b) { return a > b ? a : b; }

/* A clock that only goes on. */
static long long ge2_shim_clock;
static inline long long clock64() { return ge2_shim_clock += 100; }

#endif
