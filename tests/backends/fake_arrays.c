/* Arrays that lie in memory as CuPy's do, without a GPU: Array(shape, strides, ordered, dtype, data), and what `data`
 * is: Pointer(ptr, device_id, mem). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

typedef struct {
    Py_ssize_t *begin, *end, *most;
} Vector;

typedef struct {
    PyObject_HEAD
    void *methods;
    PyObject *weak;
    Py_ssize_t size;
    Vector shape, strides;
    int c_contiguous, f_contiguous;
    PyObject *dtype, *data, *base;
} Array;

typedef struct {
    PyObject_HEAD
    void *methods;
    intptr_t ptr;
    int device_id;
    PyObject *mem;
} Pointer;

static int fill(Vector *to, PyObject *sizes) {
    Py_ssize_t n = PyTuple_GET_SIZE(sizes);
    to->begin = n ? PyMem_Calloc((size_t)n, sizeof *to->begin) : NULL;
    to->end = to->most = to->begin + n;
    for (Py_ssize_t i = 0; i < n; i++) to->begin[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(sizes, i));
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *make_array(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *shape, *strides, *dtype, *data;
    int ordered;
    if (!PyArg_ParseTuple(args, "O!O!pOO", &PyTuple_Type, &shape, &PyTuple_Type, &strides, &ordered, &dtype, &data)) return NULL;
    Array *me = (Array *)type->tp_alloc(type, 0);
    if (!me || fill(&me->shape, shape) || fill(&me->strides, strides)) return NULL;
    me->c_contiguous = ordered;
    me->f_contiguous = 1 - ordered;
    me->dtype = Py_NewRef(dtype);
    me->data = Py_NewRef(data);
    me->base = Py_NewRef(Py_None);
    return (PyObject *)me;
}

static void drop_array(PyObject *self) {
    Array *me = (Array *)self;
    if (me->weak) PyObject_ClearWeakRefs(self);
    PyMem_Free(me->shape.begin);
    PyMem_Free(me->strides.begin);
    Py_XDECREF(me->dtype);
    Py_XDECREF(me->data);
    Py_XDECREF(me->base);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *shape_of(PyObject *self, void *unused) {
    Vector *shape = &((Array *)self)->shape;
    PyObject *found = PyTuple_New(shape->end - shape->begin);
    for (Py_ssize_t i = 0; found && i < PyTuple_GET_SIZE(found); i++)
        PyTuple_SET_ITEM(found, i, PyLong_FromSsize_t(shape->begin[i]));
    return found;
}

static int set_shape(PyObject *self, PyObject *sizes, void *unused) {
    PyMem_Free(((Array *)self)->shape.begin);
    return fill(&((Array *)self)->shape, sizes);
}

static PyObject *ordered_of(PyObject *self, void *unused) {
    return PyBool_FromLong(((Array *)self)->c_contiguous);
}

static PyMemberDef ARRAY_MEMBERS[] = {{"dtype", T_OBJECT, offsetof(Array, dtype), READONLY},
                                      {"data", T_OBJECT, offsetof(Array, data), READONLY},
                                      {"base", T_OBJECT, offsetof(Array, base), 0},
                                      {NULL}};
static PyGetSetDef ARRAY_SEEN[] = {{"shape", shape_of, set_shape}, {"_c_contiguous", ordered_of}, {NULL}};
static PyTypeObject ARRAY = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fake_arrays.ndarray",
    .tp_basicsize = sizeof(Array),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = make_array,
    .tp_dealloc = drop_array,
    .tp_members = ARRAY_MEMBERS,
    .tp_getset = ARRAY_SEEN,
    .tp_weaklistoffset = offsetof(Array, weak),
};

static PyObject *make_pointer(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    Pointer *me = (Pointer *)type->tp_alloc(type, 0);
    if (!me || !PyArg_ParseTuple(args, "niO", &me->ptr, &me->device_id, &me->mem)) return NULL;
    Py_INCREF(me->mem);
    return (PyObject *)me;
}

static void drop_pointer(PyObject *self) {
    Py_XDECREF(((Pointer *)self)->mem);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef POINTER_MEMBERS[] = {{"ptr", T_PYSSIZET, offsetof(Pointer, ptr), READONLY},
                                        {"device_id", T_INT, offsetof(Pointer, device_id), READONLY},
                                        {"mem", T_OBJECT, offsetof(Pointer, mem), READONLY},
                                        {NULL}};
static PyTypeObject POINTER = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fake_arrays.MemoryPointer",
    .tp_basicsize = sizeof(Pointer),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = make_pointer,
    .tp_dealloc = drop_pointer,
    .tp_members = POINTER_MEMBERS,
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "fake_arrays", NULL, -1};

PyMODINIT_FUNC PyInit_fake_arrays(void) {
    if (PyType_Ready(&ARRAY) || PyType_Ready(&POINTER)) return NULL;
    PyObject *module = PyModule_Create(&MODULE);
    if (module && (PyModule_AddObjectRef(module, "ndarray", (PyObject *)&ARRAY) ||
                   PyModule_AddObjectRef(module, "MemoryPointer", (PyObject *)&POINTER)))
        Py_CLEAR(module);
    return module;
}
