/* One call of a program from Python: arrays in, arrays out, and nothing made on the way but the results.
 *
 * What a call needs beside its arrays (pointers, numbers, the arena) lies in a frame; frames of past calls are used
 * again, one for each call at a time. Whatever is not an array exactly as the program wants it goes through `prepare`,
 * which is Python. */
#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

#include <ge2/core.h>

#define KEPT 2 /* arrays of one result: one may be the argument of the call that makes the next */
#define LINE 64

/* With a GIL, it guards the frames and counts references exactly. */
#ifdef Py_GIL_DISABLED
#define COUNTED 0
#define LOCK(me) PyMutex_Lock(&(me)->mutex)
#define UNLOCK(me) PyMutex_Unlock(&(me)->mutex)
#else
#define COUNTED 1
#define LOCK(me)
#define UNLOCK(me)
#endif

typedef int (*Run)(char *const *, const int64_t *, const ge2_number *, char *, int, const ge2_services *);

/* An input or an output. */
typedef struct {
    PyArray_Descr *descr; /* null for a Python number */
    npy_intp *dims;
    int ndim, flags, kind, donor, keep, written;
    Py_ssize_t slot; /* in `p` or in `k` */
    PyObject *kept[KEPT];
} Place;

typedef struct Frame {
    struct Frame *next;
    ge2_services services;
    ge2_error error;
    Py_ssize_t copies;
    char **p, *arena;
    PyObject **copied; /* arrays that stand for arguments during this call */
    ge2_number *k;
} Frame;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Run run;
    Py_ssize_t inputs, outputs, arrays, weak, numbers; /* weak: numbers that are inputs; numbers: all of them */
    Place *input, *output;
    int64_t *sizes;
    ge2_number *constants;
    size_t arena;
    int threads, heavy;
    ge2_services services;
    PyObject *prepare, *fail, *owner;
    Frame *idle;
    int resting, most; /* frames that are idle, and how many may be */
#ifdef Py_GIL_DISABLED
    PyMutex mutex;
#endif
} Launcher;

static volatile int forked = 0; /* the threads of the parent do not exist in the child */

static void note_fork(void) { forked = 1; }

/* ------------------------------------------------------------------------------------------------------- frames */

static size_t lines(size_t nbytes) { return (nbytes + LINE - 1) / LINE * LINE; }

static Frame *new_frame(Launcher *me) {
    size_t pointers = (size_t)(me->arrays + me->outputs + me->arrays) * sizeof(void *);
    size_t numbers = lines(sizeof(Frame)), places = numbers + (size_t)me->numbers * sizeof(ge2_number);
    size_t arena = lines(places + pointers);
    void *memory;
    if (posix_memalign(&memory, LINE, arena + lines(me->arena))) return NULL;
    Frame *frame = memory;
    memset(frame, 0, sizeof *frame);
    frame->services = me->services;
    frame->services.error = &frame->error;
    frame->k = (ge2_number *)((char *)memory + numbers);
    frame->p = (char **)((char *)memory + places);
    frame->copied = (PyObject **)(frame->p + me->arrays + me->outputs);
    frame->arena = me->arena ? (char *)memory + arena : NULL;
    size_t constants = (size_t)(me->numbers - me->weak) * sizeof(ge2_number);
    if (constants) memcpy(frame->k + me->weak, me->constants, constants);
    return frame;
}

static Frame *take(Launcher *me) {
    LOCK(me);
    Frame *frame = me->idle;
    if (frame) {
        me->idle = frame->next;
        me->resting--;
    }
    UNLOCK(me);
    return frame ? frame : new_frame(me);
}

static void give_back(Launcher *me, Frame *frame) {
    while (frame->copies) Py_DECREF(frame->copied[--frame->copies]);
    LOCK(me);
    if (me->resting < me->most) {
        frame->next = me->idle;
        me->idle = frame;
        me->resting++;
        frame = NULL;
    }
    UNLOCK(me);
    free(frame);
}

/* ------------------------------------------------------------------------------------------------------- inputs */

static int same_dims(const Place *place, PyArrayObject *x) {
    if (PyArray_NDIM(x) != place->ndim) return 0;
    for (int i = 0; i < place->ndim; i++)
        if (PyArray_DIM(x, i) != place->dims[i]) return 0;
    return 1;
}

static int same_type(const Place *place, PyArrayObject *x) {
    PyArray_Descr *descr = PyArray_DESCR(x);
    return descr == place->descr || PyArray_EquivTypes(descr, place->descr);
}

/* An argument as the program takes it: a new reference. */
static PyObject *prepared(Launcher *me, Py_ssize_t i, PyObject *x) {
    PyObject *number = PyLong_FromSsize_t(i);
    if (!number) return NULL;
    PyObject *y = PyObject_CallFunctionObjArgs(me->prepare, number, x, NULL);
    Py_DECREF(number);
    return y;
}

static int read_array(Launcher *me, Frame *frame, Py_ssize_t i, PyObject *given) {
    const Place *place = &me->input[i];
    PyArrayObject *x = (PyArrayObject *)given;
    if (!PyArray_Check(given) || (PyArray_FLAGS(x) & place->flags) != place->flags || !same_dims(place, x) ||
        !same_type(place, x)) {
        PyObject *copy = prepared(me, i, given);
        if (!copy) return -1;
        frame->copied[frame->copies++] = copy;
        if (!PyArray_Check(copy)) {
            PyErr_SetString(PyExc_SystemError, "ge2: an argument was prepared as something else than an array");
            return -1;
        }
        x = (PyArrayObject *)copy;
    }
    frame->p[place->slot] = PyArray_BYTES(x);
    return 0;
}

/* Whether a Python number is of its kind to the letter, so that it can be read without asking. */
static int exact(int kind, PyObject *x) {
    switch (kind) {
        case 'b': return PyBool_Check(x);
        case 'i': return PyLong_CheckExact(x);
        case 'f': return PyFloat_CheckExact(x);
        default: return PyComplex_CheckExact(x);
    }
}

static int read_exact(int kind, PyObject *x, ge2_number *to) {
    switch (kind) {
        case 'b': to->i = x == Py_True; return 0;
        case 'i': to->i = PyLong_AsLongLong(x); return to->i == -1 && PyErr_Occurred() ? -1 : 0;
        case 'f': to->f = PyFloat_AS_DOUBLE(x); return 0;
        default: to->c[0] = PyComplex_RealAsDouble(x); to->c[1] = PyComplex_ImagAsDouble(x); return 0;
    }
}

static int read_number(Launcher *me, Frame *frame, Py_ssize_t i, PyObject *given) {
    const Place *place = &me->input[i];
    ge2_number *to = &frame->k[place->slot];
    if (exact(place->kind, given)) return read_exact(place->kind, given, to);
    PyObject *number = prepared(me, i, given);
    if (!number) return -1;
    int failed = -1;
    if (exact(place->kind, number))
        failed = read_exact(place->kind, number, to);
    else
        PyErr_SetString(PyExc_SystemError, "ge2: a number was prepared as another kind");
    Py_DECREF(number);
    return failed;
}

static int read_inputs(Launcher *me, Frame *frame, PyObject *const *args) {
    for (Py_ssize_t i = 0; i < me->inputs; i++) {
        int failed = me->input[i].descr ? read_array(me, frame, i, args[i]) : read_number(me, frame, i, args[i]);
        if (failed) return -1;
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------------ outputs */

static PyObject *fresh(const Place *place) {
    Py_INCREF(place->descr); /* which the next line steals */
    return PyArray_NewFromDescr(&PyArray_Type, place->descr, place->ndim, place->dims, NULL, NULL, 0, NULL);
}

static int weakly_known(PyObject *x) {
    Py_ssize_t offset = Py_TYPE(x)->tp_weaklistoffset;
    return offset > 0 && *(PyObject **)((char *)x + offset) != NULL;
}

/* Whether nobody but us knows the array, and it is still what it was. */
static int free_again(const Place *place, PyObject *given) {
    PyArrayObject *x = (PyArrayObject *)given;
    int flags = NPY_ARRAY_CARRAY | NPY_ARRAY_OWNDATA;
    return Py_REFCNT(given) == 1 && !weakly_known(given) && (PyArray_FLAGS(x) & flags) == flags &&
           PyArray_DESCR(x) == place->descr && same_dims(place, x);
}

static PyObject *kept(Place *place) {
    for (int i = 0; i < KEPT; i++) {
        PyObject *x = place->kept[i];
        if (!x || !free_again(place, x)) continue;
        Py_INCREF(x);
        return x;
    }
    PyObject *x = fresh(place);
    if (!x) return NULL;
    PyObject *oldest = place->kept[0];
    memmove(place->kept, place->kept + 1, (KEPT - 1) * sizeof oldest);
    Py_INCREF(x);
    place->kept[KEPT - 1] = x;
    Py_XDECREF(oldest);
    return x;
}

/* A donated array, if the program reads it itself and it can be given away; or an argument that is written. */
static PyObject *donated(Launcher *me, Frame *frame, const Place *place, PyObject *const *args) {
    PyObject *given = args[place->donor];
    if (!(place->written ? PyArray_Check(given) : PyArray_CheckExact(given))) return NULL;
    PyArrayObject *x = (PyArrayObject *)given;
    int flags = place->written ? NPY_ARRAY_CARRAY : NPY_ARRAY_CARRAY | NPY_ARRAY_OWNDATA;
    if ((PyArray_FLAGS(x) & flags) != flags) return NULL;
    if (PyArray_BYTES(x) != frame->p[me->input[place->donor].slot]) return NULL;
    Py_INCREF(given);
    return given;
}

static PyObject *make_outputs(Launcher *me, Frame *frame, PyObject *const *args) {
    PyObject *results = PyList_New(me->outputs);
    if (!results) return NULL;
    for (Py_ssize_t i = 0; i < me->outputs; i++) {
        Place *place = &me->output[i];
        PyObject *y = place->donor >= 0 ? donated(me, frame, place, args) : NULL;
        if (!y) y = COUNTED && place->keep ? kept(place) : fresh(place);
        if (!y) {
            Py_DECREF(results);
            return NULL;
        }
        PyList_SET_ITEM(results, i, y);
        frame->p[me->arrays + i] = PyArray_BYTES((PyArrayObject *)y);
    }
    return results;
}

/* --------------------------------------------------------------------------------------------------------- call */

/* A team waits for its slowest thread. Where other processes use the cores that is one without a core, and the
   caller alone is faster. It shows in the caller's own time on a core, of which it has little while it waits (idle
   threads sleep: see `brief_waits` in config.py). Then calls are single-threaded for a while, the longer the more
   often a team was tried in vain. Kernels give the same bits for any number of threads. */
enum { BRIEF = 200000, PAUSE = 100000000, LONGEST = 20000000 }; /* nanoseconds, the last in thousands */
static struct {
    int64_t until, since, pause; /* nanoseconds: of single-threaded calls */
    int slow, fine;              /* calls in a row */
} crowd;

static int64_t nanoseconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* `cpu` is the caller's own time on a core, `all` that of the process: where the rest of it is most of what the other
   threads could have, those who use the cores are its own, such as threads of NumPy's BLAS, which soon sleep. */
static void learn(int single, int threads, int64_t now, int64_t wall, int64_t cpu, int64_t all) {
    if (wall < BRIEF) return;
    if (single) {
        crowd.fine = cpu * 20 > wall * 19 ? crowd.fine + 1 : 0; /* 0.95: the machine may be quiet again */
        if (crowd.fine >= 4 && now - crowd.since > PAUSE * 2) crowd.until = 0, crowd.fine = 0;
    } else if (cpu * 5 < wall * 3 && (all - cpu) * 4 < wall * 3 * (threads - 1)) { /* 0.6, and 0.75 */
        crowd.fine = 0;
        if (++crowd.slow < 2 && !crowd.pause) return;
        crowd.pause = crowd.pause ? crowd.pause * 2 : PAUSE;
        if (crowd.pause < wall * 16) crowd.pause = wall * 16; /* to try costs little of the time */
        if (crowd.pause > (int64_t)LONGEST * 1000) crowd.pause = (int64_t)LONGEST * 1000;
        crowd.since = now, crowd.until = now + crowd.pause, crowd.slow = 0;
    } else {
        crowd.slow = 0;
        if (++crowd.fine >= 16) crowd.pause = 0;
    }
}

static int run(Launcher *me, Frame *frame) {
    int threads = forked ? 1 : me->threads, code;
    if (!me->heavy) return me->run(frame->p, me->sizes, frame->k, frame->arena, threads, &frame->services);
    int64_t began = threads > 1 ? nanoseconds(CLOCK_MONOTONIC) : 0, own = 0, all = 0, ended;
    int single = threads > 1 && began < crowd.until;
    if (threads > 1) own = nanoseconds(CLOCK_THREAD_CPUTIME_ID), all = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
    Py_BEGIN_ALLOW_THREADS;
    code = me->run(frame->p, me->sizes, frame->k, frame->arena, single ? 1 : threads, &frame->services);
    if (threads > 1) own = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - own, all = nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - all;
    ended = threads > 1 ? nanoseconds(CLOCK_MONOTONIC) : 0;
    Py_END_ALLOW_THREADS;
    if (threads > 1) learn(single, threads, ended, ended - began, own, all);
    return code;
}

static void tell(Launcher *me, Frame *frame, int code) {
    ge2_error e = frame->error;
    memset(&frame->error, 0, sizeof frame->error);
    if (code == GE2_INTERRUPTED && PyErr_Occurred()) return;
    PyObject *none = PyObject_CallFunction(me->fail, "iLLLL", code, (long long)e.index, (long long)e.axis,
                                           (long long)e.size, (long long)e.equation);
    if (!none) return;
    Py_DECREF(none);
    PyErr_SetString(PyExc_SystemError, "ge2: a program failed without an error");
}

static PyObject *launch(PyObject *self, PyObject *const *args, size_t given, PyObject *names) {
    Launcher *me = (Launcher *)self;
    if (PyVectorcall_NARGS(given) != me->inputs || (names && PyTuple_GET_SIZE(names)))
        return PyErr_Format(PyExc_TypeError, "a compiled graph takes %zd arrays; got %zd", me->inputs,
                            PyVectorcall_NARGS(given));
    Frame *frame = take(me);
    if (!frame) return PyErr_NoMemory();
    PyObject *results = read_inputs(me, frame, args) ? NULL : make_outputs(me, frame, args);
    int code = results ? run(me, frame) : 0;
    if (code) {
        Py_CLEAR(results);
        tell(me, frame, code);
    }
    give_back(me, frame);
    return results;
}

/* ------------------------------------------------------------------------------------------------------- making */

static int read_dims(Place *place, PyObject *shape) {
    place->ndim = (int)PyTuple_GET_SIZE(shape);
    place->dims = PyMem_Calloc((size_t)place->ndim + 1, sizeof(npy_intp));
    if (!place->dims) return PyErr_NoMemory(), -1;
    for (int i = 0; i < place->ndim; i++) {
        place->dims[i] = (npy_intp)PyLong_AsSsize_t(PyTuple_GET_ITEM(shape, i));
        if (place->dims[i] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

/* (dtype or None, shape, kind, written) */
static int read_input(Launcher *me, Place *place, PyObject *item) {
    PyObject *dtype, *shape;
    int written;
    if (!PyArg_ParseTuple(item, "OO!Cp", &dtype, &PyTuple_Type, &shape, &place->kind, &written)) return -1;
    if (dtype == Py_None) {
        place->slot = me->weak++;
        return 0;
    }
    if (!PyArray_DescrCheck(dtype)) return PyErr_SetString(PyExc_TypeError, "not a dtype"), -1;
    Py_INCREF(dtype);
    place->descr = (PyArray_Descr *)dtype;
    place->flags = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED | (written ? NPY_ARRAY_WRITEABLE : 0);
    place->slot = me->arrays++;
    return read_dims(place, shape);
}

/* (dtype, shape, donor, keep, written) */
static int read_output(Launcher *me, Place *place, PyObject *item) {
    PyObject *dtype, *shape;
    if (!PyArg_ParseTuple(item, "O!O!ipp", &PyArrayDescr_Type, &dtype, &PyTuple_Type, &shape, &place->donor,
                          &place->keep, &place->written))
        return -1;
    if (place->donor >= me->inputs || (place->donor >= 0 && !me->input[place->donor].descr))
        return PyErr_SetString(PyExc_ValueError, "the donor is no array"), -1;
    Py_INCREF(dtype);
    place->descr = (PyArray_Descr *)dtype;
    return read_dims(place, shape);
}

static int read_places(Launcher *me, PyObject *items, Place **places, Py_ssize_t *count,
                       int (*read)(Launcher *, Place *, PyObject *)) {
    Py_ssize_t n = PyTuple_GET_SIZE(items);
    *places = PyMem_Calloc((size_t)n + 1, sizeof(Place));
    if (!*places) return PyErr_NoMemory(), -1;
    *count = n;
    for (Py_ssize_t i = 0; i < n; i++)
        if (read(me, *places + i, PyTuple_GET_ITEM(items, i))) return -1;
    return 0;
}

/* A copy of bytes as whole items. */
static void *copied(const Py_buffer *from, size_t item, Py_ssize_t *count) {
    void *to = PyMem_Malloc((size_t)from->len + 1);
    if (!to) return PyErr_NoMemory();
    memcpy(to, from->buf, (size_t)from->len);
    *count = from->len / (Py_ssize_t)item;
    return to;
}

static int read_bytes(Launcher *me, const Py_buffer *sizes, const Py_buffer *numbers, const Py_buffer *services) {
    Py_ssize_t count = 0;
    if (services->len != (Py_ssize_t)offsetof(ge2_services, error))
        return PyErr_SetString(PyExc_ValueError, "the services have another layout"), -1;
    memcpy(&me->services, services->buf, (size_t)services->len);
    me->sizes = copied(sizes, sizeof(int64_t), &count);
    if (!me->sizes) return -1;
    me->constants = copied(numbers, sizeof(ge2_number), &count);
    if (!me->constants) return -1;
    me->numbers = me->weak + count;
    return 0;
}

static PyObject *new_launcher(PyTypeObject *type, PyObject *args, PyObject *names) {
    unsigned long long address;
    Py_ssize_t arena;
    PyObject *inputs, *outputs, *prepare, *fail, *owner;
    Py_buffer sizes, numbers, services;
    int threads, heavy;
    if (names && PyDict_GET_SIZE(names)) return PyErr_Format(PyExc_TypeError, "Launcher takes no keywords");
    if (!PyArg_ParseTuple(args, "KO!O!y*y*nipy*OOO", &address, &PyTuple_Type, &inputs, &PyTuple_Type, &outputs,
                          &sizes, &numbers, &arena, &threads, &heavy, &services, &prepare, &fail, &owner))
        return NULL;
    Launcher *me = (Launcher *)type->tp_alloc(type, 0);
    if (me) {
        me->vectorcall = launch;
        me->run = (Run)(uintptr_t)address;
        me->arena = (size_t)arena;
        me->threads = threads;
        me->most = threads < 3 ? 4 : threads + 1;
        me->heavy = heavy;
        me->prepare = Py_NewRef(prepare);
        me->fail = Py_NewRef(fail);
        me->owner = Py_NewRef(owner);
        if (read_places(me, inputs, &me->input, &me->inputs, read_input) ||
            read_places(me, outputs, &me->output, &me->outputs, read_output) ||
            read_bytes(me, &sizes, &numbers, &services))
            Py_CLEAR(me);
    }
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&numbers);
    PyBuffer_Release(&services);
    return (PyObject *)me;
}

static void drop_places(Place *places, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_XDECREF(places[i].descr);
        PyMem_Free(places[i].dims);
        for (int j = 0; j < KEPT; j++) Py_XDECREF(places[i].kept[j]);
    }
    PyMem_Free(places);
}

static void drop_launcher(PyObject *self) {
    Launcher *me = (Launcher *)self;
    for (Frame *frame = me->idle, *next; frame; frame = next) {
        next = frame->next;
        free(frame);
    }
    drop_places(me->input, me->inputs);
    drop_places(me->output, me->outputs);
    PyMem_Free(me->sizes);
    PyMem_Free(me->constants);
    Py_XDECREF(me->prepare);
    Py_XDECREF(me->fail);
    Py_XDECREF(me->owner);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject LauncherType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ge2_launcher.Launcher",
    .tp_doc = "A compiled program as a function of arrays, which returns a list of arrays.",
    .tp_basicsize = sizeof(Launcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = new_launcher,
    .tp_dealloc = drop_launcher,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Launcher, vectorcall),
};

static int load(PyObject *module) {
    static int watched = 0;
    import_array1(-1);
    if (!watched && pthread_atfork(NULL, NULL, note_fork)) return PyErr_NoMemory(), -1;
    watched = 1;
    return PyModule_AddType(module, &LauncherType);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, load},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ge2_launcher",
    .m_doc = "Calls of compiled programs.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit_ge2_launcher(void) { return PyModuleDef_Init(&module); }
