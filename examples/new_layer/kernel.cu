/* A block for each image; its means, hidden values and gates are in shared memory. */
extern __shared__ float means[];
float *gates = means + c, *hidden = gates + c;
const float *a = x + blockIdx.x * s * c;
for (int64_t k = threadIdx.x; k < c; k += blockDim.x) {
    float sum = 0;
    for (int64_t p = 0; p < s; p++) sum += a[p * c + k];
    means[k] = sum / s;
}
__syncthreads();
for (int64_t j = threadIdx.x; j < r; j += blockDim.x) {
    float sum = 0;
    for (int64_t k = 0; k < c; k++) sum += means[k] * squeeze[k * r + j];
    hidden[j] = sum > 0 ? sum : 0;
}
__syncthreads();
for (int64_t k = threadIdx.x; k < c; k += blockDim.x) {
    float sum = 0;
    for (int64_t j = 0; j < r; j++) sum += hidden[j] * excite[j * c + k];
    gates[k] = 1 / (1 + ge2_exp_f32(-sum));
}
__syncthreads();
for (int64_t p = 0; p < s; p++)
    for (int64_t k = threadIdx.x; k < c; k += blockDim.x)
        y[(blockIdx.x * s + p) * c + k] = a[p * c + k] * gates[k];
