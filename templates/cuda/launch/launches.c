/* A run of launches on a GPU as one call from Python: pointers and numbers change, all else is there beforehand.
 *
 * A call launches one kernel after another, or, from the second time on, all of them as one captured graph. Of
 * that there are several, by the pointers that they were made for; where none fits, the one that was not used for
 * longest is patched: kernels get new parameters, what a library launches is captured again.
 *
 * Loops and branches are launches of lists, which numbers on the device decide: in a graph they are conditional
 * nodes, and one by one the host waits for the numbers. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <time.h>

#include "driver.h"

#define GRAPHS 4   /* that are kept of one run */
#define WORDS 24   /* integers and addresses that a library's function takes at most, the stream among them */
#define REALS 8    /* floating numbers that it takes at most: that many are passed in registers */
#define ALIGNED 16 /* bytes that an access may have */
#define PATIENCE 2 /* calls before a graph is worth making */
#define NO_MEMORY 2 /* CUDA_ERROR_OUT_OF_MEMORY */

/* What a node is. A decision reads a number, by which the conditional nodes of its handle go on. */
typedef enum { KERNEL = 0, CALL = 1, DECISION = 2, CHOICE = 3 } Kind;

/* A parameter that changes: a pointer into array `from`, a tensor map of what lies there, or number `from`. */
typedef struct {
    int is_number, from;
    uint64_t offset; /* of a pointer, in bytes; of a number, in the bytes of all numbers */
    size_t at, size; /* where it lies in the values of the run */
    Encoding *map;   /* of a tensor map; else NULL */
    uint64_t mapped; /* the address that it is encoded for */
} Slot;

typedef struct {
    int kind, first_slot, slots, first_need, needs;
    int early; /* so many of the needs, the last, need not have ended when the kernel is launched */
    KernelParams kernel;
    int first_call, calls; /* the functions of a library */
    int handle;           /* of a decision and a choice: which of the run's */
    int type, first_list, lists;
    int together; /* whether the blocks of a kernel wait for each other: all of them are on the GPU at once */
    int awaits;   /* whether a kernel waits by itself until those before it have ended */
    PyObject *name;
} Node;

/* A function of a library, as any is called: integers and addresses, of whatever width, are passed in registers and on
 * the stack in their order, floating numbers in registers of their own, and what a function does not take it ignores. */
typedef Status (*Function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                           uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                           uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, double, double, double, double,
                           double, double, double, double);

typedef struct {
    Function function;
    size_t words, reals; /* where they lie in the values */
    unsigned streams;    /* a bit for each of the words that is the stream */
    PyObject *name, *explain; /* what its library says of an error's number */
} Called;

typedef struct {
    int first, count; /* its nodes */
} List;

typedef struct {
    uint64_t handle;
    int made;
} Deciding;

typedef struct {
    Handle graph, exec, *nodes;
    Deciding *decided;
    uint64_t *places; /* for which it is patched */
    char *numbers;
    unsigned long long used;
    int early;   /* some kernels are launched before those that they wait for have ended */
    int refused; /* which the driver may not take */
} Graph;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Py_ssize_t arrays, numbers, count, lists, handles;
    Node *node;
    Called *called;
    List *list;      /* the first is that which a call launches */
    unsigned *value; /* of each handle, where the host decides */
    Slot *slot;
    int *need; /* the nodes that a node waits for */
    Encoding *map; /* of tensor maps, so many */
    int maps;
    char *values;
    void **params;
    uint64_t *places;
    char *given; /* the numbers of this call */
    size_t *number_at, number_bytes;
    Graph graph[GRAPHS];
    int graphs, captures;
    int awaiting;   /* whether a kernel waits by itself for those before it */
    int in_capture; /* whether a call becomes part of somebody else's graph */
    int rigid; /* whether the driver refuses to patch what is in a choice's list */
    unsigned long long calls, launched, patched, remade;
    Handle context, apart; /* a stream of its own, on which libraries are captured */
    double seconds;    /* spent on making graphs */
    PyObject *trouble; /* why there is no graph */
    PyObject *whole;   /* why no kernel is launched early in graphs, where some could be */
    char *callers;     /* whether an array is the caller's */
    PyThread_type_lock lock; /* of places, values and graphs: a failure runs Python, and so maybe other threads */
    unsigned long holder;    /* the thread that has it, or 0 */
    PyObject *ready, *stream, *fail, *owner; /* owner: of kernels and of what a library is handed */
    PyObject *told;                          /* of each graph that is made, or NULL */
} Run;

static PyObject *DATA, *PTR, *ORDERED;

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

#include "arrays.h"

static uint64_t place_of(PyObject *x) {
    if (is_plain(x)) return plain_place(x);
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
        if (!me->callers[i] || (is_plain(args[i]) && is_ordered(args[i]) && plain_place(args[i]) % ALIGNED == 0)) continue;
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

static Status encode(Run *me, Slot *slot, uint64_t place) {
    const Encoding *map = slot->map;
    if (slot->mapped == place && place) return 0;
    Status status = UNSUPPORTED;
    if (cuda.cuTensorMapEncodeTiled)
        status = cuda.cuTensorMapEncodeTiled(me->values + slot->at, map->type, map->rank, (void *)(uintptr_t)place,
                                             map->sizes, map->strides, map->box, map->steps, map->interleave,
                                             map->swizzle, map->promotion, map->fill);
    slot->mapped = status ? 0 : place;
    return status;
}

/* Writes the parameters of this call; -1 if a tensor map cannot be made. */
static int fill(Run *me, Py_ssize_t n) {
    const Node *node = &me->node[n];
    for (int i = node->first_slot; i < node->first_slot + node->slots; i++) {
        Slot *slot = &me->slot[i];
        if (slot->is_number) {
            memcpy(me->values + slot->at, me->given + slot->offset, slot->size);
            continue;
        }
        uint64_t place = me->places[slot->from] + slot->offset;
        Status status = 0;
        if (slot->map) status = encode(me, slot, place);
        else memcpy(me->values + slot->at, &place, sizeof place);
        if (status) return failed(me, status, "cuTensorMapEncodeTiled", n);
    }
    return 0;
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

static int launch_list(Run *me, const List *list, Handle stream);
static int decide(Run *me, Py_ssize_t i, Handle stream);
static int follow(Run *me, Py_ssize_t i, Handle stream);

static Status call_function(const Run *me, const Called *called, Handle stream) {
    uint64_t w[WORDS];
    double d[REALS];
    memcpy(w, me->values + called->words, sizeof w);
    memcpy(d, me->values + called->reals, sizeof d);
    for (int i = 0; i < WORDS; i++)
        if (called->streams >> i & 1) w[i] = (uint64_t)(uintptr_t)stream;
    return called->function(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13],
                            w[14], w[15], w[16], w[17], w[18], w[19], w[20], w[21], w[22], w[23], d[0], d[1], d[2],
                            d[3], d[4], d[5], d[6], d[7]);
}

/* The functions of a node in order; the one that fails, with its status, or NULL. */
static const Called *call_library(const Run *me, const Node *node, Handle stream, Status *status) {
    for (int i = node->first_call; i < node->first_call + node->calls; i++)
        if ((*status = call_function(me, &me->called[i], stream))) return &me->called[i];
    return NULL;
}

/* What a library said of a failure: its numbers are not the driver's. */
static int failed_call(Run *me, Status status, const Called *called, Py_ssize_t node) {
    PyObject *words = PyObject_CallFunction(called->explain, "i", status);
    PyObject *said = !words ? NULL : PyObject_CallFunction(me->fail, "OiOOO", called->name, status, words,
                                                           me->node[node].name, Py_True);
    Py_XDECREF(words);
    Py_XDECREF(said);
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "a failure that raises nothing");
    return -1;
}

/* A kernel that waits by itself is launched while the one before it in the stream runs, so that its blocks are there when
 * that one ends. In a graph of somebody else's that would be an edge of which they know nothing. */
static Status launch_early(const KernelParams *k, Handle stream) {
    const unsigned *g = k->grid, *b = k->block;
    Attribute allowed = {.id = SERIALIZED_EARLY, .value = {1}};
    LaunchConfig config = {.grid = {g[0], g[1], g[2]}, .block = {b[0], b[1], b[2]}, .shared = k->shared,
                           .stream = stream, .attributes = &allowed, .count = 1};
    return cuda.cuLaunchKernelEx(&config, k->function, k->params, NULL);
}

static Status launch_kernel(const Run *me, const Node *node, Handle stream) {
    const KernelParams *k = &node->kernel;
    const unsigned *g = k->grid, *b = k->block;
    if (node->together)
        return cuda.cuLaunchCooperativeKernel(k->function, g[0], g[1], g[2], b[0], b[1], b[2], k->shared, stream,
                                              k->params);
    Status status = UNSUPPORTED;
    if (node->awaits && !me->in_capture && cuda.cuLaunchKernelEx) status = launch_early(k, stream);
    if (status != UNSUPPORTED) return status;
    return cuda.cuLaunchKernel(k->function, g[0], g[1], g[2], b[0], b[1], b[2], k->shared, stream, k->params, NULL);
}

static int launch_node(Run *me, Py_ssize_t i, Handle stream) {
    const Node *node = &me->node[i];
    if (node->kind == DECISION) return decide(me, i, stream);
    if (node->kind == CHOICE) return follow(me, i, stream);
    Status status = 0;
    if (fill(me, i)) return -1;
    if (node->kind == CALL) {
        const Called *bad = call_library(me, node, stream, &status);
        return bad ? failed_call(me, status, bad, i) : 0;
    }
    status = launch_kernel(me, node, stream);
    return status ? failed(me, status, "cuLaunchKernel", i) : 0;
}

static int launch_list(Run *me, const List *list, Handle stream) {
    for (int i = list->first; i < list->first + list->count; i++)
        if (launch_node(me, i, stream)) return -1;
    return 0;
}

static int launch_each(Run *me, Handle stream) {
    if (launch_list(me, me->list, stream)) return -1;
    me->launched++;
    return 0;
}

/* ------------------------------------------------------------------------------------------------- loops, branches
 *
 * A decision is a kernel `ge2_decide(handle, place, bytes, most, which)`, which sets the value that a handle has. A
 * choice is a conditional node, which looks at that value: a loop launches its list as long as it is not 0, and the
 * list ends with a decision of the same handle. The host does as they do, when a run is launched one by one. */

static int32_t word(const Node *node, int i) {
    int32_t found;
    memcpy(&found, node->kernel.params[i], sizeof found);
    return found;
}

/* As the kernel has it: the integer as one of 0 to `most`, or whether that is `which`. */
static unsigned value_of(uint64_t found, int bytes, unsigned most, int which) {
    int size = bytes < 0 ? -bytes : bytes, rest = 64 - 8 * size;
    uint64_t number = found << rest >> rest;
    int negative = bytes < 0 && number >> (8 * size - 1);
    unsigned value = negative ? 0 : number > most ? most : (unsigned)number;
    return which < 0 ? value : value == (unsigned)which;
}

/* Waits for what was launched, and reads the number. The lock of the run is held, so others may have Python's. */
static int decide(Run *me, Py_ssize_t i, Handle stream) {
    const Node *node = &me->node[i];
    uint64_t found = 0, place;
    Status status;
    if (fill(me, i)) return -1;
    memcpy(&place, node->kernel.params[1], sizeof place);
    int bytes = word(node, 2);
    Py_BEGIN_ALLOW_THREADS
    status = cuda.cuMemcpyDtoHAsync_v2(&found, place, (size_t)abs(bytes), stream);
    if (!status) status = cuda.cuStreamSynchronize(stream);
    Py_END_ALLOW_THREADS
    if (status) return failed(me, status, "reading what decides", i);
    me->value[node->handle] = value_of(found, bytes, (unsigned)word(node, 3), word(node, 4));
    return 0;
}

static int follow(Run *me, Py_ssize_t i, Handle stream) {
    const Node *node = &me->node[i];
    const List *lists = me->list + node->first_list;
    const unsigned *value = &me->value[node->handle];
    if (node->type == SWITCH) return *value < (unsigned)node->lists ? launch_list(me, lists + *value, stream) : 0;
    while (*value) {
        if (launch_list(me, lists, stream)) return -1;
        if (node->type == IF) return 0;
        if (PyErr_CheckSignals()) return -1; /* a loop may be endless */
    }
    return 0;
}

/* The handle of a decision as the kernel gets it; it is made where the first of its decisions is. */
static int name_handle(Run *me, Graph *graph, Py_ssize_t i, Handle into) {
    const Node *node = &me->node[i];
    Deciding *decided = &graph->decided[node->handle];
    if (!decided->made) {
        Status status = UNSUPPORTED;
        if (cuda.cuGraphConditionalHandleCreate && cuda.cuGraphAddNode_v2 && node->kernel.function)
            status = cuda.cuGraphConditionalHandleCreate(&decided->handle, into, me->context, 0, 0);
        if (status) return failed(me, status, "a conditional node", i);
        decided->made = 1;
    }
    memcpy(node->kernel.params[0], &decided->handle, sizeof decided->handle);
    return 0;
}

static int add_list(Run *me, Graph *graph, const List *list, Handle into);

/* The graph of a choice's list. One of nothing has a node of nothing: whether there may be none is not documented. */
static int fill_body(Run *me, Graph *graph, const List *list, Handle body, Py_ssize_t i) {
    Handle nothing;
    if (list->count) return add_list(me, graph, list, body);
    Status status = cuda.cuGraphAddEmptyNode(&nothing, body, NULL, 0);
    return status ? failed(me, status, "cuGraphAddEmptyNode", i) : 0;
}

static int add_choice(Run *me, Graph *graph, Py_ssize_t i, Handle into, const Handle *needs) {
    const Node *node = &me->node[i];
    ConditionalParams params = {.node = CONDITIONAL, .handle = graph->decided[node->handle].handle,
                                .type = node->type, .size = (unsigned)node->lists, .context = me->context};
    Status status = cuda.cuGraphAddNode_v2(&graph->nodes[i], into, needs, NULL, (size_t)node->needs, &params);
    if (status) return failed(me, status, "a conditional node", i);
    for (int n = 0; n < node->lists; n++)
        if (fill_body(me, graph, &me->list[node->first_list + n], params.bodies[n], i)) return -1;
    return 0;
}

#include "graphs.h"

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

static Py_ssize_t first_choice(const Run *me) {
    Py_ssize_t i = 0;
    while (i < me->count && me->node[i].kind != CHOICE) i++;
    return i < me->count ? i : -1;
}

static int launch(Run *me, Handle stream) {
    int busy = 0, ready = me->captures && me->calls >= PATIENCE;
    Status status = ready || me->handles || me->awaiting ? cuda.cuStreamIsCapturing(stream, &busy) : 0;
    if (status) return failed(me, status, "cuStreamIsCapturing", -1);
    me->in_capture = busy;
    if (busy && me->handles) return failed(me, IN_CAPTURE, "what the host decides", first_choice(me));
    if (busy || !ready) return launch_each(me, stream); /* of somebody else's graph these are part */
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

/* Waits for other threads. A thread that has the lock would wait for itself: a loop that the host decides lets handlers
 * of signals in, and they may call the same program. */
static int lock(Run *me) {
    unsigned long here = PyThread_get_thread_ident();
    if (!PyThread_acquire_lock(me->lock, NOWAIT_LOCK)) {
        if (me->holder == here) {
            PyErr_SetString(PyExc_RuntimeError, "a program was called while the same thread was launching it, as a signal's "
                                                "handler may do; have the handler set a flag instead");
            return -1;
        }
        Py_BEGIN_ALLOW_THREADS PyThread_acquire_lock(me->lock, WAIT_LOCK);
        Py_END_ALLOW_THREADS
    }
    me->holder = here;
    return 0;
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
    if (!bad && !(bad = lock(me))) {
        bad = launched(me, args, copies, stream);
        me->holder = 0;
        PyThread_release_lock(me->lock);
    }
    Py_XDECREF(copies);
    return bad ? NULL : Py_NewRef(Py_None);
}

#include "reading.h"

/* What it did: calls, those launched one by one, graphs that there are, those patched. */
static PyObject *counts(PyObject *self, void *unused) {
    Run *me = (Run *)self;
    return Py_BuildValue("KKiK", me->calls, me->launched, me->graphs, me->patched);
}

/* What making graphs took so far. */
static PyObject *seconds(PyObject *self, void *unused) { return PyFloat_FromDouble(((Run *)self)->seconds); }
/* Of loops and branches: how many there are, and how often a graph was made anew where others are patched. */
static PyObject *choices(PyObject *self, void *unused) {
    Run *me = (Run *)self;
    long found = 0;
    for (Py_ssize_t i = 0; i < me->count; i++) found += me->node[i].kind == CHOICE;
    return Py_BuildValue("lK", found, me->remade);
}

/* The error for which it has no graph; None for none. */
static PyObject *trouble(PyObject *self, void *unused) {
    Run *me = (Run *)self;
    return Py_NewRef(me->trouble ? me->trouble : Py_None);
}

/* The error for which its kernels wait until those before have ended; None for none. */
static PyObject *whole(PyObject *self, void *unused) {
    Run *me = (Run *)self;
    return Py_NewRef(me->whole ? me->whole : Py_None);
}

/* How many of the waits in its graphs let a kernel be launched early. */
static PyObject *early(PyObject *self, void *unused) {
    Run *me = (Run *)self;
    long found = 0;
    for (Py_ssize_t i = 0; i < me->count && me->captures && !me->whole; i++) found += me->node[i].early;
    return PyLong_FromLong(found);
}

static PyGetSetDef SEEN[] = {{"whole", whole, NULL, "why no kernel is launched early", NULL},
                             {"early", early, NULL, "waits before whose end a kernel is launched", NULL},
                             {"trouble", trouble, NULL, "why there is no graph", NULL},
                             {"seconds", seconds, NULL, "spent on making graphs", NULL},
                             {"choices", choices, NULL, "conditional nodes, graphs that were made anew", NULL},
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
    .tp_doc = "Run(driver, context, callers, sizes of numbers, launches, lists, captures, ready, stream, fail, owner, told=None)",
};

#include "calls.h"

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "ge2_launches", NULL, -1, LOOKS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_ge2_launches(void) {
    ORDERED = PyUnicode_InternFromString("_c_contiguous"); /* CuPy has `flags` too, which is made anew each time */
    DATA = PyUnicode_InternFromString("data");
    PTR = PyUnicode_InternFromString("ptr");
    if (!DATA || !PTR || !ORDERED || PyType_Ready(&RUN) || name_all()) return NULL;
    PyObject *module = PyModule_Create(&MODULE);
    if (module && (PyModule_AddObjectRef(module, "Run", (PyObject *)&RUN) ||
                   PyModule_AddObjectRef(module, "Call", (PyObject *)&CALLS)))
        Py_CLEAR(module);
    return module;
}
