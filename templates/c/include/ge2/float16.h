/* float32 as float16 by an instruction of the processor.
 *
 * gcc 12 makes no vectors of it, but calls variants for vectors, as float_by_angle.h has it. The instruction makes quiet
 * NaN of all; so a vector with a NaN goes by half.h, whose results are the same for all else. The other way integer
 * operations are quicker than a call. */
#ifndef GE2_FLOAT16_H
#define GE2_FLOAT16_H

#include "ge2/cast.h"

#if defined(GE2_ONE_COPY) && defined(__F16C__)
/* its bits are the half's: of a function that yields integers AVX has a variant of its own */
__attribute__((simd("notinbranch"), const)) float ge2_narrow_f16(float x);
GE2_ONE_COPY float ge2_narrow_one_f16(float x) __asm__("ge2_narrow_f16");
GE2_ONE_COPY float ge2_narrow_one_f16(float x) {
    float halves __attribute__((vector_size(16)));
    __asm__("vcvtps2ph $0, %1, %0" : "=v"(halves) : "v"(x));
    return x == x ? halves[0] : ge2_float_of(ge2_cast_f32_f16(x));
}

/* `bytes`: of a register that holds the halves, 16 at least; `unordered`: a mask of the lanes of x that are NaN. */
#define GE2_HALF_LANES(isa, lanes, bytes, unordered)                                                         \
    typedef float ge2_floats_##isa __attribute__((vector_size(4 * lanes)));                                  \
    typedef uint32_t ge2_words_##isa __attribute__((vector_size(4 * lanes)));                                \
    typedef uint16_t ge2_halves_##isa __attribute__((vector_size(2 * lanes)));                               \
    typedef uint16_t ge2_register_##isa __attribute__((vector_size(bytes)));                                 \
    GE2_ONE_COPY ge2_floats_##isa _ZGV##isa##N##lanes##v_ge2_narrow_f16(ge2_floats_##isa x) {                \
        ge2_register_##isa h;                                                                                \
        ge2_halves_##isa halves;                                                                             \
        __asm__("vcvtps2ph $0, %1, %0" : "=v"(h) : "v"(x));                                                  \
        memcpy(&halves, &h, sizeof halves);                                                                  \
        ge2_words_##isa found = __builtin_convertvector(halves, ge2_words_##isa);                            \
        if (unordered)                                                                                       \
            for (int i = 0; i < lanes; i++) found[i] = ge2_cast_f32_f16(x[i]);                               \
        return (ge2_floats_##isa)found;                                                                      \
    }
GE2_HALF_LANES(b, 4, 16, __builtin_ia32_movmskps((ge2_floats_b)(x != x)))
GE2_HALF_LANES(d, 8, 16, __builtin_ia32_movmskps256((ge2_floats_d)(x != x)))
#ifdef __AVX512F__
GE2_HALF_LANES(e, 16, 32, __builtin_ia32_cmpps512_mask(x, x, 3, (uint16_t)-1, 4))
#endif

GE2_FN uint16_t ge2_narrowed_f16(float x) { return (uint16_t)ge2_word_of(ge2_narrow_f16(x)); }
#define ge2_cast_f32_f16 ge2_narrowed_f16
#endif

#endif
