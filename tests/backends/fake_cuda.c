/* The part of NVIDIA's driver that launches and graphs need, on the CPU: a kernel is a C function, all ends at once.
 *
 * As with the real one, a graph keeps copies of parameters, an executable graph keeps copies of its own, and only
 * SetParams changes those. Conditional nodes own the graphs of their lists; -DOLD: there are no such nodes;
 * -DNO_EDGES: none before whose end a kernel is launched. */
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

typedef struct { /* CUgraphNodeParams of a conditional node */
    int node, zeros[3];
    uint64_t handle;
    int type;
    unsigned size;
    void *bodies, *context;
    uint64_t padding[26];
} Conditional;

typedef struct Graph Graph;
typedef struct {
    Function *function;
    unsigned grid;
    void *params[8];
    Graph *child, **bodies;
    uint64_t handle;
    unsigned type, size;
    int needs, need[64]; /* by their numbers in the graph */
    char early[64];      /* whether it need not have ended */
    int cooperative;
} Node;

typedef struct { /* CUgraphEdgeData */
    unsigned char from_port, to_port, type, reserved[5];
} Edge;

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
int rigid, reads, bodies_run, fail_in;
int no_early, early_rigid; /* graphs with early launches are refused: 1 the edge, 2 the whole; their patches are */
int cooperative; /* kernels that ran with all blocks at once */
int serialized, unserialized; /* kernels launched before the one before them had ended; whether that is refused */
unsigned shuffle; /* a seed: nodes of a graph run in a random order in which each comes after its needs */
static unsigned values[1 << 16]; /* of conditional handles */
#define FIRST 1000 /* handle */
static char CONTEXT;
static void *current = &CONTEXT;

void *context_of_fake(void) { return &CONTEXT; }
void leave_context(void) { current = NULL; }

static Status going(void) { /* `fail_after` so many calls that are well, the next one fails */
    if (fail_after) return fail_after--, 0;
    Status status = fail_in && !--fail_in ? 1 : fail_next;
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
        if (!node->params[i]) node->params[i] = malloc(128);
        memcpy(node->params[i], p->params[i], p->function->size[i]);
    }
    return node;
}
static Graph *clone(const Graph *graph);
static Graph **clones(Graph **bodies, unsigned count) {
    Graph **made = calloc(count, sizeof *made);
    for (unsigned i = 0; i < count; i++) made[i] = clone(bodies[i]);
    return made;
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
        if (n->bodies) m->bodies = clones(n->bodies, n->size);
        for (int k = 0; n->function && k < n->function->count; k++) {
            m->params[k] = malloc(128);
            memcpy(m->params[k], n->params[k], n->function->size[k]);
        }
    }
    return made;
}
static void release(Graph *graph) {
    for (int i = 0; i < graph->count; i++) {
        for (int k = 0; k < 8; k++) free(graph->nodes[i]->params[k]);
        if (graph->nodes[i]->child) release(graph->nodes[i]->child);
        for (unsigned k = 0; graph->nodes[i]->bodies && k < graph->nodes[i]->size; k++)
            release(graph->nodes[i]->bodies[k]);
        free(graph->nodes[i]->bodies);
        free(graph->nodes[i]);
    }
    free(graph);
}
static void play(Graph *graph);
static void choose(Node *node) {
    unsigned *value = &values[node->handle - FIRST];
    if (node->type == 2) {
        if (*value < node->size) bodies_run++, play(node->bodies[*value]);
        return;
    }
    while (*value) {
        bodies_run++, play(node->bodies[0]);
        if (node->type == 0) return;
    }
}
static void run_node(Node *node) {
    if (node->bodies) choose(node);
    else if (node->child) play(node->child);
    else if (node->function) cooperative += node->cooperative, node->function->run(node->params, node->grid);
}
static int ready(const Node *node, const char *done) {
    for (int n = 0; n < node->needs; n++)
        if (!done[node->need[n]]) return 0;
    return 1;
}
static void play(Graph *graph) {
    char done[256] = {0};
    for (int left = graph->count; left; left--) {
        int i = graph->count - left;
        if (shuffle) {
            do i = (int)((shuffle = shuffle * 1664525u + 1013904223u) >> 8) % graph->count;
            while (done[i] || !ready(graph->nodes[i], done));
        }
        run_node(graph->nodes[i]);
        done[i] = 1;
    }
}
static int note_needs(const Graph *graph, Node *node, Node **needs, size_t n) {
    size_t known = 0;
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < graph->count; k++)
            if (graph->nodes[k] == needs[i]) node->need[known++] = k;
    node->needs = (int)n;
    return known != n || n > 64;
}

static int is_early(const Graph *graph) {
    int found = 0;
    for (int i = 0; i < graph->count; i++) {
        for (int n = 0; n < graph->nodes[i]->needs; n++) found |= graph->nodes[i]->early[n];
        for (unsigned k = 0; graph->nodes[i]->bodies && k < graph->nodes[i]->size; k++)
            found |= is_early(graph->nodes[i]->bodies[k]);
    }
    return found;
}
/* The waits of a node of a graph that was made last, by `n`: the number, 1000 more for an early one; -1: no more. */
static const Graph *last;
int wait_of(int node, int n) {
    if (!last || node >= last->count || n >= last->nodes[node]->needs) return -1;
    return last->nodes[node]->need[n] + 1000 * last->nodes[node]->early[n];
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
typedef struct {
    int id;
    unsigned long long value[8];
} Attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    Attribute *attributes;
    unsigned count;
} Config;
Status cuLaunchKernelEx(const Config *c, Function *f, void **params, void **extra) {
    if (c->count != 1 || c->attributes->id != 6 || c->attributes->value[0] != 1) return 1;
    if (unserialized) return 801; /* CUDA_ERROR_NOT_SUPPORTED */
    serialized++;
    return cuLaunchKernel(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared,
                          c->stream, params, extra);
}
Status cuLaunchCooperativeKernel(Function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                 unsigned bz, unsigned shared, void *stream, void **params) {
    cooperative++;
    return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, stream, params, NULL);
}
Status cuGraphKernelNodeSetAttribute(Node *node, int attribute, const uint64_t *value) {
    Status status = going();
    if (status) return status;
    if (attribute != 2) return 1; /* CUDA_ERROR_INVALID_VALUE */
    node->cooperative = *(const int *)value;
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
    Status status = going();
    if (status) return status;
    Node *node = *found = copy(p, NULL);
    int bad = note_needs(graph, node, needs, n);
    return graph->nodes[graph->count++] = node, bad;
}
#ifndef NO_EDGES
static int number_of(const Graph *graph, const Node *node) {
    for (int k = 0; k < graph->count; k++)
        if (graph->nodes[k] == node) return k;
    return -1;
}
Status cuGraphAddDependencies_v2(Graph *graph, Node **from, Node **to, const Edge *edges, size_t count) {
    Status status = going();
    if (status || no_early == 1) return status ? status : 801;
    for (size_t i = 0; i < count; i++) {
        int first = number_of(graph, from[i]);
        if (first < 0 || number_of(graph, to[i]) < 0 || !from[i]->function || !to[i]->function) return 1;
        if (edges[i].from_port != 1 || edges[i].type != 1 || edges[i].to_port || to[i]->needs == 64) return 1;
        for (int n = 0; n < to[i]->needs; n++)
            if (to[i]->need[n] == first) return 1; /* there is such an edge */
        to[i]->early[to[i]->needs] = 1;
        to[i]->need[to[i]->needs++] = first;
    }
    return 0;
}
#endif
Status cuGraphAddEmptyNode(Node **found, Graph *graph, Node **needs, size_t n) {
    return graph->nodes[graph->count++] = *found = calloc(1, sizeof **found), needs || n;
}
Status cuGraphAddChildGraphNode(Node **found, Graph *graph, Node **needs, size_t n, Graph *child) {
    Status status = going();
    if (status) return status;
    for (int i = 0; i < child->count; i++)
        if (child->nodes[i]->bodies) return 1; /* which the real one refuses too */
    Node *node = *found = calloc(1, sizeof *node);
    node->child = clone(child);
    int bad = note_needs(graph, node, needs, n);
    return graph->nodes[graph->count++] = node, bad;
}
static int lacks(const Graph *graph) { /* whether a conditional node has a graph of nothing */
    int found = 0;
    for (int i = 0; i < graph->count; i++)
        for (unsigned k = 0; graph->nodes[i]->bodies && k < graph->nodes[i]->size; k++)
            found |= !graph->nodes[i]->bodies[k]->count || lacks(graph->nodes[i]->bodies[k]);
    return found;
}
Status cuGraphInstantiateWithFlags(Graph **found, Graph *graph, unsigned long long flags) {
    Status status = going();
    if (status || lacks(graph) || (no_early == 2 && is_early(graph))) return status ? status : 1;
    execs++;
    last = graph;
    *found = clone(graph);
    return (Status)flags;
}
Status cuGraphExecDestroy(Graph *graph) { return execs--, release(graph), 0; }

static Node *twin(Graph *exec, const Node *node, int nested) {
    for (int i = 0; i < exec->count; i++) {
        Node *mine = exec->nodes[i], *found = NULL;
        if (exec->of->nodes[i] == node) return nested && rigid ? NULL : mine;
        for (unsigned k = 0; mine->bodies && k < mine->size && !found; k++) found = twin(mine->bodies[k], node, 1);
        if (found) return found;
    }
    return NULL;
}
Status cuGraphExecKernelNodeSetParams_v2(Graph *exec, const Node *node, const Params *p) {
    Status status = going();
    Node *found = twin(exec, node, 0);
    if (status || !found || (early_rigid && is_early(exec))) return status ? status : 1;
    copy(p, found);
    return 0;
}
Status cuGraphExecChildGraphNodeSetParams(Graph *exec, const Node *node, Graph *child) {
    Status status = going();
    Node *found = twin(exec, node, 0);
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

Status cuStreamSynchronize(void *stream) { return 0 * (stream != NULL); }
Status cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    if (stream && ((Stream *)stream)->capturing) return 900;
    return reads++, memcpy(to, (void *)from, bytes), going();
}
#ifndef OLD
static int handles;
Status cuGraphConditionalHandleCreate(uint64_t *found, Graph *graph, void *context, unsigned value, unsigned flags) {
    Status status = going();
    if (status || !graph || context != &CONTEXT || value || flags) return status ? status : 1;
    return *found = FIRST + (uint64_t)(handles++ % (1 << 16)), values[*found - FIRST] = 77, 0;
}
Status cuGraphAddNode_v2(Node **found, Graph *graph, Node **needs, const void *edges, size_t n, Conditional *p) {
    Status status = going();
    if (status || edges || p->node != 13 || p->context != &CONTEXT || p->bodies || p->handle < FIRST)
        return status ? status : 1;
    for (int i = 0; i < 26; i++)
        if (p->padding[i]) return 1;
    if (!p->size || (p->type != 2 && p->size != 1)) return 1;
    Node *node = *found = calloc(1, sizeof *node);
    int bad = note_needs(graph, node, needs, n);
    graph->nodes[graph->count++] = node;
    node->handle = p->handle, node->type = (unsigned)p->type, node->size = p->size;
    node->bodies = calloc(p->size, sizeof *node->bodies);
    for (unsigned i = 0; i < p->size; i++) node->bodies[i] = calloc(1, sizeof(Graph));
    return p->bodies = node->bodies, bad;
}
#endif

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

/* As the product of a library: word 0 is a number of elements, words 3, 5 and 8 are the factors and the result. */
Status fake_matmul(uint64_t n, uint64_t a1, uint64_t a2, uint64_t x, uint64_t a4, uint64_t y, uint64_t a6, uint64_t a7,
                   uint64_t out, uint64_t a9, uint64_t a10, uint64_t a11, uint64_t a12, uint64_t a13, uint64_t a14,
                   void *stream) {
    void *params[] = {&x, &y, &out};
    if (a1 + a2 + a4 + a6 + a7 + a9 + a10 + a11 + a12 + a13 + a14 != 11) return 7;
    return cuLaunchKernel(&MULTIPLIED, (unsigned)n, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

static void biased(void **p, unsigned grid) { /* out[i] = alpha * x[i] + beta * bias[i] */
    float *x = *(float **)p[0], *bias = *(float **)p[1], *out = *(float **)p[2], beta = *(float *)p[4];
    for (unsigned i = 0; i < grid; i++) out[i] = (float)*(double *)p[3] * x[i] + beta * bias[i];
}
static Function BIASED = {biased, 5, {8, 8, 8, 8, 4}};

/* A tensor map as this driver has it: what it is encoded of. */
typedef struct {
    char *address;
    int type, rank, swizzle, promotion;
    uint64_t columns, rows, stride;
    unsigned box[2], steps[2];
} Map;
int encoded;
#ifndef OLD
Status cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *sizes,
                              const uint64_t *strides, const unsigned *box, const unsigned *steps, int interleave,
                              int swizzle, int promotion, int fill) {
    if ((uintptr_t)map % 128 || (uintptr_t)address % 16 || rank != 2 || interleave || fill) return 1;
    Map found = {address, type, (int)rank, swizzle, promotion, sizes[0], sizes[1], strides[0], {box[0], box[1]},
                 {steps[0], steps[1]}};
    return encoded++, memset(map, 0, 128), memcpy(map, &found, sizeof found), 0;
}
#endif

/* out = x * k, of the rows of a tensor map */
static void tiled(void **p, unsigned grid) {
    const Map *map = p[1];
    float *out = *(float **)p[2], k = *(float *)p[0];
    if (map->type != 7 || map->swizzle != 2 || map->promotion != 3 || map->box[0] != 4 || map->box[1] != 2) return;
    for (uint64_t r = 0; r < map->rows * grid; r++)
        for (uint64_t c = 0; c < map->columns; c++)
            out[r * map->columns + c] = *(float *)(map->address + r * map->stride + c * 4 * map->steps[0]) * k;
}
Function TILED = {tiled, 3, {4, 128, 8}};

/* A library with a descriptor, whose attribute is an address that is read from memory, and a pack of addresses. Floating
 * arguments stand between others, and there are more of these than registers. */
int described, ended;
Status fake_describe(float **descriptor, int attribute, float **value, size_t bytes) {
    if (attribute != -7 || bytes != sizeof *value) return 3;
    return described++, *descriptor = *value, 0;
}
Status fake_biased(int n, double alpha, float **descriptor, void **pack, float beta, int64_t less, double *more,
                   void *stream, unsigned char last, int64_t end) {
    float *x = pack[0], *out = pack[1];
    double scale = alpha * *more;
    if (less != -5 || last != 200 || end != 1ll << 40 || pack[2] != (void *)9) return 4;
    void *params[] = {&x, descriptor, &out, &scale, &beta};
    return cuLaunchKernel(&BIASED, (unsigned)n, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}
Status fake_end(void) { return ended++, 0; }

/* As ge2_decide: cudaGraphSetConditional is what the driver does itself. */
static void decided(void **p, unsigned grid) {
    uint64_t handle = *(uint64_t *)p[0], place = *(uint64_t *)p[1];
    int bytes = *(int *)p[2], most = *(int *)p[3], which = *(int *)p[4];
    int64_t found = bytes == 1    ? *(uint8_t *)place
                    : bytes == -1 ? *(int8_t *)place
                    : bytes == 4  ? *(uint32_t *)place
                    : bytes == -4 ? *(int32_t *)place
                                  : *(int64_t *)place;
    int value = found < 0 ? 0 : found > most ? most : (int)found;
    values[handle - FIRST] = (unsigned)(which < 0 ? value : value == which) * grid;
}
Function DECIDED = {decided, 5, {8, 8, 4, 4, 4}};

/* going[0] = x[0] < limit */
static void below(void **p, unsigned grid) {
    float *x = *(float **)p[0];
    *(uint8_t *)*(uint64_t *)p[1] = (uint8_t)(*x < *(float *)p[2]) & (grid > 0);
}
Function BELOW = {below, 3, {8, 8, 4}};
