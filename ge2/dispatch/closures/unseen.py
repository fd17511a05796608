"""Things a function may not read while it is traced, since no later call could
see that they have changed.

Clocks, files, the environment, random bytes, names that are worked out (`globals()`, `eval`). The
byte code shows which lines name one of these; a trace that comes to such a line is an error there.
What it names in a branch that is not taken, or in a callback, does not matter, and a function that
names none is not watched.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import CodeType, FrameType, ModuleType
from typing import Any, Final, NamedTuple, NoReturn, final

import numpy as np

from ge2.base.arrays import loaded
from ge2.base.config import config
from ge2.base.errors import ImpureError, InputError
from ge2.base.source import LIBRARIES, Source, here, of_function
from ge2.dispatch.closures import ATTRIBUTES, MISSING, Path, reads_of, steps_of, uses
from ge2.dispatch.closures.capture import Plan, Scope, all_leaves, random_types
from ge2.dispatch.signature import Function, Refused, article, refuse_class, title


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
        "environ environb getenv getenvb getcwd getcwdb listdir scandir walk stat access getloadavg times",
    ),
    "os.path": (SYSTEM, "exists isfile isdir getsize getmtime abspath"),
    "sys": (SYSTEM, "argv modules path stdin _getframe getrecursionlimit"),
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
        if code.co_filename.startswith(LIBRARIES):
            continue
        if not any(is_suspect(scope, name, known) for name in all_names(code)):
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
    for value in (x for plan in plans for v in plan.reached() for x in all_leaves(v)):
        kind = type(value)
        if isinstance(value, Iterator) and kind.__module__ in ("builtins", "itertools"):
            fix = "x = next(it) outside, and x as an argument; or a list"
            why = "what it yields while traced would be that of every call"
            refuse_value(f, f"{article(kind.__name__)} {kind.__name__}", why, fix)
        if isinstance(value, weakref.ref):
            fix = "the object itself"
            refuse_value(f, "a weak reference", "what becomes of its object would not be seen", fix)
        if is_stateless(value):
            why = "what it draws while traced would be that of every call"
            refuse_value(f, f"a {kind.__name__}", why, RANDOM.fix)
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


# ------------------------------------------------------------------------------------------ purity
# Finds out whether a function drew random numbers while traced: every call would get the same.


FIX = "key = ge2.random.key(0) as an argument, and ge2.random.normal(key, shape), which is pure"
Generators = Sequence[Any]


def shared() -> list[Any]:
    """The generators behind `np.random.normal` and `random.random`, as far as
    anybody has asked for them.

    Another thread may be importing them at this moment, so that their
    modules are there without them.
    """
    pythons = [draw.__self__ for draw in loaded("random", "random")]
    return [*pythons, *loaded("numpy.random.mtrand", "_rand")]


def state(generator: Any) -> Any:
    if hasattr(generator, "getstate"):
        return None if is_stateless(generator) else generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return _comparable(generator.get_state(legacy=False))
    return _comparable(generator.bit_generator.state)


def is_stateless(generator: Any) -> bool:
    return isinstance(generator, loaded("random", "SystemRandom"))


def _comparable(found: Any) -> Any:
    if isinstance(found, dict):
        return tuple((k, _comparable(v)) for k, v in sorted(found.items()))
    return found.tobytes() if isinstance(found, np.ndarray) else found


@final
class Purity:
    """The states of all generators that a function may draw from, before it is traced."""

    def __init__(self, generators: Generators, codes: Iterable[CodeType]) -> None:
        self.generators = [*generators, *shared()]
        self.before = [state(g) for g in self.generators]
        self.unseeded = frozenset(line for code in codes for line in reads_of(code).unseeded)

    def check(self, again: Callable[[], object]) -> None:
        """ImpureError if a state changed, and does so at a line of the user's
        when the work is done again.

        Another thread that draws at the same time is no reason: then
        the line must name a generator.
        """
        self.look_at_late_ones(again)
        if self.unchanged() and not self.unseeded:
            return
        place = Watcher(self.generators, self.unseeded).line_of(again)
        if place is not None:
            what = "the function drew random numbers while it was traced: every call would get the same ones"
            raise ImpureError(what, where=place, fix=FIX)

    def look_at_late_ones(self, again: Callable[[], object]) -> None:
        """Does the work again if generators were imported meanwhile, of which
        nobody knows how they began.
        """
        late = [g for g in shared() if not any(g is known for known in self.generators)]
        if late:
            self.generators += late
            self.before = [state(g) for g in self.generators]
            again()

    def unchanged(self) -> bool:
        return all(state(g) == s for g, s in zip(self.generators, self.before, strict=True))


@final
class Watcher:
    """Runs a function line by line, and finds after which line a generator had changed."""

    def __init__(self, generators: Generators, unseeded: frozenset[tuple[CodeType, int]]) -> None:
        self.generators, self.unseeded = generators, unseeded
        mine = threading.current_thread()
        self.alone = all(t is mine or t.name.startswith("ge2-") for t in threading.enumerate())
        self.last: tuple[FrameType, int] | None = None
        self.states: list[Any] = []
        self.found: Source | None = None

    def line_of(self, again: Callable[[], object]) -> Source | None:
        self.states = [state(g) for g in self.generators]
        outer = sys.gettrace()
        sys.settrace(self.enter)
        try:
            with config.using(check_leaks=False):  # the frames that are kept hold traced values
                again()
        finally:
            sys.settrace(outer)
        self.compare()
        return self.found

    def enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.compare()
        if self.found is not None or is_unseen_frame(frame):
            return None
        self.last = (frame, frame.f_lasti)
        return self.line

    def line(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.compare()
        if event == "line":
            self.last = (frame, frame.f_lasti)
            if (frame.f_code, frame.f_lineno) in self.unseeded and names_any(
                frame, frame.f_lasti, makes_generator
            ):
                self.found = Source(frame.f_code, frame.f_lasti)
        return self.line if self.found is None else None

    def compare(self) -> None:
        """Blames the line before, if a state changed since."""
        if self.found is not None:
            return
        now = [state(g) for g in self.generators]
        if now != self.states and self.last is not None:
            frame, lasti = self.last
            if self.alone or names_any(frame, lasti, draws):
                self.found = Source(frame.f_code, lasti)
        self.states = now


def is_unseen_frame(frame: FrameType) -> bool:
    inside = frame.f_code.co_filename.startswith((*LIBRARIES, "<frozen"))
    return inside or frame.f_globals.get("__name__") == "random"


def names_any(frame: FrameType, lasti: int, wanted: Callable[[Any], bool]) -> bool:
    """True if the line has a name for something of that kind."""
    return any(
        wanted(resolve(frame, chain))
        for chain in chains_of(frame.f_code, Source(frame.f_code, lasti).line)
    )


@functools.lru_cache(maxsize=256)
def chains_of(code: CodeType, line: int) -> tuple[tuple[str, ...], ...]:
    """The dotted names that a line of code reads."""
    chains: list[list[str]] = []
    grows, at = False, 0
    for i in steps_of(code):
        at = i.positions.lineno if i.positions and i.positions.lineno else at
        if i.opname in ATTRIBUTES:
            if grows:
                chains[-1].append(i.argval)
        else:
            grows = (
                at == line
                and i.opname.startswith("LOAD_")
                and i.opname != "LOAD_CONST"
                and isinstance(i.argval, str)
            )
            if grows:
                chains.append([i.argval])
    return tuple(map(tuple, chains))


def resolve(frame: FrameType, chain: Sequence[str]) -> Any:
    root = chain[0]
    value = frame.f_locals.get(root, frame.f_globals.get(root))
    for name in chain[1:]:
        value = attribute(value, name)
    return value


def attribute(value: Any, name: str) -> Any:
    """An attribute, or None if it cannot be had: a value of a trace that is
    over refuses to be used.
    """
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001 whatever a property of the user's raises, a generator it is not
        return None


def draws(value: Any) -> bool:
    """True if calling it draws from one of NumPy's generators."""
    return isinstance(getattr(value, "__self__", None), random_types())


def makes_generator(value: Any) -> bool:
    numpys = loaded("numpy.random", "default_rng", "RandomState")
    return any(value is each for each in (*numpys, *loaded("random", "Random", "SystemRandom")))
