/* A square root that others are divided by. */
#ifndef GE2_ROOT_CUH
#define GE2_ROOT_CUH

#include "ge2/core.cuh"

/* The root of x and one over the root, both rounded as a root and a division round; `ends`: x is infinite. */
struct ge2_root {
    float value, inverse;
    bool ends;
};

#ifndef GE2_SHIM
/* For x from 2^-100 on, and NaN. A root and a division each ask first whether their operands are far from all bounds, and
   wait for a branch; roots of these never are, so that only infinity is apart. The steps are those of the hardware's own
   functions: of all x none has another root or another inverse. */
GE2_FN ge2_root ge2_root_f32(float x) {
    float near;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(x));
    const bool ends = x == GE2_INFINITY_F32;
    const float root = x * near, better = fmaf(fmaf(-root, root, x), near * 0.5f, root);
    const float value = ends ? x : better;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(value));
    const float inverse = fmaf(fmaf(-value, near, 1.0f), near, near);
    return {value, ends ? near : inverse, ends};
}
/* a / root, for a that is far from all bounds, or one over a root: with an inverse that is rounded as a division rounds
   a quotient and what is left of a are enough (Markstein); a quotient that is subnormal is within one unit. */
GE2_FN float ge2_over_root_f32(float a, ge2_root by) {
    const float near = a * by.inverse;
    const float quotient = fmaf(fmaf(-by.value, near, a), by.inverse, near);
    return by.ends ? near : quotient;
}
#else
GE2_FN ge2_root ge2_root_f32(float x) {
    const float value = sqrtf(x);
    return {value, 1.0f / value, value == GE2_INFINITY_F32};
}
GE2_FN float ge2_over_root_f32(float a, ge2_root by) { return a / by.value; }
#endif

#endif
