"""Tracebacks without the frames of ge2: an error shows the lines of the user's program alone.

Whatever a user calls is a boundary: an error that passes it loses our frames, and keeps all others,
such as those of a function that is traced, of a rule or of a callback. A bare `raise` adds no frame
of its own and takes the traceback that the error then has, so a boundary costs nothing where
nothing is raised. `GE2_TRACEBACK=full` shows every frame.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import update_wrapper
from importlib import import_module
from inspect import unwrap
from types import CodeType, FunctionType, ModuleType, TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from ge2.base.config import config
from ge2.base.errors import DEEPER, Ge2Error, InputError, TypeRuleError, lacking
from ge2.base.source import here, is_library, is_package

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

TOO_DEEP: Final = f"""  functions, branches and loops of ge2 take some ten frames of Python a level
  try  {DEEPER}"""
INSIDE: Final = "  (raised inside ge2, whose frames GE2_TRACEBACK=full shows)"
NONE: Final[Mapping[str, str]] = {}
ASKED_OFTEN: Final = ("__init__", "__getattr__")
ARGUMENTS: Final = (InputError, TypeRuleError)  # errors that another argument mends
# Python, of a call that does not fit its function
CALLS: Final = ("() missing ", "() takes ", "() got ")


def hide(
    error: BaseException, function: Any = None, args: Sequence[Any] = (), named: Any = None
) -> None:
    """Takes our frames out of the tracebacks of an error and of those that led to it.

    The boundary that the user's line calls adds that line and a remedy where an error has none.
    """
    if isinstance(error, RecursionError) and TOO_DEEP not in getattr(error, "__notes__", ()):
        error.add_note(TOO_DEEP)
    puzzling = vars(error).setdefault("puzzling_in_ge2", None)  # the innermost boundary judges
    if puzzling is None:
        puzzling = vars(error)["puzzling_in_ge2"] = is_puzzling(error)
        if puzzling and config.traceback != "full":
            error.add_note(INSIDE)
    if function is not None and not is_library(sys._getframe(2).f_code):
        complete(error, puzzling, function, args, named or {})
    if config.traceback == "full":
        return
    for each in chain(error):
        shown = filtered(each)
        each.__traceback__ = shown
        led = each.__context__
        if led is not None and led.__traceback__ is not None and filtered(led) is None:
            each.__suppress_context__ = True  # it never left us


def complete(
    error: BaseException,
    puzzling: bool,
    function: Any,
    args: Sequence[Any],
    named: Mapping[str, Any],
) -> None:
    """Gives an error what it lacks of its line and a remedy: in its
    text if it is ours, else as notes.
    """
    place = here()
    if vars(error).setdefault("completed_by_ge2", place is None):
        return
    vars(error)["completed_by_ge2"] = True
    at, name = f"  at   {place}", called_name(function, args)
    remedy = f"  try  help({name}), which lists what it takes" if name else ""
    if isinstance(error, Ge2Error):
        asks = isinstance(error, ARGUMENTS) and remedy
        error.args = (with_lines(str(error), at, remedy if asks else ""),)
    elif puzzling and name and not isinstance(error, AssertionError):
        given = ", ".join(
            [kind_of(x) for x in args] + [f"{k}={kind_of(x)}" for k, x in named.items()]
        )
        error.add_note(f"  in   {name}({given})\n{at}\n{remedy}")
    elif name and isinstance(error, TypeError) and str(error).startswith(misfits(function)):
        error.add_note(f"{at}\n  try  {name}{parameters_text(function)}")


def misfits(function: Any) -> tuple[str, ...]:
    """Returns the first words of Python's messages about calls that do not fit the function."""
    return tuple(function.__qualname__ + words for words in CALLS)


def parameters_text(function: Any) -> str:
    """The parameters of a function with their defaults, without their types."""
    from inspect import signature  # here: only errors pay for it

    found = signature(function)
    plain = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    return str(found.replace(parameters=plain, return_annotation=found.empty))


def with_lines(text: str, at: str, remedy: str) -> str:
    """The text of an error with those of its lines that it lacks."""
    head, *rest = text.split("\n")
    if not any(line.startswith("  at   ") for line in rest):
        rest = [at, *rest]
    if remedy and not any(line.startswith("  try  ") for line in rest):
        rest = [*rest, remedy]
    return "\n".join([head, *rest])


def called_name(function: Any, args: Sequence[Any]) -> str:
    """The name that a user has for a boundary; empty for a function of the user's, transformed."""
    inner = unwrap(function)
    if not is_library(getattr(inner, "__code__", kind_of.__code__)):
        return ""
    name: str = function.__name__
    if name in ("__array_function__", "__array_ufunc__") and len(args) > 1:
        return f"np.{getattr(args[1], '__name__', name)}"
    known = PUBLISHED.get(function, function)
    if "." in function.__qualname__:
        return f"{'f' if args and callable(args[0]) else 'x'}.{name}"
    return f"{known.__module__}.{known.__name__}"


def kind_of(x: Any) -> str:
    """An argument in a word or two."""
    if hasattr(x, "dtype") and hasattr(x, "shape") and not isinstance(x, type):
        return f"{x.dtype}[{','.join(map(str, x.shape))}]"
    return f"{x!r:.20}" if isinstance(x, str | bytes | int | float | None) else type(x).__name__


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error, what it was raised from, and what was being handled meanwhile; each once."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            todo += [each.__cause__, each.__context__]


def filtered(error: BaseException) -> TracebackType | None:
    """The traceback without our frames and, of an error of ours, without those
    of the libraries between.
    """
    ours = is_library if isinstance(error, Ge2Error) else is_package
    entries, at = [], error.__traceback__
    while at is not None:
        if not ours(at.tb_frame.f_code):
            entries.append(at)
        at = at.tb_next
    shown = None
    for each in reversed(entries):
        shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return shown


def is_puzzling(error: BaseException) -> bool:
    """True for an error that was raised in our code, but not on
    purpose: its frames are of interest.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if (
        last is None
        or isinstance(error, Ge2Error | RecursionError | KeyboardInterrupt)
        or not is_package(last.tb_frame.f_code)
        or any(note.startswith("  at   ") for note in getattr(error, "__notes__", ()))
    ):
        return False
    if isinstance(error, TypeError) and any(words in str(error) for words in CALLS):
        return False
    return isinstance(error, AssertionError) or not is_raise(last.tb_frame.f_code, last.tb_lasti)


def is_raise(code: CodeType, at: int) -> bool:
    """True if the instruction is a `raise`."""
    return dis.opname[code.co_code[at]] == "RAISE_VARARGS"


def hides(function: Callable[P, R]) -> Callable[P, R]:
    """The function as a boundary.

    The wrapper has the globals of the function, so that tools find its module and its examples.
    """

    def boundary(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            shorten(error, function, args, kwargs)
            raise

    shorten = hide
    home = getattr(function, "__globals__", None)
    if home is None:
        return update_wrapper(boundary, function)
    made = FunctionType(boundary.__code__, home, function.__name__, None, boundary.__closure__)
    # as `update_wrapper` does, in half of its time: there are hundreds
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    made.__doc__, made.__annotations__ = function.__doc__, function.__annotations__
    made.__dict__.update(function.__dict__, __wrapped__=function)
    return made


def hides_methods(cls: type[C]) -> type[C]:
    """A class whose methods, operators among them, are boundaries."""
    for name, value in list(vars(cls).items()):
        public = not name.startswith("_") or (name.startswith("__") and name not in ASKED_OFTEN)
        if type(value) is FunctionType and public:
            setattr(cls, name, hides(value))
    return cls


def is_boundary(function: FunctionType) -> bool:
    """True for what `hides` returns."""
    return function.__code__ is BOUNDARY


def inside(function: FunctionType) -> FunctionType:
    """The function that a boundary calls, or the function itself."""
    if not is_boundary(function):
        return function
    cells = dict(zip(BOUNDARY.co_freevars, function.__closure__ or (), strict=True))
    found: FunctionType = cells["function"].cell_contents
    return found


BOUNDARY: Final = hides(hide).__code__


# public functions, and their boundaries
PUBLISHED: Final[dict[FunctionType, Callable[..., Any]]] = {}


def published(function: FunctionType, module: str) -> Callable[..., Any]:
    """The boundary of a public function, which is at home in the module that published it first."""
    inner = inside(function)
    if inner not in PUBLISHED:
        PUBLISHED[inner] = made = function if is_boundary(function) else hides(function)
        made.__module__ = module
    return PUBLISHED[inner]


def publish(
    namespace: dict[str, Any],
    advise: bool = False,
    modules: Sequence[str] = (),
    late: Mapping[str, str] = NONE,
) -> None:
    """Makes the public functions of a module boundaries; they are at home in that module, whose
    `__all__` is what `dir` lists.

    A function under several names, of one module or of many, is one object under all of them, and
    at home in the module that published it first. With `advise` the error for a name that the module
    lacks offers one that is like it. A module without `__all__` has in it what it imports: of other
    modules those alone that are named, and what is `late`, imported of a module when it is asked for.
    """
    home = namespace["__name__"]
    names = namespace.get("__all__") or [n for n in namespace if not n.startswith("_")]
    if advise and "__all__" not in namespace:
        others = {n for n in names if type(namespace[n]) is ModuleType} - {*modules}
        names = sorted({*names, *late} - others - {"TYPE_CHECKING", "annotations", "publish"})
        namespace["__all__"] = names
    for name in names:
        value = namespace.get(name)  # absent: imported when it is asked for
        if type(value) is FunctionType and is_package(inside(value).__code__):
            namespace[name] = made = published(value, home)
            if made.__name__ not in names:  # imported under another name
                made.__name__ = made.__qualname__ = name
    if "__all__" in namespace:
        namespace.setdefault("__dir__", lambda: names)

    def missing(name: str) -> Any:
        if name not in late:
            raise AttributeError(lacking(home, name, names))
        found = namespace[name] = getattr(import_module(late[name]), name)
        if type(found) is FunctionType:
            found = namespace[name] = published(found, home)
        return found

    if advise:
        namespace["__getattr__"] = hides(missing)
