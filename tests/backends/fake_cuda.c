/* The part of NVIDIA's driver that launches and graphs need, on the CPU: a kernel is a C function, all ends at once.
 *
 * As with the real one, a graph keeps copies of parameters, an executable graph keeps copies of its own, and only
 * SetParams changes those. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int Status;
typedef struct { /* what a CUfunction is */
    void (*run)(void **params, unsigned grid);
    int count;
    size_t size[8];
} Function;

typedef struct {
    Function *function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    void *kernel, *context;
} Params;

typedef struct Graph Graph;
typedef struct {
    Function *function;
    unsigned grid;
    void *params[8];
    Graph *child;
    int needs;
} Node;

struct Graph {
    int count;
    Node *nodes[256];
    Graph *of; /* of an executable one: that which it was made from */
};

typedef struct {
    int capturing;
    Graph *graph;
} Stream;

int graphs, execs, streams, launched, fail_next, fail_after, captures_begun, busy; /* what tests look at, and have go wrong */
static char CONTEXT;
static void *current = &CONTEXT;

void *context_of_fake(void) { return &CONTEXT; }
void leave_context(void) { current = NULL; }

static Status going(void) { /* `fail_after` so many calls that are well, the next one fails */
    if (fail_after) return fail_after--, 0;
    Status status = fail_next;
    fail_next = 0;
    return status;
}

Status cuGetErrorName(Status status, const char **name) {
    *name = status == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return 0;
}
Status cuCtxGetCurrent(void **found) { return *found = current, 0; }
Status cuCtxPushCurrent_v2(void *context) { return current = context, 0; }
Status cuCtxPopCurrent_v2(void **found) { return *found = current, current = NULL, 0; }
Status cuStreamCreate(void **found, unsigned flags) {
    Status status = going();
    if (status) return status;
    return streams++, *found = calloc(1, sizeof(Stream)), flags != 1;
}
Status cuStreamDestroy_v2(void *stream) { return streams--, free(stream), 0; }
Status cuStreamIsCapturing(void *stream, int *found) { return *found = stream ? ((Stream *)stream)->capturing : busy, 0; }

static Node *copy(const Params *p, Node *into) {
    Node *node = into ? into : calloc(1, sizeof *node);
    node->function = p->function;
    node->grid = p->grid[0];
    for (int i = 0; i < p->function->count; i++) {
        if (!node->params[i]) node->params[i] = malloc(16);
        memcpy(node->params[i], p->params[i], p->function->size[i]);
    }
    return node;
}
static Graph *clone(const Graph *graph) {
    Graph *made = calloc(1, sizeof *made);
    made->count = graph->count;
    made->of = (Graph *)graph;
    for (int i = 0; i < graph->count; i++) {
        const Node *n = graph->nodes[i];
        Node *m = made->nodes[i] = calloc(1, sizeof *m);
        *m = *n;
        if (n->child) m->child = clone(n->child);
        for (int k = 0; n->function && k < n->function->count; k++) {
            m->params[k] = malloc(16);
            memcpy(m->params[k], n->params[k], n->function->size[k]);
        }
    }
    return made;
}
static void release(Graph *graph) {
    for (int i = 0; i < graph->count; i++) {
        for (int k = 0; k < 8; k++) free(graph->nodes[i]->params[k]);
        if (graph->nodes[i]->child) release(graph->nodes[i]->child);
        free(graph->nodes[i]);
    }
    free(graph);
}
static void play(Graph *graph) {
    for (int i = 0; i < graph->count; i++) {
        Node *node = graph->nodes[i];
        if (node->child) play(node->child);
        else node->function->run(node->params, node->grid);
    }
}

Status cuLaunchKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                      unsigned shared, void *stream, void **params, void **extra) {
    Status status = going();
    if (status) return status;
    Stream *s = stream;
    Params p = {f, {gx, gy, gz}, {bx, by, bz}, shared, params, extra, 0, 0};
    launched++;
    if (s && s->capturing) s->graph->nodes[s->graph->count++] = copy(&p, NULL);
    else f->run(params, gx);
    return 0;
}
Status cuStreamBeginCapture_v2(Stream *s, int mode) {
    Status status = going();
    if (status) return status;
    captures_begun++;
    s->capturing = 1;
    s->graph = calloc(1, sizeof(Graph));
    graphs++;
    return mode != 2;
}
Status cuStreamEndCapture(Stream *s, Graph **found) {
    Status status = going();
    s->capturing = 0;
    if (status) return graphs--, release(s->graph), status; /* an invalidated capture gives no graph */
    return *found = s->graph, 0;
}

Status cuGraphCreate(Graph **found, unsigned flags) {
    Status status = going();
    if (status) return status;
    return graphs++, *found = calloc(1, sizeof(Graph)), (Status)flags;
}
Status cuGraphDestroy(Graph *graph) { return graphs--, release(graph), 0; }
Status cuGraphAddKernelNode_v2(Node **found, Graph *graph, Node **needs, size_t n, const Params *p) {
    for (size_t i = 0; i < n; i++) {
        int known = 0;
        for (int k = 0; k < graph->count; k++) known |= graph->nodes[k] == needs[i];
        if (!known) return 1;
    }
    Status status = going();
    if (status) return status;
    *found = graph->nodes[graph->count++] = copy(p, NULL);
    (*found)->needs = (int)n;
    return 0;
}
Status cuGraphAddChildGraphNode(Node **found, Graph *graph, Node **needs, size_t n, Graph *child) {
    Status status = going();
    if (status) return status;
    Node *node = calloc(1, sizeof *node);
    node->child = clone(child);
    node->needs = (int)n;
    *found = graph->nodes[graph->count++] = node;
    return needs == NULL && n > 0;
}
Status cuGraphInstantiateWithFlags(Graph **found, Graph *graph, unsigned long long flags) {
    Status status = going();
    if (status) return status;
    execs++;
    *found = clone(graph);
    return (Status)flags;
}
Status cuGraphExecDestroy(Graph *graph) { return execs--, release(graph), 0; }

static Node *twin(Graph *exec, const Node *node) {
    for (int i = 0; i < exec->count; i++)
        if (exec->of->nodes[i] == node) return exec->nodes[i];
    return NULL;
}
Status cuGraphExecKernelNodeSetParams_v2(Graph *exec, const Node *node, const Params *p) {
    Status status = going();
    Node *found = twin(exec, node);
    if (status || !found) return status ? status : 1;
    copy(p, found);
    return 0;
}
Status cuGraphExecChildGraphNodeSetParams(Graph *exec, const Node *node, Graph *child) {
    Status status = going();
    Node *found = twin(exec, node);
    if (status || !found) return status ? status : 1;
    release(found->child);
    found->child = clone(child);
    return 0;
}
Status cuGraphLaunch(Graph *exec, void *stream) {
    Status status = going();
    if (!status) play(exec);
    return status ? status : 0 * (stream != NULL);
}

/* ------------------------------------------------------------------------------------------------------- kernels */

static void scaled(void **p, unsigned grid) { /* out[i] = x[i] * k + c */
    float *x = *(float **)p[0], *out = *(float **)p[1], k = *(float *)p[3];
    for (unsigned i = 0; i < grid; i++) out[i] = x[i] * k + (float)*(double *)p[2];
}
Function SCALED = {scaled, 4, {8, 8, 8, 4}};

static void multiplied(void **p, unsigned grid) {
    float *x = *(float **)p[0], *y = *(float **)p[1], *out = *(float **)p[2];
    for (unsigned i = 0; i < grid; i++) out[i] = x[i] * y[i];
}
static Function MULTIPLIED = {multiplied, 3, {8, 8, 8}};

/* As cublasLtMatmul: word 0 is a number of elements, words 3, 5 and 8 are the factors and the result. */
Status fake_matmul(uint64_t n, uint64_t a1, uint64_t a2, uint64_t x, uint64_t a4, uint64_t y, uint64_t a6, uint64_t a7,
                   uint64_t out, uint64_t a9, uint64_t a10, uint64_t a11, uint64_t a12, uint64_t a13, uint64_t a14,
                   void *stream) {
    void *params[] = {&x, &y, &out};
    if (a1 + a2 + a4 + a6 + a7 + a9 + a10 + a11 + a12 + a13 + a14 != 11) return 7;
    return cuLaunchKernel(&MULTIPLIED, (unsigned)n, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}
