"""Functions that bring their own batch: `custom_batch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType, ModuleType
from typing import Any, ParamSpec, TypeVar, final

import numpy as np

from ge2.base.errors import NoRuleError, PytreeError, TypeRuleError
from ge2.base.pytree import broadcast_prefix, flatten, mismatch
from ge2.base.source import here
from ge2.ir import Derive, Flags, Graph, Var, type_of
from ge2.ops.custom import CustomBatch, with_consts
from ge2.trace import Input, is_traced, stage, tidy, title_of
from ge2.transforms.arguments import Arguments, Results, is_array
from ge2.transforms.constants import embedded
from ge2.transforms.custom import CustomRule, Made, filled
from ge2.transforms.several import conformed

Function = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")
DEEP = 3  # how far arrays are sought in the functions that a rule calls


@final
class custom_batch(CustomRule[P, R]):
    """A function whose batch is given by `def_vmap(rule)`, in place of one made of its equations.

    `rule(axis_size, in_batched, *args)` returns (result, out_batched). `in_batched` has for each
    argument the argument's tree with a bool for each leaf: whether it has the new axis, which is
    then the first; `out_batched` says the same of the result. The rule computes what a loop over
    the axis would: what it is free in is how. Derivatives are those of the function, and the rule
    of a derivative is made of the rule's.

    NoRuleError without a rule, TypeRuleError for a result that is no batch of the function's.

    >>> import numpy as np, ge2
    >>> total = custom_batch(lambda x: x.sum())
    >>> _ = total.def_vmap(lambda size, batched, x: (np.ones(x.shape[1]) @ x.T, True))
    >>> ge2.vmap(total)(np.eye(2))
    array([1., 1.])
    """

    def def_vmap(self, rule: Function) -> Function:
        self.rule = rule
        return rule

    def check(self) -> None:
        if not hasattr(self, "rule"):
            what = f"{title_of(self.fun)} has a custom_batch without a rule"
            raise NoRuleError(what, where=here(), fix="f.def_vmap(rule)")

    def make(self, args: tuple[Any, ...], static: tuple[Any, ...], call: Arguments) -> Made:
        returned = Results()
        closed = call.stage(call.inputs(), returned, "custom_batch")
        around = around_of(self.rule)
        extra = tuple(Var(type_of(x)) for x in around)
        inputs = (*extra, *closed.graph.inputs)
        graph = tidy(Graph(inputs, closed.graph.eqns, closed.graph.outputs))
        captured = [*around, *closed.captured]
        rule = Batching(
            self, static, call, returned, with_consts(graph, len(captured)), len(around)
        )
        return Made(CustomBatch(rule.graph, rule), captured, returned, closed.looked)


@final
class Batching:
    """The rule of one call: of flat arrays, the values from around the rule first."""

    def __init__(
        self,
        function: custom_batch[..., Any],
        static: tuple[Any, ...],
        call: Arguments,
        returned: Results,
        graph: Graph,
        around: int,
    ) -> None:
        self.rule, self.static, self.returned = function.rule, static, returned
        # it outlives them
        leaves = [None if i in call.arrays else x for i, x in enumerate(call.leaves)]
        self.call, self.graph, self.around = replace(call, leaves=leaves), graph, around
        self.title = f"the rule {title_of(function.rule)}"

    def __call__(self, derive: Derive, batched: Flags, size: int) -> tuple[Graph, Flags, Flags]:
        """The rule's graph; where a value from around the function has the axis, of which the rule
        knows nothing, that of the function.
        """
        consts = self.graph.consts
        if any(batched[:consts]):
            graph, has = derive.batch(self.graph, batched, size)
            return graph, batched, has
        sources = around_of(self.rule)[: self.around]
        types = [
            v.type.with_shape((size, *v.type.shape)) if b else v.type
            for v, b in zip(self.graph.inputs, batched, strict=True)
        ]
        inputs = [Input(t, source=s) for t, s in zip(types, sources, strict=False)]
        inputs += [Input(t) for t in types[len(sources) :]]
        flags: list[bool] = []

        def work(*arrays: Any) -> list[Any]:
            in_batched = filled(self.call, batched[consts:])
            found = self.rule(*self.static, size, in_batched, *filled(self.call, arrays[consts:]))
            return self.checked(found, size, flags)

        graph = embedded(stage(work, inputs, self.title, "custom_batch"), self.title)
        return graph, batched, tuple(flags)

    def checked(self, found: Any, size: int, flags: list[bool]) -> list[Any]:
        """What the rule returned, as arrays; `flags` learns which have the axis."""
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise TypeRuleError(
                f"{self.title} returns (result, out_batched); got a {type(found).__name__}"
            )
        leaves, structure = flatten(found[0])
        if structure != self.returned.structure:
            what = mismatch(self.returned.structure, structure, "the function", self.title)
            raise TypeRuleError(what, fix="return one structure from both")
        try:
            flags += map(bool, broadcast_prefix(found[1], found[0]))
        except PytreeError as error:
            raise TypeRuleError(
                f"{self.title} returns an out_batched that does not fit: {error}"
            ) from None
        return [
            self.fitted(y, a.type, flag, size)
            for y, a, flag in zip(leaves, self.graph.outputs, flags, strict=True)
        ]

    def fitted(self, y: Any, t: Any, flag: bool, size: int) -> Any:
        want = t.with_shape((size, *t.shape)) if flag else t
        got = type_of(y)
        if got.shape != want.shape or (got.dtype != want.dtype and not got.weak):
            what = f"{self.title} returns {got} for {want}" + (
                ", a batch of the result" if flag else ""
            )
            raise TypeRuleError(
                what, fix="a result with the new axis first, and True for it in out_batched"
            )
        return conformed(y, want)


def around_of(rule: Any) -> list[Any]:
    """The arrays that a function reads from around it: by its closure, defaults and globals, and by
    those of functions there. Each once.
    """
    found: dict[int, Any] = {}
    for value in reached(rule, DEEP):
        for leaf in flatten(value)[0]:
            if is_traced(leaf) or (is_array(leaf) and np.ndim(leaf)):
                found.setdefault(id(leaf), leaf)
    return list(found.values())


def reached(function: Any, deep: int) -> Iterator[Any]:
    """The values that a function names."""
    function = getattr(function, "__func__", getattr(function, "fun", function))
    if not isinstance(function, FunctionType) or not deep:
        return
    cells = [c.cell_contents for c in function.__closure__ or () if not is_empty(c)]
    named = [
        function.__globals__[n] for n in function.__code__.co_names if n in function.__globals__
    ]
    for value in (*cells, *(function.__defaults__ or ()), *named):
        if callable(value):
            yield from reached(value, deep - 1)
        elif not isinstance(value, ModuleType):
            yield value


def is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False
