extern "C" __global__ void __launch_bounds__(256) trial(const float *a, float *b_out, int n_i, float c) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n_i) b_out[i] = a[i] * c;
}
