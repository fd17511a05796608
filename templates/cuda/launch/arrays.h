/* CuPy's arrays seen as they lie in memory: a look through Python at shape, dtype, device and pointer takes 0.3 us an
 * array, and a call looks at all of its arguments.
 *
 * Where they lie is no part of CuPy's interface, so it is learned from examples: a place counts only if it tells the
 * truth of every one of them, and no other place does. Where that fails, and for any other class, Python is asked. */

typedef struct {
    PyTypeObject *type;                            /* of the arrays; NULL: nothing is known */
    size_t shape, dtype, data, ordered;            /* in an array; a shape is a vector: begin, end, capacity */
    size_t pointer, device, memory;                /* in its `data` */
} Spots;

static Spots spots;

static int is_plain(PyObject *x) {
    return spots.type && Py_TYPE(x) == spots.type;
}

static uint64_t word_at(const void *x, size_t at) {
    uint64_t found;
    memcpy(&found, (const char *)x + at, sizeof found);
    return found;
}

static int int_at(const void *x, size_t at) {
    int found;
    memcpy(&found, (const char *)x + at, sizeof found);
    return found;
}

static PyObject *object_at(PyObject *x, size_t at) {
    return (PyObject *)(uintptr_t)word_at(x, at);
}

static uint64_t plain_place(PyObject *x) {
    return word_at(object_at(x, spots.data), spots.pointer);
}

static int is_ordered(PyObject *x) {
    return int_at(x, spots.ordered);
}

/* Whether a vector of sizes at a place has as many elements as a tuple of ints. Nothing is read but the object. */
static int has_length(PyObject *x, size_t at, PyObject *sizes) {
    uint64_t begin = word_at(x, at), end = word_at(x, at + 8);
    return end - begin == (uint64_t)PyTuple_GET_SIZE(sizes) * 8 && (begin || begin == end);
}

static int has_sizes(PyObject *x, size_t at, PyObject *sizes) {
    const Py_ssize_t *size = (const Py_ssize_t *)(uintptr_t)word_at(x, at);
    if (!has_length(x, at, sizes)) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sizes); i++)
        if (size[i] != PyLong_AsSsize_t(PyTuple_GET_ITEM(sizes, i))) return 0;
    return 1;
}

/* Whether an array has this shape and dtype, and lies on this device. A dtype that is equal and another object is not
 * seen: Python is asked then. */
static int is_like(PyObject *x, PyObject *shape, PyObject *dtype, PyObject *device) {
    if (!PyTuple_Check(shape) || !has_sizes(x, spots.shape, shape)) return 0;
    if (int_at(object_at(x, spots.data), spots.device) != PyLong_AsLong(device)) return 0;
    return object_at(x, spots.dtype) == dtype || PyObject_RichCompareBool(object_at(x, spots.dtype), dtype, Py_EQ) == 1;
}

/* Whether nobody but who asks has an array, its pointer or its memory, and it is still as it was made: (shape, dtype). */
static int is_forgotten(PyObject *x, PyObject *made) {
    if (!is_plain(x) || Py_REFCNT(x) != 1 || PyTuple_GET_SIZE(made) < 2 || !PyTuple_Check(PyTuple_GET_ITEM(made, 0))) return 0;
    PyObject *data = object_at(x, spots.data), **weak = NULL;
    if (spots.type->tp_weaklistoffset > 0) weak = (PyObject **)((char *)x + spots.type->tp_weaklistoffset);
    if ((weak && *weak) || Py_REFCNT(data) != 1 || Py_REFCNT(object_at(data, spots.memory)) != 1) return 0;
    return is_ordered(x) && has_sizes(x, spots.shape, PyTuple_GET_ITEM(made, 0)) &&
           object_at(x, spots.dtype) == PyTuple_GET_ITEM(made, 1);
}

/* ----------------------------------------------------------------------------------------------- learned from examples */

enum { ARRAY, SIZES, KIND, POINTER, IN_ORDER, PLACE, DEVICE, MEMORY, PARTS }; /* of an example */

static PyObject *part(PyObject *example, int which) {
    return PyTuple_GET_ITEM(example, which);
}

/* Whether place `at` tells of one example what it should. */
static int tells(PyObject *example, int what, size_t at) {
    PyObject *x = part(example, ARRAY), *data = part(example, POINTER), *wanted = part(example, what);
    switch (what) {
    case SIZES: return has_length(x, at, wanted);
    case KIND:
    case POINTER: return object_at(x, at) == wanted;
    case IN_ORDER: return int_at(x, at) == (wanted == Py_True);
    case PLACE: return word_at(data, at) == PyLong_AsUnsignedLongLong(wanted);
    case DEVICE: return int_at(data, at) == PyLong_AsLong(wanted);
    default: return object_at(data, at) == wanted;
    }
}

/* The only place in an object of `size` bytes that tells the truth of all examples; 0 if there is none, or another. A
 * shape's elements are looked at where all lengths are right: strides have the same. */
static size_t only_place(PyObject *examples, int what, size_t size) {
    size_t step = what == IN_ORDER || what == DEVICE ? sizeof(int) : 8, width = what == SIZES ? 24 : step, found = 0;
    for (size_t at = sizeof(PyObject); at + width <= size; at += step) {
        int right = 1;
        for (int deep = 0; right && deep < 1 + (what == SIZES); deep++)
            for (Py_ssize_t i = 0; right && i < PyList_GET_SIZE(examples); i++) {
                PyObject *each = PyList_GET_ITEM(examples, i);
                right = deep ? has_sizes(part(each, ARRAY), at, part(each, SIZES)) : tells(each, what, at);
            }
        if (right && found) return 0;
        if (right) found = at;
    }
    return found;
}

static int are_examples(PyObject *examples) {
    if (!PyList_Check(examples) || !PyList_GET_SIZE(examples)) return 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(examples); i++) {
        PyObject *each = PyList_GET_ITEM(examples, i), *first = PyList_GET_ITEM(examples, 0);
        if (!PyTuple_Check(each) || PyTuple_GET_SIZE(each) != PARTS || !PyTuple_Check(part(each, SIZES))) return 0;
        if (Py_TYPE(part(each, ARRAY)) != Py_TYPE(part(first, ARRAY)) ||
            Py_TYPE(part(each, POINTER)) != Py_TYPE(part(first, POINTER)))
            return 0;
    }
    return 1;
}

/* learn(examples): of each (array, shape, dtype, data, whether in C order, address, device, memory). */
static PyObject *learn(PyObject *module, PyObject *examples) {
    if (!are_examples(examples)) return PyErr_Format(PyExc_TypeError, "examples of arrays, in a list");
    PyObject *first = PyList_GET_ITEM(examples, 0);
    size_t whole = (size_t)Py_TYPE(part(first, ARRAY))->tp_basicsize;
    size_t inner = (size_t)Py_TYPE(part(first, POINTER))->tp_basicsize;
    Spots found = {
        Py_TYPE(part(first, ARRAY)), only_place(examples, SIZES, whole), only_place(examples, KIND, whole),
        only_place(examples, POINTER, whole), only_place(examples, IN_ORDER, whole), only_place(examples, PLACE, inner),
        only_place(examples, DEVICE, inner), only_place(examples, MEMORY, inner),
    };
    if (PyErr_Occurred()) return NULL;
    if (!found.shape || !found.dtype || !found.data || !found.ordered || !found.pointer || !found.device || !found.memory)
        Py_RETURN_FALSE;
    Py_INCREF(found.type); /* for good */
    spots = found;
    Py_RETURN_TRUE;
}
