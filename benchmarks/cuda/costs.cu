/* What launches, barriers and choices cost on a GPU, by nothing but CUDA's own calls: the figures that the rules
 * for graphs and for persistent kernels rest on.
 *
 *     nvcc -O3 -arch=sm_90a benchmarks/cuda/costs.cu -o costs && ./costs
 *
 * Medians of seven runs by CUDA events, in microseconds. */
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define SURE(call)                                                                       \
    do {                                                                                 \
        const cudaError_t found_ = (call);                                               \
        if (found_ != cudaSuccess) {                                                     \
            printf("line %d: %s\n", __LINE__, cudaGetErrorString(found_));               \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

static __device__ unsigned word; /* where the blocks of a grid meet */

/* The first block adds what makes the top bit flip when all others have added one: nothing is ever reset. */
static __device__ void meet() {
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned mine = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
        unsigned old, now;
        asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(&word), "r"(mine) : "memory");
        do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(&word) : "memory");
        while (((old ^ now) & 0x80000000u) == 0);
    }
    __syncthreads();
}

static __global__ void barriers(int count) {
    for (int i = 0; i < count; i++) meet();
}

/* Rounds over an array that stays in the L2 cache, each element read and written by one thread. */
static __global__ void rounds(float *x, int size, int count) {
    for (int r = 0; r < count; r++)
        for (int e = blockIdx.x * blockDim.x + threadIdx.x; e < size; e += gridDim.x * blockDim.x)
            x[e] = x[e] * 0.999f + 1.0f;
}

/* The same with elements of other threads, and so a barrier a round. */
static __global__ void far_rounds(float *x, float *y, int size, int count) {
    for (int r = 0; r < count; r++) {
        for (int e = blockIdx.x * blockDim.x + threadIdx.x; e < size; e += gridDim.x * blockDim.x)
            y[e] = x[size - 1 - e] * 0.999f + 1.0f;
        meet();
        float *const other = x;
        x = y, y = other;
    }
}

enum { PLAIN, WAITS, LETS_FIRST, LETS_THEN };

static __global__ void link(float *x, int how) {
    if (how == LETS_FIRST) asm volatile("griddepcontrol.launch_dependents;");
    if (how != PLAIN) asm volatile("griddepcontrol.wait;" ::: "memory");
    if (how == LETS_THEN) asm volatile("griddepcontrol.launch_dependents;");
    const int e = blockIdx.x * blockDim.x + threadIdx.x;
    x[e] = x[e] * 0.999f + 1.0f;
}

static __global__ void decide(cudaGraphConditionalHandle handle, const float *x) {
    cudaGraphSetConditional(handle, x[0] > -1e30f);
}

template <class F> static float median(F run) {
    cudaEvent_t first, last;
    SURE(cudaEventCreate(&first));
    SURE(cudaEventCreate(&last));
    std::vector<float> found;
    run();
    for (int i = 0; i < 7; i++) {
        float ms;
        SURE(cudaEventRecord(first));
        run();
        SURE(cudaEventRecord(last));
        SURE(cudaEventSynchronize(last));
        SURE(cudaEventElapsedTime(&ms, first, last));
        found.push_back(ms * 1e3f);
    }
    SURE(cudaGetLastError());
    std::sort(found.begin(), found.end());
    return found[3];
}

static float together(const void *kernel, int blocks, int threads, void **given) {
    return median([&] { SURE(cudaLaunchCooperativeKernel(kernel, dim3(blocks), dim3(threads), given, 0, 0)); });
}

static cudaGraphExec_t chain(float *x, int count, int blocks, int how, cudaStream_t stream) {
    cudaGraph_t graph;
    cudaGraphExec_t made;
    SURE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < count; i++) {
        cudaLaunchAttribute early = {};
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t launch = {};
        launch.gridDim = dim3(blocks), launch.blockDim = dim3(256), launch.stream = stream;
        launch.attrs = &early, launch.numAttrs = how != PLAIN;
        SURE(cudaLaunchKernelEx(&launch, link, x, how));
    }
    SURE(cudaStreamEndCapture(stream, &graph));
    SURE(cudaGraphInstantiate(&made, graph, 0));
    return made;
}

static cudaGraphNode_t kernel(cudaGraph_t graph, cudaGraphNode_t *after, void *function, int blocks, int threads,
                              void **given) {
    cudaKernelNodeParams about = {};
    cudaGraphNode_t made;
    about.func = function, about.gridDim = dim3(blocks), about.blockDim = dim3(threads), about.kernelParams = given;
    SURE(cudaGraphAddKernelNode(&made, graph, after, after ? 1 : 0, &about));
    return made;
}

static cudaGraphExec_t choices(float *x, int count) {
    cudaGraph_t graph;
    cudaGraphExec_t made;
    cudaGraphNode_t last;
    SURE(cudaGraphCreate(&graph, 0));
    for (int i = 0; i < count; i++) {
        int how = PLAIN;
        cudaGraphConditionalHandle handle;
        SURE(cudaGraphConditionalHandleCreate(&handle, graph, 0, 0));
        void *decided[] = {&handle, &x}, *given[] = {&x, &how};
        cudaGraphNode_t decision = kernel(graph, i ? &last : nullptr, (void *)decide, 1, 1, decided);
        cudaGraphNodeParams about = {};
        about.type = cudaGraphNodeTypeConditional;
        about.conditional.handle = handle;
        about.conditional.type = cudaGraphCondTypeIf;
        about.conditional.size = 1;
        SURE(cudaGraphAddNode(&last, graph, &decision, nullptr, 1, &about));
        kernel(about.conditional.phGraph_out[0], nullptr, (void *)link, 132, 256, given);
    }
    SURE(cudaGraphInstantiate(&made, graph, 0));
    return made;
}

int main() {
    int blocks, size = 1 << 20, count = 1000;
    float *x, *y;
    cudaStream_t stream;
    SURE(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0));
    SURE(cudaMalloc(&x, 4 << 20));
    SURE(cudaMalloc(&y, 4 << 20));
    SURE(cudaMemset(x, 0, 4 << 20));
    SURE(cudaStreamCreate(&stream));
    for (int threads : {256, 512, 1024}) {
        void *given[] = {&count}, *own[] = {&x, &size, &count}, *others[] = {&x, &y, &size, &count};
        printf("%d blocks of %d threads:", blocks, threads);
        printf(" a barrier of the grid %.3f;", together((void *)barriers, blocks, threads, given) / count);
        printf(" a round over 4 MB %.3f,", together((void *)rounds, blocks, threads, own) / count);
        printf(" with a barrier %.3f\n", together((void *)far_rounds, blocks, threads, others) / count);
    }
    for (int wide : {1, 8, 132, 528}) {
        printf("a kernel of %d blocks in a graph's chain of 100:", wide);
        const char *const names[] = {"plain", "waits by itself", "lets others first", "waits, then lets"};
        for (int how = PLAIN; how <= LETS_THEN; how++) {
            cudaGraphExec_t made = chain(x, 100, wide, how, stream);
            printf(" %s %.3f;", names[how], median([&] { SURE(cudaGraphLaunch(made, 0)); }) / 100);
        }
        printf("\n");
    }
    cudaGraphExec_t made = choices(x, 10);
    printf("a choice by a conditional node, with its decision and a kernel: %.3f\n",
           median([&] { SURE(cudaGraphLaunch(made, 0)); }) / 10);
    return 0;
}
