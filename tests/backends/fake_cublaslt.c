/* The part of cuBLASLt that products need, on the CPU, launched by the driver of fake_cuda.c: columns lie one after
 * another, as in the real one. It is as strict about what belongs together. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int Status;
typedef struct { /* as in fake_cuda.c */
    void (*run)(void **params, unsigned grid);
    int count;
    size_t size[8];
} Function;
Status cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned shared, void *stream, void **params, void **extra);

typedef struct {
    int compute, scale, turned[2];
    uint32_t epilogue; /* 0: none was set */
    float *vector, *matrix;
    int64_t lead;
} Desc;
typedef struct {
    int type, count;
    uint64_t rows, columns;
    int64_t lead, step;
} Layout;
typedef struct {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} Heuristic;

int made; /* objects that there are */
static int HANDLE;
#define MAGIC 0xb1a5

Status cublasLtCreate(void **found) { return *found = &HANDLE, 0; }
Status cublasLtDestroy(void *handle) { return 0 * (handle != NULL); }
const char *cublasLtGetStatusString(Status status) { return status == 7 ? "CUBLAS_STATUS_INVALID_VALUE" : NULL; }

Status cublasLtMatmulDescCreate(Desc **found, int compute, int scale) {
    made++, *found = calloc(1, sizeof **found);
    return (*found)->compute = compute, (*found)->scale = scale, 0;
}
Status cublasLtMatmulDescSetAttribute(Desc *desc, int attribute, const void *value, size_t bytes) {
    void *places[] = {&desc->turned[0], &desc->turned[1], 0, 0, &desc->epilogue, &desc->vector, 0, 0, &desc->matrix, &desc->lead};
    if (attribute < 3 || attribute > 12 || !places[attribute - 3]) return 7;
    if (bytes != (attribute <= 4 || attribute == 7 ? 4u : 8u)) return 7;
    return memcpy(places[attribute - 3], value, bytes), 0;
}
Status cublasLtMatmulDescDestroy(Desc *desc) { return made--, free(desc), 0; }

Status cublasLtMatrixLayoutCreate(Layout **found, int type, uint64_t rows, uint64_t columns, int64_t lead) {
    Layout layout = {type, 1, rows, columns, lead, 0};
    made++, *found = malloc(sizeof layout);
    return **found = layout, 0;
}
Status cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value, size_t bytes) {
    if (attribute == 5 && bytes == 4) return memcpy(&layout->count, value, 4), 0;
    if (attribute == 6 && bytes == 8) return memcpy(&layout->step, value, 8), 0;
    return 7;
}
Status cublasLtMatrixLayoutDestroy(Layout *layout) { return made--, free(layout), 0; }

Status cublasLtMatmulPreferenceCreate(void **found) { return made++, *found = malloc(1), 0; }
Status cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t bytes) {
    return 7 * (!preference || !value || attribute < 1 || (bytes != 4 && bytes != 8));
}
Status cublasLtMatmulPreferenceDestroy(void *preference) { return made--, free(preference), 0; }

Status cublasLtMatmulAlgoGetHeuristic(void *handle, Desc *desc, Layout *a, Layout *b, Layout *c, Layout *d,
                                      void *preference, int asked, Heuristic *found, int *count) {
    if (handle != &HANDLE || !desc || !a || !b || c != d || !preference || asked < 1) return 7;
    if ((desc->epilogue & 128) && (!desc->matrix || desc->lead % 8 || desc->lead < (int64_t)d->rows)) return 15;
    if ((desc->epilogue & 20) && !desc->vector) return 7;
    *count = asked < 3 ? asked : 3; /* as many as it knows */
    memset(found, 0, asked * sizeof *found);
    for (int i = 0; i < *count; i++) {
        found[i].algorithm[0] = MAGIC;
        found[i].algorithm[1] = i;
        found[i].workspace = a->rows > 8 ? 64 : 0;
    }
    return 0;
}

static float element(const float *x, const Layout *layout, int turned, uint64_t batch, uint64_t i, uint64_t j) {
    uint64_t row = turned ? j : i, column = turned ? i : j;
    return x[batch * (uint64_t)layout->step + column * (uint64_t)layout->lead + row];
}
static float bent(float x) { return tanhf(0.7978846f * (x + 0.044715f * x * x * x)); }
static float slope(float x) {
    float t = bent(x);
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978846f * (1 + 3 * 0.044715f * x * x);
}
/* An element of row i and column j: bits 4 of a bias, 2 of relu, 32 of gelu, 64 of its slope, 16 of sums of rows, 128 of a matrix. */
static float ended(const Desc *desc, float x, uint64_t i, uint64_t j) {
    uint32_t e = desc->epilogue > 1 ? desc->epilogue : 0;
    float *kept = e & 128 ? desc->matrix + j * (uint64_t)desc->lead + i : NULL;
    if (e & 4) x += desc->vector[i];
    if (e & 64) x *= slope(*kept);
    else if (kept) *kept = x;
    if (e & 16) desc->vector[i] = (j ? desc->vector[i] : 0) + x;
    if (e & 2) x = x < 0 ? 0 : x;
    return e & 32 ? 0.5f * x * (1 + bent(x)) : x;
}
static void multiplied(void **p, unsigned grid) {
    const float *x = *(float **)p[0], *y = *(float **)p[1];
    float *out = *(float **)p[2];
    const Desc *desc = (const Desc *)p[3]; /* as it was when it was launched */
    const Layout *a = *(Layout **)p[4], *b = *(Layout **)p[5], *d = *(Layout **)p[6];
    uint64_t sums = desc->turned[0] ? a->rows : a->columns;
    for (uint64_t n = 0; n < (uint64_t)d->count * grid; n++)
        for (uint64_t i = 0; i < d->rows; i++)
            for (uint64_t j = 0; j < d->columns; j++) {
                float sum = 0;
                for (uint64_t k = 0; k < sums; k++)
                    sum += element(x, a, desc->turned[0], n, i, k) * element(y, b, desc->turned[1], n, k, j);
                out[n * (uint64_t)d->step + j * (uint64_t)d->lead + i] = ended(desc, sum, i, j);
            }
}
static Function PRODUCT = {multiplied, 7, {8, 8, 8, sizeof(Desc), 8, 8, 8}};

Status cublasLtMatmul(void *handle, Desc *desc, const float *alpha, void *a, Layout *la, void *b, Layout *lb,
                      const float *beta, void *c, Layout *lc, void *d, Layout *ld, const Heuristic *algorithm,
                      void *workspace, size_t bytes, void *stream) {
    if (handle != &HANDLE || *alpha != 1 || *beta != 0 || c != d || lc != ld || algorithm->algorithm[0] != MAGIC) return 7;
    if (desc->compute != 68 || desc->scale || la->type || lb->type || ld->type) return 7;
    if (bytes != (la->rows > 8 ? 64u : 0u) || !workspace != !bytes) return 7;
    void *params[] = {&a, &b, &d, desc, &la, &lb, &ld};
    return cuLaunchKernel(&PRODUCT, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}
