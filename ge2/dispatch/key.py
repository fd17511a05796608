"""The signature of a call: what its entry is found by, and the arguments that have none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from ge2.base.dtypes import python_type
from ge2.base.errors import InputError
from ge2.base.gpu import on_gpu
from ge2.base.optional_modules import as_array
from ge2.base.pytree import Structure, why_leaf
from ge2.base.source import here
from ge2.dispatch.signature import Refused, Static, leaf_key
from ge2.ir import ShapeDtypeStruct
from ge2.trace import is_traced, title_of
from ge2.transforms.arguments import Arguments

Function = Callable[..., Any]
CUDA: Final = (2, 13)  # DLPack's numbers of memory that a GPU reads as its own
NO_LEAVES: Final[frozenset[int]] = frozenset()


class Key(NamedTuple):
    """The signature of a call."""

    leaves: tuple[Any, ...]
    structure: Structure
    closure: Any
    settings: Any
    donated: frozenset[int] = NO_LEAVES
    # leaves that are NumPy's scalars, if that makes another signature
    scalars: frozenset[int] | None = None


def arguments_of(
    f: Function, leaves: Sequence[Any], structure: Structure, positions: list[int]
) -> Arguments:
    plain = [x.value if type(x) is Static else x for x in leaves]
    return Arguments(f, plain, structure, positions, title_of(f))


def careful_keys(
    f: Function, leaves: list[Any], structure: Structure, abstract: bool
) -> tuple[Any, ...]:
    """The keys of leaves with something unusual among them, which is
    converted or refused by name.
    """
    keys = []
    for i, leaf in enumerate(leaves):
        if abstract and isinstance(leaf, ShapeDtypeStruct):
            keys.append(python_type(leaf.dtype) if leaf.weak_type else (leaf.shape, leaf.dtype))
            continue
        try:
            leaves[i] = from_elsewhere(leaf)
            keys.append(leaf_key(leaves[i]))
        except Refused as why:
            refuse(f, leaves, structure, i, *why.args)
        except InputError as error:
            name = arguments_of(f, leaves, structure, []).name(i)
            raise InputError(f"{name} of {title_of(f)} is {error}") from None
    return tuple(keys)


def refuse(
    f: Function, leaves: list[Any], structure: Structure, i: int, why: str, fix: str
) -> NoReturn:
    arguments = arguments_of(f, leaves, structure, [])
    name, kind = arguments.name(i), type(leaves[i]).__name__
    if why:
        raise InputError(f"{name} of {arguments.title} {why}", where=here(), fix=fix)
    what = f"{name} of {arguments.title} is {article(kind)} {kind}, neither an array nor a container of them"
    if isinstance(leaves[i], ShapeDtypeStruct):
        fix = "an array; for shapes alone f.lower(...), f.eval_shape(...)"
        raise InputError(f"{what}: it has no elements", where=here(), fix=fix)
    more = why_leaf(leaves[i])
    raise InputError(
        f"{what}: {more}" if more else what,
        where=here(),
        fix=as_array(leaves[i], name) or f"{container_fix(leaves[i])}, if it is a constant",
    )


def from_elsewhere(leaf: Any) -> Any:
    """An array of another library as NumPy's or CuPy's, sharing its memory;
    anything else as it is.
    """
    if (
        not hasattr(leaf, "__dlpack__")
        or isinstance(leaf, np.ndarray | np.generic)
        or is_traced(leaf)
    ):
        return leaf
    if on_gpu(leaf):
        return leaf
    where = getattr(leaf, "__dlpack_device__", None)
    if where is not None and where()[0] in CUDA:
        from ge2.targets.cuda.load.gpu import cupy

        return cupy().from_dlpack(leaf)
    try:
        return np.from_dlpack(leaf)
    except BufferError:
        return leaf


def article(word: str) -> str:
    return "an" if word[0] in "aeiouAEIOU" else "a"


def container_fix(leaf: Any) -> str:
    """How an object becomes an argument."""
    cls = type(leaf)
    if cls.__module__.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        return "a list, a dict or np.asarray(x); or static_argnums"
    register = f"@ge2.tree_util.register_pytree_node_class above {cls.__name__}"
    return f"{register}, if it holds arrays; or static_argnums"
