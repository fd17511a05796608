"""`save` and `load`: containers of arrays as files, names of other models, states of a training run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, TypeVar, overload

import numpy as np

from ge2.base.arrays import FLOATS, INTEGERS, NUMBERS, beside, host, is_masked, known, on_gpu
from ge2.base.errors import ArgumentError, FileError, InputError
from ge2.base.pytree import Structure, flatten_with_path, keystr, unflatten
from ge2.base.record import record
from ge2.base.source import here, warn
from ge2.io import files
from ge2.io.files import (
    Path,
    Stored,
    path_text,
    remove_unfinished,
    replacing,
    sync,
    type_words,
    wrong_name,
)
from ge2.ir import ShapeDtypeStruct
from ge2.trace.tracer import is_traced

# -------- From the names of a model to those of a file whose arrays have other names or layouts.


# a name of the file, or names with a function of their arrays
Source = str | tuple[str | tuple[str, ...], Callable[..., Any]]
Sources = Mapping[str, Source]


@record
class Map:
    """The place of each array of a model in a file, for `ge2.io.load(..., map=...)`.

    `sources` gives for a name of the model a name of the file, or a pair of it (or of several) and
    a function of their arrays. `{i}` in both stands for one part between dots; one that the model's
    name lacks stands for every such part in the file, in order, and the function has a list of
    their arrays. Names without a source are the same in the file. `ignore` are names of the file
    that no model needs; one of `prefixes` may come before any name of the file.

    >>> from ge2 import io
    >>> names = Map({
    ...     "layers.{i}.weight": ("fc{i}.weight", np.transpose),
    ...     "layers.{i}.bias": "fc{i}.bias",
    ... })
    >>> names.source("layers.3.bias")
    'fc3.bias'
    """

    sources: Sources
    ignore: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ("",)

    def source(self, name: str) -> Source:
        """The source of an array of the model."""
        for pattern, source in self.sources.items():
            found = expression(pattern).fullmatch(name)
            if found is not None:
                if isinstance(source, str):
                    return filled(source, found.groupdict())
                names, function = source
                if isinstance(names, str):
                    return filled(names, found.groupdict()), function
                return tuple(filled(each, found.groupdict()) for each in names), function
        return name

    def stacked(self, part: str = "{i}") -> Map:
        """The map of a model whose layers are one module, with one axis more, that a scan runs:
        `part` of the names is a position of that axis.

        >>> each = Map({"blocks.{i}.norm.{p}": "h.{i}.ln_1.{p}"})
        >>> each.stacked().source("blocks.norm.bias")
        ('h.{i}.ln_1.bias', <function ...>)
        """
        sources = {
            name.replace(f"{part}.", ""): stacked(source) if f"{part}." in name else source
            for name, source in self.sources.items()
        }
        return Map(sources, self.ignore, self.prefixes)

    def ignores(self, name: str) -> bool:
        return any(
            expression(prefix + pattern).fullmatch(name)
            for pattern in self.ignore
            for prefix in self.prefixes
        )


def stacked(source: Source) -> Source:
    names, function = source if isinstance(source, tuple) else (source, None)

    def stack(*columns: Any) -> Any:
        rows = zip(*columns, strict=True)
        return np.stack([row[0] if function is None else function(*row) for row in rows])

    return names, stack


@cache
def expression(pattern: str) -> re.Pattern[str]:
    """The names that a pattern stands for."""
    parts = re.split(r"\{(\w+)\}", pattern)
    seen: set[str] = set()
    text = re.escape(parts[0])
    for name, after in zip(parts[1::2], parts[2::2], strict=True):
        group = f"g{name}"
        text += (f"(?P={group})" if name in seen else f"(?P<{group}>[^.]+)") + re.escape(after)
        seen.add(name)
    return re.compile(text)


def filled(pattern: str, groups: Mapping[str, str]) -> str:
    for name, part in groups.items():
        pattern = pattern.replace(f"{{{name[1:]}}}", part)
    return pattern


def as_map(given: Any) -> Map:
    """The `map` argument of `load`, as a Map."""
    if given is None or isinstance(given, Mapping):
        given = Map(given or {})
    if not isinstance(given, Map):
        what = f"map is a dict of names or a ge2.io.Map; got {given!r:.60}"
        raise ArgumentError(what, where=here(), fix="map={'layers.0.weight': 'fc1.weight'}")
    sources: Mapping[str, Any] = given.sources
    for name, source in sources.items():
        match source:
            case str() | (str() | (*_,), Callable()):
                continue
        what = f"the source of {name!r} is a name, or a pair of names and a function; got {source!r:.60}"
        raise ArgumentError(what, where=here(), fix=f"{{{name!r}: ('fc1.weight', np.transpose)}}")
    return given


def found_as(name: str, names: Collection[str], prefixes: Iterable[str]) -> list[str]:
    """The names of a file that a name of a source stands for; none if there is none such."""
    for prefix in prefixes:
        if prefix + name in names:
            return [prefix + name]
        if "{" in name:
            pattern = expression(prefix + name)
            found = [each for each in names if pattern.fullmatch(each)]
            if found:
                return sorted(found, key=numbers)
    return []


def numbers(name: str) -> list[Any]:
    """A key that sorts 10 after 9."""
    return [(int(p), "") if p.isdecimal() else (-1, p) for p in re.split(r"(\d+)", name)]


# -------- `save` and `load`: any container of arrays as a file of arrays whose names are key paths.


T = TypeVar("T")
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
    form = files.FORMATS.get(os.path.splitext(text)[1].lower())
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
    if is_masked(leaf):
        what = f"{name!r} is a masked array: its mask would be lost"
        fix = "x.filled(value), and the mask as an array of its own"
        raise InputError(what, where=here(), fix=fix)
    x = leaf if isinstance(leaf, np.ndarray) or on_gpu(leaf) else np.asarray(leaf)
    dtype = x.dtype.newbyteorder("=")
    if not known(dtype):
        what = f"{name!r} is {leaf!r:.60} of type {type(leaf).__name__}, and no array of numbers"
        fix = f"ge2.nn.static for what is no parameter, or {name}=str(...)"
        raise InputError(what, where=here(), fix=fix)
    if form.lacks(dtype):
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


# -------- The names under which GPT-2's weights are published, for a model made of `ge2.nn`.


def third(n: int) -> Callable[[Any], Any]:
    """The n-th of three equal parts along the last axis: queries, keys or values."""
    return lambda x: np.split(x, 3, -1)[n]


# Hugging Face's layers here are Conv1D, whose weights are [ins, outs] as those of nn.Linear.
GPT2: Final = Map(
    {
        "tokens.weight": "wte.weight",
        "positions.weight": "wpe.weight",
        "blocks.{i}.norm1.{p}": "h.{i}.ln_1.{p}",
        "blocks.{i}.attention.query.{p}": ("h.{i}.attn.c_attn.{p}", third(0)),
        "blocks.{i}.attention.key.{p}": ("h.{i}.attn.c_attn.{p}", third(1)),
        "blocks.{i}.attention.value.{p}": ("h.{i}.attn.c_attn.{p}", third(2)),
        "blocks.{i}.attention.qkv.{p}": "h.{i}.attn.c_attn.{p}",
        "blocks.{i}.attention.out.{p}": "h.{i}.attn.c_proj.{p}",
        "blocks.{i}.norm2.{p}": "h.{i}.ln_2.{p}",
        "blocks.{i}.mlp.layers.0.{p}": "h.{i}.mlp.c_fc.{p}",
        "blocks.{i}.mlp.layers.1.{p}": "h.{i}.mlp.c_proj.{p}",
        "norm.{p}": "ln_f.{p}",
        "head.weight": ("wte.weight", np.transpose),
    },
    ignore=("h.{i}.attn.bias", "h.{i}.attn.masked_bias", "lm_head.weight"),
    prefixes=("", "transformer."),
)


# -------- The state of a training run, kept in a folder of numbered files from which it goes on.


NAME: Final = re.compile(r"step-(\d{9,})\.safetensors")


def save_state(folder: Path, step: int, state: Any, *, keep: int | None = 3) -> str:
    """Writes a state to `folder`, under the number of a step, and returns the path.

    A state is any container of arrays: model, state of the optimiser, random key. Whenever the
    process is killed, the newest file is a whole one. Of all files the `keep` of most steps stay,
    and the one that is written; all for None.

    >>> import tempfile, numpy as np, ge2
    >>> folder = tempfile.mkdtemp()
    >>> for step in range(5):
    ...     _ = save_state(folder, step, {"w": np.full(3, step), "key": ge2.random.key(step)}, keep=2)
    >>> sorted(os.listdir(folder))
    ['step-000000003.safetensors', 'step-000000004.safetensors']
    """
    count: Any = step
    if not isinstance(count, int | np.integer) or count < 0 or (keep is not None and keep < 1):
        what = f"a step is a count, and keep at least 1; got {step!r:.60} and {keep!r:.60}"
        raise ArgumentError(what, where=here(), fix="int(step), and keep=None to keep all")
    root = path_text(folder)
    if not os.path.isdir(root):
        os.makedirs(root, exist_ok=True)
        sync(os.path.dirname(os.path.abspath(root)))
    remove_unfinished(root)
    path = os.path.join(root, f"step-{step:09d}.safetensors")
    save(path, state)
    for old in saved(root)[keep:] if keep else []:
        if old != path:
            with suppress(FileNotFoundError):  # another process removes it as well
                os.unlink(old)
    return path


def latest(folder: Path) -> str | None:
    """The path of the newest whole file in a folder of `save_state`; None if there is none.

    A file that is damaged is passed over with a warning.
    """
    for path in saved(path_text(folder)):
        try:
            contents(path)
        except FileNotFoundError:  # removed since, for a newer one
            return latest(folder)
        except FileError as error:
            warn(f"{str(error).splitlines()[0]}; an older state is taken")
        else:
            return path
    return None


def load_state(folder: Path, into: T) -> T:
    """The newest state in a folder, as the container `into`; `into` itself if there is none yet.

    A program that begins with it goes on where it was killed:

    >>> import tempfile, numpy as np, ge2
    >>> folder = tempfile.mkdtemp()
    >>> begin = {"step": 0, "w": np.zeros(2)}
    >>> load_state(folder, begin) is begin
    True
    >>> path = save_state(folder, 10, {"step": 10, "w": np.ones(2)})
    >>> load_state(folder, begin)
    {'step': 10, 'w': array([1., 1.])}
    """
    while (path := latest(folder)) is not None:
        with suppress(FileNotFoundError):  # removed since, for a newer one
            return resumed(path, into)
    return into


def resumed(path: str, into: T) -> T:
    try:
        found: T = load(path, into=into)
    except FileError as error:
        what, fix = (
            str(error).split("\n")[0],
            f"another folder, or ge2.io.load({path!r}, into=..., map=...)",
        )
        raise FileError(what, where=here(), fix=fix) from None
    return found


def saved(folder: str) -> list[str]:
    """The paths of the states in a folder, that of most steps first."""
    try:
        names = [name for name in os.listdir(folder) if NAME.fullmatch(name)]
    except FileNotFoundError:
        return []
    steps = {name: int(NAME.fullmatch(name)[1]) for name in names}  # type: ignore[index]
    return [os.path.join(folder, name) for name in sorted(names, key=steps.__getitem__)[::-1]]
