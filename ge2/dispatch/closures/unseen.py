"""Things a function may not read while it is traced, since no later call could
see that they have changed.

Clocks, files, the environment, random bytes, names that are worked out (`globals()`, `eval`). The
byte code tells which lines name one of these; a trace that comes to such a line is an error there.
What it names in a branch that is not taken, or in a callback, does not matter, and a function that
names none is not watched.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import CodeType, FrameType, ModuleType
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from ge2.base.config import config
from ge2.base.errors import ImpureError, InputError
from ge2.base.optional_modules import loaded
from ge2.base.source import Source, here, is_library, of_function
from ge2.dispatch.closures.bytecode import Path, uses
from ge2.dispatch.closures.capture import Plan, Scope, leaves_of
from ge2.dispatch.closures.objects import MISSING
from ge2.dispatch.key import Function, article
from ge2.dispatch.signature import Refused, refuse_class, title


class Unseen(NamedTuple):
    """A kind of thing that changes unseen, and how a function gets it instead."""

    what: str
    fix: str


CLOCK = Unseen("the clock", "now = {name}() outside, and now as an argument")
SYSTEM = Unseen(
    "the environment of the process", "its value read outside, and passed as an argument"
)
FILES = Unseen("a file or a stream", "its contents read outside, and passed as an argument")
RANDOM = Unseen("random bytes", "key = ge2.random.key(0) as an argument, and ge2.random")
SETTINGS = Unseen("a setting", "its value read outside, and passed as an argument")
NAMES = Unseen(
    "names that are worked out", "the names themselves in the code, or values as arguments"
)

CLOCKS: Final = " ".join(
    f"{name} {name}_ns"
    for name in ("time", "perf_counter", "monotonic", "process_time", "thread_time")
)
UNSEEN: Final[dict[str, tuple[Unseen, str]]] = {
    "time": (CLOCK, f"{CLOCKS} localtime gmtime ctime asctime strftime"),
    "os": (
        SYSTEM,
        "environ environb getenv getenvb getcwd getcwdb listdir scandir stat getloadavg",
    ),
    "os.path": (SYSTEM, "exists isfile isdir getsize getmtime abspath"),
    "sys": (SYSTEM, "argv modules stdin _getframe"),
    "secrets": (RANDOM, "token_bytes token_hex token_urlsafe randbelow randbits choice"),
    "uuid": (RANDOM, "uuid1 uuid4 getnode"),
    "builtins": (FILES, "open input"),
    "subprocess": (FILES, "run check_output call check_call Popen getoutput"),
    "urllib.request": (FILES, "urlopen urlretrieve"),
    "glob": (FILES, "glob iglob"),
    "numpy": (FILES, "load loadtxt genfromtxt fromfile memmap"),
    "decimal": (SETTINGS, "getcontext"),
    "contextvars": (SETTINGS, "copy_context"),
    "importlib": (NAMES, "import_module"),
    "inspect": (NAMES, "currentframe stack"),
    "gc": (NAMES, "get_objects get_referrers get_referents"),
}
MORE: Final[dict[str, tuple[Unseen, str]]] = {
    "os": (RANDOM, "urandom getrandom"),
    "builtins": (NAMES, "globals eval exec __import__"),
    "numpy": (SETTINGS, "geterr geterrcall getbufsize get_printoptions"),
}
METHODS: Final = (
    ("datetime", "date", CLOCK, "now utcnow today"),
    (
        "pathlib",
        "PurePath",
        FILES,
        "read_text read_bytes open exists stat is_file iterdir glob cwd",
    ),
)
WORDS: Final = frozenset(
    name
    for names in (*(n for _, n in (*UNSEEN.values(), *MORE.values())), *(n for *_, n in METHODS))
    for name in names.split()
)
Lines = dict[tuple[CodeType, int], tuple[str, Unseen, int]]


def watched(f: Function, plans: Sequence[Plan]) -> AbstractContextManager[None]:
    """A trace within is an ImpureError at the first line that reads something unseen."""
    lines = unseen_lines(s for plan in plans for s in plan.scopes)
    return watching_lines(f, lines) if lines else nullcontext()


def unseen_lines(scopes: Iterable[Scope]) -> Lines:
    """The lines that name something unseen: its name, its kind, and where in the code it stands."""
    known = {id(value): kind for value, kind in unseen_values()}
    found: Lines = {}
    for scope in scopes:
        code = scope.function.__code__
        if is_library(code) or not any(is_suspect(scope, name, known) for name in all_names(code)):
            continue
        for inner, step, path in uses(code):
            kind = kind_of_path(scope, path, known)
            line = step.positions.lineno if step.positions else None
            if kind is not None and line is not None:
                found.setdefault((inner, line), (".".join(path.names), kind, step.offset))
    return found


def is_suspect(scope: Scope, name: str, known: dict[int, Unseen]) -> bool:
    """True for a name that may stand for something unseen: most
    functions have none, and are not read.
    """
    return name in WORDS or id(scope.root(name)) in known


def all_names(code: CodeType) -> Iterator[str]:
    """The names that stand in the code and in that defined in it, but for
    those of its variables.
    """
    yield from code.co_names
    yield from code.co_freevars
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from all_names(inner)


def unseen_values() -> Iterator[tuple[Any, Unseen]]:
    """The functions and objects of the tables, as far as their modules are imported."""
    for table in (UNSEEN, MORE):
        for module, (kind, names) in table.items():
            for name in names.split():
                value = getattr(sys.modules.get(module), name, MISSING)
                if value is not MISSING:
                    yield value, kind


def kind_of_path(scope: Scope, path: Path, known: dict[int, Unseen]) -> Unseen | None:
    """The kind of unseen thing that `a.b.c` comes to, if it does."""
    value = scope.root(path.names[0])
    if value is MISSING:
        value = getattr(
            sys.modules["builtins"], path.names[0], sys.modules.get(path.names[0], MISSING)
        )
    for name in path.names[1:]:
        if id(value) in known:
            break
        kind = kind_of_method(value, name)
        if kind is not None:
            return kind
        value = getattr(value, name, MISSING) if isinstance(value, ModuleType | type) else MISSING
    return known.get(id(value))


def kind_of_method(owner: Any, name: str) -> Unseen | None:
    """The kind of unseen thing that a method of a class, or of its objects, reads."""
    cls = owner if isinstance(owner, type) else type(owner)
    for module, base, kind, names in METHODS:
        if name in names.split() and issubclass(cls, loaded(module, base)):
            return kind
    return None


@contextmanager
def watching_lines(f: Function, lines: Lines) -> Iterator[None]:
    codes = {code for code, _ in lines}

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        return at_line if frame.f_code in codes else None

    def at_line(frame: FrameType, event: str, arg: Any) -> Any:
        found = lines.get((frame.f_code, frame.f_lineno)) if event == "line" else None
        if found is not None:
            refuse(f, *found, frame.f_code)
        return at_line

    outer = sys.gettrace()
    sys.settrace(enter)
    try:
        with config.using(check_leaks=False):  # frames that are watched hold traced values
            yield
    finally:
        sys.settrace(outer)


def refuse(f: Function, name: str, kind: Unseen, offset: int, code: CodeType) -> NoReturn:
    what = (
        f"{title(f)} reads {kind.what} ({name}): compiled, every call would get what its trace got"
    )
    raise ImpureError(what, where=Source(code, offset), fix=kind.fix.format(name=name))


# ------------------------------------------------------------------------------ values from outside


def refuse_values(f: Function, plans: Sequence[Plan]) -> None:
    """ImpureError for an iterator or a weak reference from outside; InputError for an array of a
    subclass that computes otherwise, as among the arguments.
    """
    for value in (x for plan in plans for v in plan.reached() for x in leaves_of(v)[0]):
        kind = type(value)
        if isinstance(value, Iterator) and kind.__module__ in ("builtins", "itertools"):
            fix = "x = next(it) outside, and x as an argument; or a list"
            why = "what it yields while traced would be that of every call"
            refuse_value(f, f"{article(kind.__name__)} {kind.__name__}", why, fix)
        if isinstance(value, weakref.ref):
            fix = "the object itself"
            refuse_value(f, "a weak reference", "what becomes of its object would not be seen", fix)
        if issubclass(kind, np.ndarray) and kind is not np.ndarray:
            refuse_array(f, value)


def refuse_value(f: Function, name: str, why: str, fix: str) -> NoReturn:
    raise ImpureError(
        f"{title(f)} reads {name} from outside: {why}", where=of_function(f) or here(), fix=fix
    )


def refuse_array(f: Function, value: Any) -> None:
    try:
        refuse_class(value)
    except Refused as error:
        why, fix = error.args
        what = f"an array that {title(f)} reads from outside {why}"
        raise InputError(what, where=of_function(f) or here(), fix=fix) from None
