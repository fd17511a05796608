extern "C" __global__ void __launch_bounds__(256) multiply_add(TYPE *sums, TYPE x, TYPE y, int rounds) {
    TYPE s[8];
    #pragma unroll
    for (int k = 0; k < 8; ++k) s[k] = (TYPE)(threadIdx.x + k);
    for (int r = 0; r < rounds; ++r) {
        #pragma unroll
        for (int m = 0; m < 16; ++m) {
            #pragma unroll
            for (int k = 0; k < 8; ++k) s[k] = FMA(s[k], x, y);
        }
    }
    #pragma unroll
    for (int k = 1; k < 8; ++k) s[0] += s[k];
    sums[blockIdx.x * 256 + threadIdx.x] = s[0];
}
