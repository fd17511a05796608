"""`save` and `load`: any container of arrays as a file of arrays whose names are key paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Final, TypeVar, overload

import numpy as np

from ge2.base.dtypes import FLOATS, INTEGERS, NUMBERS, known
from ge2.base.errors import ArgumentError, FileError, InputError
from ge2.base.gpu import beside, host, on_gpu
from ge2.base.pytrees.pytree import Structure, flatten_with_path, keystr, unflatten
from ge2.base.source import here
from ge2.io import npz, tensors
from ge2.io.files import replacing
from ge2.io.maps import Map, Source, Sources, as_map, found_as
from ge2.io.stored import Path, Stored, path_text, type_words, wrong_name
from ge2.ir import ShapeDtypeStruct
from ge2.trace.tracer import is_traced

T = TypeVar("T")
FORMATS: Final = {".safetensors": tensors, ".npz": npz}
ROOT: Final = "value"  # the name of an array that is in no container
SHOWN: Final = 4  # names in an error
PICKLED: Final = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt")
LIST: Final = "ge2.io.contents(path) shows its names and types"


def save(path: Path, tree: Any) -> None:
    """Writes a container of arrays to `path`, as `.safetensors` or `.npz`.

    The name of an array is its key path, with dots: `layers.0.weight`. Leaves are arrays of NumPy's
    or CuPy's, of bfloat16 and float8 too, numbers, and strings (as UTF-8). The file is written
    beside its path, and renamed when all of it is on the disk.

    Raises ArgumentError for another suffix or a name that cannot be one, InputError for a leaf that
    is no array.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> save(path, {"layers": [np.zeros((2, 3), np.float32)], "step": 7})
    >>> contents(path)
    {'step': ShapeDtypeStruct(shape=(), ...), 'layers.0': ShapeDtypeStruct(shape=(2, 3), ...)}
    """
    path, form = formatted(path)
    arrays = {name: as_array(name, leaf, form) for name, leaf in named(tree)[0].items()}
    with replacing(path) as file:
        form.write(file, arrays, host)


@overload
def load(path: Path) -> dict[str, Any]: ...


@overload
def load(path: Path, into: T, map: Map | Sources | None = None, *, strict: bool = True) -> T: ...


def load(path: Path, into: Any = None, map: Any = None, *, strict: bool = True) -> Any:
    """The arrays of a `.safetensors` or `.npz` file: by name, or as the container `into`.

    Without `into` it is a flat dict. With it, the result has its structure, dtypes and devices, and
    the file's values; leaves may be `ge2.ShapeDtypeStruct`s, as `ge2.eval_shape` gives them. `map`
    is for files with other names or layouts: a dict from names of `into` to names of the file, or
    to pairs of a name and a function of its array; see `ge2.io.Map`. With `strict=False`, leaves
    that the file lacks are those of `into`, and what `into` lacks is left out.

    Nothing in a file is executed. Raises FileError if it is damaged or does not fit `into`.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model.npz")
    >>> save(path, {"fc": np.arange(6.0).reshape(2, 3)})
    >>> load(path)
    {'fc': array([[0., 1., 2.],
           [3., 4., 5.]])}
    >>> like = {"weight": np.zeros((3, 2), np.float32)}
    >>> load(path, into=like, map={"weight": ("fc", np.transpose)})["weight"].dtype
    dtype('float32')
    """
    with reading(path) as (text, stored):
        if into is None:
            if map is not None:
                what = "map gives the names of a model, and load was given none"
                raise ArgumentError(what, where=here(), fix="load(path, into=model, map=...)")
            return {name: own(x.read()) for name, x in stored.items()}
        leaves, structure = named(into)
        plan = planned(text, stored, leaves, as_map(map), strict)
        found = [
            leaf if name not in plan else fitted(text, name, leaf, stored, *plan[name])
            for name, leaf in leaves.items()
        ]
        return unflatten(structure, found)


def contents(path: Path) -> dict[str, Any]:
    """The types of the arrays in a file, by name; only its header is read.

    Raises FileError if the file is damaged, or is cut short.
    """
    with reading(path) as (_, stored):
        return {name: ShapeDtypeStruct(x.shape, x.dtype) for name, x in stored.items()}


# ------------------------------------------------------------------------------------------- files


def formatted(path: Any) -> tuple[str, Any]:
    """The path as text, and the module of its format."""
    text = path_text(path)
    form = FORMATS.get(os.path.splitext(text)[1].lower())
    if form is not None:
        return text, form
    what = f"files of arrays are .safetensors or .npz; got {text!r}"
    fix = f"{os.path.splitext(text)[0]}.safetensors"
    if os.path.splitext(text)[1] in PICKLED:
        what += ", which is pickled: to read it is to run what it says"
        fix = "safetensors.torch.save_file(model.state_dict(), path) where torch is"
    raise ArgumentError(what, where=here(), fix=fix)


@contextmanager
def reading(path: Path) -> Iterator[tuple[str, dict[str, Stored]]]:
    text, form = formatted(path)
    with open(text, "rb") as file:
        yield text, form.opened(file, text)


# ------------------------------------------------------------------------------------------ leaves


def named(tree: Any) -> tuple[dict[str, Any], Structure]:
    """The leaves by name, in order. ArgumentError if two have one name."""
    paths, structure = flatten_with_path(tree)
    found: dict[str, Any] = {}
    at: dict[str, Any] = {}
    for path, leaf in paths:
        name = keystr(path, simple=True, separator=".") if path else ROOT
        if why := wrong_name(name):
            what = f"{name!r} cannot be the name of an array: {why}"
            raise ArgumentError(what, where=here(), fix="keys that are words")
        if name in found:
            what = f"{keystr(at[name])} and {keystr(path)} have one name, {name!r}"
            raise ArgumentError(what, where=here(), fix="keys without dots")
        found[name], at[name] = leaf, path
    return found, structure


def as_array(name: str, leaf: Any, form: Any) -> Any:
    """The array that is written for a leaf, on the host or a GPU."""
    if isinstance(leaf, str):
        return np.frombuffer(leaf.encode(), np.uint8)
    if is_traced(leaf):
        what = f"{name!r} is {leaf!r:.60}: what is traced has no elements that could be written"
        raise InputError(what, where=here(), fix="ge2.io.save of what the function returns")
    x = leaf if isinstance(leaf, np.ndarray) or on_gpu(leaf) else np.asarray(leaf)
    dtype = x.dtype.newbyteorder("=")
    if not known(dtype):
        what = f"{name!r} is {leaf!r:.60} of type {type(leaf).__name__}, and no array of numbers"
        fix = f"ge2.nn.static for what is no parameter, or {name}=str(...)"
        raise InputError(what, where=here(), fix=fix)
    if form is tensors and dtype not in tensors.NAMES:
        what = f"{name!r} is {type_words(dtype, x.shape)}, which safetensors has no name for"
        raise InputError(what, where=here(), fix="a path that ends in .npz")
    return x


def type_of(leaf: Any) -> tuple[np.dtype, tuple[int, ...]]:
    """The dtype and shape that a leaf of `into` asks for."""
    if isinstance(leaf, str):
        return np.dtype(np.uint8), ()
    if isinstance(leaf, NUMBERS):
        return np.asarray(leaf).dtype, ()
    if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
        what = f"into holds {leaf!r:.60}, which is no array"
        raise InputError(what, where=here(), fix="a model of arrays, or of ge2.ShapeDtypeStruct")
    return np.dtype(leaf.dtype).newbyteorder("="), tuple(leaf.shape)


# ------------------------------------------------------------------------------------- into a model

Plan = tuple[list[Any], Callable[..., Any] | None]  # names of a file, or lists of them; a function


def planned(
    path: str, stored: Mapping[str, Stored], leaves: Mapping[str, Any], names: Map, strict: bool
) -> dict[str, Plan]:
    """The place in the file of each leaf. FileError for leaves without, and for arrays nobody
    takes.
    """
    plan: dict[str, Plan] = {}
    lacking: dict[str, str] = {}  # and the name of the file that is not there
    used: set[str] = set()
    for name in leaves:
        source = names.source(name)
        found = [(each, found_as(each, stored, names.prefixes)) for each in asked(source)]
        if all(there for _, there in found):
            used.update(each for _, there in found for each in there)
            columns: list[Any] = [there if "{" in each else there[0] for each, there in found]
            plan[name] = columns, source[1] if isinstance(source, tuple) else None
        else:
            lacking[name] = next(each for each, there in found if not there)
    left = [name for name in stored if name not in used and not names.ignores(name)]
    if strict and lacking:
        raise misses(path, lacking, left, len(leaves))
    if strict and left:
        what = f"into has no place for {some(left)} of {path!r}"
        fix = f"a model that has it, ge2.io.Map(..., ignore=({left[0]!r},)), or strict=False"
        raise FileError(what, where=here(), fix=fix)
    for name, (columns, function) in plan.items():
        if function is None:
            check_shape(path, name, leaves[name], stored[columns[0]], columns[0])
    return plan


def asked(source: Source) -> tuple[str, ...]:
    names = source[0] if isinstance(source, tuple) else source
    return (names,) if isinstance(names, str) else names


def misses(path: str, lacking: dict[str, str], left: list[str], count: int) -> FileError:
    name, source = next(iter(lacking.items()))
    near = get_close_matches(source, left, 1, 0.0)
    fix = f"map={{{name!r}: {near[0]!r}}}, or strict=False; {LIST}" if near else LIST
    what = f"{path!r} lacks {some(list(lacking.values()))}, of the {count} arrays that into has"
    what += "" if name == source else f": {name!r} is to come from {source!r}"
    return FileError(what, where=here(), fix=fix)


def some(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:SHOWN]))
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def check_shape(path: str, name: str, leaf: Any, x: Any, source: str = "") -> None:
    """FileError if an array, or its type in the file, has another shape than the leaf. `source` is
    its name in the file.
    """
    dtype, shape = type_of(leaf)
    if isinstance(leaf, str) or tuple(x.shape) == shape:
        return
    what = f"{name!r} is {type_words(dtype, shape)} in into, and {type_words(x.dtype, x.shape)} in {path!r}"
    fix = f"a model of these sizes; {LIST}"
    if tuple(x.shape) == shape[::-1]:
        fix = f"map={{{name!r}: ({(source or name)!r}, np.transpose)}}"
    raise FileError(what, where=here(), fix=fix)


def fitted(
    path: str,
    name: str,
    leaf: Any,
    stored: Mapping[str, Stored],
    columns: list[Any],
    function: Callable[..., Any] | None,
) -> Any:
    """The array of a leaf: read, put into the model's layout, dtype and device."""
    xs = [
        stored[each].read() if isinstance(each, str) else [stored[n].read() for n in each]
        for each in columns
    ]
    x: Any = xs[0] if function is None else np.asarray(function(*xs))
    if function is not None and not isinstance(leaf, str) and x.shape != type_of(leaf)[1]:
        given, wanted = type_words(x.dtype, x.shape), type_of(leaf)
        what = f"{name!r} is {type_words(*wanted)} in into, and its source in map gives {given}"
        raise FileError(what, where=here(), fix=f"a function that gives {wanted[1]}; {LIST}")
    if isinstance(leaf, str):
        return x.tobytes().decode(errors="replace")
    dtype = type_of(leaf)[0]
    x = converted(path, name, x, dtype, exact=not isinstance(leaf, NUMBERS))
    if isinstance(leaf, NUMBERS):
        return type(leaf)(x)
    if isinstance(leaf, np.generic):
        return x[()]
    return beside(x, leaf)


def converted(path: str, name: str, x: Any, dtype: np.dtype, exact: bool) -> Any:
    """An array in a dtype of its kind: floats are rounded, integers must fit."""
    if x.dtype == dtype:
        return own(x)
    if x.dtype in FLOATS and dtype in FLOATS:
        return x.astype(dtype)
    if x.dtype in INTEGERS and dtype in INTEGERS and (x.astype(dtype) == x).all():
        return x.astype(dtype)
    words = f"{type_words(x.dtype, x.shape)} in {path!r}"
    what = f"{name!r} is {type_words(dtype, x.shape)} in into, and {words}"
    fix = f"map={{{name!r}: ({name!r}, lambda x: x.astype({dtype.name!r}))}}"
    raise FileError(what, where=here(), fix=fix)


def own(x: Any) -> Any:
    """An array in C order that is no view, so that a jitted function may be given its memory."""
    return x if x.flags.owndata and x.flags.c_contiguous else x.copy()
