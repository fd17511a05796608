/* An image at a time, which stays in the cache between its two passes. */
#pragma omp parallel for num_threads(threads) if (x_size > 1 << 16)
for (int64_t i = 0; i < n; i++) {
    const float *a = x + i * s * c;
    float pooled[1024] = {0}, hidden[64] = {0}, gate[1024];
    for (int64_t p = 0; p < s; p++)
        for (int64_t k = 0; k < c; k++) pooled[k] += a[p * c + k];
    for (int64_t k = 0; k < c; k++)
        for (int64_t j = 0; j < r; j++) hidden[j] += pooled[k] / (float)s * squeeze[k * r + j];
    for (int64_t k = 0; k < c; k++) gate[k] = 0;
    for (int64_t j = 0; j < r; j++)
        for (int64_t k = 0; k < c; k++)
            gate[k] += (hidden[j] > 0 ? hidden[j] : 0) * excite[j * c + k];
    for (int64_t k = 0; k < c; k++) gate[k] = 1 / (1 + ge2_exp_f32(-gate[k]));
    for (int64_t p = 0; p < s; p++)
        for (int64_t k = 0; k < c; k++) y[(i * s + p) * c + k] = a[p * c + k] * gate[k];
}
