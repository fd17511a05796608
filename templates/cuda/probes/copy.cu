extern "C" __global__ void __launch_bounds__(256) copy(const uint4 *__restrict__ a, uint4 *__restrict__ b) {
    const long long i = (long long)blockIdx.x * 1024 + threadIdx.x;
    uint4 held[4];
    #pragma unroll
    for (int k = 0; k < 4; ++k) held[k] = a[i + 256 * k];
    #pragma unroll
    for (int k = 0; k < 4; ++k) b[i + 256 * k] = held[k];
}
