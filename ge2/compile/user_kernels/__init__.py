"""This module puts user kernels into a program: it finds the function that each computes in the
graph and replaces it where the kernel is chosen.

A function is looked for in two steps, because its graph depends on shapes. Operations of the
graph's form are compared by name first, which tells the types of the operands; the function is
traced at those, and has to be equal in everything. Values inside of it that something else reads
are computed as before beside the kernel; so a kernel, or its gradient, is never in the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, final

from ge2.base.cache import VERSION
from ge2.base.config import config
from ge2.base.errors import ArgumentError, CompileError, Ge2Error
from ge2.base.record import record
from ge2.choice import Family, Problem, Variant, prefs
from ge2.choice.arguments import Refused
from ge2.choice.choose import Choice, choose
from ge2.choice.user_kernels import Kernel
from ge2.codegen.layout import plain
from ge2.codegen.text import Operand
from ge2.compile.user_kernels.operations import (
    Role,
    Types,
    full,
    graph_of,
    made,
    operation,
    parameters,
    roles,
    sizes_of,
    types_of,
)
from ge2.ir import ArrayType, Atom, Eqn, Graph, Literal, Var, makers_of, without_dead_code
from ge2.ops.shape import BroadcastInDim
from ge2.passes.context import Context
from ge2.passes.simplify import inline
from ge2.targets.c.libraries import limits
from ge2.targets.cuda.device import Caps as CudaCaps
from ge2.targets.cuda.kernels import launched
from ge2.targets.cuda.limits import Limits

# --------------------------------------------------------------------------------------- the choice


@final
class Otherwise(Family[Any, Any]):
    """The candidate beside a user kernel: what ge2 itself compiles for the function."""

    name = "kernels of ge2"
    code = VERSION

    def kernels(self, problem: Problem, variant: Variant, caps: Any) -> Any:
        # not reached: where this is chosen, the function's own equations stay in the graph
        raise NotImplementedError("the graph has them")


@final
class UserFamily(Family[Any, Any]):
    """A family that has one member, a user kernel for a function."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.name = role.text.name  # type: ignore[misc]
        self.code = role.text.key  # type: ignore[misc]

    def refuses(self, problem: Problem, caps: Any) -> str:
        text, language = self.role.text, problem.target
        if language not in text.languages:
            return f"it has no text for {language}"
        if language == "cuda" and (why := text.runs_on(caps.limits.architecture)):
            return why
        try:
            sizes_of(self.role, problem.inputs)
            self.tried(problem, caps)
        except Refused as why:
            return str(why)
        return ""

    def tried(self, problem: Problem, caps: Any) -> None:
        """Refuses a template that cannot be printed, a function that ge2 prints by another
        template, and a launch that is invalid.
        """
        for variant in self.role.text.variants:
            try:
                op = operation(self.role, problem.inputs, variant)
                own = op.foreign[problem.target]
                for each in own.launches if problem.target == "cuda" else ():
                    launched(op, each)
            except (ArgumentError, CompileError) as error:
                raise Refused(str(error).partition("\n")[0]) from None
            if own.stock is not None and problem.settled:
                own.stock(problem, caps)

    def variants(self, problem: Problem, caps: Any) -> Iterator[Variant]:
        for each in self.role.text.variants:
            yield Variant(", ".join(f"{word}={n}" for word, n in each), each)

    def kernels(self, problem: Problem, variant: Variant, caps: Any) -> Any:
        # not reached: where this is chosen, an operation replaces the function, and has a family
        raise NotImplementedError("the operation has them")


@lru_cache(64)
def catalog(role: Role, preferred: bool) -> tuple[Family[Any, Any], ...]:
    found: tuple[Family[Any, Any], ...] = (Otherwise(), UserFamily(role))
    return found[::-1] if preferred else found


def choice_of(role: Role, types: Types, target: str, caps: Any, preferred: bool) -> Choice:
    """Chooses the kernel of a function, or of its gradients, for operands of these types."""
    outs = tuple(a.type for a in graph_of(full(role), types).outputs)
    lies = [("in", i, t) for i, t in enumerate(types)] + [("out", i, t) for i, t in enumerate(outs)]
    layouts = tuple(Operand(role_, i, plain(t.shape).strides, 0) for role_, i, t in lies)
    # not the name of the operation: of that, how it is run is another problem
    wanted = made({"name": f"function_{role.text.name}", **parameters(role)})
    problem = Problem(wanted, types, outs, target, frozenset(), layouts)
    return choose(problem, caps, prefs(), catalog(role, preferred))


# ------------------------------------------------------------------------------------- the matching


@final
class Match:
    """A match of a graph with part of another one. It is `exact` in everything, or by the names of
    operations alone.

    `values`: for each value of the graph that of the other; `eqns`: the equations it is part of.
    """

    def __init__(self, graph: Graph, makers: Mapping[Var, Eqn], exact: bool) -> None:
        self.graph, self.makers, self.exact = graph, makers, exact
        self.own = makers_of(graph)
        self.values: dict[Var, Atom] = {}
        self.eqns: dict[Eqn, Eqn] = {}

    def at(self, eqn: Eqn) -> bool:
        """True if the first result is one of the equation, and the others are found from it."""
        first, *rest = self.graph.outputs
        assert isinstance(first, Var)
        mine = self.own[first]
        if len(mine.outs) != len(eqn.outs) or not self.agrees(
            first, eqn.outs[mine.outs.index(first)]
        ):
            return False
        return all(a in self.values or self.anywhere(a) for a in rest)  # type: ignore[arg-type]

    def anywhere(self, a: Var) -> bool:
        """Finds a further result."""
        mine = self.own[a]
        for eqn in dict.fromkeys(self.makers.values()):
            if eqn.op.name == mine.op.name and len(eqn.outs) == len(mine.outs):
                before = dict(self.values), dict(self.eqns)
                if self.agrees(a, eqn.outs[mine.outs.index(a)]):
                    return True
                self.values, self.eqns = before
        return False

    def agrees(self, mine: Atom, other: Atom) -> bool:
        if isinstance(mine, Literal):
            return self.literal(mine, other)
        if mine in self.values:
            return self.values[mine] is other
        if not isinstance(other, Var) or (self.exact and mine.type != other.type):
            return False
        eqn, found = self.own.get(mine), self.makers.get(other)
        if eqn is None:  # an input
            self.values[mine] = other
            return mine.type.dtype == other.type.dtype or not self.exact
        if found is None or not self.same(eqn, found):
            return False
        if eqn.outs.index(mine) != found.outs.index(other):
            return False
        self.values.update(zip(eqn.outs, found.outs, strict=True))
        self.eqns[eqn] = found
        return all(self.agrees(a, b) for a, b in zip(eqn.inputs, found.inputs, strict=True))

    def literal(self, mine: Literal, other: Atom) -> bool:
        if not isinstance(other, Literal):
            return False
        return mine == other if self.exact else mine.type.dtype.kind == other.type.dtype.kind

    def same(self, eqn: Eqn, other: Eqn) -> bool:
        shapes = len(eqn.inputs) == len(other.inputs) and len(eqn.outs) == len(other.outs)
        same = eqn.op == other.op if self.exact else eqn.op.name == other.op.name
        return shapes and same and not eqn.op.effect


@final
@record
class Site:
    """A place of a function in a graph, and the kernel that was chosen for it."""

    role: Role
    inputs: tuple[Var | ArrayType, ...]  # of one that no result depends on, the type
    outs: tuple[Var, ...]  # what the function's results are called there
    position: int  # of the last equation that makes one of them
    choice: Choice

    @property
    def taken(self) -> bool:
        return isinstance(self.choice.family, UserFamily)


def sites(graph: Graph, role: Role, target: str, caps: Any, preferred: bool) -> Iterator[Site]:
    """Finds the places of a function in a graph."""
    if role.op is not None:
        yield from op_sites(graph, role, target, caps, preferred)
        return
    makers = makers_of(graph)
    number = {id(e): n for n, e in enumerate(graph.eqns)}
    form = graph_of(role, sample_types(role))
    (root, *_) = form.outputs
    name = next(e.op.name for e in form.eqns if root in e.outs)
    met: set[Eqn] = set()
    for eqn in reversed(graph.eqns):
        if eqn.op.name != name or eqn in met:
            continue
        found = located(role, form, makers, eqn)
        if found is None:
            continue
        inputs, outs, inside = found
        orders = [number[id(makers[v])] for v in outs]
        if escapes(graph, inside, outs, role) or read_before(graph, inside, outs, max(orders)):
            continue
        types = types_in(inputs)
        met.update(inside)
        yield Site(role, inputs, outs, max(orders), choice_of(role, types, target, caps, preferred))


def op_sites(graph: Graph, role: Role, target: str, caps: Any, preferred: bool) -> Iterator[Site]:
    """Finds the places of operations of that name in a graph, whatever their parameters."""
    for n, eqn in enumerate(graph.eqns):
        if eqn.op.name != role.kernel.op or not all(isinstance(a, Var) for a in eqn.inputs):
            continue
        if len(eqn.inputs) != len(types_of(role.kernel)) or any(a.type.weak for a in eqn.inputs):
            continue
        own = replace(role, op=eqn.op)
        types = tuple(a.type for a in eqn.inputs)
        choice = choice_of(own, types, target, caps, preferred)
        yield Site(own, eqn.inputs, eqn.outs, n, choice)  # type: ignore[arg-type]


def sample_types(role: Role) -> Types:
    types = types_of(role.kernel)
    if role.wanted is None:
        return types
    return (*types, *(a.type for a in graph_of(Role(role.kernel), types).outputs))


def located(
    role: Role, form: Graph, makers: Mapping[Var, Eqn], eqn: Eqn
) -> tuple[tuple[Var | ArrayType, ...], tuple[Var, ...], list[Eqn]] | None:
    """Returns operands, results and equations of the function that ends in an equation; None if
    none does.
    """
    first = Match(form, makers, False)
    given = bound(role, first) if first.at(eqn) else None
    if given is None:
        return None
    try:
        graph = graph_of(role, tuple(v if isinstance(v, ArrayType) else v.type for v in given))
    except (Ge2Error, ArithmeticError, LookupError, TypeError, ValueError):
        # the function is not for such types
        return None
    match = Match(graph, makers, True)
    if not match.at(eqn) or bound(role, match) != given:
        return None
    outs = tuple(match.values[a] for a in graph.outputs)  # type: ignore[index]
    return given, outs, [*match.eqns.values()]  # type: ignore[return-value]


def bound(role: Role, match: Match) -> tuple[Var | ArrayType, ...] | None:
    """Returns the operands that a match has found. An operand that no result depends on, but whose
    gradient is one of them, has a known type, and any array serves.
    """
    found: list[Var | ArrayType] = []
    for i, v in enumerate(match.graph.inputs):
        value: Any = match.values.get(v)
        if value is None and i in (role.wanted or ()):
            gradient = match.graph.outputs[(role.wanted or ()).index(i)]
            value = match.values[gradient].type  # type: ignore[index]
        if value is None or isinstance(value, Literal) or getattr(value, "type", value).weak:
            return None
        found.append(value)
    return tuple(found)


def escapes(graph: Graph, inside: Sequence[Eqn], outs: Sequence[Var], role: Role) -> bool:
    """Returns True if another equation reads an inner value of the function that is more than a
    view. For a gradient the inner values are computed beside the kernel.
    """
    if role.wanted is not None:
        return False
    within = set(map(id, inside))
    own = {v for e in inside if not e.op.is_view for v in e.outs} - set(outs)
    outside = (a for e in graph.eqns if id(e) not in within for a in e.inputs)
    return not own.isdisjoint(outside) or not own.isdisjoint(graph.outputs)


def read_before(graph: Graph, inside: Sequence[Eqn], outs: Sequence[Var], position: int) -> bool:
    """Returns True if another equation reads a result before all are computed: one kernel would
    come too late.
    """
    within = set(map(id, inside))
    early = (a for e in graph.eqns[:position] if id(e) not in within for a in e.inputs)
    return len(outs) > 1 and not set(outs).isdisjoint(early)


def caps_of(context: Context) -> tuple[str, Any]:
    """Returns the target of a graph, and the limits of its device."""
    if isinstance(context.caps, Limits):
        return "cuda", CudaCaps.before(context.caps)
    return "c", limits(config.thread_count())


def left(
    graph: Graph, kernels: Mapping[Kernel, bool], context: Context
) -> Iterator[tuple[str, Choice]]:
    """Returns the functions in a traced graph that ge2 computes although there is a kernel: their
    places, and the kernels that were chosen.
    """
    found = inline(graph)
    for kernel, preferred in kernels.items():
        for role in roles(kernel):
            for site in sites(found, role, *caps_of(context), preferred):
                if not site.taken:
                    source = found.eqns[site.position].source
                    yield f"{role.text.name}, at {source}", site.choice


def substituted(graph: Graph, kernels: Mapping[Kernel, bool], target: str, caps: Any) -> Graph:
    """Returns the graph with user kernels in place of the functions that they compute, where they
    are chosen. `kernels` maps each to whether it is preferred where nothing was measured.
    """
    found = inline(graph)
    changed = False
    for kernel, preferred in kernels.items():
        for role in roles(kernel):
            taken = [s for s in sites(found, role, target, caps, preferred) if s.taken]
            if taken:
                found, changed = without_dead_code(replaced(found, taken)), True
    return found if changed else graph


def replaced(graph: Graph, taken: Sequence[Site]) -> Graph:
    """Returns the graph with one equation for each site; equations that only those read become
    dead.
    """
    at = {site.position: site for site in taken}
    gone: dict[Var, Var] = {}
    eqns: list[Eqn] = []
    for n, eqn in enumerate(graph.eqns):
        eqns.append(renamed(eqn, gone))
        if n in at:
            *zeros, new = equations(at[n], eqn)
            eqns += (*zeros, renamed(new, gone))
            gone.update(zip(at[n].outs, results(new, at[n].role), strict=True))
    outputs = tuple(gone.get(a, a) for a in graph.outputs)  # type: ignore[arg-type]
    return Graph(graph.inputs, tuple(eqns), outputs, graph.consts)


def renamed(eqn: Eqn, names: Mapping[Var, Var]) -> Eqn:
    inputs = tuple(names.get(a, a) for a in eqn.inputs)  # type: ignore[arg-type]
    return eqn if inputs == eqn.inputs else replace(eqn, inputs=inputs)


def types_in(inputs: Sequence[Var | ArrayType]) -> Types:
    return tuple(v if isinstance(v, ArrayType) else v.type for v in inputs)


def equations(site: Site, last: Eqn) -> Iterator[Eqn]:
    """Returns the kernel as an equation, after the equations of operands that no wanted result
    depends on.
    """
    types, given = types_in(site.inputs), list[Var]()
    for v in site.inputs:
        given.append(v if isinstance(v, Var) else Var(v))
        if isinstance(v, ArrayType):
            zero = Literal.of(v.dtype.type(0))
            yield Eqn(BroadcastInDim(dims=(), shape=v.shape), (zero,), (given[-1],), last.source)
    op = operation(site.role, types, site.choice.taken.variant.plan)
    outs = tuple(Var(t) for t in op.infer(*types))
    yield Eqn(op, tuple(given), outs, last.source, site.choice)


def results(eqn: Eqn, role: Role) -> Sequence[Var]:
    """Returns the results of a kernel that a program wants."""
    every = full(role).wanted
    if role.wanted is None or every is None:
        return eqn.outs
    return [eqn.outs[every.index(i)] for i in role.wanted]
