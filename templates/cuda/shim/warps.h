/* What the lanes of a warp do together. */
#ifndef GE2_SHIM_WARPS_H
#define GE2_SHIM_WARPS_H

namespace {

template <class T>
uint64_t ge2_shim_word(T x) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "lanes exchange 4 or 8 bytes");
    uint64_t word = 0;
    __builtin_memcpy(&word, &x, sizeof x);
    return word;
}

template <class T>
T ge2_shim_unword(uint64_t word) {
    T x;
    __builtin_memcpy(&x, &word, sizeof x);
    return x;
}

/* The type in which a number travels: that of CUDA's overload. */
template <class T> struct ge2_shim_sent { typedef T type; };
template <> struct ge2_shim_sent<bool> { typedef int type; };
template <> struct ge2_shim_sent<char> { typedef int type; };
template <> struct ge2_shim_sent<signed char> { typedef int type; };
template <> struct ge2_shim_sent<unsigned char> { typedef int type; };
template <> struct ge2_shim_sent<short> { typedef int type; };
template <> struct ge2_shim_sent<unsigned short> { typedef int type; };

inline unsigned ge2_shim_mask(unsigned mask = 0xffffffff) { return mask; }

inline uint64_t ge2_shim_vote(const char *site, ge2_shim_op op, unsigned mask, uint64_t value) {
    return ge2_shim->together(site, op, mask, value, 0);
}

inline uint64_t ge2_shim_ballot(const char *site, unsigned mask, bool p) {
    return ge2_shim_vote(site, GE2_SHIM_BALLOT, mask, uint64_t(p) << ge2_shim->lane);
}

template <class T>
unsigned ge2_shim_match_any(const char *site, unsigned mask, T x) {
    return ge2_shim_vote(site, GE2_SHIM_MATCH_ANY, mask, ge2_shim_word<typename ge2_shim_sent<T>::type>(x));
}

template <class T>
unsigned ge2_shim_match_all(const char *site, unsigned mask, T x, int *same) {
    unsigned equal = ge2_shim_vote(site, GE2_SHIM_MATCH_ALL, mask, ge2_shim_word<typename ge2_shim_sent<T>::type>(x));
    *same = equal == ge2_shim_vote(site, GE2_SHIM_BALLOT, mask, uint64_t(1) << ge2_shim->lane);
    return *same ? equal : 0;
}

inline int ge2_shim_reduce(const char *site, ge2_shim_op op, ge2_shim_op, unsigned mask, int x) {
    return (int)ge2_shim_vote(site, op, mask, (unsigned)x);
}

inline unsigned ge2_shim_reduce(const char *site, ge2_shim_op, ge2_shim_op op, unsigned mask, unsigned x) {
    return (unsigned)ge2_shim_vote(site, op, mask, x);
}

template <class T>
typename ge2_shim_sent<T>::type ge2_shim_exchange(const char *site, unsigned mask, T x, int lane) {
    typedef typename ge2_shim_sent<T>::type Sent;
    return ge2_shim_unword<Sent>(ge2_shim->together(site, GE2_SHIM_SHUFFLE, mask, ge2_shim_word<Sent>(x), lane));
}

/* A lane beyond its segment of `width` lanes gives every lane its own value. */
template <class T>
typename ge2_shim_sent<T>::type ge2_shim_shuffle(const char *site, unsigned mask, T x, int lane, int width = 32) {
    int own = ge2_shim->lane;
    return ge2_shim_exchange(site, mask, x, (own & -width) | (lane & (width - 1)));
}

template <class T>
typename ge2_shim_sent<T>::type ge2_shim_shuffle_up(const char *site, unsigned mask, T x, unsigned by,
                                                    int width = 32) {
    int own = ge2_shim->lane, from = own - (int)by;
    return ge2_shim_exchange(site, mask, x, from < (own & -width) ? own : from);
}

template <class T>
typename ge2_shim_sent<T>::type ge2_shim_shuffle_down(const char *site, unsigned mask, T x, unsigned by,
                                                      int width = 32) {
    int own = ge2_shim->lane, from = own + (int)by;
    return ge2_shim_exchange(site, mask, x, from > (own | (width - 1)) ? own : from);
}

template <class T>
typename ge2_shim_sent<T>::type ge2_shim_shuffle_xor(const char *site, unsigned mask, T x, int by, int width = 32) {
    int own = ge2_shim->lane, from = own ^ by;
    return ge2_shim_exchange(site, mask, x, from > (own | (width - 1)) ? own : from);
}

/* Lanes need not be together, so each may say that it is alone. */
inline unsigned __activemask() { return 1u << ge2_shim->lane; }

}

#endif
