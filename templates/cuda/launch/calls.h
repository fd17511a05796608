/* A whole call from Python: arrays for the results, one run of launches, and the results in a list. And looks at many
 * arrays of a GPU at once, which Python would take one by one. */

typedef struct {
    PyObject *array;
    uint64_t stream; /* on which it was written */
} Kept;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Py_ssize_t given, made, constants, numbers, asked, handed, results;
    int *place;                 /* of what the run is handed, of the results, of what numbers are made from */
    Kept *kept;                 /* of each array that is made, KEPT that were made before */
    PyObject *empty, *shapes;   /* makes an array; for each its arguments */
    PyObject *constant;         /* arrays that are there from the start */
    PyObject *compute;          /* makes numbers, a tuple; None: there are none */
    PyObject *take, *size;      /* lends so many bytes of scratch; None: none is needed */
    PyObject *current, *number; /* tells the current device; the one that this is for */
    PyObject *stream;           /* tells the current stream */
    PyObject *lost;             /* a list, not empty where the device cannot be used any more */
    PyObject *otherwise;        /* the same call in Python, for any other case */
    PyObject *explain;          /* raises what is to be said of an error of the launches */
    PyObject *run;
} Call;

#define KEPT 2       /* state that goes in and out has two places in turn */
#define SMALL 65536  /* bytes of an array that is kept: to make a larger one is worth its time */
#define OBJECTS 64 /* of a call, for which there is room on the stack */

static PyObject *DEVICE_ID, *SHAPE, *DTYPE, *BASE, *MEM;
static PyObject *known; /* a dict: whether arrays of a class lie on a GPU */

/* Whether the call is one that this can do: on the device that is current. -1 for an error. */
static int is_here(const Call *me) {
    if (PyList_GET_SIZE(me->lost)) return 0;
    PyObject *current = PyObject_CallNoArgs(me->current);
    int found = current ? PyObject_RichCompareBool(current, me->number, Py_EQ) : -1;
    Py_XDECREF(current);
    return found;
}

/* The stream that is current, as the driver knows it; 0 and an error set for none. Each thread has one of its own that
 * has the same number in all threads, so there it is the thread's. */
static uint64_t current_stream(const Call *me) {
    PyObject *current = PyObject_CallNoArgs(me->stream), *ptr = current ? PyObject_GetAttr(current, PTR) : NULL;
    uint64_t found = ptr ? PyLong_AsUnsignedLongLong(ptr) : 0;
    Py_XDECREF(current);
    Py_XDECREF(ptr);
    return found == PER_THREAD ? ~(uint64_t)PyThread_get_thread_ident() : found;
}

/* An array like the one wanted that was returned before on the same stream and that nobody has any more; NULL for none.
 * Who could see its memory would hold the array, its pointer or the memory itself. */
static PyObject *free_again(const Call *me, Py_ssize_t i, uint64_t stream) {
    for (Kept *kept = &me->kept[i * KEPT]; kept < &me->kept[(i + 1) * KEPT]; kept++) {
        PyObject *found = kept->array;
        if (!found || kept->stream != stream || !is_forgotten(found, PyTuple_GET_ITEM(me->shapes, i))) continue;
        kept->array = NULL;
        return found;
    }
    return NULL;
}

/* Makes the arrays, counts them in `done`. */
static int make_arrays(const Call *me, uint64_t stream, PyObject **made, Py_ssize_t *done) {
    for (Py_ssize_t i = 0; i < me->made; i++) {
        PyObject *shape = PyTuple_GET_ITEM(me->shapes, i);
        made[i] = free_again(me, i, stream);
        if (!made[i])
            made[i] =
                PyObject_Vectorcall(me->empty, &PyTuple_GET_ITEM(shape, 0), (size_t)PyTuple_GET_SIZE(shape), NULL);
        if (!made[i]) return -1;
        ++*done;
    }
    return 0;
}

/* Whether an array is worth keeping. Only one whose look is known can be told to be free, and one that can have more
 * attributes than CuPy's have would keep them. */
static int is_small(PyObject *x) {
    if (!is_plain(x) || spots.type->tp_dictoffset) return 0;
    const Py_ssize_t *size = (const Py_ssize_t *)(uintptr_t)word_at(x, spots.shape);
    const Py_ssize_t *end = (const Py_ssize_t *)(uintptr_t)word_at(x, spots.shape + 8);
    Py_ssize_t bytes = 16; /* of an element, at most */
    for (; size < end && bytes <= SMALL; size++) bytes *= *size;
    return bytes <= SMALL;
}

/* Keeps what was made for a later call, in place of what somebody still has. */
static void keep_arrays(const Call *me, uint64_t stream, PyObject **made) {
    for (Py_ssize_t i = 0; i < me->made; i++) {
        if (!is_small(made[i])) continue;
        Kept *kept = &me->kept[i * KEPT];
        PyObject *last = NULL;
        if (kept[0].array) {
            last = kept[KEPT - 1].array;
            memmove(kept + 1, kept, (KEPT - 1) * sizeof *kept);
        }
        kept[0] = (Kept){Py_NewRef(made[i]), stream};
        Py_XDECREF(last); /* comes last: it may run Python, and so this very call */
    }
}

/* Makes the numbers from those that are given; they live as long as `made`. */
static int make_numbers(const Call *me, PyObject **objects, PyObject **made) {
    PyObject *few[OBJECTS], **asked = few;
    if (!me->numbers) return 0;
    if (me->asked > OBJECTS && !(asked = PyMem_Malloc((size_t)me->asked * sizeof *asked))) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < me->asked; i++) asked[i] = objects[me->place[me->handed + me->results + i]];
    *made = PyObject_Vectorcall(me->compute, asked, (size_t)me->asked, NULL);
    if (asked != few) PyMem_Free(asked);
    if (!*made) return -1;
    if (!PyTuple_Check(*made) || PyTuple_GET_SIZE(*made) != me->numbers) {
        PyErr_Format(PyExc_TypeError, "%zd numbers are wanted, in a tuple", me->numbers);
        return -1;
    }
    PyObject **number = objects + me->given + me->made + me->constants;
    for (Py_ssize_t i = 0; i < me->numbers; i++) number[i] = PyTuple_GET_ITEM(*made, i);
    return 0;
}

/* Runs the launches on `objects`: what is given, made, constant, numbers, and the scratch. The results in a list. */
static PyObject *run_on(const Call *me, PyObject **objects) {
    PyObject *few[OBJECTS], **handed = few;
    if (me->handed > OBJECTS && !(handed = PyMem_Malloc((size_t)me->handed * sizeof *handed))) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < me->handed; i++) handed[i] = objects[me->place[i]];
    PyObject *said = PyObject_Vectorcall(me->run, handed, (size_t)me->handed, NULL);
    if (handed != few) PyMem_Free(handed);
    if (!said) return NULL;
    Py_DECREF(said);
    PyObject *results = PyList_New(me->results);
    for (Py_ssize_t i = 0; results && i < me->results; i++)
        PyList_SET_ITEM(results, i, Py_NewRef(objects[me->place[me->handed + i]]));
    return results;
}

/* The scratch is put back when all is launched; after an error it is let go of, as in the Python text. `begun`: whether
 * anything may have been launched. */
static PyObject *call_with(const Call *me, PyObject **objects, int *begun) {
    PyObject **scratch = &objects[me->given + me->made + me->constants + me->numbers];
    *begun = me->take == Py_None;
    if (*begun) return run_on(me, objects);
    PyObject *lent = PyObject_CallOneArg(me->take, me->size), *results = NULL;
    *begun = lent != NULL;
    if (lent && PyTuple_Check(lent) && PyTuple_GET_SIZE(lent) == 2) {
        *scratch = PyTuple_GET_ITEM(lent, 0);
        results = run_on(me, objects);
        if (results && PyList_Append(PyTuple_GET_ITEM(lent, 1), *scratch)) Py_CLEAR(results);
    } else if (lent) {
        PyErr_SetString(PyExc_TypeError, "scratch comes with the list that it is put back into");
    }
    Py_XDECREF(lent);
    return results;
}

/* Has Python raise an error of the launches in its own words. */
static void explain(const Call *me) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace) PyException_SetTraceback(value, trace);
    PyObject *said = PyObject_CallOneArg(me->explain, value);
    Py_XDECREF(said);
    if (PyErr_Occurred()) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    } else {
        PyErr_Restore(type, value, trace);
    }
}

static PyObject *call(PyObject *self, PyObject *const *args, size_t flagged, PyObject *keywords) {
    Call *me = (Call *)self;
    Py_ssize_t count = PyVectorcall_NARGS(flagged), done = 0;
    Py_ssize_t all = me->given + me->made + me->constants + me->numbers + 1;
    if (count != me->given || keywords) {
        PyErr_Format(PyExc_TypeError, "the program takes %zd arguments", me->given);
        return NULL;
    }
    int here = is_here(me);
    uint64_t stream = here > 0 ? current_stream(me) : 0;
    if (PyErr_Occurred()) return NULL;
    if (!here) return PyObject_Vectorcall(me->otherwise, args, (size_t)count, NULL);
    PyObject *few[OBJECTS], **objects = few, *numbers = NULL, *results = NULL;
    if (all > OBJECTS && !(objects = PyMem_Malloc((size_t)all * sizeof *objects))) return PyErr_NoMemory();
    PyObject **made = objects + me->given;
    memcpy(objects, args, (size_t)me->given * sizeof *objects);
    for (Py_ssize_t i = 0; i < me->constants; i++) made[me->made + i] = PyTuple_GET_ITEM(me->constant, i);
    int begun = make_numbers(me, objects, &numbers);
    if (!begun && !make_arrays(me, stream, made, &done)) results = call_with(me, objects, &begun);
    if (results) keep_arrays(me, stream, made);
    while (done) Py_DECREF(made[--done]);
    if (!results && !begun && PyErr_ExceptionMatches(PyExc_Exception)) { /* no memory: Python knows what to do */
        PyErr_Clear();
        results = PyObject_Vectorcall(me->otherwise, args, (size_t)count, NULL);
    } else if (!results && PyErr_ExceptionMatches(PyExc_MemoryError)) {
        explain(me);
    }
    Py_XDECREF(numbers);
    if (objects != few) PyMem_Free(objects);
    return results;
}

static int clear_call(PyObject *self) {
    Call *me = (Call *)self;
    PyObject **held[] = {&me->empty, &me->shapes, &me->constant,  &me->compute, &me->take, &me->size, &me->current,
                         &me->number, &me->stream, &me->lost,  &me->otherwise, &me->explain, &me->run};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) Py_CLEAR(*held[i]);
    for (Py_ssize_t i = 0; me->kept && i < me->made * KEPT; i++) Py_CLEAR(me->kept[i].array);
    return 0;
}

static int traverse_call(PyObject *self, visitproc visit, void *arg) {
    Call *me = (Call *)self;
    PyObject *held[] = {me->empty,  me->shapes, me->constant,  me->compute, me->take, me->size, me->current,
                        me->number, me->stream, me->lost,   me->otherwise, me->explain, me->run};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) Py_VISIT(held[i]);
    for (Py_ssize_t i = 0; me->kept && i < me->made * KEPT; i++) Py_VISIT(me->kept[i].array);
    return 0;
}

static void dealloc_call(PyObject *self) {
    PyObject_GC_UnTrack(self);
    clear_call(self);
    PyMem_Free(((Call *)self)->place);
    PyMem_Free(((Call *)self)->kept);
    Py_TYPE(self)->tp_free(self);
}

static int read_places(Call *me, PyObject *handed, PyObject *results, PyObject *asked) {
    Py_ssize_t all = me->given + me->made + me->constants + me->numbers + (me->take != Py_None);
    PyObject *given[] = {handed, results, asked};
    Py_ssize_t at = 0;
    me->handed = PyTuple_GET_SIZE(handed);
    me->results = PyTuple_GET_SIZE(results);
    me->asked = PyTuple_GET_SIZE(asked);
    if (!(me->place = PyMem_Calloc((size_t)(me->handed + me->results + me->asked) + 1, sizeof *me->place))) {
        PyErr_NoMemory();
        return -1;
    }
    for (int part = 0; part < 3; part++)
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given[part]); i++) {
            long place = PyLong_AsLong(PyTuple_GET_ITEM(given[part], i));
            if (place < 0 || place >= all) {
                if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a place of an object that there is not");
                return -1;
            }
            me->place[at++] = (int)place;
        }
    return 0;
}

static PyObject *make_call(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *handed, *results, *asked;
    Call *me = (Call *)type->tp_alloc(type, 0);
    if (!me) return NULL;
    me->vectorcall = call;
    if (!PyArg_ParseTuple(args, "nOO!O!nO!OOOO!O!OOOO!OOO", &me->given, &me->empty, &PyTuple_Type, &me->shapes, &PyTuple_Type,
                          &me->constant, &me->numbers, &PyTuple_Type, &asked, &me->compute, &me->take, &me->size, &PyTuple_Type, &handed, &PyTuple_Type, &results,
                          &me->current, &me->number, &me->stream, &PyList_Type, &me->lost, &me->otherwise,
                          &me->explain, &me->run)) {
        me->empty = me->shapes = me->constant = me->compute = me->take = me->size = me->current = me->number = me->stream =
            me->lost = me->otherwise = me->explain = me->run = NULL; /* which are not ours yet */
        Py_DECREF(me);
        return NULL;
    }
    PyObject *held[] = {me->empty,  me->shapes, me->constant,  me->compute, me->take, me->size, me->current,
                        me->number, me->stream, me->lost,   me->otherwise, me->explain, me->run};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) Py_INCREF(held[i]);
    me->made = PyTuple_GET_SIZE(me->shapes);
    me->constants = PyTuple_GET_SIZE(me->constant);
    if (!(me->kept = PyMem_Calloc((size_t)me->made * KEPT + 1, sizeof *me->kept))) PyErr_NoMemory();
    if (!me->kept || read_places(me, handed, results, asked)) {
        Py_DECREF(me);
        return NULL;
    }
    return (PyObject *)me;
}

static PyTypeObject CALLS = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ge2_launches.Call",
    .tp_basicsize = sizeof(Call),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Call, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = make_call,
    .tp_dealloc = dealloc_call,
    .tp_traverse = traverse_call,
    .tp_clear = clear_call,
    .tp_doc = "Call(arguments, empty, shapes, constants, numbers, asked, compute, take, size, handed, results, current, number, stream, lost, "
              "otherwise, explain, run): a program as one call",
};

/* ----------------------------------------------------------------------------------------------- looks at many arrays */

static int is_on_gpu(PyObject *x) {
    return known && PyDict_GetItemWithError(known, (PyObject *)Py_TYPE(x)) == Py_True;
}

/* Whether what is got from an object equals what is wanted; -1 for an error. */
static int has(PyObject *x, PyObject *name, PyObject *wanted) {
    PyObject *found = PyObject_GetAttr(x, name);
    int same = !found ? -1 : found == wanted ? 1 : PyObject_RichCompareBool(found, wanted, Py_EQ);
    Py_XDECREF(found);
    return same;
}

/* Whether what is got from an object is this very one; -1 for an error. */
static int has_itself(PyObject *x, PyObject *name, PyObject *wanted) {
    PyObject *found = PyObject_GetAttr(x, name);
    int same = !found ? -1 : found == wanted;
    Py_XDECREF(found);
    return same;
}

/* same(arrays, keys): whether there are as many, and all are arrays of a GPU, each of that shape, dtype and device. */
static PyObject *same(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "same takes two tuples");
    if (PyTuple_GET_SIZE(args[0]) != PyTuple_GET_SIZE(args[1])) Py_RETURN_FALSE;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[0]); i++) {
        PyObject *x = PyTuple_GET_ITEM(args[0], i), *key = PyTuple_GET_ITEM(args[1], i);
        if (!PyTuple_Check(key) || PyTuple_GET_SIZE(key) != 3)
            return PyErr_Format(PyExc_TypeError, "a key is a shape, a dtype and a device");
        if (is_plain(x)) {
            if (!is_like(x, PyTuple_GET_ITEM(key, 0), PyTuple_GET_ITEM(key, 1), PyTuple_GET_ITEM(key, 2))) Py_RETURN_FALSE;
            continue;
        }
        if (!is_on_gpu(x)) {
            if (PyErr_Occurred()) return NULL;
            Py_RETURN_FALSE;
        }
        int equal = has(x, SHAPE, PyTuple_GET_ITEM(key, 0));
        if (equal == 1) equal = has(x, DTYPE, PyTuple_GET_ITEM(key, 1));
        if (equal == 1) {
            PyObject *data = PyObject_GetAttr(x, DATA);
            equal = data ? has(data, DEVICE_ID, PyTuple_GET_ITEM(key, 2)) : -1;
            Py_XDECREF(data);
        }
        if (equal <= 0) return equal ? NULL : Py_NewRef(Py_False);
    }
    Py_RETURN_TRUE;
}

/* The object that holds an array's memory. */
static PyObject *memory_of(PyObject *x) {
    if (is_plain(x)) return Py_NewRef(object_at(object_at(x, spots.data), spots.memory));
    PyObject *data = PyObject_GetAttr(x, DATA), *memory = data ? PyObject_GetAttr(data, MEM) : NULL;
    Py_XDECREF(data);
    return memory;
}

/* Whether others than CuPy may see a memory, as its class tells. */
static int is_foreign(PyObject *memory) {
    const char *whole = Py_TYPE(memory)->tp_name, *last = strrchr(whole, '.'), *name = last ? last + 1 : whole;
    return !strcmp(name, "UnownedMemory") || !strcmp(name, "DLPackMemory");
}

/* Whether an array is all of its memory, as launches take it, and the memory CuPy's own; -1 for an error. */
static int is_whole(PyObject *x, PyObject *memory) {
    if (is_foreign(memory)) return 0;
    int whole = has_itself(x, BASE, Py_None);
    if (whole == 1) whole = has_itself(x, ORDERED, Py_True);
    if (whole != 1) return whole;
    uint64_t place = place_of(x);
    return place == (uint64_t)-1 && PyErr_Occurred() ? -1 : place % ALIGNED == 0;
}

/* Looks at array `i` of those that share no memory so far; -1 for an error. */
static int stands_apart(PyObject *x, int donated, PyObject **memories, Py_ssize_t *many) {
    PyObject *memory = memory_of(x);
    if (!memory) return -1;
    int fine = donated ? is_whole(x, memory) : 1;
    for (Py_ssize_t n = 0; fine == 1 && n < *many; n++) fine = memories[n] != memory;
    Py_DECREF(memory); /* which the array has */
    memories[(*many)++] = memory;
    return fine;
}

/* stands(leaves, donated, others): whether the arrays share no memory, and each of those donated is whole. All must lie
 * on a GPU; False too where one does not, which Python then looks at. */
static PyObject *stands(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    if (count != 3 || !(PyList_Check(args[0]) || PyTuple_Check(args[0])) || !PyAnySet_Check(args[1]) || !PyTuple_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "stands takes leaves, a set of numbers and a tuple of others");
    Py_ssize_t leaves = PySequence_Fast_GET_SIZE(args[0]), all = leaves + PyTuple_GET_SIZE(args[2]), many = 0;
    PyObject *few[OBJECTS], **memories = few;
    if (all > OBJECTS && !(memories = PyMem_Malloc((size_t)all * sizeof *memories))) return PyErr_NoMemory();
    int fine = 1;
    for (Py_ssize_t i = 0; fine == 1 && i < all; i++) {
        PyObject *x = i < leaves ? PySequence_Fast_GET_ITEM(args[0], i) : PyTuple_GET_ITEM(args[2], i - leaves);
        if (!is_on_gpu(x)) {
            fine = PyErr_Occurred() ? -1 : PyFloat_CheckExact(x) || PyLong_CheckExact(x) || PyBool_Check(x);
            continue;
        }
        PyObject *number = i < leaves ? PyLong_FromSsize_t(i) : NULL;
        int donated = number ? PySet_Contains(args[1], number) : 0;
        Py_XDECREF(number);
        fine = donated < 0 || PyErr_Occurred() ? -1 : stands_apart(x, donated, memories, &many);
    }
    if (memories != few) PyMem_Free(memories);
    return fine < 0 ? NULL : Py_NewRef(fine ? Py_True : Py_False);
}

/* know(classes): a dict that tells of classes whether their arrays lie on a GPU. */
static PyObject *know(PyObject *module, PyObject *classes) {
    if (!PyDict_Check(classes)) return PyErr_Format(PyExc_TypeError, "know takes a dict");
    Py_INCREF(classes);
    Py_XSETREF(known, classes);
    Py_RETURN_NONE;
}

static PyMethodDef LOOKS[] = {
    {"same", (PyCFunction)(void (*)(void))same, METH_FASTCALL, "same(arrays, keys): whether each has that shape, dtype and device"},
    {"stands", (PyCFunction)(void (*)(void))stands, METH_FASTCALL, "stands(leaves, donated, others): whether they may be donated"},
    {"learn", learn, METH_O, "learn(examples): where CuPy's arrays have what is looked at; whether that was found"},
    {"know", know, METH_O, "know(classes): which classes' arrays lie on a GPU"},
    {NULL, NULL, 0, NULL},
};

static int name_all(void) {
    static const struct {
        PyObject **name;
        const char *text;
    } NAMES[] = {{&DEVICE_ID, "device_id"}, {&SHAPE, "shape"}, {&DTYPE, "dtype"}, {&BASE, "base"}, {&MEM, "mem"}};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (!(*NAMES[i].name = PyUnicode_InternFromString(NAMES[i].text))) return -1;
    return PyType_Ready(&CALLS);
}
