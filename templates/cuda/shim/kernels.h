/* How a compiled source tells the runtime what is in it. */
#ifndef GE2_SHIM_KERNELS_H
#define GE2_SHIM_KERNELS_H

extern "C" __attribute__((weak, visibility("hidden"))) char ge2_shim_shared[], ge2_shim_shared_end[];
extern "C" __attribute__((weak, visibility("hidden"))) const char __ehdr_start[], _end[];

namespace {

/* The most that a block may ask for at its launch. */
alignas(1024) char ge2_shim_dynamic[228 << 10];

template <class T> struct ge2_shim_value { typedef T type; };
template <class T> struct ge2_shim_value<T &> { typedef T type; };
template <class T> struct ge2_shim_value<const T> { typedef T type; };

template <class T>
constexpr int ge2_shim_number() {
    if (T(0.5) != T(0)) return T(2) == T(1) ? 'b' : 'f';
    return T(-1) < T(0) ? 'i' : 'u';
}

template <class T, bool is_struct>
struct ge2_shim_kind {
    static constexpr int value = 's';
};
template <class T>
struct ge2_shim_kind<T, false> {
    static constexpr int value = ge2_shim_number<T>();
};

template <class T>
constexpr ge2_shim_parameter ge2_shim_described = {ge2_shim_kind<T, __is_class(T) || __is_union(T)>::value, sizeof(T)};
template <class T>
constexpr ge2_shim_parameter ge2_shim_described<T *> = {'p', sizeof(T *)};

template <int... I> struct ge2_shim_list {};
template <class A, class B> struct ge2_shim_joined;
template <int... I, int... J> struct ge2_shim_joined<ge2_shim_list<I...>, ge2_shim_list<J...>> {
    typedef ge2_shim_list<I..., (int)sizeof...(I) + J...> type;
};
/* 0 to N - 1, by halves: a bundle may have thousands of parameters, and templates are nested some hundreds deep at most. */
template <int N> struct ge2_shim_count
    : ge2_shim_joined<typename ge2_shim_count<N / 2>::type, typename ge2_shim_count<N - N / 2>::type> {};
template <> struct ge2_shim_count<0> { typedef ge2_shim_list<> type; };
template <> struct ge2_shim_count<1> { typedef ge2_shim_list<0> type; };

template <class... P, int... I>
GE2_SHIM_UNSEEN void ge2_shim_call(void (*kernel)(P...), void *const *arguments, ge2_shim_list<I...>) {
    kernel(*static_cast<typename ge2_shim_value<P>::type *>(arguments[I])...);
}

template <class... P>
inline void ge2_shim_apply(void (*kernel)(P...), void *const *arguments) {
    ge2_shim_call(kernel, arguments, typename ge2_shim_count<sizeof...(P)>::type());
}

template <class... P>
struct ge2_shim_parameters {
    static constexpr ge2_shim_parameter list[sizeof...(P) + 1] = {
        ge2_shim_described<typename ge2_shim_value<P>::type>..., {}};
};

template <class... P>
constexpr ge2_shim_kernel ge2_shim_of(const char *name, void (*)(P...), void (*call)(void *const *)) {
    return {name, call, ge2_shim_parameters<P...>::list, sizeof...(P)};
}

}

#ifdef __SANITIZE_ADDRESS__
#define GE2_SHIM_FENCED 1
#else
#define GE2_SHIM_FENCED 0
#endif

#define GE2_SHIM_EXPORT extern "C" __attribute__((visibility("default")))
#define GE2_SHIM_MODULE                                                                                     \
    GE2_SHIM_EXPORT const ge2_shim_module ge2_shim_module_of = {                                            \
        &ge2_shim, ge2_shim_shared, ge2_shim_shared_end, ge2_shim_dynamic, sizeof ge2_shim_dynamic,         \
        __ehdr_start, _end, GE2_SHIM_FENCED};
#define GE2_SHIM_KERNEL(NAME)                                                                               \
    GE2_SHIM_EXPORT const ge2_shim_kernel ge2_shim_kernel_##NAME =                                          \
        ge2_shim_of(#NAME, NAME, [](void *const *arguments) { ge2_shim_apply(NAME, arguments); });

#endif
