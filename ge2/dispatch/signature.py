"""The part of a call's arguments that decides which executable runs, and keys of values closed over."""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Callable, Hashable, Mapping, MutableSequence, Sequence, Set, ValuesView
from contextvars import ContextVar
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, Final, NamedTuple, NoReturn, final

import numpy as np

from ge2.base.arrays import (
    EXTENDED,
    NUMBERS,
    as_array,
    gpu_of,
    is_masked,
    known,
    loaded,
    numpy_generators,
    on_gpu,
    python_type,
)
from ge2.base.errors import Ge2Error, InputError, PytreeError
from ge2.base.pytree import Structure, flatten, register_leaf, why_leaf
from ge2.base.source import here
from ge2.base.treedef import exact, kind_of
from ge2.dispatch.closures import MISSING, attributes_of, held_by, holds_names, is_plain
from ge2.ir import ArrayType, Evaluate, ShapeDtypeStruct, current, type_of
from ge2.trace import check_type, is_traced, title_of
from ge2.transforms.arguments import Arguments

# -------- The part of a call's arguments that decides which executable runs: structure, types,
# static values.


WEAK: Final[dict[type, type]] = {t: t for t in NUMBERS}  # a Python number's key is its type
# static leaves that are told apart by value
PLAIN = (str, bytes, np.dtype, enum.Enum, type(Ellipsis))
FUNCTIONS = (type, FunctionType, BuiltinFunctionType, functools.partial, np.ufunc)
LIBRARIES = (
    "builtins",
    "functools",
    "operator",
    "numpy",
    "ge2",
    "_cython_3_0",
)  # whose callables hold no arrays of the user's
ARRAY_TYPE = np.ndarray
HARMLESS: Final = frozenset(  # of what a subclass of arrays may define without computing otherwise
    (
        "__new__", "__init__", "__init_subclass__", "__class__", "__doc__", "__repr__", "__str__",
        "__format__", "__reduce__", "__reduce_ex__", "__setstate__", "__copy__", "__deepcopy__", "__dir__",
        "__array_finalize__", "__array_wrap__", "__array_prepare__", "__array_priority__", "__sizeof__",
        "__getattribute__", "__setattr__", "__delattr__", "__class_getitem__", "__hash__",
    )
)  # fmt: skip
COMPUTING: Final = frozenset(vars(np.ndarray)) - HARMLESS
Argnums = int | Sequence[int] | None
Argnames = str | Sequence[str] | None


@register_leaf
@final
class Static:
    """A value that is part of the key: by type and value, so that 1, 1.0 and True differ."""

    __slots__ = ("_hash", "token", "value")

    def __init__(self, value: Hashable) -> None:
        self.value = value
        self.token = exact(value)
        self._hash = hash(self.token)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and bool(self.token == other.token)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"static {self.value!r:.60}"


@register_leaf
@final
class Same:
    """A value that is part of the key by its identity. The key keeps it alive."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"the {type(self.value).__name__} {getattr(self.value, '__qualname__', hex(id(self.value)))}"


class Refused(Exception):
    """A leaf that is no argument; the caller knows its name."""


def leaf_key(x: Any) -> Any:
    """(shape, dtype) of an array, and its GPU if it is on one; the type of a Python number; the
    value, as `Static` or `Same`, of anything else.
    """
    cls = type(x)
    if cls is ARRAY_TYPE:
        return x.shape, x.dtype
    if cls in WEAK:
        return cls
    if is_traced(x):
        if type(current()) is Evaluate:
            raise x.escaped()
        return python_type(x.type.dtype) if x.type.weak else (x.type.shape, x.type.dtype)
    if isinstance(x, np.ndarray | np.generic):
        return strange_array(x)
    if on_gpu(x):
        check_type(x)
        return x.shape, x.dtype, gpu_of(x)
    if cls in (Static, Same):
        return x
    return static_key(x)


def strange_array(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        refuse_class(x)
    check_type(x)
    return x.shape, x.dtype


def refuse_class(x: np.ndarray) -> None:
    """Refused for an array of a subclass that computes otherwise than NumPy's arrays."""
    if isinstance(x, np.matrix):
        raise Refused("is a matrix, whose * is not that of arrays", "np.asarray(x)")
    if is_masked(x):
        fix = "x.filled(value), and the mask as an array of its own"
        raise Refused("is a masked array: its mask would be lost", fix)
    cls: type = type(x)
    name = overridden(cls)
    if name:
        raise Refused(f"is a {cls.__name__}, whose {name} is not that of arrays", "np.asarray(x)")


@functools.lru_cache(maxsize=256)
def overridden(cls: type) -> str:
    """A name of the arrays' that a subclass gives another meaning;
    nothing if it computes as they do.
    """
    # memmap; matrices and masked arrays have their own words
    if cls.__module__.partition(".")[0] == "numpy":
        return ""
    bases = cls.__mro__[: cls.__mro__.index(np.ndarray)]
    return next((n for base in bases for n in vars(base) if n in COMPUTING), "")


def static_key(x: Any) -> Any:
    if isinstance(x, PLAIN):
        return Static(x)
    if isinstance(x, slice):
        return Static((slice, x.start, x.stop, x.step))
    if isinstance(x, range):
        return Static((range, x.start, x.stop, x.step))
    if isinstance(x, numpy_generators()):
        raise Refused(
            "is a NumPy random generator, which changes when it is used",
            "ge2.random.key(seed) as an argument",
        )
    if isinstance(x, MethodType):
        return method_key(x)
    if isinstance(x, FUNCTIONS) or (
        type(x).__module__.partition(".")[0] in LIBRARIES and callable(x)
    ):
        return Same(x)
    raise Refused("", "")


def method_key(x: MethodType) -> Any:
    """Each look at `a.method` makes a new object, so its parts count, and the arrays inside."""
    return (
        Same(x.__func__)
        if kind_of(type(x.__self__)) is not None
        else Static((Same(x.__func__), Same(x.__self__)))
    )


def leaf_type(x: Any) -> ArrayType:
    """The type of a leaf that is an array or a number."""
    return type_of(x) if type(x) in WEAK or is_traced(x) else check_type(x)


def is_static(key: Any) -> bool:
    return type(key) in (Static, Same)


def key_text(key: Any) -> str:
    """A leaf's key as the user would say it."""
    if isinstance(key, tuple):
        return str(ArrayType(*key[:2])) + "".join(f" on GPU {number}" for number in key[2:])
    return f"a Python {key.__name__}" if isinstance(key, type) else repr(key)


# ------------------------------------------------------------------------ which arguments are meant


def numbers_and_names(
    function: Callable[..., Any], argnums: Argnums, argnames: Argnames, what: str
) -> tuple[frozenset[int], frozenset[str]]:
    """The chosen parameters by position and by name, each completed from the other."""
    if argnums is None and argnames is None:
        return frozenset(), frozenset()
    numbers = {argnums} if isinstance(argnums, int) else set(argnums or ())
    names = {argnames} if isinstance(argnames, str) else set(argnames or ())
    if not all(isinstance(n, int) for n in numbers) or not all(isinstance(n, str) for n in names):
        raise InputError(f"{what}_argnums takes ints and {what}_argnames strings", where=here())
    positional, keywords, variadic = parameters(function)
    for n in numbers:
        if not variadic[0] and not -len(positional) <= n < len(positional):
            plural = "" if len(positional) == 1 else "s"
            shape = f"{title(function)} takes {len(positional)} positional argument{plural}"
            raise InputError(
                f"{what}_argnums names argument {n}, but {shape}",
                where=here(),
                fix=f"{what}_argnums={len(positional) - 1}: they count from 0"
                if positional
                else f"no {what}_argnums",
            )
    for name in names:
        if not variadic[1] and name not in (*positional, *keywords):
            known = ", ".join((*positional, *keywords))
            words = f"{what}_argnames names {name!r}, which is no parameter of {title(function)}"
            raise InputError(words, where=here(), fix=f"{what}_argnames={known!r}")
    numbers = {n % len(positional) if n < 0 and positional else n for n in numbers}
    names |= {positional[n] for n in numbers if n < len(positional)}
    return frozenset(numbers | {i for i, p in enumerate(positional) if p in names}), frozenset(
        names
    )


def parameters(function: Callable[..., Any]) -> tuple[list[str], list[str], tuple[bool, bool]]:
    """The names of positional and keyword-only parameters, and whether there
    are `*args` and `**kwargs`.
    """
    import inspect  # only a function with options pays for it

    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [], [], (True, True)
    positional = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    kinds = {p.kind for p in found}
    variadic = (inspect.Parameter.VAR_POSITIONAL in kinds, inspect.Parameter.VAR_KEYWORD in kinds)
    return positional, [p.name for p in found if p.kind is p.KEYWORD_ONLY], variadic


def takes_any_keyword(function: Any) -> bool:
    """True if the function can see in which order keywords are given: decorators pass them on."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return not isinstance(code, CodeType) or bool(code.co_flags & VARKEYWORDS)


def title(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]


def parameter_name(function: Any, at: int) -> str:
    code = getattr(function, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if isinstance(code, CodeType) else ()
    return names[at] if at < len(names) else f"argument {at}"


def frozen(function: Any, value: Any, name: str) -> Static:
    """A static argument; InputError if it cannot be hashed."""
    try:
        return Static(value)
    except TypeError:
        refuse_unhashable(function, value, name)


def refuse_unhashable(function: Any, value: Any, name: str) -> NoReturn:
    fix = (
        "leave it out of static_argnums"
        if isinstance(value, np.ndarray)
        else "f(x, (3, 1)): a tuple, a string, a number or a frozen dataclass"
    )
    what = f"the static argument {name} of {title(function)} cannot be hashed: it is a {type(value).__name__}"
    raise InputError(what, where=here(), fix=fix) from None


# --------------------------------------------------------------------------------------------- key
# The signature of a call: what its entry is found by, and the arguments that have none.


Function = Callable[..., Any]
VARKEYWORDS: Final = 0x08  # the flag CO_VARKEYWORDS of code
CUDA: Final = (2, 13)  # DLPack's numbers of memory that a GPU reads as its own
NO_LEAVES: Final[frozenset[int]] = frozenset()


class Key(NamedTuple):
    """The signature of a call."""

    leaves: tuple[Any, ...]
    structure: Structure
    closure: Any
    settings: Any
    donated: frozenset[int] = NO_LEAVES
    order: tuple[Any, ...] = ()  # how keys of dicts were inserted, which a function sees
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
        or isinstance(leaf, np.ndarray | np.generic | ShapeDtypeStruct)
        or is_traced(leaf)
        or on_gpu(leaf)
    ):
        return leaf
    tensor, dtype = (
        plain_tensor(leaf) if isinstance(leaf, loaded("torch", "Tensor")) else (leaf, None)
    )
    try:
        where = getattr(tensor, "__dlpack_device__", None)
        if where is not None and where()[0] in CUDA:
            from ge2.targets.cuda.load.gpu import cupy

            found = cupy().from_dlpack(tensor)
        else:
            found = np.from_dlpack(tensor)
        return found if dtype is None else found.view(dtype)
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, Ge2Error):
            raise
        kind = f"{article(type(leaf).__name__)} {type(leaf).__name__}"
        why = f"is {kind}, which gives no array by DLPack: {(str(error).splitlines() or [''])[0]:.100}"
        raise Refused(why, "a dense array, in memory of the host or of a GPU") from None


@functools.cache
def extended(dtype: Any) -> np.dtype | None:
    """The dtype of ml_dtypes that a dtype of PyTorch's is; None if it is another."""
    return next((d for d in EXTENDED if str(dtype) == f"torch.{d.name}"), None)


def plain_tensor(x: Any) -> tuple[Any, np.dtype | None]:
    """A tensor of PyTorch's as one that DLPack gives to NumPy, and the dtype of its bytes, if that
    is one of ml_dtypes.
    """
    if x.requires_grad:
        why = (
            "is a tensor that requires a gradient, which PyTorch records of its own functions alone"
        )
        raise Refused(why, "ge2.io.torch.function(f), which it records too; or x.detach()")
    x = x.resolve_conj().resolve_neg()  # which PyTorch does when it is read
    dtype = extended(x.dtype)
    if dtype is None:
        return x, None
    (torch,) = loaded("torch", "uint8" if dtype.itemsize == 1 else "int16")
    return x.view(torch), dtype


def article(word: str) -> str:
    return "an" if word[0] in "aeiouAEIOU" else "a"


def container_fix(leaf: Any) -> str:
    """The way to make an object an argument."""
    cls = type(leaf)
    if cls.__module__.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        return "a list, a dict or np.asarray(x); or static_argnums"
    register = f"@ge2.tree_util.register_pytree_node_class above {cls.__name__}"
    return f"{register}, if it holds arrays; or static_argnums"


# -------- Values that a function closes over: what is an array, and the key of what is none.


VALUES = (*NUMBERS, str, bytes, np.generic, np.dtype)
CONTAINERS: Final = (Set, MutableSequence, Mapping, ValuesView, np.ndarray, ContextVar)


def is_array(value: Any) -> bool:
    """True if it becomes a hidden input: an array that ge2 computes with, or a traced value."""
    if is_traced(value) or on_gpu(value):
        return True
    return (
        isinstance(value, np.ndarray)
        and known(value.dtype)
        and not isinstance(value, np.matrix)
        and not is_masked(value)
    )


def is_live(value: Any) -> bool:
    if type(value) is tuple:
        return any(map(is_live, value))
    if kind_of(type(value)) is not None or is_live(held_by(value) or ()):
        return True
    return (
        is_array(value) or is_plain(value) or holds_elements(value.__class__) or holds_names(value)
    )


@functools.lru_cache(maxsize=1024)
def holds_elements(cls: type) -> bool:
    """True for what is compared by its contents: containers that are no pytrees, such as a set, a
    deque or a Counter, arrays that are not computed with, and NumPy's polynomials.
    """
    held = issubclass(cls, CONTAINERS) or holds_bytes(cls) or is_polynomial(cls)
    return kind_of(cls) is None and held


def is_polynomial(cls: type) -> bool:
    return issubclass(cls, (np.poly1d, *loaded("numpy.polynomial._polybase", "ABCPolyBase")))


def holds_bytes(cls: type) -> bool:
    """True for views of memory: those of Python and of ctypes."""
    return cls is memoryview or any(base.__module__ == "_ctypes" for base in cls.__mro__)


def contents(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """The key of such a value: what it holds now.

    Arrays in it are constants, so their elements count. `seen` are the containers met before, by
    identity: one that holds itself, as a module's `names = globals()` does, or that many hold, is
    read once, and counts afterwards as the object that it is.
    """
    if isinstance(value, VALUES):
        return Static(value)
    seen = {} if seen is None else seen
    if id(value) in seen:
        return Same(value)
    seen[id(value)] = value
    inside = functools.partial(contents, seen=seen)
    if isinstance(value, Set):
        return type(value), frozenset(map(inside, value))
    if isinstance(value, Mapping):
        return type(value), tuple((inside(k), inside(v)) for k, v in value.items())
    if isinstance(value, MutableSequence | ValuesView):
        return type(value), tuple(map(inside, value))
    if isinstance(value, np.ndarray):
        if is_masked(value):  # np.ma.masked gives no bytes of itself
            return type(value), inside(np.ma.getdata(value)), inside(np.ma.getmask(value))
        elements = inside(value.tolist()) if value.dtype.hasobject else value.tobytes()
        return value.shape, value.dtype, elements
    if isinstance(value, ContextVar):
        return inside(value.get(MISSING))
    if holds_bytes(type(value)):
        return type(value), bytes(value)
    if is_polynomial(type(value)):
        return type(value), inside(vars(value))
    leaves, structure = leaves_of(value)
    if structure is None or (len(leaves) == 1 and leaves[0] is value):
        return Same(value)
    return structure, structure.order, tuple(map(inside, leaves))


def still_key(value: Any) -> Any:
    """The key of a value that cannot change while it is the same object."""
    if is_live(value):
        return None
    if type(value) is tuple:
        return tuple(map(still_key, value))
    return Static(value) if isinstance(value, VALUES) else Same(value)


def leaves_of(value: Any) -> tuple[list[Any], Any]:
    held = held_by(value)
    value = value if held is None else held
    try:
        return flatten(value)
    except PytreeError:  # it contains itself
        return [Same(value)], None


def look_into(
    value: Any,
    keys: list[Any],
    arrays: list[Any],
    attributes: frozenset[str] | None,
    seen: dict[int, Any],
) -> None:
    """Adds the key and the arrays of a value that may have changed.

    `seen` are the objects that were looked into before, by identity: one that refers to itself,
    or that many others refer to, is looked into once.
    """
    if type(value) is np.ndarray and known(value.dtype):
        keys.append((value.shape, value.dtype))
        arrays.append(value)
        return
    if type(value) is dict and not value:  # the keywords of most partials
        keys.append(dict)
        return
    leaves, structure = leaves_of(value)
    if structure is None:  # it contains itself: its elements cannot be replaced, and count
        keys.append(contents(value))
        return
    keys.append((structure, structure.order))
    for leaf in leaves:
        if is_array(leaf):
            more = gpu_of(leaf) if on_gpu(leaf) else is_traced(leaf) and leaf.type.weak
            keys.append((leaf.shape, leaf.dtype, on_gpu(leaf), more))
            arrays.append(leaf)
        elif id(leaf) in seen:
            keys.append(Same(leaf))
        elif is_plain(leaf):
            seen[id(leaf)] = leaf
            keys.append(Same(leaf))
            for name, inner in attributes_of(leaf, attributes):
                keys.append(name)
                look_into(inner, keys, arrays, attributes, seen)
        elif leaf is not value and held_by(leaf) is not None:
            seen[id(leaf)] = leaf
            look_into(leaf, keys, arrays, attributes, seen)
        # its attributes cannot be replaced for a trace: their contents count
        elif holds_names(leaf):
            seen[id(leaf)] = leaf
            keys.append(Same(leaf))
            keys += [(name, contents(inner)) for name, inner in attributes_of(leaf, attributes)]
        else:
            keys.append(other_key(leaf))


def other_key(leaf: Any) -> Any:
    if type(leaf) is Same:
        return leaf
    if isinstance(leaf, VALUES):
        return Static(leaf)
    return contents(leaf) if holds_elements(leaf.__class__) else Same(leaf)
