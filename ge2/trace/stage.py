"""Running a function on stand-ins to learn its graph, and that graph made smaller."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from ge2.base.arrays import COMPLEX, FLOATS, gpu_of, on_gpu
from ge2.base.config import config
from ge2.base.errors import (
    DeviceError,
    Ge2Error,
    InputError,
    TraceError,
    TracerArrayConversionError,
    TypeRuleError,
    VerifyError,
)
from ge2.base.record import collector_paused, deep_recursion, record
from ge2.base.source import Source, here, of_function
from ge2.ir import (
    ArrayType,
    Atom,
    Eqn,
    Graph,
    GraphOp,
    Literal,
    Op,
    Var,
    current,
    parse,
    type_of,
    verify,
    without_dead_code,
    write,
)
from ge2.ops import KNOWN, REPLACED
from ge2.ops.elementwise import BY_NAME, ConvertElementType
from ge2.trace.tracer import Closed, Trace, Tracer, check_type, is_traced
from ge2.trace.views import Argument
from ge2.trace.writes import (
    OF_REAL_ARRAYS,
    TURNS,
    making_traced,
    may_be_made_traced,
    users_namespaces,
)

# -------- Graphs made smaller without changing what they compute: equal equations once, unread ones
# not at all.


# ------------------------------------------------------------------------------------------ strong
# Graphs without Python numbers: what a loop computes again and again is
# computed beside its arrays.


def strong_type(t: ArrayType) -> ArrayType:
    return ArrayType(t.shape, t.dtype) if t.weak else t


def strong_value(x: Any) -> Any:
    """A Python number as a scalar array of its dtype."""
    t = type_of(x)
    if not t.weak:
        return x
    return x.cast(t.dtype, False) if is_traced(x) else t.dtype.type(x)


def strong(graph: Graph) -> Graph:
    """The same graph on arrays alone: its weak values have the dtypes
    that they had as Python numbers.
    """
    return Strengthening(graph).run()


class Strengthening:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.env: dict[Var, Atom] = {}
        self.eqns: list[Eqn] = []

    def run(self) -> Graph:
        inputs = tuple(map(self.fresh, self.graph.inputs))
        for eqn in self.graph.eqns:
            self.add(eqn)
        outputs = tuple(map(self.atom, self.graph.outputs))
        return Graph(inputs, tuple(self.eqns), outputs, self.graph.consts)

    def fresh(self, v: Var) -> Var:
        if not v.type.weak:
            return v
        new = self.env[v] = Var(strong_type(v.type))
        return new

    def atom(self, a: Atom) -> Atom:
        if isinstance(a, Var):
            return self.env.get(a, a)
        return Literal(a.type.dtype.type(a.value), strong_type(a.type)) if a.type.weak else a

    def add(self, eqn: Eqn) -> None:
        if not any(a.type.weak for a in (*eqn.inputs, *eqn.outs)) and not isinstance(
            eqn.op, GraphOp
        ):
            if self.env:
                eqn = Eqn(eqn.op, tuple(map(self.atom, eqn.inputs)), eqn.outs, eqn.source)
            self.eqns.append(eqn)
            return
        op, inputs = strong_op(eqn.op), tuple(map(self.atom, eqn.inputs))
        if isinstance(op, ConvertElementType) and inputs[0].type == strong_type(eqn.outs[0].type):
            self.env[eqn.outs[0]] = inputs[0]
            return
        types = op.infer(*(a.type for a in inputs))
        wanted = [self.fresh(v) for v in eqn.outs]
        made = tuple(v if v.type == t else Var(t) for v, t in zip(wanted, types, strict=True))
        self.eqns.append(Eqn(op, inputs, made, eqn.source))
        for v, y in zip(wanted, made, strict=True):
            if v is not y:  # integers that Python divides, say
                self.eqns.append(Eqn(ConvertElementType(v.type.dtype), (y,), (v,), eqn.source))


def strong_op(op: Op) -> Op:
    if isinstance(op, ConvertElementType):
        return replace(op, weak=False) if op.weak else op
    if not isinstance(op, GraphOp):
        return op
    changed: dict[str, Any] = {}
    for f in fields(op):  # type: ignore[arg-type]
        value = getattr(op, f.name)
        if isinstance(value, Graph):
            changed[f.name] = strong(value)
        elif isinstance(value, tuple) and value and all(isinstance(g, Graph) for g in value):
            changed[f.name] = tuple(map(strong, value))
    return replace(op, **changed)  # type: ignore[type-var]


# ------------------------------------------------------------------------------------------- exact
# Equations that need not be: what a derivative multiplies by one, negates
# twice, or spreads from a number.
#
# Only what holds for every value, NaN, infinities and signed zeros included. Complex numbers are left
# alone: (inf + 0j) * (1 + 0j) is not inf + 0j.


# the equations kept so far that a rule may ask for: `neg`, and broadcasts of literals
Known = dict[Var, Eqn]
Rule = Callable[[Op, Sequence[Atom], ArrayType, Known], Atom | None]
COMMUTATIVE = frozenset(("add", "mul"))


def is_one(atom: Atom) -> bool:
    return type(atom) is Literal and atom.type.dtype in FLOATS and atom.value == 1


def product(op: Op, inputs: Sequence[Atom], out: ArrayType, known: Known) -> Atom | None:
    a, b = inputs
    if is_one(b) and a.type == out:
        return a
    if is_one(a) and b.type == out:
        return b
    return folded(op, inputs, out, known)


def quotient(op: Op, inputs: Sequence[Atom], out: ArrayType, known: Known) -> Atom | None:
    return inputs[0] if is_one(inputs[1]) and inputs[0].type == out else None


def negation(op: Op, inputs: Sequence[Atom], out: ArrayType, known: Known) -> Atom | None:
    (x,) = inputs
    before = known.get(x) if type(x) is Var else None
    if before is not None and before.op is op:
        return before.inputs[0]
    return folded(op, inputs, out, known)


def folded(op: Op, inputs: Sequence[Atom], out: ArrayType, known: Known) -> Atom | None:
    """The literal that an operation on literals gives, if it is a float."""
    if out.dtype not in FLOATS or any(
        type(a) is not Literal or a.type.dtype in COMPLEX for a in inputs
    ):
        return None
    with np.errstate(all="ignore"):
        y = np.asarray(op.reference(*(np.asarray(a.value, a.type.dtype) for a in inputs)))  # type: ignore[union-attr]
    number: Any = y.item() if out.weak else y.astype(out.dtype, copy=False)[()]
    return Literal(number, out)


RULES: dict[str, Rule] = {
    "mul": product,
    "div": quotient,
    "neg": negation,
    "add": folded,
    "sub": folded,
    "convert_element_type": folded,
}


def remember(eqn: Eqn, known: Known) -> None:
    """Keeps what a later rule may ask for."""
    name = eqn.op.name
    if name == "neg" or (name == "broadcast_in_dim" and type(eqn.inputs[0]) is Literal):
        known[eqn.outs[0]] = eqn


def with_scalars(op: Op, inputs: tuple[Atom, ...], known: Known) -> tuple[Atom, ...]:
    """Elementwise operations read a number that was spread over their shape as the number it is."""
    if op.name not in BY_NAME or len(inputs) < 2:
        return inputs
    plain = tuple([_scalar(a, known) for a in inputs])
    return plain if any(a.type.shape for a in plain) else inputs


def _scalar(atom: Atom, known: Known) -> Atom:
    made = known.get(atom) if type(atom) is Var else None
    return made.inputs[0] if made is not None and made.op.name == "broadcast_in_dim" else atom


# ----------------------------------------------------------------------------------------- retrace


def is_long(graph: Graph) -> bool:
    """True of a graph in which loops are found before equal equations are one."""
    return len(graph.eqns) >= LONG


@collector_paused
def tidy(graph: Graph) -> Graph:
    """The graph as every transform leaves it."""
    return without_dead_code(cse(graph))


def cse(graph: Graph) -> Graph:
    """Each equation whose operation and inputs were met before reads the earlier results instead.

    What `exact` knows to be no work at all goes on the way.
    """
    env: dict[Any, Atom] = {}
    seen: dict[Any, tuple[Var, ...]] = {}
    known: Known = {}
    eqns: list[Eqn] = []
    get = env.get
    for eqn in graph.eqns:
        op, inputs = eqn.op, eqn.inputs
        if env:
            inputs = tuple([get(a, a) for a in inputs])
        if known:
            inputs = with_scalars(op, inputs, known)
        rule = RULES.get(op.name)
        if rule is not None and (found := rule(op, inputs, eqn.outs[0].type, known)) is not None:
            env[eqn.outs[0]] = found
            continue
        if not op.effect:
            key = (
                frozenset(inputs)
                if op.name in COMMUTATIVE and eqn.outs[0].type.dtype.kind != "c"
                else inputs
            )
            outs = seen.setdefault((op, key), eqn.outs)
            if outs is not eqn.outs:
                env.update(zip(eqn.outs, outs, strict=True))
                continue
        eqns.append(eqn if inputs == eqn.inputs else Eqn(op, inputs, eqn.outs, eqn.source))
        remember(eqns[-1], known)
    if not env and not known:
        return graph
    return Graph(graph.inputs, tuple(eqns), tuple([get(a, a) for a in graph.outputs]), graph.consts)


# -------- Running a Python function on stand-ins for its arrays, to learn its graph.


# ----------------------------------------------------------------------------------------- devices
# Where the arrays of a call are: all on the CPU, or all on one GPU.


def place_of(arrays: Sequence[Any]) -> int | None:
    """The GPU that some of the arrays are on; None if there is none."""
    return next((gpu_of(x) for x in arrays if on_gpu(x)), None)


def common_place(title: str, given: Sequence[tuple[str, Any]]) -> int | None:
    """The GPU that all arrays of a call, each with a name, are on; None for the CPU.

    DeviceError, which names two of them, if some are elsewhere. NumPy's scalars and
    Python's numbers go anywhere.
    """
    found: dict[int | None, str] = {}
    for name, x in given:
        if on_gpu(x) or (isinstance(x, np.ndarray) and not is_traced(x)):
            found.setdefault(gpu_of(x) if on_gpu(x) else None, name)
    if len(found) > 1:
        (a, first), (b, second), *_ = found.items()
        raise DeviceError(
            f"{title} is given {first} {words(a)} and {second} {words(b)}",
            where=here(),
            fix="cupy.asarray(x) puts an array on the GPU, cupy.asnumpy(x) takes one from there",
        )
    return next(iter(found), None)


def words(place: int | None) -> str:
    return "on the CPU" if place is None else f"on GPU {place}"


# ------------------------------------------------------------------------------------------- stage


LONG = 10_000  # equations
ABSTRACT = object()  # the value of an input of which nothing is known


@record
class Input:
    """One array that a staged function takes."""

    type: ArrayType
    value: Any = ABSTRACT  # what `if` and `int` may look at
    name: str = ""
    active: bool = False  # whether a derivative flows from it
    reason: str = ""  # why its value is not known
    writable: bool = False  # whether the function may write into it: nobody else has it
    source: Any = None  # the array itself, if the function may meet it by another way (a closure)
    carried_back: bool = False  # whether what is written to it is written to the caller's array
    scalar: bool = False  # whether it is a NumPy scalar, which never changes in place


@collector_paused
def stage(
    f: Callable[..., Iterable[Any]],
    inputs: Sequence[Input],
    title: str = "",
    kind: str = "",
    source: Source | None = None,
) -> Closed:
    """Traces `f`, a function of flat arrays to a sequence of arrays, all made
    by the line `source`; again, if a real array that it made has no place for a traced value.
    """
    try:
        return staged(f, inputs, title, kind, source)
    except OF_REAL_ARRAYS as error:
        if not may_be_made_traced(error):
            raise
        users = users_namespaces(error)
    for number in TURNS:
        try:
            with making_traced(number, users):
                return staged(f, inputs, title, kind, source)
        except OF_REAL_ARRAYS:
            if number == TURNS[-1]:
                raise
    raise AssertionError(TURNS)


def staged(
    f: Callable[..., Iterable[Any]],
    inputs: Sequence[Input],
    title: str,
    kind: str,
    source: Source | None,
) -> Closed:
    trace = Trace(title or title_of(f), kind)
    trace.source = source
    tracers = [bind(trace, given) for given in inputs]
    with deep_recursion(), trace:
        outputs = [trace.atom(y) for y in checked_outputs(called(f, tracers, trace), trace)]
    closed = finish(trace, trace.inputs, outputs)
    if config.check_leaks:
        tracers.clear()
        check_leaks(trace)
    return closed


def check_leaks(trace: Trace) -> None:
    """UnexpectedTracerError if a value of a trace that is over can still be reached."""
    trace.bound.clear()
    gc.collect()
    for x in gc.get_referrers(trace):
        if isinstance(x, Tracer):
            raise x.escaped()


def called(
    f: Callable[..., Iterable[Any]], tracers: Sequence[Tracer], trace: Trace
) -> Iterable[Any]:
    """The function's results; errors of others for a traced value are explained."""
    try:
        results = f(*tracers)
        if trace.swallowed and trace.refused is not None:
            raise trace.refused()
        return results
    except Ge2Error:
        raise
    except Exception as error:
        hidden = hidden_by(error, trace)
        if hidden is not None:
            raise hidden.with_traceback(error.__traceback__) from None
        from ge2.trace.protocols import explain  # here: only errors pay for it

        explain(error)
        raise


WITHOUT_ITERATORS = (
    "the operation on the arrays as a whole; or for i in np.ndindex(x.shape): y[i] = f(x[i])"
)


def hidden_by(error: Exception, trace: Trace) -> Exception | None:
    """The error of ours that one of NumPy's or CuPy's stands for, if there is one."""
    text = str(error)
    if type(error) is TypeError and trace.refused is not None and ", traced " in text:
        return trace.refused()  # `np.zeros(n)`
    if type(error) is TypeError and text.startswith("Iterator operand"):
        what = "np.nditer goes through arrays in memory, where traced ones are not"
        return TracerArrayConversionError(what, where=last_line(error), fix=WITHOUT_ITERATORS)
    if isinstance(error, TypeError) and "cupy" in text and "Tracer" in text:
        what = "a function of CuPy's own, as cupy.matmul is, cannot take a traced value"
        fix = (
            "x @ y for a product; the function of ge2.numpy of that name; or ge2.jit around it all"
        )
        return InputError(what, where=last_line(error), fix=fix)
    if isinstance(error, ValueError) and isinstance(error.__cause__, TraceError):
        return error.__cause__  # `a[0] = x`, a real array
    return None


def last_line(error: BaseException) -> Source | None:
    """The line that led to an error in CuPy."""
    at, found = error.__traceback__, None
    while at is not None:
        if not str(at.tb_frame.f_globals.get("__name__")).startswith("cupy"):
            found = Source(at.tb_frame.f_code, at.tb_lasti)
        at = at.tb_next
    return found


def finish(trace: Trace, inputs: Sequence[Any], outputs: Sequence[Any]) -> Closed:
    closed = trace.finish(inputs, outputs)
    if config.check:
        check(closed.graph)
    return Closed(closed.graph, closed.captured, trace.looked)


def bind(trace: Trace, given: Input) -> Tracer:
    var = trace.new_input(given.type, given.name)
    if isinstance(given.value, Tracer) and not given.value.usable:
        raise given.value.escaped()
    if given.value is not ABSTRACT:
        trace.arguments[var] = given.value
    if given.reason:
        trace.reasons[var] = given.reason
    if given.active:
        trace.active.add(var)
    tracer = Tracer(trace, var)
    if given.source is not None:
        trace.bound[id(given.source)] = (given.source, tracer)
    cell = tracer.cell
    cell.argument = Argument() if given.carried_back else None
    if given.writable or given.type.weak or given.scalar or isinstance(given.value, np.generic):
        return tracer  # scalars never change in place
    if given.carried_back:
        cell.array = True
    else:
        kind = "an argument" if given.source is None else "an array from outside"
        cell.fixed = f"{given.name or 'it'} is {kind}"
    return tracer


def checked_outputs(outputs: Iterable[Any], trace: Trace) -> Iterable[Any]:
    for y in outputs:
        if not (
            isinstance(y, Tracer | bool | int | float | complex) or hasattr(y, "dtype")
        ) or isinstance(y, type):
            what = f"{trace.title} returned {described(y)}, neither an array nor a number"
            fix = (
                "[...] in place of (... for ...)"
                if isinstance(y, Iterator)
                else "return x, y: arrays and numbers alone"
            )
            raise TypeRuleError(what, fix=fix)
        if not isinstance(y, Tracer | bool | int | float | complex):
            check_result(y, trace)
        yield y


def described(y: Any) -> str:
    """A value and its type, or the type alone where the value shows as an address."""
    shown, kind = f"{y!r:.60}", type(y).__name__
    return (
        f"a value of type {kind}"
        if " at 0x" in shown or " object " in shown
        else f"{shown} ({kind})"
    )


def check_result(y: Any, trace: Trace) -> None:
    try:
        check_type(y)
    except InputError as error:
        # its line is in the text
        raise TypeRuleError(f"{trace.title} returned {error}", where="") from None


def retrace(f: Callable[..., Iterable[Any]], types: Iterable[ArrayType]) -> Graph:
    """The graph of a rule's work, on arrays of these types alone; equal equations once.

    Its equations come from the line whose equation the rule belongs to.
    """
    outer = current()
    source = outer.source if isinstance(outer, Trace) else None
    closed = stage(f, [Input(t) for t in types], "a rule", source=source)
    if closed.captured:
        raise VerifyError("a rule used a value that it was not given")
    return tidy(closed.graph)


_read_back: set[int] = set()  # what equations look like whose texts were, and their parts


def check(graph: Graph) -> None:
    """Checks that the graph is well formed, and that its text reads back as the same graph, which
    is tried of those of its equations that have a part that looks like none before.
    """
    verify(graph)
    looks, new, parts = [*map(look, graph.eqns)], list[Eqn](), set[int]()
    for eqn, how in zip(graph.eqns, looks, strict=True):
        if how not in _read_back and (unseen := alike(eqn) - _read_back - parts):
            new.append(eqn)
            parts |= unseen
    if new or not graph.eqns:
        check_text(graph if len(new) == len(graph.eqns) else alone(tuple(new)))
    _read_back.update(looks, parts)


def alone(eqns: tuple[Eqn, ...]) -> Graph:
    """A graph of some equations of another, whose inputs are all that others compute for them."""
    outs = [v for eqn in eqns for v in eqn.outs]
    made = set(outs)
    read = dict.fromkeys(a for eqn in eqns for a in eqn.inputs if isinstance(a, Var))
    return Graph(tuple([v for v in read if v not in made]), eqns, tuple(outs))


def check_text(graph: Graph) -> None:
    text = write(graph)
    again = parse(text, KNOWN)
    outdated = any(name in text for name in REPLACED)
    if write(again) != text or (again != graph and not outdated):
        raise VerifyError("the text of a graph reads back as another", where=text)


def look(eqn: Eqn) -> int:
    """An equation without its names and the lengths of axes."""
    types = [(a.type.dtype, a.type.weak, len(a.type.shape)) for a in (*eqn.inputs, *eqn.outs)]
    literals = [a for a in eqn.inputs if isinstance(a, Literal)]
    return hash((type(eqn.op), eqn.op, *types, *literals))


def alike(eqn: Eqn) -> set[int]:
    """Returns what decides how each part of an equation is written: all but names and most numbers.
    Its line is its parts, one after another. The equations of a graph in it were read back on their own.
    """
    op, of = eqn.op, (*eqn.inputs, *eqn.outs)
    counts = type(op), op.name, min(len(eqn.inputs), 2), min(len(eqn.outs), 2)
    literals = [(form(a.value), form(a.type)) for a in of if isinstance(a, Literal)]
    params = [(type(op), name, form(value)) for name, value in op.params().items()]
    return {hash(part) for part in (counts, *params, *literals, *(form(a.type) for a in of))}


def form(value: Any) -> Any:
    """Returns what decides how a parameter or a number is written."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple):
        return tuple, min(len(value), 2), frozenset(map(form, value))
    if isinstance(value, complex):
        return complex, form(value.real), form(value.imag)
    if isinstance(value, float):
        plain = math.isfinite(value) and value != 0
        return (float, value < 0, "e" in repr(value)) if plain else repr(value)
    if isinstance(value, ArrayType):
        return value.dtype, value.weak, min(len(value.shape), 2)
    if isinstance(value, Graph):
        return Graph, value.consts > 0, min(len(value.eqns), 1), min(len(value.outputs), 2)
    if isinstance(value, int) and not isinstance(value, bool):
        return int, value < 0
    return value


def title_of(f: Any) -> str:
    """The name of a function in errors: its own and where it is defined."""
    name = getattr(f, "__name__", type(f).__name__)
    place = of_function(getattr(f, "__wrapped__", f))
    return (
        f"{name} ({place.file.rpartition('/')[2]}:{place.code.co_firstlineno})" if place else name
    )
