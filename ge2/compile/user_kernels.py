"""Kernels of a user's in a program: the function that each computes is found in the graph, and
taken by the kernel where that is chosen.

A function is looked for in two steps, because its graph depends on shapes. Operations of the
graph's form are compared by name first, which tells the types of the operands; the function is
traced at those, and has to be equal in everything. Values inside of it that something else reads
are computed as before beside the kernel; so a kernel, or its gradient, is never in the way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from typing import Any, Final, final

from ge2.base.cache import VERSION
from ge2.base.config import config
from ge2.base.dtypes import INEXACT
from ge2.base.errors import Ge2Error
from ge2.base.pytrees.pytree import flatten, flatten_with_path, unflatten
from ge2.base.record import record
from ge2.choice.arguments import arguments
from ge2.choice.choose import Choice, choose
from ge2.choice.problem import Family, Problem, Variant, prefs
from ge2.choice.user_kernels import Kernel, Refused, module_named, value_of
from ge2.codegen.layout import plain
from ge2.codegen.text import Operand
from ge2.ir import ArrayType, Atom, Eqn, Graph, Literal, ShapeDtypeStruct, Var, without_dead_code
from ge2.ops.graphs.region import evaluated
from ge2.ops.shape import BroadcastInDim
from ge2.ops.user_ops import Own, register
from ge2.passes.context import Context
from ge2.passes.simplify import inline
from ge2.targets.c.caps import Caps as CCaps
from ge2.targets.c.load.blas import services
from ge2.targets.cuda.caps import Caps as CudaCaps
from ge2.targets.cuda.limits import Limits
from ge2.transforms.api import vjp
from ge2.transforms.inspect import make_jaxpr

MOST: Final = 4  # arguments up to which every subset of gradients is looked for
Types = tuple[ArrayType, ...]

# ------------------------------------------------------------------------------------- the function


@final
@record
class Role:
    """What a kernel computes: its function, or the gradients by the arguments `wanted`."""

    kernel: Kernel
    wanted: tuple[int, ...] | None = None

    @property
    def text(self) -> Kernel:
        """The kernel whose text is run."""
        found = self.kernel if self.wanted is None else self.kernel.gradient
        assert found is not None
        return found


@lru_cache(64)
def example(kernel: Kernel, number: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An example of the function's arguments."""
    path = kernel.serves.rpartition(":")[0]
    names = vars(module_named(kernel.folder, path))
    args, kwargs = arguments([kernel.args[number]], names)
    for x in flatten((args, kwargs))[0]:
        if not hasattr(x, "dtype"):
            what = f"an example holds {x!r}, which is no array"
            raise kernel.wrong("args", what, 'args = ["f32[8,16], f32[16]"]')
    return tuple(args), kwargs


@lru_cache(64)
def operands(kernel: Kernel) -> tuple[str, ...]:
    """The names of the function's arrays in the texts: those of its parameters, and what is inside
    of a parameter behind it: `p_w` of `p["w"]`.
    """
    import inspect

    args, kwargs = example(kernel)
    bound = inspect.signature(kernel.function()).bind(*args, **kwargs)
    found = flatten_with_path(dict(bound.arguments))[0]
    order = {name: n for n, name in enumerate(bound.arguments)}
    named = [[str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path]
             for path, _ in found]  # fmt: skip
    named.sort(key=lambda words: order[words[0]])
    return tuple("_".join(words) for words in named)


@lru_cache(256)
def types_of(kernel: Kernel, number: int = 0) -> Types:
    """The types of an example's arrays."""
    leaves = flatten(example(kernel, number))[0]
    return tuple(ArrayType(tuple(x.shape), x.dtype) for x in leaves)


@lru_cache(256)
def graph_of(role: Role, types: Types) -> Graph:
    """The graph of what a kernel computes, of operands of these types; of a gradient, cotangents of
    the results come behind the function's own.
    """
    kernel, structure = role.kernel, flatten(example(role.kernel))[1]
    function = kernel.function()

    def results(*leaves: Any) -> Any:
        args, kwargs = unflatten(structure, leaves)
        return flatten(function(*args, **kwargs))[0]

    def gradients(*leaves: Any) -> Any:
        count = structure_size(kernel)
        _, pull = vjp(results, *leaves[:count])
        found = pull(list(leaves[count:]))
        return [found[i] for i in role.wanted or ()]

    traced = results if role.wanted is None else gradients
    closed = make_jaxpr(traced)(*(ShapeDtypeStruct(t.shape, t.dtype) for t in types))
    if closed.captured:
        what = f"{kernel.serves} reads arrays that are not its arguments"
        raise kernel.wrong("serves", what, "pass them as arguments")
    graph = without_dead_code(inline(closed.graph))
    made = {v for e in graph.eqns for v in e.outs}
    if not all(v in made for v in graph.outputs):
        raise kernel.wrong("serves", f"a result of {kernel.serves} is an argument, or a number")
    return graph


def structure_size(kernel: Kernel) -> int:
    return len(types_of(kernel))


def roles(kernel: Kernel) -> Iterator[Role]:
    """What to look for, in this order: gradients, of most arguments first; then the function."""
    if kernel.gradient is not None:
        inexact = [i for i, t in enumerate(types_of(kernel)) if t.dtype in INEXACT]
        counts = range(len(inexact), 0, -1) if len(inexact) <= MOST else (len(inexact),)
        for count in counts:
            yield from (Role(kernel, found) for found in combinations(inexact, count))
    yield Role(kernel)


def names_of(role: Role) -> tuple[str, ...]:
    """The operands of a text."""
    own = operands(role.kernel)
    if role.wanted is None:
        return own
    count = len(graph_of(Role(role.kernel), types_of(role.kernel)).outputs)
    return (*own, *(["ct"] if count == 1 else [f"ct{i}" for i in range(count)]))


# ------------------------------------------------------------------------------------ the operation


@lru_cache(256)
def operation(role: Role, types: Types, variant: tuple[tuple[str, int], ...]) -> Own:
    """The kernel as an operation on operands of these types; a gradient has all results, whichever
    are wanted.
    """
    text, names = role.text, names_of(role)
    whole = full(role)
    graph = graph_of(whole, types)
    outs = tuple(a.type for a in graph.outputs)
    several = len(outs) > 1
    sizes = text.dims(dict(zip(names, types, strict=True)))

    def reference(self: Own, *arrays: Any) -> Any:
        found = evaluated(graph, arrays)
        return found if several else found[0]

    def launch(self: Own, *_: ArrayType) -> Any:
        return launched(text, sizes | result_sizes(outs) | dict(variant))

    before = " ".join(
        [f"enum {{ {word} = {n} }};" for word, n in variant]
        + [f"const int64_t {d} = {x}_n{axis}; (void){d};" for d, x, axis in text.named_dims()]
    )
    results = [f"y{i}" for i in range(len(outs))] if several else ["y"]
    helpers = (LOADED if text.library[0] else "") + text.text("helpers")
    bodies = {w: f"{before}\n{text.text(w)}" if text.text(w) else "" for w in ("c", "cuda")}
    if text.library[0]:
        bodies["c"] = f"{before}\n{calling(text.library, names, results)}"
    found = made(
        {
            "name": text.name, "several": several, "infer": lambda self, *_: outs,
            "reference": reference, "launch": launch, **bodies, "helpers": helpers,
            "operands": names, "files": dict(text.files),
        }
    )  # fmt: skip
    register(text.name, lambda: found)
    return found


LOADED: Final = "#include <dlfcn.h>\n#include <stdlib.h>\n"


def calling(library: tuple[str, str], names: Sequence[str], results: Sequence[str]) -> str:
    """C that calls a function of a library: `void f(const void **operands, void **results, const
    int64_t **shapes, int threads)`; shapes are of the operands, then of the results.
    """
    path, function = (json.dumps(word) for word in library)
    every = ", ".join(f"{x}_shape" for x in (*names, *results))
    return f"""typedef void ge2_called_t(const void **, void **, const int64_t **, int);
static ge2_called_t *ge2_called;
if (!ge2_called) {{ /* threads that meet here find the same */
    void *ge2_library = dlopen({path}, RTLD_NOW | RTLD_LOCAL);
    if (!ge2_library || !(ge2_called = (ge2_called_t *)dlsym(ge2_library, {function}))) abort();
}}
const void *ge2_operands[] = {{{", ".join(names)}}};
void *ge2_results[] = {{{", ".join(results)}}};
const int64_t *ge2_shapes[] = {{{every}}};
ge2_called(ge2_operands, ge2_results, ge2_shapes, threads);
"""


def made(members: dict[str, Any]) -> Own:
    """An operation of a class with these members."""
    cls: Any = type(members["name"], (Own,), {"__annotations__": {}, **members})
    found: Own = record(cls)()
    return found


def full(role: Role) -> Role:
    """The role with all gradients, which the text has, whichever a program wants."""
    if role.wanted is None:
        return role
    return next(roles(role.kernel))


def result_sizes(outs: Types) -> dict[str, int]:
    named = {f"y{i}" if len(outs) > 1 else "y": t for i, t in enumerate(outs)}
    found = {f"{y}_size": t.size for y, t in named.items()}
    return found | {f"{y}_n{i}": n for y, t in named.items() for i, n in enumerate(t.shape)}


def launched(kernel: Kernel, names: Mapping[str, int]) -> Any:
    """Blocks, threads and bytes of shared memory; None where the file says nothing."""
    said = dict(kernel.launch)
    if not said:
        return None

    def sides(word: str, default: str) -> tuple[int, ...]:
        texts = said.get(word, (default,))
        return tuple(int(value_of(text, names, kernel, f"launch {word}")) for text in texts)

    (shared,) = sides("shared", "0")
    return sides("blocks", "1"), sides("threads", "256"), shared


# --------------------------------------------------------------------------------------- the choice


@final
class Otherwise(Family[Any, Any]):
    """What ge2 does for the function: the candidate beside a user's kernel."""

    name = "kernels of ge2"
    code = VERSION

    def refuses(self, problem: Problem, caps: Any) -> str:
        return ""

    def kernels(self, problem: Problem, variant: Variant, caps: Any) -> Any:
        raise NotImplementedError("the graph has them")


@final
class UserFamily(Family[Any, Any]):
    """A kernel of a user's for a function of his."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.name = role.text.name  # type: ignore[misc]
        self.code = role.text.key  # type: ignore[misc]

    def refuses(self, problem: Problem, caps: Any) -> str:
        text, language = self.role.text, "cuda" if problem.target == "cuda" else problem.target
        if language not in text.languages:
            return f"it has no text for {problem.target}"
        try:
            text.dims(dict(zip(names_of(self.role), problem.inputs, strict=True)))
        except Refused as why:
            return str(why)
        return ""

    def variants(self, problem: Problem, caps: Any) -> Iterator[Variant]:
        for each in self.role.text.variants:
            yield Variant(", ".join(f"{word}={n}" for word, n in each), each)

    def kernels(self, problem: Problem, variant: Variant, caps: Any) -> Any:
        raise NotImplementedError("the operation has them")


@lru_cache(64)
def catalog(role: Role, preferred: bool) -> tuple[Family[Any, Any], ...]:
    found: tuple[Family[Any, Any], ...] = (Otherwise(), UserFamily(role))
    return found[::-1] if preferred else found


def choice_of(role: Role, types: Types, target: str, caps: Any, preferred: bool) -> Choice:
    """What is chosen for a function, or its gradients, of operands of these types."""
    graph = graph_of(full(role), types)
    outs = tuple(a.type for a in graph.outputs)
    lies = [("in", i, t) for i, t in enumerate(types)] + [("out", i, t) for i, t in enumerate(outs)]
    layouts = tuple(Operand(role_, i, plain(t.shape).strides, 0) for role_, i, t in lies)
    # not the name of the operation: of that, how it is run is another problem
    wanted = made({"name": f"function_{role.text.name}"})
    problem = Problem(wanted, types, outs, target, frozenset(), layouts)
    return choose(problem, caps, prefs(), catalog(role, preferred))


# ------------------------------------------------------------------------------------- the matching


@final
class Match:
    """Whether a graph is part of another one; `exact`, in everything, or else by the names of its
    operations.

    `values`: for each value of the graph that of the other; `eqns`: the equations it is part of.
    """

    def __init__(self, graph: Graph, makers: Mapping[Var, Eqn], exact: bool) -> None:
        self.graph, self.makers, self.exact = graph, makers, exact
        self.own = {v: e for e in graph.eqns for v in e.outs}
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
    """Where a function is in a graph, and what was chosen for it."""

    role: Role
    inputs: tuple[Var | ArrayType, ...]  # of one that no result depends on, the type
    outs: tuple[Var, ...]  # what the function's results are called there
    position: int  # of the last equation that makes one of them
    choice: Choice

    @property
    def taken(self) -> bool:
        return isinstance(self.choice.family, UserFamily)


def sites(graph: Graph, role: Role, target: str, caps: Any, preferred: bool) -> Iterator[Site]:
    """Where a function is in a graph."""
    makers = {v: e for e in graph.eqns for v in e.outs}
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
        makers_of = [number[id(makers[v])] for v in outs]
        if escapes(graph, inside, outs, role) or read_before(graph, inside, outs, max(makers_of)):
            continue
        types = types_in(inputs)
        met.update(inside)
        yield Site(
            role, inputs, outs, max(makers_of), choice_of(role, types, target, caps, preferred)
        )


def sample_types(role: Role) -> Types:
    types = types_of(role.kernel)
    if role.wanted is None:
        return types
    return (*types, *(a.type for a in graph_of(Role(role.kernel), types).outputs))


def located(
    role: Role, form: Graph, makers: Mapping[Var, Eqn], eqn: Eqn
) -> tuple[tuple[Var | ArrayType, ...], tuple[Var, ...], list[Eqn]] | None:
    """Operands, results and equations of the function that ends in an equation; None if none does."""
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
    """The operands that a match has found. Of one that no result depends on, but whose gradient is
    among them, the type is known, and any array serves.
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
    """True if something else reads what is inside of the function, and is more than a view. A
    gradient reads what the function made, which is made beside it if need be.
    """
    if role.wanted is not None:
        return False
    within = set(map(id, inside))
    own = {v for e in inside if not e.op.is_view for v in e.outs} - set(outs)
    outside = (a for e in graph.eqns if id(e) not in within for a in e.inputs)
    return not own.isdisjoint(outside) or not own.isdisjoint(graph.outputs)


def read_before(graph: Graph, inside: Sequence[Eqn], outs: Sequence[Var], position: int) -> bool:
    """True if something else reads a result before all are made: one kernel would come too late."""
    within = set(map(id, inside))
    early = (a for e in graph.eqns[:position] if id(e) not in within for a in e.inputs)
    return len(outs) > 1 and not set(outs).isdisjoint(early)


def caps_of(context: Context) -> tuple[str, Any]:
    """The target of a graph, and the limits of what it is for."""
    if isinstance(context.caps, Limits):
        return "cuda", CudaCaps.before(context.caps)
    return "c", CCaps(config.thread_count(), bool(services().dgemm))


def left(
    graph: Graph, kernels: Mapping[Kernel, bool], context: Context
) -> Iterator[tuple[str, Choice]]:
    """The functions in a traced graph that ge2 computes although there is a kernel: where, and what
    was chosen for them.
    """
    found = inline(graph)
    for kernel, preferred in kernels.items():
        for role in roles(kernel):
            for site in sites(found, role, *caps_of(context), preferred):
                if not site.taken:
                    source = found.eqns[site.position].source
                    yield f"{role.text.name}, at {source}", site.choice


def substituted(graph: Graph, kernels: Mapping[Kernel, bool], target: str, caps: Any) -> Graph:
    """The graph with kernels of the user's in place of the functions that they compute, where they
    are chosen. `kernels` says of each whether it is preferred where nothing was measured.
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
    """The graph with an equation for each site; what only those read is dead then."""
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
    """The kernel as an equation, behind those of operands that no wanted result depends on."""
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
    """Those of a kernel that a program wants."""
    every = full(role).wanted
    if role.wanted is None or every is None:
        return eqn.outs
    return [eqn.outs[every.index(i)] for i in role.wanted]
