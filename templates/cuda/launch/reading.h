/* How a run is made of what Python hands over, and unmade. Part of `launches.c`. */

static int is_map(PyObject *parameter) { return PyTuple_Check(parameter) && PyTuple_GET_SIZE(parameter) == 4; }

static int read_slot(Run *me, Slot *slot, PyObject *x, size_t at) {
    PyObject *map = NULL;
    slot->at = at;
    if (!PyArg_ParseTuple(x, "piK|O!", &slot->is_number, &slot->from, &slot->offset, &PyBytes_Type, &map)) return -1;
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
    if (!map) return 0;
    if (slot->is_number || PyBytes_GET_SIZE(map) != sizeof *me->map || at % MAP) { /* so a word is none either */
        PyErr_SetString(PyExc_ValueError, "a tensor map of a number, or of another layout, or as a word");
        return -1;
    }
    slot->map = &me->map[me->maps++];
    memcpy(slot->map, PyBytes_AS_STRING(map), sizeof *slot->map);
    slot->size = MAP;
    return 0;
}

/* Parameters: bytes, or (is it a number, which one, offset), of a tensor map with what is encoded. Where they lie is a
 * multiple of 16, of a tensor map one of 128. */
static int read_params(Run *me, Node *node, PyObject *given, int *slots, int *params, size_t *at) {
    node->first_slot = *slots;
    node->kernel.params = me->params + *params;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); i++) {
        PyObject *x = PyTuple_GET_ITEM(given, i);
        if (is_map(x)) *at = (*at + MAP - 1) / MAP * MAP;
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

/* A word of a library's function, or of a table: an int, or as a parameter, of at most eight bytes. */
static int read_word(Run *me, PyObject *x, int *slots, size_t at) {
    if (!PyLong_Check(x)) {
        Slot *slot = &me->slot[(*slots)++];
        if (read_slot(me, slot, x, at)) return -1;
        if (slot->size <= sizeof(uint64_t)) return 0;
        PyErr_SetString(PyExc_ValueError, "a word of more than eight bytes");
        return -1;
    }
    uint64_t word = PyLong_AsUnsignedLongLong(x);
    if (word == (uint64_t)-1 && PyErr_Occurred()) return -1;
    memcpy(me->values + at, &word, sizeof word);
    return 0;
}

/* A table of words, a list, of which the word at `from` is the address. */
static int read_table(Run *me, PyObject *table, int *slots, size_t from, size_t *at) {
    uint64_t address = (uint64_t)(uintptr_t)(me->values + *at);
    memcpy(me->values + from, &address, sizeof address);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(table); i++, *at += sizeof(uint64_t))
        if (read_word(me, PyList_GET_ITEM(table, i), slots, *at)) return -1;
    return 0;
}

/* A library's function: (name, address, words, floating numbers, what explains an error). A word is an int, a parameter, a table, or None for
 * the stream; a number the eight bytes of a register. */
static int read_call(Run *me, Called *called, PyObject *given, int *slots, size_t *at) {
    unsigned long long function;
    PyObject *name, *words, *reals, *explain;
    if (!PyArg_ParseTuple(given, "UKO!O!O", &name, &function, &PyTuple_Type, &words, &PyTuple_Type, &reals, &explain))
        return -1;
    if (PyTuple_GET_SIZE(words) > WORDS || PyTuple_GET_SIZE(reals) > REALS) {
        PyErr_SetString(PyExc_ValueError, "a library's function with too many arguments");
        return -1;
    }
    called->function = (Function)(uintptr_t)function;
    called->name = Py_NewRef(name);
    called->explain = Py_NewRef(explain);
    called->words = *at;
    called->reals = *at += WORDS * sizeof(uint64_t);
    *at += REALS * sizeof(double);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(words); i++) {
        PyObject *x = PyTuple_GET_ITEM(words, i);
        size_t from = called->words + (size_t)i * sizeof(uint64_t);
        if (x == Py_None) called->streams |= 1u << i;
        else if (PyList_Check(x) ? read_table(me, x, slots, from, at) : read_word(me, x, slots, from)) return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(reals); i++) {
        PyObject *x = PyTuple_GET_ITEM(reals, i);
        if (!PyBytes_Check(x) || PyBytes_GET_SIZE(x) != sizeof(double)) {
            PyErr_SetString(PyExc_TypeError, "a floating argument is eight bytes");
            return -1;
        }
        memcpy(me->values + called->reals + (size_t)i * sizeof(double), PyBytes_AS_STRING(x), sizeof(double));
    }
    return 0;
}

static int read_calls(Run *me, Node *node, PyObject *given, int *slots, int *calls, size_t *at) {
    node->first_slot = *slots;
    node->first_call = *calls;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); i++, (*calls)++)
        if (read_call(me, &me->called[*calls], PyTuple_GET_ITEM(given, i), slots, at)) return -1;
    node->calls = *calls - node->first_call;
    node->slots = *slots - node->first_slot;
    *at = (*at + 15) / 16 * 16;
    return 0;
}

/* What a decision and a choice have besides: (handle), or (handle, type, first list, number of lists); a kernel whether
 * its blocks wait for each other, and whether it waits by itself for those before it. */
static int read_about(Run *me, Py_ssize_t i, PyObject *about, Py_ssize_t params) {
    Node *node = &me->node[i];
    int choice = node->kind == CHOICE;
    if (node->kind < KERNEL || node->kind > CHOICE) {
        PyErr_SetString(PyExc_ValueError, "a launch of no known kind");
        return -1;
    }
    if (node->kind == KERNEL && !PyArg_ParseTuple(about, "|pp", &node->together, &node->awaits)) return -1;
    me->awaiting |= node->awaits;
    if (node->kind < DECISION) return 0;
    if (!(choice ? PyArg_ParseTuple(about, "iiii", &node->handle, &node->type, &node->first_list, &node->lists)
                 : PyArg_ParseTuple(about, "i", &node->handle)))
        return -1;
    int wrong = node->handle < 0 || node->handle >= me->count || (!choice && (params != 5 || node->slots != 1));
    wrong |= choice && (node->lists < 1 || node->first_list < 1 || node->first_list > me->lists - node->lists);
    for (int n = 0; !wrong && n < node->lists; n++) wrong = me->list[node->first_list + n].first <= i;
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, "a choice of lists that there are not, or that do not come later");
        return -1;
    }
    if (node->handle >= me->handles) me->handles = node->handle + 1;
    return 0;
}

static int read_lists(Run *me, PyObject *lists) {
    if (!me->lists) {
        PyErr_SetString(PyExc_ValueError, "no list of launches");
        return -1;
    }
    for (Py_ssize_t n = 0; n < me->lists; n++) {
        List *list = &me->list[n];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(lists, n), "ii", &list->first, &list->count)) return -1;
        if (list->first < 0 || list->count < 0 || list->first > me->count - list->count) {
            PyErr_SetString(PyExc_ValueError, "a list of launches that there are not");
            return -1;
        }
    }
    return 0;
}

/* The nodes that one waits for; those of which ~n is told need not have ended when it is launched, and come last. */
static int read_needs(Run *me, Py_ssize_t i, PyObject *after, int *needs) {
    Node *node = &me->node[i];
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(after); n++) {
        long before = PyLong_AsLong(PyTuple_GET_ITEM(after, n));
        if (before == -1 && PyErr_Occurred()) return -1;
        int early = before < 0;
        before = early ? ~before : before;
        if (before >= i || (early ? node->kind != KERNEL : node->early)) {
            PyErr_SetString(PyExc_ValueError, before >= i ? "a launch waits for what comes later"
                                                          : "only a kernel is launched early, by its last waits");
            return -1;
        }
        node->early += early;
        me->need[(*needs)++] = (int)before;
    }
    return 0;
}

/* (kind, function, grid, block, shared memory, parameters, needs, name, what else); of a library, whose kind is CALL,
 * its functions in place of parameters. */
static int read_node(Run *me, Py_ssize_t i, PyObject *x, int *slots, int *params, int *calls, int *needs, size_t *at) {
    Node *node = &me->node[i];
    unsigned *g = node->kernel.grid, *b = node->kernel.block;
    unsigned long long function;
    PyObject *given, *after, *name, *about;
    if (!PyArg_ParseTuple(x, "iK(III)(III)IO!O!OO!", &node->kind, &function, &g[0], &g[1], &g[2], &b[0], &b[1], &b[2],
                          &node->kernel.shared, &PyTuple_Type, &given, &PyTuple_Type, &after, &name, &PyTuple_Type,
                          &about))
        return -1;
    node->kernel.function = (Handle)(uintptr_t)function;
    Py_INCREF(name);
    node->name = name;
    node->first_need = *needs;
    node->needs = (int)PyTuple_GET_SIZE(after);
    if (read_needs(me, i, after, needs)) return -1;
    if (node->kind == CALL ? read_calls(me, node, given, slots, calls, at) : read_params(me, node, given, slots, params, at))
        return -1;
    return read_about(me, i, about, PyTuple_GET_SIZE(given));
}

/* The slots and bytes of values of a library's function. */
static void measure_call(PyObject *call, size_t *params, size_t *bytes) {
    PyObject *words = PyTuple_GET_ITEM(call, 2);
    *bytes += WORDS * sizeof(uint64_t) + REALS * sizeof(double);
    for (Py_ssize_t i = 0; PyTuple_Check(words) && i < PyTuple_GET_SIZE(words); i++) {
        PyObject *x = PyTuple_GET_ITEM(words, i);
        size_t inside = PyList_Check(x) ? (size_t)PyList_GET_SIZE(x) : 0;
        *params += 1 + inside;
        *bytes += inside * sizeof(uint64_t);
    }
}

/* How many parameters, slots, waits, tensor maps and bytes of values there are. */
static int measure(PyObject *nodes, size_t *params, size_t *needs, size_t *maps, size_t *bytes) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(nodes); i++) {
        PyObject *node = PyTuple_GET_ITEM(nodes, i);
        if (!PyTuple_Check(node) || PyTuple_GET_SIZE(node) != 9 || !PyTuple_Check(PyTuple_GET_ITEM(node, 5)) ||
            !PyTuple_Check(PyTuple_GET_ITEM(node, 6))) {
            PyErr_SetString(PyExc_TypeError, "a launch is a tuple of nine");
            return -1;
        }
        PyObject *given = PyTuple_GET_ITEM(node, 5);
        *params += (size_t)PyTuple_GET_SIZE(given) + 1;
        *needs += (size_t)PyTuple_GET_SIZE(PyTuple_GET_ITEM(node, 6));
        int library = PyLong_Check(PyTuple_GET_ITEM(node, 0)) && PyLong_AsLong(PyTuple_GET_ITEM(node, 0)) == CALL;
        *bytes += 16;
        for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(given); n++) {
            PyObject *x = PyTuple_GET_ITEM(given, n);
            if (library && PyTuple_Check(x) && PyTuple_GET_SIZE(x) == 5) measure_call(x, params, bytes);
            else if (is_map(x)) *maps += 1, *bytes += 2 * MAP;
            else *bytes += PyBytes_Check(x) ? ((size_t)PyBytes_GET_SIZE(x) + 15) / 16 * 16 : 16;
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
    for (Called *called = me->called; called && called->name; called++) {
        Py_CLEAR(called->name);
        Py_CLEAR(called->explain);
    }
    free(me->node);
    free(me->called);
    free(me->list);
    free(me->value);
    free(me->slot);
    free(me->need);
    free(me->map);
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
    Py_CLEAR(me->told);
    Py_CLEAR(me->trouble);
    Py_CLEAR(me->whole);
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
    Py_VISIT(me->told);
    for (const Called *called = me->called; called && called->name; called++) Py_VISIT(called->explain);
    return 0;
}

static int room(Run *me, PyObject *sizes, PyObject *nodes, PyObject *lists) {
    size_t params = 0, needs = 0, maps = 0, bytes = 0;
    me->count = PyTuple_GET_SIZE(nodes);
    me->lists = PyTuple_GET_SIZE(lists);
    me->numbers = PyTuple_GET_SIZE(sizes);
    if (measure(nodes, &params, &needs, &maps, &bytes)) return -1;
    me->node = calloc((size_t)me->count + 1, sizeof *me->node);
    me->called = calloc(params + 1, sizeof *me->called);
    me->list = calloc((size_t)me->lists + 1, sizeof *me->list);
    me->value = calloc((size_t)me->count + 1, sizeof *me->value);
    me->slot = calloc(params + 1, sizeof *me->slot);
    me->params = calloc(params + 1, sizeof *me->params);
    me->need = calloc(needs + 1, sizeof *me->need);
    me->map = calloc(maps + 1, sizeof *me->map);
    me->number_at = calloc((size_t)me->numbers + 1, sizeof *me->number_at);
    me->places = calloc((size_t)me->arrays + 1, sizeof *me->places);
    me->callers = calloc((size_t)me->arrays + 1, 1);
    if (posix_memalign((void **)&me->values, MAP, bytes + 16)) me->values = NULL;
    if (!me->node || !me->called || !me->list || !me->value || !me->slot || !me->params || !me->need || !me->map || !me->number_at ||
        !me->places || !me->callers || !me->values) {
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
    PyObject *sizes, *nodes, *lists, *ready, *stream, *fail, *owner, *told = Py_None;
    const char *wrong;
    int captures;
    if (keywords && PyDict_GET_SIZE(keywords)) return PyErr_Format(PyExc_TypeError, "a run takes no keywords");
    if (!PyArg_ParseTuple(args, "sKy#O!O!O!pOOOO|O", &driver, &context, &callers, &arrays, &PyTuple_Type, &sizes,
                          &PyTuple_Type, &nodes, &PyTuple_Type, &lists, &captures, &ready, &stream, &fail, &owner, &told))
        return NULL;
    if ((wrong = load(driver))) return PyErr_Format(PyExc_OSError, "%s", wrong);
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
    if (told != Py_None) me->told = Py_NewRef(told);
    int slots = 0, params = 0, calls = 0, needs = 0;
    size_t at = 0;
    int bad = room(me, sizes, nodes, lists) || read_lists(me, lists);
    if (!bad && arrays) memcpy(me->callers, callers, (size_t)arrays);
    for (Py_ssize_t i = 0; !bad && i < me->count; i++)
        bad = read_node(me, i, PyTuple_GET_ITEM(nodes, i), &slots, &params, &calls, &needs, &at);
    if (bad) {
        Py_DECREF(me);
        return NULL;
    }
    return (PyObject *)me;
}
