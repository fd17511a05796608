"""Control flow and other operations that NumPy has no name for, under the
names they have in JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ge2.base.dtypes import BOOL, INTEGERS
from ge2.base.errors import InputError, TypeRuleError
from ge2.base.source import here
from ge2.ir import ArrayType, type_of
from ge2.numpy import dot_general as dot_general
from ge2.numpy.sorting import top_k as top_k
from ge2.ops.shape import StopGradient
from ge2.trace import is_traced, title_of
from ge2.transforms.arguments import check_functions, is_array
from ge2.transforms.branches import Branch, check_nested, decided, of_known
from ge2.transforms.several import common_types
from ge2.tree import map as tree_map


def stop_gradient(x: Any) -> Any:
    """The same values (of an array or a container of arrays), through which no derivative flows.

    >>> import ge2
    >>> ge2.grad(lambda x: x * stop_gradient(x))(3.0)
    3.0
    """
    return tree_map(StopGradient(), x)


def cond(
    pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any
) -> Any:
    """`true_fun(*operands)` where the scalar `pred` holds, else
    `false_fun(*operands)`; only one is computed.

    Both return the same structure, shapes and dtypes, or a TypeRuleError says where they differ.
    Where `pred` is known, one function is called, as by `if`, and the other is traced for that
    comparison alone, unless it comes to another `cond` or `switch` (so that recursion ends). What
    is written into the operands is written by the function that is taken. Under `vmap` with a
    mapped predicate both are computed and selected from.

    >>> cond(True, lambda x: x + 1, lambda x: x - 1, 10)
    11
    """
    check_functions("cond", true_fun, false_fun)
    t = checked_predicate(pred)
    names = (f"the false branch {title_of(false_fun)}", f"the true branch {title_of(true_fun)}")
    if not is_traced(pred):
        return of_known("cond", names, (false_fun, true_fun), int(bool(pred)), operands)
    check_nested()
    branches = [Branch.of(f, operands) for f in (false_fun, true_fun)]
    results, each = [b.returned for b in branches], [b.types for b in branches]
    types = common_types(TypeRuleError, "cond", names, results, each)
    return decided(pred if t.dtype == BOOL else pred != 0, branches, types)


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """`branches[index](*operands)`, the integer `index` clamped to
    those there are; one is computed.

    All return the same structure, shapes and dtypes, or a TypeRuleError says where they differ;
    where `index` is known, the others are traced for that alone, as for `cond`. Under `vmap` with a
    mapped index all are computed and selected from.

    >>> switch(1, [lambda x: x + 1, lambda x: x * 10], 7)
    70
    """
    if not branches:
        raise InputError(
            "switch needs at least one branch", where=here(), fix="switch(index, [f, g], x)"
        )
    check_functions("switch", *branches)
    t = type_of(index) if is_array(index) else None
    if t is None or t.shape or t.dtype not in INTEGERS:
        got = t or f"a {type(index).__name__}"
        raise TypeRuleError(
            f"switch is decided by an integer scalar; got {got}", where=here(), fix="x.astype(int)"
        )
    if not is_traced(index) or len(branches) == 1:
        at = 0 if is_traced(index) else min(max(int(index), 0), len(branches) - 1)
        titles = [f"branch {i}, {title_of(f)}," for i, f in enumerate(branches)]
        return of_known("switch", titles, branches, at, operands)
    check_nested()
    parts = [Branch.of(f, operands) for f in branches]
    types = parts[0].types
    for _ in range(2):  # what a later branch widens, the earlier ones follow
        for i in range(1, len(branches)):
            names = (f"branch 0, {title_of(branches[0])},", f"branch {i}, {title_of(branches[i])},")
            results = parts[0].returned, parts[i].returned
            types = common_types(TypeRuleError, "switch", names, results, (types, parts[i].types))
    return decided(index.cast(np.dtype(np.int64)) if t.weak else index, parts, types)


def checked_predicate(pred: Any) -> ArrayType:
    try:
        t = type_of(pred)
    except InputError:
        raise TypeRuleError(
            f"cond is decided by a bool scalar; got a {type(pred).__name__}",
            where=here(),
            fix="bool(x)",
        ) from None
    if t.shape or t.dtype not in (BOOL, *INTEGERS):
        raise TypeRuleError(
            f"cond is decided by a bool scalar; got {t}",
            where=here(),
            fix="np.any(x) or np.all(x); x != 0; np.where for arrays",
        )
    return t
