"""The code to write instead, where Python or NumPy asks a traced value
for its number or its elements.

The cause is read from the expression that asks: a table from what is called, and a rule for each
kind of syntax. One cause has one text.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Callable, Sequence
from functools import reduce
from types import BuiltinFunctionType
from typing import Any, Final

import numpy as np

from ge2 import numpy as gnp
from ge2.base.arrays import BOOL
from ge2.base.source import MISSING, Expression
from ge2.ir import is_traced
from ge2.numpy.rare import special
from ge2.trace.protocols import INSTEAD
from ge2.trace.writes import OF_NUMPY

__all__ = ["hint"]

# fmt: off
GENERAL: Final = {
    "bool":   "np.where(condition, a, b), or ge2.lax.cond(condition, f, g, x)",
    "bools":  "np.any(x) or np.all(x); np.where(x, a, b) decides for each element",
    "int":    "an argument that jit takes as static (static_argnums=), or arrays in its place",
    "float":  "an array in its place: NumPy's functions take x as it is",
    "array":  "the function of that name in ge2.numpy, or ge2.pure_callback(f, like, x) for what is no NumPy",
    "key":    "a key that is known when traced (static_argnums=); or ge2.lax.switch, np.where in place of a table",
    "format": "ge2.debug.print('{}', x), which prints the value when the program runs",
}
MATH: Final = {name: f"np.{theirs}" for name, theirs in OF_NUMPY.items()} | {
    "fsum": "np.sum", "gamma": "scipy.special.gamma", "lgamma": "scipy.special.gammaln",
    "erf": "scipy.special.erf", "erfc": "scipy.special.erfc",
}
OF_PYTHON: Final[dict[Any, str]] = {
    builtins.any: "np.any({0})",
    builtins.all: "np.all({0})",
    builtins.bool: "{0} != 0, which stays an array",
    builtins.round: "np.rint({0}).astype(int), which stays an array",
    builtins.hex: "ge2.debug.print('{{}}', {0})",
    builtins.filter: "np.where(condition, x, 0): how many are left would not be known",
}
WITH_VALUES: Final = ("save", "savez", "savetxt", "savez_compressed", "array2string", "array_repr", "array_str")
# fmt: on
RANDOM: Final = "ge2.random.normal(key, shape) and its like, which take a key and traced values"
WRITABLE: Final = "{0} = ge2.numpy.array({0}) before this line, to write to; or ge2.numpy.zeros(...) for np.zeros(...)"
MADE: Final = "an array made by np.zeros_like(x) or ge2.numpy.zeros can be written"
CLOSED_OVER: Final = (
    "{0} as an argument, which may be written; or ge2.numpy.zeros(...) in the traced function"
)
STOPPED: Final = "; ge2.stop_gradient(x) first, if no derivative is wanted"


def hint(use: str, label: str, found: Expression | None) -> str:
    """A fix for a use of a traced value; `label` is its name if it is an
    argument, and else empty.
    """
    if use == "key" and label:
        return f"the key as a static argument: {static_argument(label)}"
    if found is None or use == "key":
        return GENERAL[use]
    if found.decides and not isinstance(found.node, ast.Compare):
        return of_truth(found, use) or GENERAL[use]
    for rule in RULES.get(type(found.node), ()):
        text = rule(found, use, label)
        if text:
            return text
    return (of_truth(found, use) if use in ("bool", "bools") else "") or GENERAL[use]


def of_known(name: str) -> str:
    """The fix for a number that a function of NumPy's has to know; `name` of
    the argument that it is.
    """
    return f"{static_argument(name)}: {KNOWN}" if name else "a number that is known when traced"


def in_place(found: Expression | None) -> str:
    """The fix for a traced value that is written into an array which is not traced."""
    if found is not None and isinstance(found.node, ast.AugAssign):
        target = found.node.target
        if isinstance(target, ast.Subscript):
            return writable(found, target.value)
        return of_augmented(found, "", "")
    return f"y = f(x) without out=; {MADE}"


def writable(found: Expression, array: ast.expr) -> str:
    """The fix for a traced value that is written into this array, which is not traced."""
    named = isinstance(array, ast.Name | ast.Attribute)
    code = found.frame.f_code
    if isinstance(array, ast.Name) and array.id not in (*code.co_varnames, *code.co_cellvars):
        return CLOSED_OVER.format(array.id)
    return WRITABLE.format(found.text(array, "a")) if named else MADE


LISTED: Final = gnp.rare.LISTED


def without(name: str, found: Expression | None) -> str:
    """The fix for a function that ge2 does not trace."""
    plain = name.rpartition(".")[2]
    if "(vectorized)" in name:
        return mapped("f", "x")
    if plain in (INSTEAD if name.startswith("numpy.ndarray.") else gnp.rare.REFUSED):
        return INSTEAD[plain] if name.startswith("numpy.ndarray.") else gnp.rare.REFUSED[plain][1]
    if name.startswith("numpy.ndarray."):
        return f"another method, or ge2.pure_callback(f, like, x); {LISTED}"
    if plain in WITH_VALUES:
        return f"ge2.debug.callback(lambda x: np.{plain}(..., x), x), which runs with the values"
    dotted = name.replace("numpy.", "np.", 1)
    node = found.node if found is not None else None
    given = "x"  # or the arguments as they stand there
    if found is not None and isinstance(node, ast.Call) and ends_in(node.func, plain):
        given = ", ".join(found.text(a, "x") for a in node.args)
    call = f"ge2.pure_callback({dotted}, like, {given})"
    if isinstance(getattr(np, plain, None), np.ufunc) or not name.startswith("numpy."):
        return f"ge2.extend.elementwise, for a kernel and a derivative, or {call}; {LISTED}"
    return f"{call}, whose result is like `like`; {LISTED}"


def ends_in(f: ast.expr, name: str) -> bool:
    """True if what is called is written by that name, alone or after a module's."""
    return (
        f.attr == name if isinstance(f, ast.Attribute) else isinstance(f, ast.Name) and f.id == name
    )


# -------------------------------------------------------------------------------------------- calls


def of_call(found: Expression, use: str, label: str) -> str:
    """The fix for what is called, by what it is."""
    call = found.node
    assert isinstance(call, ast.Call)
    f = found.value(call.func)
    if isinstance(call.func, ast.Call):  # np.vectorize(f)(x)
        f = found.value(call.func.func)
    args = [found.text(a, "x") for a in call.args]
    first = args[0] if args else "x"
    owner = found.primary(call.args[0], "x") if call.args else "x"
    if f is MISSING:
        return of_method(found, call, args, use, label)
    if f is np.vectorize or isinstance(f, np.vectorize):
        inner = call.func.args[:1] if isinstance(call.func, ast.Call) else []
        return mapped(found.text(inner[0], "f") if inner else "f", first)
    if isinstance(f, type) and issubclass(f, np.generic):
        return f"{owner}.astype({found.text(call.func, f.__name__)}), which stays an array"
    pythons = isinstance(f, type | BuiltinFunctionType)  # others need not have a hash
    if pythons and f in DTYPES:
        return of_number(found, f, owner, label)
    if f is range:
        return of_range(found, label)
    if f is max or f is min:
        name = f.__name__
        if len(args) == 2:
            return f"np.{name}imum({', '.join(args)})"
        return f"np.{name}({stacked(found, call.args)})"
    if pythons and f in OF_PYTHON:
        if f in REDUCING:
            first = stacked(found, call.args)
        return OF_PYTHON[f].format(owner if f is bool else first)
    if isinstance(f, np.ufunc):
        return of_numpy(f.__name__, found, call, args, use, label)
    return of_iterable(f, found, call) or of_module(f, found, call, use, label)


REDUCING: Final = (builtins.any, builtins.all)


def of_iterable(f: Any, found: Expression, call: ast.Call) -> str:
    """The fix for `sorted` and `np.fromiter`."""
    if f is not np.fromiter or not call.args:
        return of_sorted(found, call) if f is sorted else ""
    x = stacked(found, call.args[:1])
    return x if x.startswith("np.stack([") else f"np.stack(list({x}))"


def of_sorted(found: Expression, call: ast.Call) -> str:
    """`sorted` with its `key=`, a function of each element, and a plain `reverse=True`."""
    x, options = stacked(found, call.args), {k.arg: k.value for k in call.keywords}
    key = options.get("key", ast.Constant(None))
    text = f"np.sort({x})"
    if not isinstance(key, ast.Constant):
        owner = f"({x})" if x[-1] not in ")]" and not x.isidentifier() else x
        text = f"{owner}[np.argsort(ge2.vmap({found.text(key, 'key')})({x}))]"
    reverse = options.get("reverse", ast.Constant(False))
    return text + "[::-1]" * (isinstance(reverse, ast.Constant) and bool(reverse.value))


def stacked(found: Expression, args: Sequence[ast.expr]) -> str:
    """What Python's `max` takes, several values or one iterable of them, as one array."""
    match args:
        case [ast.GeneratorExp(elt=element, generators=loops)]:
            listed: ast.expr = ast.ListComp(element, loops)
        case [ast.List() | ast.Tuple() | ast.ListComp() as one]:
            listed = one
        case [one]:
            return found.text(one, "x")
        case _:
            listed = ast.List([*args])
    return f"np.stack({ast.unparse(listed)})"


# functions of NumPy's and SciPy's that take arrays alone, and what does the same
THEIRS: Final = {
    "as_strided": "np.lib.stride_tricks.sliding_window_view, or x[i] with an array i of indices",
}
DTYPES: Final = {float: "np.float64", int: "np.int64", complex: "np.complex128"}


def mapped(f: str, x: str) -> str:
    """The fix for a function of single elements that NumPy was to call."""
    called = f"({f})" if " " in f else f
    return f"ge2.vmap({f})({x}), or {called}({x}) where that is made of NumPy's functions"


def of_number(found: Expression, kind: type, x: str, label: str) -> str:
    dtype = DTYPES[kind]
    static = f", or {static_argument(label)}" if label and kind is int else ""
    return f"{x}.astype({dtype}), which stays an array{static}"


def of_range(found: Expression, label: str) -> str:
    static = f", or {static_argument(label)}" if label else ""
    call = found.node
    assert isinstance(call, ast.Call)
    ends = [found.text(a, "n") for a in call.args[:2]]
    first, last = ends if len(ends) == 2 else ("0", *ends)
    return f"ge2.lax.fori_loop({first}, {last}, lambda i, x: body, x){static}"


def asks_for_number(found: Expression | None) -> bool:
    """True if the number itself is asked for: by Python's types, `item` or `tolist`."""
    if found is None or not isinstance(found.node, ast.Call):
        return False
    f = found.node.func
    named = isinstance(f, ast.Attribute) and f.attr in ("item", "tolist")
    return named or found.value(f) in (float, complex)


def static_argument(label: str) -> str:
    return f"ge2.jit(f, static_argnames={label!r})"


def of_module(f: Any, found: Expression, call: ast.Call, use: str, label: str) -> str:
    """The fix for a function of a library."""
    home = str(getattr(f, "__module__", "") or "")
    name, top = str(getattr(f, "__name__", "f")), home.partition(".")[0]
    args = [found.text(a, "x") for a in call.args]
    if top == "math":
        return of_math(name, args)
    if top in ("statistics", "cmath") and hasattr(np, name):
        return f"np.{name}({', '.join(args)})"
    if (top == "numpy" and "random" in home) or top == "random":
        return RANDOM
    if home.startswith("numpy.testing"):
        return (
            f"ge2.debug.callback(np.testing.{name}, {', '.join(args)}), which runs with the values"
        )
    if name in THEIRS and top in ("numpy", "scipy"):
        return THEIRS[name].format(", ".join(args))
    if top == "numpy":
        part = home.split(".")[1] if "." in home else ""
        if part in gnp.rare.REFUSED and part not in INNER:
            return gnp.rare.REFUSED[part][1]
        return of_numpy(name, found, call, args, use, label) or of_callback(f, found, call)
    if top == "scipy" and name in special.__all__:
        return f"ge2.scipy.special.{name}({given(found, call)}), which needs no SciPy"
    if top in ("pandas", "matplotlib", "torch", "json", "PIL"):
        return f"{top} where the result is returned to, or ge2.debug.callback(f, x), which runs with values"
    return "" if top in ("builtins", "ge2", "") else of_callback(f, found, call)


CALLBACK: Final = "ge2.pure_callback({}), with the result's type as like"


def of_callback(f: Any, found: Expression, call: ast.Call) -> str:
    """A call that takes real arrays alone, made when the program runs: all that it reads is passed
    to it, and an object that it makes stays inside.
    """
    parts = [*call.args, *[k.value for k in call.keywords]]
    inside = any(isinstance(a, ast.Lambda | ast.Starred) for a in parts)
    if isinstance(f, type):
        outer = found.around[0] if found.around else None
        if not isinstance(outer, ast.Call) or outer.func is not call:
            return CALLBACK.format("f, like, x") + f", where f makes the {f.__name__} and uses it"
        call, inside = outer, True
    given = [found.text(a, "x") for a in (*call.args, *call.keywords)]
    function = ast.unparse(call.func)
    if inside:
        names = dict.fromkeys(n.id for n in ast.walk(call) if isinstance(n, ast.Name))
        given = [n for n in names if hasattr(found.value(ast.Name(n)), "cell")]
        function = f"lambda {', '.join(given)}: {ast.unparse(call)}"
    return CALLBACK.format(", ".join([function, "like", *(given or ["x"])]))


def given(found: Expression, call: ast.Call) -> str:
    """The arguments of a call as they stand there, those by name, too."""
    named = [f"{k.arg}={found.text(k.value, 'x')}" for k in call.keywords if k.arg is not None]
    return ", ".join([*(found.text(a, "x") for a in call.args), *named]) or "x"


def of_math(name: str, args: list[str]) -> str:
    if name == "log" and len(args) == 2:
        return f"np.log({args[0]}) / np.log({args[1]})"
    theirs = MATH.get(name, f"np.{name}" if hasattr(np, name) else "")
    return f"{theirs}({', '.join(args)})" if theirs else ""


def of_numpy(
    name: str, found: Expression, call: ast.Call, args: list[str], use: str, label: str
) -> str:
    """The fix for a function of NumPy's, which asks what its first argument is at most."""
    args = [found.text(a, "x") for a in call.args]
    if name in ("array", "asarray", "asanyarray", "ascontiguousarray", "stack", "float_"):
        return f"ge2.numpy.{name}({args[0] if args else 'x'}), which takes traced values and lists of them"
    sized = name in SHAPES and use in ("int", "array") and (name == "arange" or use == "int")
    if sized or name in SIZED:
        return of_size(label)
    if name not in gnp.__all__ or name in gnp.rare.PASSED:
        return ""
    args = [*args, *[found.text(k, "x") for k in call.keywords]]
    return f"ge2.numpy.{name}({', '.join(args) or 'x'})"


KNOWN: Final = "sizes and axes are known when a function is traced"


def of_size(label: str) -> str:
    if label:
        return f"{static_argument(label)}: {KNOWN}"
    return "a size that is known when the function is traced, such as x.shape[0]"


INNER: Final = ("lib", "core")  # NumPy's own, where functions of arrays are defined, too
SHAPES: Final = (
    "zeros", "ones", "empty", "full", "arange", "eye", "identity", "linspace", "reshape", "broadcast_to",
    "tile", "tri", "indices",
)  # fmt: skip
SIZED: Final = ("diag_indices", "mask_indices", "tril_indices", "triu_indices")  # by each argument


def of_method(found: Expression, call: ast.Call, args: list[str], use: str, label: str) -> str:
    """The fix for a method of an array from outside that is given a traced
    value, or of a traced one.
    """
    if not isinstance(call.func, ast.Attribute):
        return ""
    name, owner = call.func.attr, found.text(call.func.value, "a")
    if name in ("item", "tolist"):
        return f"{owner} itself, which NumPy's functions take as it is"
    held = found.value(call.func.value)
    if "random" in type(held).__module__ or "random" in owner:
        return RANDOM
    if name in SHAPES and use == "int":
        return of_size(label)
    if name == "__setitem__":
        return writable(found, call.func.value)
    if name == "fill" and args and not isinstance(call.func.value, ast.Name):
        return MADE
    if name == "fill" and args:
        return f"{owner} = ge2.numpy.full({owner}.shape, {args[0]})"
    if type(held) is np.ndarray and name in gnp.__all__:
        whole = ast.Call(call.func, [call.func.value, *call.args], call.keywords)
        return f"ge2.numpy.{name}({given(found, whole)})"
    if name in ("format", "join"):
        return GENERAL["format"]
    home = type(held).__module__
    home = home.partition(".")[0]
    return "" if home in ("builtins", "ge2", "numpy") else of_callback(None, found, call)


# -------------------------------------------------------------------------------- other expressions


JOINING: Final = (type(np.r_), type(np.c_))
GRIDS: Final = (type(np.mgrid), type(np.ogrid))


def of_subscript(found: Expression, use: str, label: str) -> str:
    """The fix for `a[i]`, read or written, where `a` or its index is no array of ge2's."""
    node = found.node
    assert isinstance(node, ast.Subscript)
    a, i = found.text(node.value, "a"), found.text(node.slice, "i")
    held = found.value(node.value)
    if type(held) in GRIDS:
        return of_size(label)
    if type(held) in JOINING:
        return f"ge2.numpy.{a.rpartition('.')[2]}[{i.strip('()')}]"
    argument = static_argument(label) if label else "ge2.jit(f, static_argnums=...)"
    static = f"the index as a static argument: {argument}"
    items = isinstance(held, list | tuple)
    numbers = items and all(isinstance(x, int | float | np.generic) for x in held)
    if isinstance(node.ctx, ast.Store):
        return static if items and not numbers else writable(found, node.value)
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if any(isinstance(each, ast.Slice) for each in parts):  # `a[i[:, 0]]` has none of its own
        return slice_hint(found, label)
    if items:
        return of_list(a, i, numbers)
    if isinstance(held, str):
        return static
    if isinstance(node.slice, ast.Tuple):
        return f"ge2.numpy.getitem({a}, ({i.strip('()')}))"
    if is_mask(found, node.slice):
        return f"np.where({i}, {a}, 0): how many elements a mask selects would not be known"
    return f"ge2.numpy.take({a}, {i}, axis=0)"


def is_mask(found: Expression, index: ast.expr) -> bool:
    """True of an index that is a comparison, or traced booleans: `take` would have them count."""
    if isinstance(index, ast.UnaryOp | ast.BinOp):
        return is_mask(found, index.operand if isinstance(index, ast.UnaryOp) else index.left)
    value = found.value(index)
    return isinstance(index, ast.Compare) or (is_traced(value) and value.type.dtype == BOOL)


def slice_hint(found: Expression | None, label: str = "") -> str:
    """The fix for a slice with a traced bound: a part of known length, or a mask."""
    node = found.node if found is not None else None
    static = f", or {static_argument(label)}" if label else ""
    if found is None or not isinstance(node, ast.Subscript):
        return f"ge2.lax.dynamic_slice(a, (k,), (3,)), whose length is known{static}"
    a = found.text(node.value, "a")
    if isinstance(node.slice, ast.Slice) and isinstance(node.ctx, ast.Load):
        start, size = start_and_length(found, node.slice)
        if size:
            return f"ge2.lax.dynamic_slice_in_dim({a}, {start}, {size})"
    known = "ge2.lax.dynamic_slice where its length is known"
    return f"np.where(np.arange(len({a})) < n, {a}, 0); {known}{static}"


def start_and_length(found: Expression, part: ast.Slice) -> tuple[str, str]:
    """`k` and `n` of `k:k + n`, as they are written; nothing of other slices."""
    start, stop = part.lower, part.upper
    if start is None or not isinstance(stop, ast.BinOp) or not isinstance(stop.op, ast.Add):
        return "", ""
    same = ast.dump(stop.left) == ast.dump(start)
    return (found.text(start, "k"), found.text(stop.right, "n")) if same else ("", "")


def of_list(a: str, i: str, numbers: bool) -> str:
    if numbers:
        return f"ge2.numpy.take(np.array({a}), {i})"
    return f"np.stack({a})[{i}] for arrays, or ge2.lax.switch({i}, {a}, x) for functions"


def of_augmented(found: Expression, use: str, label: str) -> str:
    node = found.node
    assert isinstance(node, ast.AugAssign)
    value = node.value if found.text(node.value, "") else ast.Name("x")
    total = ast.BinOp(node.target, node.op, value)
    return f"{found.text(node.target, 'y')} = {ast.unparse(total)}"


def of_binary(found: Expression, use: str, label: str) -> str:
    """`'%f' % x`, and `[0] * n`."""
    node = found.node
    assert isinstance(node, ast.BinOp)
    if use == "int" and isinstance(node.op, ast.Mult):
        return f"np.full(n, x) with {static_argument(label)}" if label else ""
    return GENERAL["format"] if isinstance(node.op, ast.Mod) and not use.startswith("bool") else ""


def of_comparison(found: Expression, use: str, label: str) -> str:
    """`x in y`, and `a < x < b`, which ask for a truth in between."""
    node = found.node
    assert isinstance(node, ast.Compare)
    if any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
        x, y = node.left, node.comparators[0]
        same = ast.Compare(y, [ast.Eq()], [x])
        return f"np.any({found.text(same, 'y == x')})"
    return found.text(over_arrays(node), "(a < x) & (x < b)") if len(node.ops) > 1 else ""


class OverArrays(ast.NodeTransformer):
    """`and`, `or`, `not` and `a < b < c` as functions of arrays."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        return joined(name, [self.visit(v) for v in node.values])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        inner = self.visit(node.operand)
        return of_numpys("logical_not", inner) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        values = [node.left, *node.comparators]
        pairs = [
            ast.Compare(a, [op], [b])
            for a, op, b in zip(values, node.ops, values[1:], strict=False)
        ]
        return joined("logical_and", pairs)


def joined(name: str, values: Sequence[Any]) -> ast.expr:
    found: ast.expr = reduce(lambda a, b: of_numpys(name, a, b), values)
    return found


def of_numpys(name: str, *args: Any) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name("np"), name), list(args), [])


def over_arrays(node: ast.AST) -> ast.AST:
    """A condition that arrays can stand in."""
    found: ast.AST = OverArrays().visit(copy.deepcopy(node))
    return found


def of_format(found: Expression, use: str, label: str) -> str:
    """The fix for a string that shows numbers."""
    parts = found.node.values if isinstance(found.node, ast.JoinedStr) else [found.node]
    template = "".join(part_of_format(p) for p in parts)
    shown = [found.text(p.value, "x") for p in parts if isinstance(p, ast.FormattedValue)]
    return f"ge2.debug.print({template!r}, {', '.join(shown)}), which prints when the program runs"


def part_of_format(part: ast.AST) -> str:
    """A part of an f-string as a part of what `str.format` takes."""
    if isinstance(part, ast.Constant):
        return str(part.value).replace("{", "{{").replace("}", "}}")
    spec = part.format_spec if isinstance(part, ast.FormattedValue) else None
    words = getattr(spec, "values", [])
    return "{:" + "".join(map(part_of_format, words)) + "}" if words else "{}"


RULES: Final[dict[type, tuple[Callable[[Expression, str, str], str], ...]]] = {
    ast.Call: (of_call,),
    ast.Subscript: (of_subscript,),
    ast.AugAssign: (of_augmented,),
    ast.BinOp: (of_binary,),
    ast.Compare: (of_comparison,),
    ast.FormattedValue: (of_format,),
    ast.JoinedStr: (of_format,),
}


# ----------------------------------------------------------------------------------------- branches


def of_truth(found: Expression, use: str) -> str:
    """The fix for a branch on a traced value, by the statement or expression it decides."""
    inner: ast.AST = found.node
    for outer in found.around:
        if getattr(outer, "test", None) is inner or inner in getattr(outer, "ifs", ()):
            return branch(found, outer, inner, use)
        if not isinstance(outer, ast.BoolOp | ast.UnaryOp | ast.Compare):
            break
        inner = outer
    logical = isinstance(inner, ast.BoolOp | ast.UnaryOp)
    return found.text(over_arrays(inner), "np.logical_and(a, b)") if logical else ""


def branch(found: Expression, outer: ast.AST, test: ast.AST, use: str) -> str:
    condition = found.text(over_arrays(test), "condition")
    whole = condition if use == "bool" else f"np.all({condition})"
    if isinstance(outer, ast.While):
        return f"ge2.lax.while_loop(lambda x: {whole}, lambda x: body, x)"
    if isinstance(outer, ast.IfExp):
        a, b = found.text(outer.body, "a"), found.text(outer.orelse, "b")
        return f"np.where({condition}, {a}, {b})"
    if assigned := of_assignment(outer, condition):
        return assigned
    checks = isinstance(outer, ast.If) and isinstance(outer.body[-1], ast.Raise)
    if checks or isinstance(outer, ast.Assert):
        it = "check" if checks else "assert"
        return f"ge2.debug.callback(check, x), which sees the value; or the {it} outside, on the result"
    if isinstance(outer, ast.comprehension):
        return f"np.where({condition}, x, 0): how many are left would not be known"
    return f"np.where({condition}, a, b), or ge2.lax.cond({whole}, f, g, x)"


def of_assignment(outer: ast.AST, condition: str) -> str:
    """`if c: y[i] = v` as one assignment: of what the other branch assigns, or of what is there."""
    match outer:
        case ast.If(body=[ast.Assign([target], value)], orelse=[]):
            other: ast.expr = target
        case ast.If(body=[ast.Assign([target], value)], orelse=[ast.Assign([same], other)]):
            if ast.unparse(same) != ast.unparse(target):
                return ""
        case _:
            return ""
    place, a, b = map(ast.unparse, (target, value, other))
    return f"{place} = np.where({condition}, {a}, {b})" if len(place + a + b) <= 80 else ""
