/* What decides a conditional node of a graph: it reads a number, and sets the value that the node looks at.
 *
 * The device function is the driver's own, which it finds when it loads this as PTX. */
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned value);

/* The integer of so many bytes as one of 0 to `most`; bytes below 0: it has a sign. With a `which` that is not below
 * 0, whether it is that. */
extern "C" __global__ void ge2_decide(unsigned long long handle, const void *place, int bytes, int most, int which) {
    const int size = bytes < 0 ? -bytes : bytes, rest = 64 - 8 * size;
    const unsigned long long found = size == 1   ? *(const unsigned char *)place
                                     : size == 2 ? *(const unsigned short *)place
                                     : size == 4 ? *(const unsigned *)place
                                                 : *(const unsigned long long *)place;
    const bool negative = bytes < 0 && (long long)(found << rest) < 0;
    const unsigned value = negative ? 0u : found > (unsigned long long)most ? (unsigned)most : (unsigned)found;
    cudaGraphSetConditional(handle, which < 0 ? value : value == (unsigned)which);
}
