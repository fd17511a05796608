/* A run of launches on a GPU as one call from Python: pointers and numbers change, all else is there beforehand.
 *
 * A call launches one kernel after another, or, from the second time on, all of them as one captured graph. Of
 * that there are several, by the pointers that they were made for; where none fits, the one that was not used for
 * longest is patched: kernels get new parameters, what a library launches is captured again. The driver is
 * loaded when the first run is made, so this compiles without CUDA's headers; names and numbers are those of cuda.h. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define GRAPHS 4   /* that are kept of one run */
#define WORDS 16   /* parameters of a library's function */
#define RELAXED 2  /* CU_STREAM_CAPTURE_MODE_RELAXED */
#define APART 1    /* CU_STREAM_NON_BLOCKING */
#define ALIGNED 16 /* bytes that an access may have */
#define PATIENCE 2 /* calls before a graph is worth making */
#define NO_MEMORY 2 /* CUDA_ERROR_OUT_OF_MEMORY */

typedef int Status;
typedef void *Handle;

typedef struct { /* CUDA_KERNEL_NODE_PARAMS_v2 */
    Handle function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    Handle kernel, context;
} KernelParams;

static struct {
    Handle library;
    Status (*cuGetErrorName)(Status, const char **);
    Status (*cuCtxGetCurrent)(Handle *);
    Status (*cuCtxPushCurrent_v2)(Handle);
    Status (*cuCtxPopCurrent_v2)(Handle *);
    Status (*cuStreamCreate)(Handle *, unsigned);
    Status (*cuStreamDestroy_v2)(Handle);
    Status (*cuStreamIsCapturing)(Handle, int *);
    Status (*cuStreamBeginCapture_v2)(Handle, int);
    Status (*cuStreamEndCapture)(Handle, Handle *);
    Status (*cuLaunchKernel)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle,
                             void **, void **);
    Status (*cuGraphCreate)(Handle *, unsigned);
    Status (*cuGraphDestroy)(Handle);
    Status (*cuGraphAddKernelNode_v2)(Handle *, Handle, const Handle *, size_t, const KernelParams *);
    Status (*cuGraphAddChildGraphNode)(Handle *, Handle, const Handle *, size_t, Handle);
    Status (*cuGraphInstantiateWithFlags)(Handle *, Handle, unsigned long long);
    Status (*cuGraphExecDestroy)(Handle);
    Status (*cuGraphExecKernelNodeSetParams_v2)(Handle, Handle, const KernelParams *);
    Status (*cuGraphExecChildGraphNodeSetParams)(Handle, Handle, Handle);
    Status (*cuGraphLaunch)(Handle, Handle);
} cuda;

#define NAMED(name) {#name, offsetof(__typeof__(cuda), name)}
static const struct {
    const char *name;
    size_t at;
} FUNCTIONS[] = {
    NAMED(cuGetErrorName), NAMED(cuCtxGetCurrent), NAMED(cuCtxPushCurrent_v2), NAMED(cuCtxPopCurrent_v2),
    NAMED(cuStreamCreate), NAMED(cuStreamDestroy_v2), NAMED(cuStreamIsCapturing), NAMED(cuStreamBeginCapture_v2), NAMED(cuStreamEndCapture),
    NAMED(cuLaunchKernel), NAMED(cuGraphCreate), NAMED(cuGraphDestroy), NAMED(cuGraphAddKernelNode_v2),
    NAMED(cuGraphAddChildGraphNode), NAMED(cuGraphInstantiateWithFlags), NAMED(cuGraphExecDestroy),
    NAMED(cuGraphExecKernelNodeSetParams_v2), NAMED(cuGraphExecChildGraphNodeSetParams), NAMED(cuGraphLaunch),
};

/* A parameter that changes: a pointer into array `from`, or number `from`. */
typedef struct {
    int is_number, from;
    uint64_t offset; /* of a pointer, in bytes; of a number, in the bytes of all numbers */
    size_t at, size; /* where it lies in the values of the run */
} Slot;

typedef struct {
    int is_call; /* whether a library launches it */
    int first_slot, slots, first_need, needs;
    KernelParams kernel;
    Status (*function)(); /* of a library: takes WORDS words, the last of which is a stream */
    size_t words;         /* where they lie in the values */
    PyObject *name;
} Node;

typedef struct {
    Handle graph, exec, *nodes;
    uint64_t *places; /* for which it is patched */
    char *numbers;
    unsigned long long used;
} Graph;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Py_ssize_t arrays, numbers, count;
    Node *node;
    Slot *slot;
    int *need; /* the nodes that a node waits for */
    char *values;
    void **params;
    uint64_t *places;
    char *given; /* the numbers of this call */
    size_t *number_at, number_bytes;
    Graph graph[GRAPHS];
    int graphs, captures;
    unsigned long long calls, launched, patched;
    Handle context, apart; /* a stream of its own, on which libraries are captured */
    PyObject *trouble; /* why there is no graph */
    char *callers;     /* whether an array is the caller's */
    PyThread_type_lock lock; /* of places, values and graphs: a failure runs Python, and so maybe other threads */
    PyObject *ready, *stream, *fail, *owner; /* owner: of kernels and of what a library is handed */
} Run;

static PyObject *DATA, *PTR, *ORDERED;

/* ------------------------------------------------------------------------------------------------------ the driver */

static int load(const char *path) {
    if (cuda.library) return 0;
    Handle library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        PyErr_Format(PyExc_OSError, "%s", dlerror());
        return -1;
    }
    for (size_t i = 0; i < sizeof FUNCTIONS / sizeof *FUNCTIONS; i++) {
        Handle found = dlsym(library, FUNCTIONS[i].name);
        if (!found) {
            PyErr_Format(PyExc_OSError, "the driver has no %s", FUNCTIONS[i].name);
            return -1;
        }
        memcpy((char *)&cuda + FUNCTIONS[i].at, &found, sizeof found);
    }
    cuda.library = library;
    return 0;
}

/* Has Python raise what a function of the driver, or of a library, said of a node; -1 for none. */
static int failed(Run *me, Status status, const char *what, Py_ssize_t node) {
    const char *name = NULL;
    cuda.cuGetErrorName(status, &name);
    PyObject *of = node < 0 ? Py_None : me->node[node].name;
    PyObject *said = PyObject_CallFunction(me->fail, "sisO", what, status, name ? name : "unknown", of);
    Py_XDECREF(said);
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "a failure that raises nothing");
    return -1;
}

/* -------------------------------------------------------------------------------------------- pointers and numbers */

static uint64_t place_of(PyObject *x) {
    if (PyLong_CheckExact(x)) return PyLong_AsUnsignedLongLong(x);
    PyObject *data = PyObject_GetAttr(x, DATA);
    if (!data) return (uint64_t)-1;
    PyObject *ptr = PyObject_GetAttr(data, PTR);
    Py_DECREF(data);
    if (!ptr) return (uint64_t)-1;
    uint64_t found = PyLong_AsUnsignedLongLong(ptr);
    Py_DECREF(ptr);
    return found;
}

/* Copies, on the device, of the callers' arrays that are not in order or begin where wide accesses may not, by
 * their numbers; NULL for none. This runs Python, and so maybe other threads, which may call this very run. */
static int make_ready(Run *me, PyObject *const *args, PyObject **copies) {
    for (Py_ssize_t i = 0; i < me->arrays; i++) {
        if (!me->callers[i]) continue;
        PyObject *ordered = PyObject_GetAttr(args[i], ORDERED); /* which NumPy's arrays have not */
        if (!ordered) {
            if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
            PyErr_Clear();
        } else {
            Py_DECREF(ordered);
            uint64_t place = place_of(args[i]);
            if (place == (uint64_t)-1 && PyErr_Occurred()) return -1;
            if (ordered == Py_True && place % ALIGNED == 0) continue;
        }
        if (!*copies && !(*copies = PyDict_New())) return -1;
        PyObject *copy = PyObject_CallOneArg(me->ready, args[i]), *at = copy ? PyLong_FromSsize_t(i) : NULL;
        int bad = !at || PyDict_SetItem(*copies, at, copy);
        Py_XDECREF(at);
        Py_XDECREF(copy);
        if (bad) return -1;
    }
    return 0;
}

static PyObject *copy_of(PyObject *copies, Py_ssize_t i) {
    PyObject *at = PyLong_FromSsize_t(i), *found = at ? PyDict_GetItemWithError(copies, at) : NULL;
    Py_XDECREF(at);
    return found;
}

static int read_arguments(Run *me, PyObject *const *args, PyObject *copies) {
    for (Py_ssize_t i = 0; i < me->arrays; i++) {
        PyObject *copy = copies && me->callers[i] ? copy_of(copies, i) : NULL;
        if (PyErr_Occurred()) return -1;
        me->places[i] = place_of(copy ? copy : args[i]);
        if (me->places[i] == (uint64_t)-1 && PyErr_Occurred()) return -1;
    }
    for (Py_ssize_t i = 0; i < me->numbers; i++) {
        Py_buffer view;
        size_t size = me->number_at[i + 1] - me->number_at[i];
        if (PyObject_GetBuffer(args[me->arrays + i], &view, PyBUF_SIMPLE)) return -1;
        int fits = (size_t)view.len == size;
        if (fits) memcpy(me->given + me->number_at[i], view.buf, size);
        PyBuffer_Release(&view);
        if (!fits) {
            PyErr_Format(PyExc_TypeError, "number %zd has %zu bytes", i, size);
            return -1;
        }
    }
    return 0;
}

static void fill(Run *me, const Node *node) {
    for (int i = node->first_slot; i < node->first_slot + node->slots; i++) {
        const Slot *slot = &me->slot[i];
        if (slot->is_number) {
            memcpy(me->values + slot->at, me->given + slot->offset, slot->size);
        } else {
            uint64_t place = me->places[slot->from] + slot->offset;
            memcpy(me->values + slot->at, &place, sizeof place);
        }
    }
}

static int differs(const Run *me, const Node *node, const Graph *graph) {
    for (int i = node->first_slot; i < node->first_slot + node->slots; i++) {
        const Slot *slot = &me->slot[i];
        if (slot->is_number ? memcmp(me->given + slot->offset, graph->numbers + slot->offset, slot->size)
                            : me->places[slot->from] != graph->places[slot->from])
            return 1;
    }
    return 0;
}

/* -------------------------------------------------------------------------------------------------- one by one */

static Status call_library(Run *me, const Node *node, Handle stream) {
    uint64_t *w = (uint64_t *)(me->values + node->words);
    return node->function(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13],
                          w[14], stream);
}

static int launch_each(Run *me, Handle stream) {
    for (Py_ssize_t i = 0; i < me->count; i++) {
        const Node *node = &me->node[i];
        const KernelParams *k = &node->kernel;
        fill(me, node);
        Status status = node->is_call
                            ? call_library(me, node, stream)
                            : cuda.cuLaunchKernel(k->function, k->grid[0], k->grid[1], k->grid[2], k->block[0],
                                                  k->block[1], k->block[2], k->shared, stream, k->params, NULL);
        if (status) return failed(me, status, node->is_call ? "a library" : "cuLaunchKernel", i);
    }
    me->launched++;
    return 0;
}

/* -------------------------------------------------------------------------------------------------- as a graph */

/* What a library launches, as a graph; on a stream of our own, and relaxed, so that nobody else is disturbed. */
static int captured(Run *me, Py_ssize_t i, Handle *graph) {
    Status status = me->apart ? 0 : cuda.cuStreamCreate(&me->apart, APART);
    if (status) return failed(me, status, "cuStreamCreate", i);
    if ((status = cuda.cuStreamBeginCapture_v2(me->apart, RELAXED)))
        return failed(me, status, "cuStreamBeginCapture", i);
    Status called = call_library(me, &me->node[i], me->apart);
    status = cuda.cuStreamEndCapture(me->apart, graph);
    if (called || status) {
        if (!status && *graph) cuda.cuGraphDestroy(*graph);
        return failed(me, called ? called : status, called ? "a library" : "cuStreamEndCapture", i);
    }
    return 0;
}

static int add_node(Run *me, Graph *graph, Py_ssize_t i) {
    const Node *node = &me->node[i];
    Handle few[64], *needs = few;
    if (node->needs > 64 && !(needs = malloc((size_t)node->needs * sizeof *needs))) {
        PyErr_NoMemory();
        return -1;
    }
    for (int n = 0; n < node->needs; n++) needs[n] = graph->nodes[me->need[node->first_need + n]];
    fill(me, node);
    int bad = 0;
    Status status;
    if (!node->is_call) {
        status = cuda.cuGraphAddKernelNode_v2(&graph->nodes[i], graph->graph, needs, (size_t)node->needs, &node->kernel);
        if (status) bad = failed(me, status, "cuGraphAddKernelNode", i);
    } else {
        Handle child = NULL;
        bad = captured(me, i, &child);
        if (!bad) {
            status =
                cuda.cuGraphAddChildGraphNode(&graph->nodes[i], graph->graph, needs, (size_t)node->needs, child);
            cuda.cuGraphDestroy(child); /* the node has a copy */
            if (status) bad = failed(me, status, "cuGraphAddChildGraphNode", i);
        }
    }
    if (needs != few) free(needs);
    return bad;
}

static void drop(Graph *graph) {
    if (graph->exec) cuda.cuGraphExecDestroy(graph->exec);
    if (graph->graph) cuda.cuGraphDestroy(graph->graph);
    free(graph->nodes);
    free(graph->places);
    free(graph->numbers);
    memset(graph, 0, sizeof *graph);
}

static void note(Run *me, Graph *graph) {
    if (me->arrays) memcpy(graph->places, me->places, (size_t)me->arrays * sizeof *me->places);
    if (me->number_bytes) memcpy(graph->numbers, me->given, me->number_bytes);
}

static int make(Run *me, Graph *graph) {
    graph->nodes = calloc((size_t)me->count, sizeof *graph->nodes);
    graph->places = calloc((size_t)me->arrays + 1, sizeof *graph->places);
    graph->numbers = calloc(me->number_bytes + 1, 1);
    if (!graph->nodes || !graph->places || !graph->numbers) {
        PyErr_NoMemory();
        goto bad;
    }
    Status status = cuda.cuGraphCreate(&graph->graph, 0);
    if (status) {
        failed(me, status, "cuGraphCreate", -1);
        goto bad;
    }
    for (Py_ssize_t i = 0; i < me->count; i++)
        if (add_node(me, graph, i)) goto bad;
    if ((status = cuda.cuGraphInstantiateWithFlags(&graph->exec, graph->graph, 0))) {
        failed(me, status, "cuGraphInstantiate", -1);
        goto bad;
    }
    note(me, graph);
    return 0;
bad:
    drop(graph);
    return -1;
}

static int patch(Run *me, Graph *graph) {
    for (Py_ssize_t i = 0; i < me->count; i++) {
        const Node *node = &me->node[i];
        if (!differs(me, node, graph)) continue;
        fill(me, node);
        Status status;
        if (!node->is_call) {
            status = cuda.cuGraphExecKernelNodeSetParams_v2(graph->exec, graph->nodes[i], &node->kernel);
        } else {
            Handle child = NULL;
            if (captured(me, i, &child)) return -1;
            status = cuda.cuGraphExecChildGraphNodeSetParams(graph->exec, graph->nodes[i], child);
            cuda.cuGraphDestroy(child);
        }
        if (status) return failed(me, status, "a parameter's change", i);
    }
    note(me, graph);
    me->patched++;
    return 0;
}

static int fits(const Run *me, const Graph *graph) {
    return !memcmp(graph->places, me->places, (size_t)me->arrays * sizeof *me->places) &&
           !memcmp(graph->numbers, me->given, me->number_bytes);
}

/* A graph for the places of this call. */
static Graph *suitable(Run *me) {
    Graph *oldest = NULL;
    for (int i = 0; i < me->graphs; i++) {
        if (fits(me, &me->graph[i])) return &me->graph[i];
        if (!oldest || me->graph[i].used < oldest->used) oldest = &me->graph[i];
    }
    if (me->graphs < GRAPHS) {
        if (make(me, &me->graph[me->graphs])) return NULL;
        return &me->graph[me->graphs++];
    }
    if (!patch(me, oldest)) return oldest;
    int at = (int)(oldest - me->graph); /* half patched: it is of no use any more */
    drop(oldest);
    me->graph[at] = me->graph[--me->graphs];
    memset(&me->graph[me->graphs], 0, sizeof(Graph));
    return NULL;
}

/* ---------------------------------------------------------------------------------------------------------- a call */

/* What has no graph is launched one by one from then on; what interrupts is no trouble of the graph's. */
static int give_up(Run *me) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyException_SetTraceback(value, Py_None); /* from 3.12 on it holds the frames, and so the caller's arrays */
    Py_XDECREF(type);
    Py_XDECREF(trace);
    Py_XSETREF(me->trouble, value);
    me->captures = 0;
    for (; me->graphs; me->graphs--) drop(&me->graph[me->graphs - 1]);
    return 0;
}

static int launch(Run *me, Handle stream) {
    int busy = 0;
    if (!me->captures || me->calls < PATIENCE) return launch_each(me, stream);
    Status status = cuda.cuStreamIsCapturing(stream, &busy);
    if (status) return failed(me, status, "cuStreamIsCapturing", -1);
    if (busy) return launch_each(me, stream); /* of somebody else's graph these are part */
    Graph *graph = suitable(me);
    if (!graph) return give_up(me) ? -1 : launch_each(me, stream);
    graph->used = me->calls;
    status = cuda.cuGraphLaunch(graph->exec, stream);
    if (!status) return 0;
    failed(me, status, "cuGraphLaunch", -1);
    if (status != NO_MEMORY || give_up(me)) return -1;
    return launch_each(me, stream); /* a graph may need memory when it is first launched, and then did nothing */
}

static int launched(Run *me, PyObject *const *args, PyObject *copies, Handle stream) {
    Handle there = NULL;
    if (read_arguments(me, args, copies)) return -1;
    me->calls++;
    Status status = cuda.cuCtxGetCurrent(&there);
    int other = !status && there != me->context;
    if (other) status = cuda.cuCtxPushCurrent_v2(me->context);
    if (status) return failed(me, status, "cuCtxPushCurrent", -1);
    int bad = launch(me, stream);
    if (other) cuda.cuCtxPopCurrent_v2(&there);
    return bad;
}

static PyObject *run(PyObject *self, PyObject *const *args, size_t flagged, PyObject *keywords) {
    Run *me = (Run *)self;
    if (PyVectorcall_NARGS(flagged) != me->arrays + me->numbers || keywords) {
        PyErr_Format(PyExc_TypeError, "the launches take %zd arrays and %zd numbers", me->arrays, me->numbers);
        return NULL;
    }
    PyObject *copies = NULL; /* they live until all is launched: then their memory may be other arrays' */
    int bad = make_ready(me, args, &copies);
    PyObject *current = bad ? NULL : PyObject_CallNoArgs(me->stream);
    PyObject *ptr = current ? PyObject_GetAttr(current, PTR) : NULL;
    Py_XDECREF(current);
    Handle stream = ptr ? PyLong_AsVoidPtr(ptr) : NULL;
    bad = !ptr || (!stream && PyErr_Occurred());
    Py_XDECREF(ptr);
    if (!bad) {
        if (!PyThread_acquire_lock(me->lock, NOWAIT_LOCK)) {
            Py_BEGIN_ALLOW_THREADS PyThread_acquire_lock(me->lock, WAIT_LOCK);
            Py_END_ALLOW_THREADS
        }
        bad = launched(me, args, copies, stream);
        PyThread_release_lock(me->lock);
    }
    Py_XDECREF(copies);
    return bad ? NULL : Py_NewRef(Py_None);
}

/* ------------------------------------------------------------------------------------------------- made and unmade */

static int read_slot(Run *me, Slot *slot, PyObject *x, size_t at) {
    slot->at = at;
    if (!PyArg_ParseTuple(x, "piK", &slot->is_number, &slot->from, &slot->offset)) return -1;
    Py_ssize_t most = slot->is_number ? me->numbers : me->arrays;
    if (slot->from < 0 || slot->from >= most) {
        PyErr_SetString(PyExc_ValueError, "a parameter of an array or a number that there is not");
        return -1;
    }
    slot->size = sizeof(uint64_t);
    if (slot->is_number) {
        slot->offset = me->number_at[slot->from];
        slot->size = me->number_at[slot->from + 1] - me->number_at[slot->from];
    }
    return 0;
}

/* Parameters: bytes, or (is it a number, which one, offset). Where they lie is a multiple of 16. */
static int read_params(Run *me, Node *node, PyObject *given, int *slots, int *params, size_t *at) {
    node->first_slot = *slots;
    node->kernel.params = me->params + *params;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); i++) {
        PyObject *x = PyTuple_GET_ITEM(given, i);
        me->params[(*params)++] = me->values + *at;
        if (PyBytes_Check(x)) {
            memcpy(me->values + *at, PyBytes_AS_STRING(x), (size_t)PyBytes_GET_SIZE(x));
            *at += ((size_t)PyBytes_GET_SIZE(x) + 15) / 16 * 16;
            continue;
        }
        if (read_slot(me, &me->slot[*slots], x, *at)) return -1;
        *at += (me->slot[(*slots)++].size + 15) / 16 * 16;
    }
    node->slots = *slots - node->first_slot;
    return 0;
}

/* A library's words: ints, or as parameters. */
static int read_words(Run *me, Node *node, PyObject *given, int *slots, size_t *at) {
    node->first_slot = *slots;
    node->words = *at;
    if (PyTuple_GET_SIZE(given) != WORDS - 1) {
        PyErr_SetString(PyExc_ValueError, "a library's function takes 15 words and a stream");
        return -1;
    }
    for (Py_ssize_t i = 0; i < WORDS - 1; i++, *at += sizeof(uint64_t)) {
        PyObject *x = PyTuple_GET_ITEM(given, i);
        if (PyLong_Check(x)) {
            uint64_t word = PyLong_AsUnsignedLongLong(x);
            if (word == (uint64_t)-1 && PyErr_Occurred()) return -1;
            memcpy(me->values + *at, &word, sizeof word);
        } else if (read_slot(me, &me->slot[(*slots)++], x, *at))
            return -1;
    }
    *at += sizeof(uint64_t);
    node->slots = *slots - node->first_slot;
    return 0;
}

/* (is a library's, function, grid, block, shared memory, parameters, needs, name) */
static int read_node(Run *me, Py_ssize_t i, PyObject *x, int *slots, int *params, int *needs, size_t *at) {
    Node *node = &me->node[i];
    unsigned *g = node->kernel.grid, *b = node->kernel.block;
    unsigned long long function;
    PyObject *given, *after, *name;
    if (!PyArg_ParseTuple(x, "pK(III)(III)IO!O!O", &node->is_call, &function, &g[0], &g[1], &g[2], &b[0], &b[1], &b[2],
                          &node->kernel.shared, &PyTuple_Type, &given, &PyTuple_Type, &after, &name))
        return -1;
    node->kernel.function = (Handle)(uintptr_t)function;
    node->function = (Status(*)())(uintptr_t)function;
    Py_INCREF(name);
    node->name = name;
    node->first_need = *needs;
    node->needs = (int)PyTuple_GET_SIZE(after);
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(after); n++) {
        long before = PyLong_AsLong(PyTuple_GET_ITEM(after, n));
        if (before < 0 || before >= i) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a launch waits for what comes later");
            return -1;
        }
        me->need[(*needs)++] = (int)before;
    }
    return node->is_call ? read_words(me, node, given, slots, at) : read_params(me, node, given, slots, params, at);
}

/* How many parameters, slots, waits and bytes of values there are. */
static int measure(PyObject *nodes, size_t *params, size_t *needs, size_t *bytes) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(nodes); i++) {
        PyObject *node = PyTuple_GET_ITEM(nodes, i);
        if (!PyTuple_Check(node) || PyTuple_GET_SIZE(node) != 8 || !PyTuple_Check(PyTuple_GET_ITEM(node, 5)) ||
            !PyTuple_Check(PyTuple_GET_ITEM(node, 6))) {
            PyErr_SetString(PyExc_TypeError, "a launch is a tuple of eight");
            return -1;
        }
        PyObject *given = PyTuple_GET_ITEM(node, 5);
        *params += (size_t)PyTuple_GET_SIZE(given) + 1;
        *needs += (size_t)PyTuple_GET_SIZE(PyTuple_GET_ITEM(node, 6));
        *bytes += sizeof(uint64_t);
        for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(given); n++) {
            PyObject *x = PyTuple_GET_ITEM(given, n);
            *bytes += PyBytes_Check(x) ? ((size_t)PyBytes_GET_SIZE(x) + 15) / 16 * 16 : 16;
        }
    }
    return 0;
}

static void release(Run *me) {
    if (cuda.library && me->context) {
        Handle there;
        int entered = !cuda.cuCtxPushCurrent_v2(me->context);
        for (int i = 0; i < me->graphs; i++) drop(&me->graph[i]);
        if (me->apart) cuda.cuStreamDestroy_v2(me->apart);
        if (entered) cuda.cuCtxPopCurrent_v2(&there);
    }
    for (Py_ssize_t i = 0; me->node && i < me->count; i++) Py_CLEAR(me->node[i].name);
    free(me->node);
    free(me->slot);
    free(me->need);
    free(me->values);
    free(me->params);
    free(me->places);
    free(me->callers);
    free(me->given);
    free(me->number_at);
    if (me->lock) PyThread_free_lock(me->lock);
    Py_CLEAR(me->ready);
    Py_CLEAR(me->stream);
    Py_CLEAR(me->fail);
    Py_CLEAR(me->owner);
    Py_CLEAR(me->trouble);
}

static void dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    release((Run *)self);
    Py_TYPE(self)->tp_free(self);
}

static int traverse(PyObject *self, visitproc visit, void *arg) {
    Run *me = (Run *)self;
    Py_VISIT(me->ready);
    Py_VISIT(me->stream);
    Py_VISIT(me->fail);
    Py_VISIT(me->owner);
    return 0;
}

static int room(Run *me, PyObject *sizes, PyObject *nodes) {
    size_t params = 0, needs = 0, bytes = 0;
    me->count = PyTuple_GET_SIZE(nodes);
    me->numbers = PyTuple_GET_SIZE(sizes);
    if (measure(nodes, &params, &needs, &bytes)) return -1;
    me->node = calloc((size_t)me->count + 1, sizeof *me->node);
    me->slot = calloc(params + 1, sizeof *me->slot);
    me->params = calloc(params + 1, sizeof *me->params);
    me->need = calloc(needs + 1, sizeof *me->need);
    me->number_at = calloc((size_t)me->numbers + 1, sizeof *me->number_at);
    me->places = calloc((size_t)me->arrays + 1, sizeof *me->places);
    me->callers = calloc((size_t)me->arrays + 1, 1);
    if (posix_memalign((void **)&me->values, 16, bytes + 16)) me->values = NULL;
    if (!me->node || !me->slot || !me->params || !me->need || !me->number_at || !me->places || !me->callers ||
        !me->values) {
        PyErr_NoMemory();
        return -1;
    }
    memset(me->values, 0, bytes + 16);
    for (Py_ssize_t i = 0; i < me->numbers; i++) {
        size_t size = PyLong_AsSize_t(PyTuple_GET_ITEM(sizes, i));
        if (size == (size_t)-1 && PyErr_Occurred()) return -1;
        me->number_at[i + 1] = me->number_at[i] + size;
    }
    me->number_bytes = me->number_at[me->numbers];
    if (!(me->given = calloc(me->number_bytes + 1, 1))) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static PyObject *make_run(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    const char *driver;
    unsigned long long context;
    Py_ssize_t arrays;
    const char *callers;
    PyObject *sizes, *nodes, *ready, *stream, *fail, *owner;
    int captures;
    if (keywords && PyDict_GET_SIZE(keywords)) return PyErr_Format(PyExc_TypeError, "a run takes no keywords");
    if (!PyArg_ParseTuple(args, "sKy#O!O!pOOOO", &driver, &context, &callers, &arrays, &PyTuple_Type, &sizes, &PyTuple_Type, &nodes,
                          &captures, &ready, &stream, &fail, &owner) ||
        load(driver))
        return NULL;
    Run *me = (Run *)type->tp_alloc(type, 0);
    if (!me) return NULL;
    me->vectorcall = run;
    me->arrays = arrays;
    me->captures = captures;
    me->context = (Handle)(uintptr_t)context;
    if (!(me->lock = PyThread_allocate_lock())) return Py_DECREF(me), PyErr_NoMemory();
    Py_INCREF(ready);
    me->ready = ready;
    Py_INCREF(stream);
    me->stream = stream;
    Py_INCREF(fail);
    me->fail = fail;
    Py_INCREF(owner);
    me->owner = owner;
    int slots = 0, params = 0, needs = 0;
    size_t at = 0;
    int bad = room(me, sizes, nodes);
    if (!bad && arrays) memcpy(me->callers, callers, (size_t)arrays);
    for (Py_ssize_t i = 0; !bad && i < me->count; i++)
        bad = read_node(me, i, PyTuple_GET_ITEM(nodes, i), &slots, &params, &needs, &at);
    if (bad) {
        Py_DECREF(me);
        return NULL;
    }
    return (PyObject *)me;
}

/* What it did: calls, those launched one by one, graphs that there are, those patched. */
static PyObject *counts(PyObject *self, void *unused) {
    Run *me = (Run *)self;
    return Py_BuildValue("KKiK", me->calls, me->launched, me->graphs, me->patched);
}

/* The error for which it has no graph; None for none. */
static PyObject *trouble(PyObject *self, void *unused) {
    Run *me = (Run *)self;
    return Py_NewRef(me->trouble ? me->trouble : Py_None);
}

static PyGetSetDef SEEN[] = {{"trouble", trouble, NULL, "why there is no graph", NULL},
                             {"counts", counts, NULL, "calls, calls launched one by one, graphs, patches", NULL},
                             {NULL, NULL, NULL, NULL, NULL}};

static PyTypeObject RUN = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ge2_launches.Run",
    .tp_basicsize = sizeof(Run),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Run, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = make_run,
    .tp_dealloc = dealloc,
    .tp_traverse = traverse,
    .tp_getset = SEEN,
    .tp_doc = "Run(driver, context, callers, sizes of numbers, launches, captures, ready, stream, fail, owner): launches, called",
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "ge2_launches", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_ge2_launches(void) {
    ORDERED = PyUnicode_InternFromString("_c_contiguous"); /* CuPy has `flags` too, which is made anew each time */
    DATA = PyUnicode_InternFromString("data");
    PTR = PyUnicode_InternFromString("ptr");
    if (!DATA || !PTR || !ORDERED || PyType_Ready(&RUN)) return NULL;
    PyObject *module = PyModule_Create(&MODULE);
    if (module && PyModule_AddObjectRef(module, "Run", (PyObject *)&RUN)) Py_CLEAR(module);
    return module;
}
