"""Graphs of attention by rule: with the logarithms of its sums, and its derivative by these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ge2.base.dtypes import FLOAT32
from ge2.ir import ArrayType, Atom, Derive, Dims, Eqn, Flags, Graph, read, without_dead_code
from ge2.ops.attention.facts import FEATURE, REPEATED
from ge2.ops.attention.form import Form
from ge2.ops.graphs.control import whole


def run(eqns: Iterable[Eqn], env: dict[Any, Any]) -> None:
    """Computes equations, each once, in the current meaning."""
    for e in eqns:
        if e.outs[0] not in env:
            ys = e.op(*read(env, e.inputs))
            env.update(zip(e.outs, ys if e.op.several else (ys,), strict=True))


def types_of(form: Form) -> list[ArrayType]:
    return [v.type for v in form.plain.inputs]


def sums_type(form: Form) -> ArrayType:
    """The type of the logarithms of the sums."""
    return ArrayType(form.sums, FLOAT32)


def places(form: Form, dims: Dims) -> tuple[list[int], list[int]]:
    """The axes of a value that count queries or batches; and what orders them as the sums are."""
    mine = [a for a, d in enumerate(dims) if d >= 0 and d != form.key]
    wanted = [a for a in (*form.batch, form.row) if form.product.type.shape[a] > 1]
    return mine, [[dims[a] for a in mine].index(d) for d in wanted]


def as_sums(form: Form, x: Any, dims: Dims) -> Any:
    """A value that is alike along the keys, and has no axis of them, as the sums are."""
    mine, order = places(form, dims)
    x = x.reshaped(tuple(x.shape[a] for a in mine)).reorder(tuple(order))
    return x.reshaped(form.sums)


def spread(form: Form, x: Any, shape: Dims, dims: Dims) -> Any:
    """A value that is as the sums are, repeated to a shape whose axes are these of the scores."""
    mine, order = places(form, dims)
    back = tuple(order.index(i) for i in range(len(order)))
    x = x.reshaped(tuple(n for n in form.sums if n > 1)).reorder(back)
    return x.spread(shape, tuple(mine))


def without(dims: Dims, axis: int) -> Dims:
    return tuple(d for d in dims if d != axis)


def saving(form: Form, derive: Derive) -> Graph:
    """(inputs) -> (result, logarithms of the sums)."""

    def forward(*xs: Any) -> Sequence[Any]:
        env: dict[Atom, Any] = dict(zip(form.plain.inputs, xs, strict=True))
        run((*form.plain.eqns, *form.between), env)
        scores, at = env[form.scores].cast(FLOAT32), form.dims.index(form.key)
        high = scores.fold_max((at,))
        kept = tuple(a for a in range(scores.ndim) if a != at)
        total = (scores - high.spread(scores.shape, kept)).pointwise("exp").fold_sum((at,))
        logs = total.pointwise("log") + high
        return env[form.plain.outputs[0]], as_sums(form, logs, without(form.dims, form.key))

    return derive.trace(forward, types_of(form))


def weighted(form: Form, derive: Derive) -> Graph:
    """(inputs, logarithms of the sums) -> (result, sums of the weights), as if the logarithms did
    not depend on the inputs.
    """
    product, key = form.values, form.dims.index(form.key)

    def forward(*xs: Any) -> Sequence[Any]:
        env: dict[Any, Any] = dict(zip(form.plain.inputs, xs[:-1], strict=True))
        run((e for c in form.chains for e in c.eqns), env)
        run((form.dot, *form.between), env)
        scores = env[form.scores].cast(FLOAT32)
        logs = spread(form, xs[-1], scores.shape, form.dims)
        weights = (scores - logs).pointwise("exp")
        operand = product.inputs[form.side]
        env[operand] = arranged(
            weights.cast(operand.type.dtype), form.dims, operand.type.shape, form.weights
        )
        env[product.outs[0]] = product.op(*read(env, product.inputs))
        for e in form.after:
            (a,) = (x for x in e.inputs if x in env)
            env[e.outs[0]] = e.op(env[a]) if len(e.inputs) == 1 else env[a]
        return env[form.plain.outputs[0]], weights.fold_sum((key,))

    return derive.trace(forward, [*types_of(form), sums_type(form)])


def arranged(x: Any, dims: Dims, shape: Dims, wanted: Dims) -> Any:
    """A value in the shape of the weights, whose axes are these of the scores."""
    mine = [d for d in dims if d != REPEATED]
    x = x.reshaped(tuple(n for n, d in zip(x.shape, dims, strict=True) if d != REPEATED))
    return x.reorder(tuple(mine.index(d) for d in wanted if d != REPEATED)).reshaped(shape)


def backward(form: Form, wanted: Flags, derive: Derive) -> Graph:
    """(inputs, logarithms of the sums, result, its cotangent) -> cotangents of the wanted inputs.

    With weights P = exp(scores - logs), the cotangent of the scores is P (dP - D), where D is the sum
    of the result times its cotangent along the features: as if -D were that of the sums of the P.
    """
    graph = weighted(form, derive)
    joint = without_dead_code(whole(*derive.vjp(graph, (*wanted, False))))

    def pulled(*xs: Any) -> Sequence[Any]:
        *given, y, ct = xs
        at = form.result.index(FEATURE)
        total = (y.cast(FLOAT32) * ct.cast(FLOAT32)).fold_sum((at,))
        rows = as_sums(form, total, without(form.result, FEATURE))
        dims = without(form.dims, form.key)
        shape = tuple(
            n for n, d in zip(form.scores.type.shape, form.dims, strict=True) if d != form.key
        )
        return derive.run(joint, [*given, ct, -spread(form, rows, shape, dims)])

    (y,) = form.plain.outputs
    return derive.trace(pulled, [*types_of(form), sums_type(form), y.type, y.type])
