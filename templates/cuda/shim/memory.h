/* Atomics, fences, and loads and stores with a hint. Nothing runs at the same time, so all are plain. */
#ifndef GE2_SHIM_MEMORY_H
#define GE2_SHIM_MEMORY_H

namespace {

template <class T> struct ge2_shim_same { typedef T type; };

template <class T, class F>
GE2_SHIM_UNSEEN T ge2_shim_atomic(T *at, F changed) {
    static_assert(sizeof(T) >= 2 && sizeof(T) <= 16, "atomics are of 2 to 16 bytes");
    ge2_shim->pause(GE2_SHIM_ATOMIC);
    GE2_SHIM_TOUCH(at, GE2_SHIM_WRITE | GE2_SHIM_ATOMIC_ACCESS | GE2_SHIM_ALIGNED);
    T old = *at;
    *at = changed(old);
    return old;
}

#define GE2_SHIM_ATOMIC_OP(NAME, VALUE)                                                                     \
    template <class T> T NAME(T *at, typename ge2_shim_same<T>::type x) {                                   \
        return ge2_shim_atomic(at, [=](T old) -> T { return VALUE; });                                      \
    }                                                                                                       \
    template <class T> T NAME##_block(T *at, typename ge2_shim_same<T>::type x) { return NAME(at, x); }     \
    template <class T> T NAME##_system(T *at, typename ge2_shim_same<T>::type x) { return NAME(at, x); }

GE2_SHIM_ATOMIC_OP(atomicAdd, old + x)
GE2_SHIM_ATOMIC_OP(atomicSub, old - x)
GE2_SHIM_ATOMIC_OP(atomicExch, x)
GE2_SHIM_ATOMIC_OP(atomicMin, x < old ? x : old)
GE2_SHIM_ATOMIC_OP(atomicMax, x > old ? x : old)
GE2_SHIM_ATOMIC_OP(atomicAnd, old & x)
GE2_SHIM_ATOMIC_OP(atomicOr, old | x)
GE2_SHIM_ATOMIC_OP(atomicXor, old ^ x)
GE2_SHIM_ATOMIC_OP(atomicInc, old >= x ? 0 : old + 1)
GE2_SHIM_ATOMIC_OP(atomicDec, old == 0 || old > x ? x : old - 1)
#undef GE2_SHIM_ATOMIC_OP

/* Compares bits, as CUDA does. */
template <class T>
T atomicCAS(T *at, typename ge2_shim_same<T>::type expected, typename ge2_shim_same<T>::type x) {
    return ge2_shim_atomic(at, [=](T old) -> T { return __builtin_memcmp(&old, &expected, sizeof old) ? old : x; });
}

inline void __threadfence() { ge2_shim->fence(); }
inline void __threadfence_block() { ge2_shim->fence(); }
inline void __threadfence_system() { ge2_shim->fence(); }
inline void __nanosleep(unsigned) { ge2_shim->pause(GE2_SHIM_SLEEP); }

template <class T> T __ldg(const T *at) { return *at; }
template <class T> T __ldca(const T *at) { return *at; }
template <class T> T __ldcg(const T *at) { return *at; }
template <class T> T __ldcs(const T *at) { return *at; }
template <class T> T __ldlu(const T *at) { return *at; }
template <class T> GE2_SHIM_UNSEEN T __ldcv(const T *at) {
    ge2_shim->pause(GE2_SHIM_ATOMIC);
    GE2_SHIM_TOUCH(at, GE2_SHIM_READ | GE2_SHIM_VOLATILE | GE2_SHIM_ALIGNED);
    return *at;
}
template <class T> void __stwb(T *at, typename ge2_shim_same<T>::type x) { *at = x; }
template <class T> void __stcg(T *at, typename ge2_shim_same<T>::type x) { *at = x; }
template <class T> void __stcs(T *at, typename ge2_shim_same<T>::type x) { *at = x; }
template <class T> void __stwt(T *at, typename ge2_shim_same<T>::type x) { *at = x; }

}

#endif
