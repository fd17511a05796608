/* The part of NVIDIA's driver that launches and graphs need. It is loaded when it is first asked for, so this compiles
 * without CUDA's headers; names, numbers and layouts are those of cuda.h. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RELAXED 2         /* CU_STREAM_CAPTURE_MODE_RELAXED */
#define APART 1           /* CU_STREAM_NON_BLOCKING */
#define PER_THREAD 2      /* CU_STREAM_PER_THREAD */
#define STARTED 1         /* CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC: all blocks have said that others may begin */
#define EARLY 1           /* CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC: who waits is launched then, and waits by itself */
#define COOPERATIVE 2     /* CU_LAUNCH_ATTRIBUTE_COOPERATIVE */
#define SERIALIZED_EARLY 6 /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */
#define CONDITIONAL 13    /* CU_GRAPH_NODE_TYPE_CONDITIONAL */
#define UNSUPPORTED 801   /* CUDA_ERROR_NOT_SUPPORTED */
#define IN_CAPTURE 900    /* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED */

typedef int Status;
typedef void *Handle;

typedef enum { IF = 0, WHILE = 1, SWITCH = 2 } Type; /* CU_GRAPH_COND_TYPE_... */

typedef struct { /* CUDA_KERNEL_NODE_PARAMS_v2 */
    Handle function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    Handle kernel, context;
} KernelParams;
_Static_assert(sizeof(KernelParams) == 72, "as in cuda.h");

typedef struct { /* CUlaunchAttribute */
    int id;
    uint64_t value[8];
} Attribute;
_Static_assert(sizeof(Attribute) == 72 && offsetof(Attribute, value) == 8, "as in cuda.h");

typedef struct { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared;
    Handle stream;
    Attribute *attributes;
    unsigned count;
} LaunchConfig;
_Static_assert(sizeof(LaunchConfig) == 56 && offsetof(LaunchConfig, stream) == 32, "as in cuda.h");

typedef struct { /* CUgraphNodeParams of a conditional node */
    int node, zeros[3];
    uint64_t handle;
    int type;
    unsigned size;
    Handle *bodies; /* graphs of the node's own, which the driver tells */
    Handle context;
    uint64_t padding[26];
} ConditionalParams;
_Static_assert(sizeof(ConditionalParams) == 256 && offsetof(ConditionalParams, bodies) == 32, "as in cuda.h");

typedef struct { /* CUgraphEdgeData */
    unsigned char from_port, to_port, type, reserved[5];
} Edge;
_Static_assert(sizeof(Edge) == 8 && offsetof(Edge, type) == 2, "as in cuda.h");

#define MAP 128 /* bytes of a CUtensorMap, and what it is aligned to */

typedef struct { /* what cuTensorMapEncodeTiled is told, but for the address; innermost axes first */
    int type;
    unsigned rank;
    int interleave, swizzle, promotion, fill;
    uint64_t sizes[5], strides[4];
    unsigned box[5], steps[5];
} Encoding;
_Static_assert(sizeof(Encoding) == 136, "as launch/arguments.py has it");

static struct {
    Handle library;
    Status (*cuGetErrorName)(Status, const char **);
    Status (*cuCtxGetCurrent)(Handle *);
    Status (*cuCtxPushCurrent_v2)(Handle);
    Status (*cuCtxPopCurrent_v2)(Handle *);
    Status (*cuMemcpyDtoHAsync_v2)(void *, uint64_t, size_t, Handle);
    Status (*cuStreamCreate)(Handle *, unsigned);
    Status (*cuStreamDestroy_v2)(Handle);
    Status (*cuStreamSynchronize)(Handle);
    Status (*cuStreamIsCapturing)(Handle, int *);
    Status (*cuStreamBeginCapture_v2)(Handle, int);
    Status (*cuStreamEndCapture)(Handle, Handle *);
    Status (*cuLaunchKernel)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle,
                             void **, void **);
    Status (*cuLaunchCooperativeKernel)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                        Handle, void **);
    Status (*cuGraphKernelNodeSetAttribute)(Handle, int, const uint64_t *);
    Status (*cuGraphCreate)(Handle *, unsigned);
    Status (*cuGraphDestroy)(Handle);
    Status (*cuGraphAddEmptyNode)(Handle *, Handle, const Handle *, size_t);
    Status (*cuGraphAddKernelNode_v2)(Handle *, Handle, const Handle *, size_t, const KernelParams *);
    Status (*cuGraphAddChildGraphNode)(Handle *, Handle, const Handle *, size_t, Handle);
    Status (*cuGraphInstantiateWithFlags)(Handle *, Handle, unsigned long long);
    Status (*cuGraphExecDestroy)(Handle);
    Status (*cuGraphExecKernelNodeSetParams_v2)(Handle, Handle, const KernelParams *);
    Status (*cuGraphExecChildGraphNodeSetParams)(Handle, Handle, Handle);
    Status (*cuGraphLaunch)(Handle, Handle);
    /* NULL where the driver is too old for attributes of launches */
    Status (*cuLaunchKernelEx)(const LaunchConfig *, Handle, void **, void **);
    /* NULL where the driver is too old for the edges */
    Status (*cuGraphAddDependencies_v2)(Handle, const Handle *, const Handle *, const Edge *, size_t);
    /* NULL where the driver is too old for tensor maps */
    Status (*cuTensorMapEncodeTiled)(void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const unsigned *,
                                     const unsigned *, int, int, int, int);
    /* NULL where the driver has no conditional nodes */
    Status (*cuGraphConditionalHandleCreate)(uint64_t *, Handle, Handle, unsigned, unsigned);
    Status (*cuGraphAddNode_v2)(Handle *, Handle, const Handle *, const void *, size_t, ConditionalParams *);
} cuda;

#define NAMED(name) {#name, offsetof(__typeof__(cuda), name), 0}
#define MAYBE(name) {#name, offsetof(__typeof__(cuda), name), 1}
static const struct {
    const char *name;
    size_t at;
    int may_lack;
} FUNCTIONS[] = {
    NAMED(cuGetErrorName), NAMED(cuCtxGetCurrent), NAMED(cuCtxPushCurrent_v2), NAMED(cuCtxPopCurrent_v2),
    NAMED(cuMemcpyDtoHAsync_v2), NAMED(cuStreamCreate), NAMED(cuStreamDestroy_v2), NAMED(cuStreamSynchronize),
    NAMED(cuStreamIsCapturing), NAMED(cuStreamBeginCapture_v2), NAMED(cuStreamEndCapture), NAMED(cuLaunchKernel),
    NAMED(cuGraphCreate), NAMED(cuGraphDestroy), NAMED(cuGraphAddEmptyNode), NAMED(cuGraphAddKernelNode_v2),
    NAMED(cuGraphAddChildGraphNode), NAMED(cuLaunchCooperativeKernel), NAMED(cuGraphKernelNodeSetAttribute),
    NAMED(cuGraphInstantiateWithFlags), NAMED(cuGraphExecDestroy), NAMED(cuGraphExecKernelNodeSetParams_v2),
    NAMED(cuGraphExecChildGraphNodeSetParams), NAMED(cuGraphLaunch),
    MAYBE(cuTensorMapEncodeTiled), MAYBE(cuLaunchKernelEx), MAYBE(cuGraphAddDependencies_v2),
    MAYBE(cuGraphConditionalHandleCreate), MAYBE(cuGraphAddNode_v2),
};

/* Finds the driver's functions; else what is wrong, which the next call changes. */
static const char *load(const char *path) {
    static char wrong[256];
    if (cuda.library) return NULL;
    Handle library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return dlerror();
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
        Handle found = dlsym(library, FUNCTIONS[i].name);
        if (!found && !FUNCTIONS[i].may_lack) {
            strcpy(wrong, "the driver has no ");
            return strncat(wrong, FUNCTIONS[i].name, sizeof wrong - 32);
        }
        memcpy((char *)&cuda + FUNCTIONS[i].at, &found, sizeof found);
    }
    cuda.library = library;
    return NULL;
}
