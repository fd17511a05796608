/* A run as graphs: made for the pointers and numbers of a call, patched where these differ, or made anew. Part of
 * `launches.c`. */

/* What a library launches, as a graph; on a stream of our own, and relaxed, so that nobody else is disturbed. */
static int captured(Run *me, Py_ssize_t i, Handle *graph) {
    Status status = me->apart ? 0 : cuda.cuStreamCreate(&me->apart, APART);
    if (status) return failed(me, status, "cuStreamCreate", i);
    if ((status = cuda.cuStreamBeginCapture_v2(me->apart, RELAXED)))
        return failed(me, status, "cuStreamBeginCapture", i);
    Status wrong = 0;
    const Called *bad = call_library(me, &me->node[i], me->apart, &wrong);
    status = cuda.cuStreamEndCapture(me->apart, graph);
    if (bad && !status && *graph) cuda.cuGraphDestroy(*graph);
    if (bad) return failed_call(me, wrong, bad, i);
    return status ? failed(me, status, "cuStreamEndCapture", i) : 0;
}

/* What fails in a graph in which kernels are launched early may be for that. */
static int refused(Run *me, Graph *graph, Status status, const char *what, Py_ssize_t i) {
    graph->refused = graph->early && status != NO_MEMORY;
    return failed(me, status, what, i);
}

/* Has a kernel that waits by itself be launched before the last `node->early` of its needs have ended. */
static int add_early(Run *me, Graph *graph, Py_ssize_t i, Handle into, const Handle *needs) {
    static const Edge EDGE = {.from_port = STARTED, .type = EARLY};
    const Node *node = &me->node[i];
    graph->early = 1;
    for (int n = node->needs - node->early; n < node->needs; n++) {
        Status status = UNSUPPORTED;
        if (cuda.cuGraphAddDependencies_v2)
            status = cuda.cuGraphAddDependencies_v2(into, &needs[n], &graph->nodes[i], &EDGE, 1);
        if (status) return refused(me, graph, status, "cuGraphAddDependencies", i);
    }
    return 0;
}

/* A launch, or a decision, which is one. */
static int add_kernel(Run *me, Graph *graph, Py_ssize_t i, Handle into, const Handle *needs) {
    const Node *node = &me->node[i];
    int early = me->whole ? 0 : node->early;
    if (fill(me, i)) return -1;
    if (node->kind == DECISION && name_handle(me, graph, i, into)) return -1;
    Status status = cuda.cuGraphAddKernelNode_v2(&graph->nodes[i], into, needs, (size_t)(node->needs - early),
                                                 &node->kernel);
    if (status) return failed(me, status, "cuGraphAddKernelNode", i);
    const uint64_t yes[8] = {1}; /* CUlaunchAttributeValue */
    if (node->together && (status = cuda.cuGraphKernelNodeSetAttribute(graph->nodes[i], COOPERATIVE, yes)))
        return failed(me, status, "cuGraphKernelNodeSetAttribute", i);
    return early ? add_early(me, graph, i, into, needs) : 0;
}

static int add_call(Run *me, Graph *graph, Py_ssize_t i, Handle into, const Handle *needs) {
    const Node *node = &me->node[i];
    Handle child = NULL;
    if (fill(me, i)) return -1;
    if (captured(me, i, &child)) return -1;
    Status status = cuda.cuGraphAddChildGraphNode(&graph->nodes[i], into, needs, (size_t)node->needs, child);
    cuda.cuGraphDestroy(child); /* the node has a copy */
    return status ? failed(me, status, "cuGraphAddChildGraphNode", i) : 0;
}

static int add_node(Run *me, Graph *graph, Py_ssize_t i, Handle into) {
    const Node *node = &me->node[i];
    Handle few[64], *needs = few;
    if (node->needs > 64 && !(needs = malloc((size_t)node->needs * sizeof *needs))) {
        PyErr_NoMemory();
        return -1;
    }
    for (int n = 0; n < node->needs; n++) needs[n] = graph->nodes[me->need[node->first_need + n]];
    int bad = node->kind == CALL     ? add_call(me, graph, i, into, needs)
              : node->kind == CHOICE ? add_choice(me, graph, i, into, needs)
                                     : add_kernel(me, graph, i, into, needs);
    if (needs != few) free(needs);
    return bad;
}

static int add_list(Run *me, Graph *graph, const List *list, Handle into) {
    for (int i = list->first; i < list->first + list->count; i++)
        if (add_node(me, graph, i, into)) return -1;
    return 0;
}

static void drop(Graph *graph) {
    if (graph->exec) cuda.cuGraphExecDestroy(graph->exec);
    if (graph->graph) cuda.cuGraphDestroy(graph->graph);
    free(graph->nodes);
    free(graph->decided);
    free(graph->places);
    free(graph->numbers);
    memset(graph, 0, sizeof *graph);
}

static void note(Run *me, Graph *graph) {
    if (me->arrays) memcpy(graph->places, me->places, (size_t)me->arrays * sizeof *me->places);
    if (me->number_bytes) memcpy(graph->numbers, me->given, me->number_bytes);
}

static int made_once(Run *me, Graph *graph, int *doubted) {
    graph->nodes = calloc((size_t)me->count, sizeof *graph->nodes);
    graph->decided = calloc((size_t)me->handles + 1, sizeof *graph->decided);
    graph->places = calloc((size_t)me->arrays + 1, sizeof *graph->places);
    graph->numbers = calloc(me->number_bytes + 1, 1);
    if (!graph->nodes || !graph->decided || !graph->places || !graph->numbers) {
        PyErr_NoMemory();
        goto bad;
    }
    Status status = cuda.cuGraphCreate(&graph->graph, 0);
    if (status) {
        failed(me, status, "cuGraphCreate", -1);
        goto bad;
    }
    if (add_list(me, graph, me->list, graph->graph)) goto bad;
    if ((status = cuda.cuGraphInstantiateWithFlags(&graph->exec, graph->graph, 0))) {
        refused(me, graph, status, "cuGraphInstantiate", -1);
        goto bad;
    }
    note(me, graph);
    return 0;
bad:
    *doubted = graph->refused;
    drop(graph);
    return -1;
}

/* From now on launches wait until those before them have ended, for the reason that Python was about to raise. */
static void give_up_early(Run *me) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyException_SetTraceback(value, Py_None);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    Py_XSETREF(me->whole, value);
}

/* A graph; where one in which kernels are launched early cannot be made, one in which none is. */
static int make(Run *me, Graph *graph) {
    int doubted = 0;
    if (!made_once(me, graph, &doubted)) return 0;
    if (!doubted || !PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    give_up_early(me);
    return made_once(me, graph, &doubted);
}

static double clock_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The same, timed, and told to who wants to know; what goes wrong in telling is not the call's fault. */
static int make_timed(Run *me, Graph *graph) {
    double began = clock_now();
    if (make(me, graph)) return -1;
    double took = clock_now() - began;
    me->seconds += took;
    if (!me->told) return 0;
    PyObject *done = PyObject_CallFunction(me->told, "nd", me->count, took);
    if (!done) PyErr_WriteUnraisable(me->told);
    Py_XDECREF(done);
    return 0;
}

static int patch_node(Run *me, Graph *graph, Py_ssize_t i, Status *status) {
    const Node *node = &me->node[i];
    if (fill(me, i)) return -1;
    if (node->kind == CALL) {
        Handle child = NULL;
        if (captured(me, i, &child)) return -1;
        *status = cuda.cuGraphExecChildGraphNodeSetParams(graph->exec, graph->nodes[i], child);
        cuda.cuGraphDestroy(child);
        return 0;
    }
    if (node->kind == DECISION && name_handle(me, graph, i, NULL)) return -1;
    *status = cuda.cuGraphExecKernelNodeSetParams_v2(graph->exec, graph->nodes[i], &node->kernel);
    return 0;
}

/* Whether it is for the kernels that are launched early that a driver refuses a patch: then no more of them are. */
static int for_early(Run *me, const Graph *graph, Status status, Py_ssize_t i) {
    if (!graph->early || status == NO_MEMORY) return 0;
    failed(me, status, "a parameter's change", i);
    give_up_early(me);
    return 1;
}

/* What is in the list of a choice, not every driver may patch: where it does not, `rigid` is set. */
static int patch(Run *me, Graph *graph) {
    for (Py_ssize_t i = 0; i < me->count; i++) {
        Status status = 0;
        if (!differs(me, &me->node[i], graph)) continue;
        if (patch_node(me, graph, i, &status)) return -1;
        if (status && for_early(me, graph, status, i)) return 1;
        if (status && i >= me->list->count) return me->rigid = 1;
        if (status) return failed(me, status, "a parameter's change", i);
    }
    note(me, graph);
    me->patched++;
    return 0;
}

static int is_placed(const Run *me, const Graph *graph) {
    return !memcmp(graph->places, me->places, (size_t)me->arrays * sizeof *me->places);
}

static int fits(const Run *me, const Graph *graph) {
    return is_placed(me, graph) && !memcmp(graph->numbers, me->given, me->number_bytes);
}

/* Has a graph fit this call: patched, or made anew. */
static int renewed(Run *me, Graph *graph) {
    int bad = me->rigid ? 1 : patch(me, graph);
    if (bad <= 0) return bad;
    drop(graph);
    if (make_timed(me, graph)) return -1;
    me->remade++;
    return 0;
}

/* A graph for the places of this call: one that is as it should be, or in which numbers alone change; a new one; or
 * the one that was not used for longest. */
static Graph *suitable(Run *me) {
    Graph *oldest = NULL, *placed = NULL;
    for (int i = 0; i < me->graphs; i++) {
        if (fits(me, &me->graph[i])) return &me->graph[i];
        if (is_placed(me, &me->graph[i])) placed = &me->graph[i];
        if (!oldest || me->graph[i].used < oldest->used) oldest = &me->graph[i];
    }
    if (!placed && me->graphs < GRAPHS) {
        if (make_timed(me, &me->graph[me->graphs])) return NULL;
        return &me->graph[me->graphs++];
    }
    Graph *chosen = placed ? placed : oldest;
    if (!renewed(me, chosen)) return chosen;
    int at = (int)(chosen - me->graph); /* half patched: it is of no use any more */
    drop(chosen);
    me->graph[at] = me->graph[--me->graphs];
    memset(&me->graph[me->graphs], 0, sizeof(Graph));
    return NULL;
}
