/* Gradients y0, y1, y2 by x, squeeze and excite, of the cotangent ct; gates are computed again. */
for (int64_t j = 0; j < c * r; j++) y1[j] = y2[j] = 0;
for (int64_t i = 0; i < n; i++) {
    const float *a = x + i * s * c, *g = ct + i * s * c;
    double pooled[1024] = {0}, d[1024] = {0}; /* sums of many terms */
    float before[64] = {0}, gate[1024] = {0}, dhidden[64] = {0};
    for (int64_t p = 0; p < s; p++)
        for (int64_t k = 0; k < c; k++) {
            pooled[k] += a[p * c + k];
            d[k] += a[p * c + k] * g[p * c + k];
        }
    for (int64_t k = 0; k < c; k++) pooled[k] /= (double)s;
    for (int64_t k = 0; k < c; k++)
        for (int64_t j = 0; j < r; j++) before[j] += pooled[k] * squeeze[k * r + j];
    for (int64_t j = 0; j < r; j++)
        for (int64_t k = 0; k < c; k++)
            gate[k] += (before[j] > 0 ? before[j] : 0) * excite[j * c + k];
    for (int64_t k = 0; k < c; k++) {
        float e = ge2_exp_f32(-gate[k]); /* 1 - gate would lose digits where the gate is open */
        gate[k] = 1 / (1 + e);
        d[k] *= e * gate[k] * gate[k];
    }
    for (int64_t j = 0; j < r; j++)
        for (int64_t k = 0; k < c; k++) {
            y2[j * c + k] += (before[j] > 0 ? before[j] : 0) * d[k];
            dhidden[j] += before[j] > 0 ? excite[j * c + k] * d[k] : 0;
        }
    for (int64_t k = 0; k < c; k++) {
        float sum = 0;
        for (int64_t j = 0; j < r; j++) {
            y1[k * r + j] += pooled[k] * dhidden[j];
            sum += squeeze[k * r + j] * dhidden[j];
        }
        d[k] = sum / (float)s;
    }
    for (int64_t p = 0; p < s; p++)
        for (int64_t k = 0; k < c; k++)
            y0[(i * s + p) * c + k] = g[p * c + k] * gate[k] + d[k];
}
