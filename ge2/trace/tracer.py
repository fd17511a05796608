"""A traced value, and the trace that records what is done to it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from sys import modules
from typing import Any

import numpy as np

from ge2.base.arrays import PYTHON, as_array, is_masked, known
from ge2.base.config import config
from ge2.base.errors import Ge2Error, InPlaceError, InputError, UnexpectedTracerError
from ge2.base.pytree import register_leaf
from ge2.base.source import Source, here
from ge2.ir import ArrayType, Atom, Eqn, Graph, Literal, Op, Var, current, interpreting, type_of
from ge2.numpy.promotion import cast
from ge2.ops.shape import BroadcastInDim
from ge2.trace.concrete import Known, hash_of, holder
from ge2.trace.operators import Operators
from ge2.trace.protocols import PENDING, Protocols, take_over
from ge2.trace.views import Cell, Ghost, Put, Read, View, ordered

UNSURE = (
    "a reshape of {} shares memory in NumPy or is a copy, depending on its strides; "
    "one was written and the other is read"
)
# bytes up to which a captured array is copied, so that later changes to it are not seen
SNAPSHOT = 1 << 20


@register_leaf
class Tracer(Operators, Protocols):
    """Stands in for an array while its function is traced."""

    __slots__ = ("__weakref__", "cell", "owner")
    cell: Cell
    owner: Trace

    def __init__(self, trace: Trace, atom: Atom) -> None:
        self.owner = trace
        self.cell = Cell(atom)

    def __hash__(self) -> int:
        return hash_of(self)

    @property
    def atom(self) -> Atom:
        cell = self.cell
        return cell.atom if cell.view is None and not cell.doubt else self.owner.refreshed(cell)

    @property
    def type(self) -> ArrayType:  # type: ignore[override]
        return self.cell.atom.type

    def viewing(
        self, base: Tracer, read: Read, put: Put | None, layout: Ghost | None, sure: bool
    ) -> Tracer:
        """This value, from now on a view of `base`."""
        base.atom  # noqa: B018 brings the base up to date
        self.cell.view = View(base.cell, read, put, layout, sure)
        if base.owner is not self.owner:
            self.cell.view.outer = base.outer()
        return self

    def write(self, value: Any, what: str) -> None:
        """Gives this array new contents, cast to its dtype, in every view of it."""
        outer = "" if self.cell.view is None else self.cell.view.outer
        if self.owner is not current():
            if not self.usable:
                raise self.escaped()
            outer = self.outer()
        if outer:
            fix = "x as what a loop carries: fori_loop(0, n, lambda i, x: new x, x); else y = x.copy() before y[i] = v"
            raise InPlaceError(f"{what} changes {outer}", where=here(), fix=fix)
        self.owner.write(self.cell, self.owner.lift(cast(value, self.type.dtype)), what)

    @property
    def usable(self) -> bool:
        """True if the code that runs now is inside the trace this value belongs to."""
        return self.owner.open and self.owner.reaches()

    def outer(self) -> str:
        """The name of this value in errors inside another function."""
        return f"{self.label()}, which belongs to the outer function {self.owner.title}"

    def label(self) -> str:
        """The name of this value in errors."""
        name = self.owner.names.get(self.cell.atom)
        return f"{name}, traced {self.type}" if name else f"a traced {self.type}"

    def escaped(self, op: Op | None = None) -> Ge2Error:
        """The error for a use outside the trace."""
        trace = self.owner
        made = next((e.source for e in trace.eqns if self.cell.atom in e.outs), None)
        name = trace.names.get(self.cell.atom)
        value = (
            f"{name} (traced {self.type})"
            if name
            else f"a traced {self.type}" + (f" made at {made}" if made else "")
        )
        if trace.open:
            where = "where that function is not being traced, such as another thread"
            what = f"{value} of {trace.title} was used {where}"
            return UnexpectedTracerError(
                what, where=here(), fix="return values instead of handing them to other threads"
            )
        kept = holder(self)
        what = f"{value} outlived the trace of {trace.title}" + (
            f"; {kept} still holds it" if kept else ""
        )
        return UnexpectedTracerError(
            what,
            where=here(),
            fix="return x, y: a value leaves the function as its result, not by being stored",
        )


class Trace:
    """Records each operation applied as an equation.

    `active` are the inputs that a derivative flows from; `names` says what errors call a value.
    """

    def __init__(self, title: str = "a function", kind: str = "trace") -> None:
        self.title, self.kind = title, kind
        self.eqns: list[Eqn] = []
        self.inputs: list[Var] = []
        self.writes = False  # whether something in it was changed in place
        self.met: set[Var] = set()  # made by graphs that were recorded again
        self.captures: list[Capture] = []
        self.captured: dict[int, Capture] = {}  # the latest of each array, by its id
        # arrays that repeat others, and these, by their id
        self.repeated: dict[int, tuple[np.ndarray, Any]] = {}
        # arrays from outside that are inputs, by their id
        self.bound: dict[int, tuple[Any, Tracer]] = {}
        # what is known of the inputs: what `if` and `int` may look at
        self.arguments: dict[Var, Any] = {}
        self.known = Known()
        self.reasons: dict[Var, str] = {}  # why an input has no value
        self.active: set[Var] = set()
        self.names: dict[Any, str] = {}
        self.looked = (
            # whether the function looked at a value, so that the trace holds for that value only
            False
        )
        self.open = True
        self.source: Source | None = None  # of equations that a rule makes; None asks the stack
        # the error of the last value that was not known
        self.refused: Callable[[], Exception] | None = None
        self.swallowed = False  # whether NumPy made something else of that error
        self.parent: Any = None
        if not PENDING.isdisjoint(modules):
            take_over()

    # ------------------------------------------------------------------------------------ recording

    def apply(self, op: Op, args: Sequence[Any]) -> Sequence[Tracer]:
        inputs = tuple([self.atom(x) for x in args])
        try:
            types = op.infer(*[a.type for a in inputs])
        except Ge2Error as error:
            raise located(error) from None
        if len(types) == 1:  # nearly all
            out = Var(types[0])
            self.eqns.append(Eqn(op, inputs, (out,), self.source or here()))
            return (Tracer(self, out),)
        outs = tuple([Var(t) for t in types])
        self.eqns.append(Eqn(op, inputs, outs, self.source or here()))
        return [Tracer(self, v) for v in outs]

    def atom(self, x: Any) -> Atom:
        """The value as this trace writes it: one of its own, a literal,
        or one captured from outside.
        """
        if type(x) is Tracer:
            if x.owner is self:
                cell = x.cell
                return cell.atom if cell.view is None and not cell.doubt else self.refreshed(cell)
            if not self.inside(x.owner) and id(x) not in self.bound:
                raise x.escaped()
            return self.capture(x)
        if type(x) in PYTHON or isinstance(x, np.generic):
            return Literal.of(check_known(x))
        if type(x) is np.ndarray and 0 in x.strides and x.size and self.stand_in(x) is x:
            return self.spread(x)
        return self.capture(x)

    def lift(self, x: Any) -> Tracer:
        return x if type(x) is Tracer and x.owner is self else Tracer(self, self.atom(x))

    def hold(self, x: Any, fixed: str = "") -> Tracer:
        """An array that the function made, or met outside and must not write
        (`fixed`), as a value.
        """
        y = self.lift(x)
        if y is x:
            y = y if y.cell.is_array else y.renamed()  # NumPy's scalars never change
        else:
            y.cell.packed = type(x) is np.ndarray and x.flags.c_contiguous
            y.cell.fixed = fixed
        y.cell.array = True
        return y

    def reaches(self) -> bool:
        """True if the code that runs now is inside this trace."""
        trace = current()
        return trace is self or (isinstance(trace, Trace) and trace.inside(self))

    def inside(self, other: Trace) -> bool:
        trace = self.parent
        while isinstance(trace, Trace):
            if trace is other:
                return True
            trace = trace.parent
        return False

    def splice(self, graph: Graph, args: Sequence[Any]) -> list[Tracer]:
        """Records a graph's equations again, on other inputs of the same types."""
        env: dict[Var, Atom] = {v: self.atom(x) for v, x in zip(graph.inputs, args, strict=True)}
        return [self.lift_atom(a) for a in self.replay(graph, env)]

    def replay(self, graph: Graph, env: dict[Var, Atom]) -> list[Atom]:
        """Values keep their variables where this trace has not met them; a
        second time they get new ones.
        """
        get, append, met = env.get, self.eqns.append, self.met
        for eqn in graph.eqns:
            inputs = tuple([get(a, a) if type(a) is Var else a for a in eqn.inputs])
            outs = eqn.outs
            if met.isdisjoint(outs):
                met.update(outs)
            else:
                outs = tuple([Var(v.type) for v in outs])
                env.update(zip(eqn.outs, outs, strict=True))
            same = outs is eqn.outs and inputs == eqn.inputs
            append(eqn if same else Eqn(eqn.op, inputs, outs, eqn.source))
        return [get(a, a) if type(a) is Var else a for a in graph.outputs]

    def lift_atom(self, atom: Atom) -> Tracer:
        return Tracer(self, atom)

    # ------------------------------------------------------------------------------------- captures

    def capture(self, x: Any) -> Var:
        x = self.stand_in(x)
        if type(x) is Tracer and x.owner is self:
            return x.atom  # type: ignore[return-value] # an input
        found = self.captured.get(id(x))
        if found is None or not found.unchanged():
            found = self.captured[id(x)] = Capture.of(x, Var(check_type(x)))
            self.captures.append(found)
        return found.var

    def spread(self, x: np.ndarray) -> Atom:
        """What `np.broadcast_to` gave, as the array that it repeats, captured, and an equation."""
        kept = tuple(a for a, n in enumerate(x.shape) if n == 1 or x.strides[a])
        if len(kept) == x.ndim:
            return self.capture(x)
        whole, once = self.repeated.get(id(x), (None, None))
        if whole is not x:
            once = x[tuple([slice(None) if a in kept else slice(1) for a in range(x.ndim)])]
            once = once.reshape([x.shape[a] for a in kept])  # a view, though of one number
            self.repeated[id(x)] = x, once
        return self.apply(BroadcastInDim(x.shape, kept), (once,))[0].atom

    def stand_in(self, x: Any) -> Any:
        """The input, of this trace or one around it, that an array is
        bound to; else the array itself.
        """
        trace: Any = self
        while isinstance(trace, Trace):
            if id(x) in trace.bound:
                return trace.bound[id(x)][1]
            trace = trace.parent
        return x

    def new_input(self, type: ArrayType, name: str = "") -> Var:
        var = Var(type)
        self.inputs.append(var)
        if name:
            self.names[var] = name
        return var

    # ------------------------------------------------------------------------------------- in place

    def refreshed(self, cell: Cell) -> Atom:
        """The atom of a cell, read again from its base if that was written."""
        if cell.doubt:
            raise InPlaceError(
                cell.doubt, where=here(), fix="y = y.copy() before the reshape: its layout is known"
            )
        view = cell.view
        if view is not None:
            base = self.refreshed(view.base)
            if view.seen != view.base.version:
                if not view.sure:
                    raise InPlaceError(
                        UNSURE.format(cell.atom.type),
                        where=here(),
                        fix="x = x.copy() before the reshape: its layout is known",
                    )
                if view.assumed:
                    ordered(cell)
                with interpreting(self):
                    cell.atom = self.atom(view.read(Tracer(self, base)))
                view.seen = view.base.version
                cell.version += 1
        return cell.atom

    def because(self, cell: Cell) -> str:
        """The reason why an argument of a transform must not be written."""
        if cell.atom in self.active:
            return ", which is differentiated"
        return ", which is batched" if self.kind == "vmap" else ""

    def write(self, cell: Cell, value: Tracer, what: str) -> None:
        trace: Any = self
        while trace is not None and not getattr(trace, "writes", True):
            trace.writes, trace = True, getattr(trace, "parent", None)
        if cell.root.fixed:
            raise InPlaceError(
                f"{what} would change the caller's array: {cell.root.fixed} of {self.title}"
                + self.because(cell.root),
                where=here(),
                fix="x = x.copy() first, or x = x + ... instead of x += ...",
            )
        self.refreshed(cell)
        view = cell.view
        if view is None and cell.argument is not None:
            cell.argument.line = here()
        elif view is not None and view.assumed:
            ordered(cell)
        if view is not None and view.sure:
            if view.put is None:
                raise InPlaceError(
                    f"{what}: this view is read-only, as in NumPy",
                    where=here(),
                    fix="y = y.copy() before y[i] = v, or write to the base of the view",
                )
            base = Tracer(self, self.refreshed(view.base))
            self.write(view.base, view.put(base, value), what)
            view.seen = view.base.version
        elif view is not None:
            cell.root.doubt = UNSURE.format(cell.root.atom.type)
            cell.view, cell.array = None, True
        cell.atom = value.atom
        cell.version += 1

    # -------------------------------------------------------------------------------------- closing

    def __enter__(self) -> Trace:
        self.parent = current()
        self._context: AbstractContextManager[Any] = interpreting(self)
        self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)
        self.open = False

    def finish(self, inputs: Sequence[Var], outputs: Sequence[Atom]) -> Closed:
        """The graph, its captures first."""
        for capture in self.captures:
            capture.check()
        consts = tuple(c.var for c in self.captures)
        graph = Graph((*consts, *inputs), tuple(self.eqns), tuple(outputs), len(consts))
        return Closed(graph, tuple(c.value for c in self.captures))


class Capture:
    """A value from outside a trace.

    An array may go on changing: small ones are copied, others watched.
    """

    __slots__ = ("original", "sum", "value", "var")

    def __init__(self, original: Any, value: Any, var: Var, sum: int | None) -> None:
        self.original, self.value, self.var, self.sum = original, value, var, sum

    @staticmethod
    def of(x: Any, var: Var) -> Capture:
        if type(x) is Tracer:
            frozen = Tracer(x.owner, x.atom)  # a later write to x is not this value's
            return Capture(x, frozen, var, None)
        if not isinstance(x, np.ndarray) or not may_change(x):
            return Capture(x, x, var, None)
        if x.nbytes <= SNAPSHOT:
            copy = x.copy()
            copy.flags.writeable = False  # so the traces around this one need no copy of it
            return Capture(x, copy, var, None)
        return Capture(x, x, var, checksum(x))

    def unchanged(self) -> bool:
        if type(self.original) is Tracer:
            return self.original.atom is self.value.cell.atom
        if self.sum is not None:
            return self.sum == checksum(self.original)
        if self.value is self.original:
            return True
        same = (
            self.original.shape == self.value.shape
            and self.original.tobytes() == self.value.tobytes()
        )
        return bool(same)

    def check(self) -> None:
        if self.sum is not None and self.sum != checksum(self.original):
            what = f"an array ({type_of(self.original)}) that the function reads was changed while it was traced"
            fix = "change a copy of it, or read a copy"
            raise InPlaceError(f"{what}, and is too large to be copied", where=here(), fix=fix)


def may_change(x: Any) -> bool:
    """True if someone may still write to the memory of an array."""
    while isinstance(x, np.ndarray):
        if x.flags.writeable:
            return True
        x = x.base
    return x is not None  # memory that is not NumPy's


def checksum(x: np.ndarray) -> int:
    """Of the bytes of an array."""
    return zlib.crc32(np.ascontiguousarray(x).reshape(-1).view(np.uint8))  # type: ignore[arg-type]


class Closed:
    """A graph and the values its function took from outside, which come before its own inputs."""

    __slots__ = ("captured", "graph", "looked")

    def __init__(self, graph: Graph, captured: tuple[Any, ...], looked: bool = False) -> None:
        self.graph, self.captured, self.looked = graph, captured, looked

    def __call__(self, *args: Any) -> list[Any]:
        return run(self.graph, (*self.captured, *args))

    def __str__(self) -> str:
        return str(self.graph)

    __repr__ = __str__


def run(graph: Graph, args: Sequence[Any]) -> list[Any]:
    """The graph's results, computed or recorded, as the current interpreter does."""
    trace = current()
    if isinstance(trace, Trace):
        return list(trace.splice(graph, args))
    results = graph(*args)
    if config.debug_nans or config.debug_infs:
        from ge2.trace.concrete import check_finite  # it is rarely needed

        check_finite(graph, args, results, "a transformed function")
    return results


def located(error: Ge2Error) -> Ge2Error:
    """The error with the user's line, if it has none yet."""
    text = str(error)
    place = here()
    if "\n  at   " in text or place is None:
        return error
    head, *rest = text.split("\n")
    error.args = ("\n".join([head, f"  at   {place}", *rest]),)
    return error


def check_type(x: Any) -> ArrayType:
    """The type of an array that ge2 computes with; InputError says why another is refused."""
    if is_masked(x):
        raise InputError(
            "a masked array: its mask would be lost",
            where=here(),
            fix="x.filled(value), and the mask as an array of its own",
        )
    if hasattr(type(x), "to_numpy"):
        raise InputError(
            f"a {type(x).__name__}, which is no array", where=here(), fix=as_array(x, "x")
        )
    if not hasattr(x, "dtype") and not hasattr(x, "type"):
        raise InputError(
            f"{type(x).__name__} is neither an array nor a number",
            where=here(),
            fix="np.asarray(x), or a static argument",
        )
    t = type_of(x)
    if not known(t.dtype):
        swapped = not t.dtype.isnative and known(t.dtype.newbyteorder("="))
        fix = "x.astype(x.dtype.newbyteorder('='))" if swapped else as_number(t.dtype)
        why = (
            "its bytes are in another order than this machine's"
            if swapped
            else "ge2 computes with booleans and numbers"
        )
        raise InputError(f"an array of dtype {t.dtype}: {why}", where=here(), fix=fix)
    return t


def as_number(dtype: np.dtype) -> str:
    """The fix for an array whose elements are no numbers that ge2 computes with."""
    if dtype.names:
        return f"x[{dtype.names[0]!r}], and each other field, as arrays of their own"
    if dtype.kind in "US":
        return "np.unique(x, return_inverse=True)[1], a number for each word"
    if dtype.kind in "mM":
        return "x.astype(np.int64), or (x - x[0]) / np.timedelta64(1, 's')"
    return "x.astype(np.float64)"


def check_known(x: Any) -> Any:
    if isinstance(x, np.generic) and not known(x.dtype):
        check_type(x)
    return x


def is_traced(x: Any) -> bool:
    return type(x) is Tracer
