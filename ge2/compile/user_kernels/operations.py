"""User kernels as operations: the function that each computes, traced, and the code that runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import combinations
from typing import Any, Final, final

from ge2.base.arrays import INEXACT
from ge2.base.compiler import with_options
from ge2.base.pytree import flatten, flatten_with_path, unflatten
from ge2.base.record import record
from ge2.choice import Problem, prefs
from ge2.choice.arguments import Refused, arguments, value_of
from ge2.choice.choose import candidates
from ge2.choice.user_kernels import Kernel, Launch, Part, Variant, module_named
from ge2.codegen.environment import rendered, template_of
from ge2.compile.catalog import catalog_of
from ge2.compile.pipeline import pipeline_of
from ge2.ir import ArrayType, Eqn, Graph, Op, ShapeDtypeStruct, Var, without_dead_code
from ge2.ops import KNOWN
from ge2.ops.graphs.region import evaluated
from ge2.ops.user_ops import Foreign, Own, register
from ge2.passes.context import Context, run
from ge2.passes.simplify import inline
from ge2.transforms.api import vjp
from ge2.transforms.arguments import make_jaxpr

MOST: Final = 4  # arguments up to which every subset of gradients is looked for
Types = tuple[ArrayType, ...]

# ------------------------------------------------------------------------------------- the function


@final
@record
class Role:
    """The computation of a kernel: its function, or the gradients by the arguments `wanted`; or
    `op`, an operation that is of the kernel's.
    """

    kernel: Kernel
    wanted: tuple[int, ...] | None = None
    op: Op | None = None

    @property
    def text(self) -> Kernel:
        """The kernel whose text is run."""
        found = self.kernel if self.wanted is None else self.kernel.gradient
        assert found is not None
        return found


@lru_cache(64)
def example(kernel: Kernel, number: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An example of the function's arguments; of an operation, arrays and what else it has."""
    path = kernel.serves.rpartition(":")[0]
    names = vars(module_named(kernel.folder, path)) if path else {}
    args, kwargs = arguments([kernel.args[number]], names)
    if kernel.op:
        kwargs = {}
    for x in flatten((args, kwargs))[0]:
        if not hasattr(x, "dtype"):
            what = f"an example holds {x!r}, which is no array"
            raise kernel.wrong("args", what, 'args = ["f32[8,16], f32[16]"]')
    if not kernel.op:
        check_call(kernel, kernel.args[number], args, kwargs)
    return tuple(args), kwargs


def check_call(kernel: Kernel, words: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """InputError for an example that the function cannot be called with."""
    import inspect

    found = inspect.signature(kernel.function())
    try:
        found.bind(*args, **kwargs)
    except TypeError as error:
        name = kernel.serves.rpartition(":")[2]
        what = f"{words!r} are no arguments of {name}{found}: {error}"
        raise kernel.wrong("args", what, "an array for each parameter") from None


def role_of(kernel: Kernel, number: int = 0) -> Role:
    """The function, or the operation of an example."""
    return Role(kernel, None, op_of(kernel, number)) if kernel.op else Role(kernel)


@lru_cache(64)
def op_of(kernel: Kernel, number: int) -> Op:
    """The operation of an example, with the parameters that it gives by name."""
    _, params = arguments([kernel.args[number]], {})
    try:
        made: Op = KNOWN[kernel.op](**params)
        return made
    except (TypeError, ValueError) as error:
        example = f"{kernel.args[number]}: {error}"
        raise kernel.wrong("args", f"{kernel.op} is not made so: {example}") from None


@lru_cache(64)
def operands(kernel: Kernel) -> tuple[str, ...]:
    """The names of the function's arrays in the texts: those of its parameters, and what is inside
    of a parameter behind it: `p_w` of `p["w"]`. An operation has `x0`, `x1`, ..., or `x`.
    """
    import inspect

    args, kwargs = example(kernel)
    if kernel.op:
        return ("x",) if len(args) == 1 else tuple(f"x{i}" for i in range(len(args)))
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
    if role.op is not None:
        inputs, outs = tuple(map(Var, types)), tuple(map(Var, role.op.infer(*types)))
        return Graph(inputs, (Eqn(role.op, inputs, outs),), outs)
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
    """The roles to look for, in this order: gradients, of most arguments first; then the function."""
    if kernel.gradient is not None:
        inexact = [i for i, t in enumerate(types_of(kernel)) if t.dtype in INEXACT]
        counts = range(len(inexact), 0, -1) if len(inexact) <= MOST else (len(inexact),)
        for count in counts:
            yield from (Role(kernel, found) for found in combinations(inexact, count))
    yield role_of(kernel)


def names_of(role: Role) -> tuple[str, ...]:
    """The operands of a text."""
    own = operands(role.kernel)
    if role.wanted is None:
        return own
    count = len(graph_of(Role(role.kernel), types_of(role.kernel)).outputs)
    return (*own, *(["ct"] if count == 1 else [f"ct{i}" for i in range(count)]))


# ------------------------------------------------------------------------------------ the operation


def sizes_of(role: Role, types: Types) -> dict[str, Any]:
    """The sizes of operands of these types by name. Refused where the kernel is not for them."""
    more = {} if role.op is None else role.op.params()
    return role.text.dims(dict(zip(names_of(role), types, strict=True)), more)


@lru_cache(256)
def operation(role: Role, types: Types, variant: Variant) -> Own:
    """The kernel as an operation on operands of these types; a gradient has all results, whichever
    are wanted.
    """
    text, names = role.text, names_of(role)
    graph = graph_of(full(role), types)
    outs = tuple(a.type for a in graph.outputs)
    several = len(outs) > 1
    sizes = sizes_of(role, types) | result_sizes(outs) | dict(variant)
    results = [f"y{i}" for i in range(len(outs))] if several else ["y"]
    around = Names((*names, *results), (*types, *outs), variant, sizes)

    def reference(self: Own, *arrays: Any) -> Any:
        found = evaluated(graph, arrays)
        return found if several else found[0]

    foreign = {w: foreign_in(w, text, around, graph) for w in text.languages}
    found = made(
        {
            "name": text.name, "several": several, "infer": lambda self, *_: outs,
            "reference": reference, "operands": names, "foreign": foreign,
            **{w: "\n".join(each.texts) or text.name for w, each in foreign.items()},
            "files": tuple((part.text, part.path) for part in text.parts),
            **parameters(role, int | float | tuple),
        }
    )  # fmt: skip
    register(text.name, lambda: found)
    return found


@final
@record
class Names:
    """The names that a text may use: arrays with their types, the numbers of a variant, and sizes."""

    arrays: tuple[str, ...]
    types: Types
    variant: Variant
    sizes: Mapping[str, Any]


def foreign_in(language: str, text: Kernel, names: Names, graph: Graph) -> Foreign:
    """The text of a kernel in a language, for operands of some types."""
    workspace = bytes_of(text, names)
    helpers = with_options(text.options_in(language)) + text.helpers
    function = dict(text.functions).get(language, "")
    if function and language == "c":
        call = calling(text.library, function, names.arrays, len(graph.inputs))
        return Foreign((call,), (None,), LIBRARY + helpers)
    if function:
        launches: tuple[Any, ...] = (launched(text, text.launches[0], names.sizes),)
        binary = f"{text.cubin}@{text.key}" if text.cubin else ""
        return Foreign((), launches, "", workspace, None, text.library, binary, function)
    parts = text.texts(language)
    if parts[0].extends:
        template = template_of(parts[0].path, f"{numbers(names.variant)}{parts[0].text}")
        stock = partial(printed, language, graph, template, parts[0])
        return Foreign((), (None,), helpers, 0, stock)
    before = " ".join(
        [f"enum {{ {word} = {n} }};" for word, n in names.variant]
        + [f"const int64_t {d} = {x}_n{axis}; (void){d};" for d, x, axis in text.named_dims()]
    )
    bodies = tuple(f"{before}\n{body(part, names)}" for part in parts)
    said = text.launches if language == "cuda" else (None,) * len(bodies)
    launches = tuple(launched(text, each, names.sizes) if each else None for each in said)
    return Foreign(bodies, launches, helpers, workspace)


def bytes_of(text: Kernel, names: Names) -> int:
    """The size of a workspace. InputError if it is no number of bytes."""
    found = value_of(text.workspace, names.sizes, text, "workspace")
    if type(found) is not int or found < 0:
        what = f"{text.workspace!r} is {found!r}, and no number of bytes"
        raise text.wrong("workspace", what, 'workspace = "4 * n"')
    return found


def body(part: Part, names: Names) -> str:
    """A text; one that is a template is rendered, with the types of arrays as `k`."""
    if not part.is_template:
        return part.text
    template = template_of(part.path, f"{numbers(names.variant)}{part.text}")
    return rendered(template, dict(zip(names.arrays, names.types, strict=True)))


def numbers(variant: Variant) -> str:
    """The numbers of a variant as names of a template, in front of its first line."""
    return "".join(f"{{% set {word} = {n} %}}" for word, n in variant)


LIBRARY: Final = '#include "ge2/library.h"\n'


def calling(path: str, function: str, arrays: Sequence[str], count: int) -> str:
    """C that calls a function of a library: `void f(const void **operands, void **results, const
    int64_t **shapes, int threads)`; shapes are of the operands, then of the results. Threads that
    look for it at once find the same.
    """
    names = f"{json.dumps(path)}, {json.dumps(function)}"
    every = ", ".join(f"{x}_shape" for x in arrays)
    lines = (
        "static ge2_called_t *ge2_called;",
        f"if (!ge2_called) ge2_called = ge2_library_function({names});",
        f"const void *ge2_operands[] = {{{', '.join(arrays[:count])}}};",
        f"void *ge2_results[] = {{{', '.join(arrays[count:])}}};",
        f"const int64_t *ge2_shapes[] = {{{every}}};",
        "ge2_called(ge2_operands, ge2_results, ge2_shapes, threads);",
    )
    return "\n".join((*lines, ""))


def parameters(role: Role, kind: Any = object) -> dict[str, Any]:
    """The parameters of an operation that are of a kind, as members of a class."""
    given = {} if role.op is None else role.op.params()
    found = {name: value for name, value in given.items() if isinstance(value, kind)}
    return {"__annotations__": dict.fromkeys(found, Any), **found}


def made(members: dict[str, Any]) -> Own:
    """An operation of a class with these members."""
    cls: Any = type(str(members["name"]), (Own,), {"__annotations__": {}, **members})
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


def launched(kernel: Kernel, launch: Launch, names: Mapping[str, Any]) -> Any:
    """Blocks, threads and bytes of shared memory; None where the file says nothing."""
    said = dict(launch)
    if not said:
        return None

    def sides(word: str, default: str) -> tuple[int, ...]:
        texts = said.get(word, (default,))
        return tuple(int(value_of(text, names, kernel, f"launch {word}")) for text in texts)

    (shared,) = sides("shared", "0")
    return sides("blocks", "1"), sides("threads", "256"), shared


# ------------------------------------------------------------------------------------- by templates


BASE: Final = ("c/kernel.c.jinja", "cuda/kernel.cu.jinja")  # what all templates extend


def printed(
    language: str, graph: Graph, template: str, part: Part, problem: Problem, caps: Any
) -> Any:
    """The kernels that ge2 has for a function, those of a stock template by the user's in its place.

    Refused where ge2 has no one kernel for it, or prints it by another template.
    """
    context = Context(getattr(caps, "limits", None), gathers=language == "c")
    passes = [each for each in pipeline_of(language) if each.__name__ != "user_kernels"]
    found = run(passes, graph, context)
    eqns = [e for e in found.eqns if not e.op.is_view]
    if len(found.eqns) != 1 or not all(isinstance(a, Var) for a in eqns[0].inputs):
        listed = " and ".join(e.op.name for e in eqns) or "nothing"
        raise Refused(f"{part.extends} prints one kernel, and ge2 does it by {listed}")
    names = dict(zip((*found.inputs, *found.outputs), problem.operands, strict=True))
    stock = Problem.of(eqns[0], problem.target, lambda role, i, a: names[a])
    met: dict[str, None] = {}
    for candidate in candidates(stock, caps, replace(prefs(), only=()), catalog_of(problem.target)):
        if candidate.refusal or not candidate.family.target:
            continue
        variant = candidate.variant
        made = candidate.family.kernels(stock, variant, variant.caps or caps)
        own = [k for k in made.kernels if k.template == part.extends or part.extends in BASE]
        if own:
            kernels = tuple(replace(k, template=template) if k in own else k for k in made.kernels)
            return replace(made, kernels=kernels)
        met |= dict.fromkeys(k.template for k in made.kernels)
    raise Refused(f"ge2 prints it by {' or '.join(met) or 'no template'}, not by {part.extends}")
