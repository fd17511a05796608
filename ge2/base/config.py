"""Every setting of ge2 in one table: an attribute of `config`, a variable, an argument of `using`.

`config.check` reads a setting; `config.update(check=True)` sets it for the process; and inside
`with config.using(check=True):` it is set for this thread alone (more exactly: this context, see
`contextvars`). The environment is read when this module is imported, and what it says is parsed
when the setting is first read; no mistake in it stops the program.

Reading must cost next to nothing on the path of a call. So the values are plain
attributes, and only while some `using` is alive anywhere does `config` take a class
whose attributes look at the context first.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import field, fields
from functools import cache
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast, final

from ge2.base.errors import InputError, UnknownSetting
from ge2.base.record import after_fork, record
from ge2.base.source import Ge2Warning, logger, warn

TRUE = ("1", "true", "yes", "on")
FALSE = ("0", "false", "no", "off", "")
OLD: Final = {("executor", "shim"): "emulator"}  # values that once had another name
T = TypeVar("T")


def setting(default: Any, doc: str, choices: tuple[Any, ...] = (), keyed: bool = False) -> Any:
    """A field of Settings. `keyed`: it changes what is compiled, so it is part of the key."""
    return field(default=default, metadata={"doc": doc, "choices": choices, "keyed": keyed})


# fmt: off
@record
class Settings:
    """The settings and their defaults. The variable of `check` is `GE2_CHECK`, and so on."""

    check:        bool = setting(False, "verify every graph at each step, spoil donated arrays", keyed=True)
    disable_jit:  bool = setting(False, "run op by op with NumPy's own functions")
    executor:     str = setting("c", "what runs a program", ("c", "blocked", "emulator", "reference"), keyed=True)
    threads:      int = setting(0, "threads to use; 0: as many as the process may", keyed=True)
    log_compiles: bool = setting(False, "log each trace and compilation, and why it was needed")
    passes_off:   tuple[str, ...] = setting((), "passes to leave out, separated by commas", keyed=True)
    dump:         str = setting("", "folder that receives graphs, kernels, plan and a repro.py")
    cache_dir:    str = setting("", "folder of the cache; empty: the user's cache folder; none: no cache")
    cache_limit:  int = setting(1024, "megabytes that the cache may hold; 0: no limit")
    cc:           str = setting("", "C compiler: path or command; empty: find one; none: no C", keyed=True)
    nvrtc:        str = setting("", "NVRTC library: its path; empty: find one; none: no CUDA", keyed=True)
    compile_timeout: int = setting(60, "seconds that a C compiler may take; 0: no limit")
    compile_patience: int = setting(5, "seconds of compiling that an unrolled Python loop is worth; 0: any")
    debug_nans:   bool = setting(False, "a NaN in a result is an error that names the equation", keyed=True)
    debug_infs:   bool = setting(False, "so is an infinity", keyed=True)
    nvtx:         bool = setting(False, "NVTX ranges for kernels and named scopes, on GPUs", keyed=True)
    shim_seed:    int = setting(0, "order of CUDA threads on the CPU; 0: that of their numbers, 1: the last first")
    shim_watch:   bool = setting(False, "look at each access to memory of CUDA threads on a CPU", keyed=True)
    check_leaks:  bool = setting(False, "a traced value that outlives its trace is an error at once")
    capture:      str = setting("auto", "launch kernels as graphs", ("auto", "on", "off"), keyed=True)
    overlap:      bool = setting(True, "launch kernels of a graph while those before them end", keyed=True)
    traceback:    str = setting("short", "frames of ge2 in tracebacks: none, or all", ("short", "full"))
    templates:    str = setting("", "folder of kernel templates that come before ge2's own", keyed=True)
    progress:     str = setting("auto", "tell what a first call of seconds does", ("auto", "on", "off"))
    tune: str = setting("cached", "choose kernels as measured; on: measures", ("off", "cached", "on"), keyed=True)
    prefer:       tuple[str, ...] = setting((), "families of kernels to take; -family: to leave out", keyed=True)
    deterministic: bool = setting(True, "no kernels that add up in another order each time", keyed=True)
    workspace:    int = setting(32, "megabytes of scratch that a call of a library may have", keyed=True)
    pins:         tuple[object, ...] = setting((), "kernels that problems are pinned to; from Python alone", keyed=True)
    tuning: tuple[object, ...] = setting((), "records that kernels are planned by; from Python alone", keyed=True)
# fmt: on


if TYPE_CHECKING:
    Named = Settings  # the names and types of what `Config` has
else:
    Named = object

FIELDS: Final = {f.name: f for f in fields(Settings)}
KEYED: Final = tuple(name for name, f in FIELDS.items() if f.metadata["keyed"])
RECORDS: Final = ("tuning", "pins")  # settings that are no texts, of which nothing is known here


def _parse(name: str, text: str) -> Any:
    """The value that an environment variable gives; ValueError in words if it gives none."""
    if name in RECORDS:
        raise ValueError("is given by config.using alone")
    default = FIELDS[name].default
    if isinstance(default, bool):
        if text.lower() not in TRUE + FALSE:
            raise ValueError("is neither 1 nor 0")
        return text.lower() in TRUE
    if isinstance(default, int):
        if not text.strip().lstrip("+-").isdecimal():
            raise ValueError("is no whole number")
        return int(text)
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def _checked(name: str, value: Any) -> Any:
    """The value, if the setting takes it; ValueError in words if not."""
    f, value = FIELDS[name], OLD.get((name, value), value) if isinstance(value, str) else value
    if isinstance(f.default, tuple) and isinstance(value, str):
        value = _parse(name, value)
    if isinstance(f.default, tuple) and isinstance(value, list):
        value = tuple(value)
    texts = name not in RECORDS
    if type(value) is not type(f.default) or (
        isinstance(value, tuple) and texts and {*map(type, value)} - {str}
    ):
        raise ValueError(f"must be {_kind(name)}")
    if f.metadata["choices"] and value not in f.metadata["choices"]:
        raise ValueError(f"must be {_kind(name)}")
    if isinstance(value, int) and value < 0:
        raise ValueError("must not be negative")
    return value


def _kind(name: str) -> str:
    f = FIELDS[name]
    if f.metadata["choices"]:
        return " or ".join(map(repr, f.metadata["choices"]))
    kinds = {
        bool: "True or False",
        int: "a whole number",
        str: "a string",
        tuple: "a tuple of records" if name in RECORDS else "a tuple of strings",
    }
    return kinds[type(f.default)]


def _nearest(name: str, known: Any) -> str:
    import difflib  # only an error pays for it

    return next(iter(difflib.get_close_matches(name, list(known), 1, 0.0)), "")


@final
class _Scope:
    """The settings that one `using` changes. It is alive for as long as any context holds it."""

    __slots__ = ("__weakref__", "key", "values")

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.key: tuple[Any, ...] | None = None  # as long as nobody changes the settings around it


_scope: ContextVar[_Scope | None] = ContextVar("ge2_settings", default=None)
_alive: set[weakref.ref[_Scope]] = set()
_lock = RLock()  # reentrant: a scope may die, and take it, at any line
_environment: dict[str, str] = {}
# equal keys are one, so that calls need not compare them
_keys: dict[tuple[Any, ...], tuple[Any, ...]] = {}
_edition: list[int] = [0]  # of what else decides which kernels are chosen: see `Config.renew`


class Config(Named):
    """The settings in force: see the table `Settings`."""

    key: tuple[Any, ...]  # the settings that change what is compiled

    def __getattr__(self, name: str) -> Any:
        """Called where the attribute is not there yet: the first time that a setting is read."""
        if name != "key" and name not in FIELDS:
            _refuse(name)
        with _lock:  # an update meanwhile must not leave the old key behind
            if name not in self.__dict__:
                value = _key_of({}) if name == "key" else _from_environment(name)
                self.__dict__[name] = value
            return self.__dict__[name]

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        if name not in FIELDS:
            _refuse(name)
        raise InputError(
            f"config.{name} cannot be assigned",
            fix=f"config.update({name}={value!r}), or config.using",
        )

    def __dir__(self) -> list[str]:
        return [*FIELDS, "key", "update", "renew", "using", "snapshot", "thread_count", "tuned"]

    def __repr__(self) -> str:
        """The settings as a table: name, value, variable, meaning."""
        rows = [
            (n, repr(getattr(self, n)), variable(n), f.metadata["doc"]) for n, f in FIELDS.items()
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return "\n".join("  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows)

    def update(self, **changes: Any) -> None:
        """Changes settings for the whole process.

        InputError for a name or a value that is not one.
        """
        self._change(_all_checked(changes))

    def renew(self) -> None:
        """Has calls from now on build programs anew: kernels were registered, or measurements have
        another winner. Programs that are built stay as they are.
        """
        _edition[0] += 1
        self._change({})

    def _change(self, values: dict[str, Any]) -> None:
        with _lock:
            self.__dict__.update(values)
            self.__dict__.pop("key", None)
            for scope in filter(None, [ref() for ref in _alive]):
                scope.key = None

    def using(self, **changes: Any) -> AbstractContextManager[None]:
        """Changes settings inside a `with`, for this thread or task alone.

        >>> with config.using(threads=1):
        ...     config.threads
        1
        """
        return _using(_all_checked(changes))

    def snapshot(self) -> Settings:
        """All settings as they are here and now."""
        return Settings(**{name: getattr(self, name) for name in FIELDS})

    def thread_count(self) -> int:
        """The number of threads to use:

        `threads`, or for 0 the number of cores that this process may use.
        """
        return self.threads or allowed_cores()

    def tuned(self, default: T) -> T:
        """The record of this class among those of `tuning`, or the default.

        >>> with config.using(tuning=(0.5, 3)):
        ...     config.tuned(7), config.tuned("nothing")
        (3, 'nothing')
        """
        return next((each for each in self.tuning if type(each) is type(default)), default)


@contextmanager
def _using(values: dict[str, Any]) -> Iterator[None]:
    outer = _scope.get()
    try:
        _scope.set(_open_scope({**(outer.values if outer else {}), **values}))
        yield
    finally:
        _scope.set(outer)  # an interrupt may have come before there was a token


def allowed_cores() -> int:
    """Number of cores this process may use: those it may run on, or
    fewer in a container with a quota.
    """
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min(cores, quota(cores)))


@cache
def quota(cores: int, path: str = "/sys/fs/cgroup/cpu.max") -> int:
    """The cores' worth of time that a control group has, rounded up; `cores`
    where nothing bounds it.
    """
    try:
        with open(path, encoding="ascii") as file:
            given, period = file.read().split()
        return cores if given == "max" else -(-int(given) // int(period))
    except (OSError, ValueError):
        return cores


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"GE2_{name.upper()}"


def _base(name: str) -> Any:
    """A setting of the process, whatever this context says."""
    values = config.__dict__
    return values[name] if name in values else Config.__getattr__(config, name)


def _key_of(values: dict[str, Any]) -> tuple[Any, ...]:
    """The key of the settings with these changes; with the lock held."""
    key = (*(values[each] if each in values else _base(each) for each in KEYED), _edition[0])
    return _keys.setdefault(key, key)


def _scoped_key(scope: _Scope) -> tuple[Any, ...]:
    with _lock:  # an update meanwhile must not leave the old key behind
        scope.key = key = _key_of(scope.values)
        return key


def _scoped(name: str) -> property:
    def read(self: Config) -> Any:
        scope = _scope.get()
        if scope is None:
            return _base(name)
        if name == "key":
            return scope.key or _scoped_key(scope)
        return scope.values[name] if name in scope.values else _base(name)

    return property(read)


_ScopedConfig = cast(
    type[Config], type("Config", (Config,), {name: _scoped(name) for name in (*FIELDS, "key")})
)


def _open_scope(values: dict[str, Any]) -> _Scope:
    scope = _Scope(values)
    with _lock:
        _alive.add(weakref.ref(scope, _close_scope))
        object.__setattr__(config, "__class__", _ScopedConfig)
    return scope


def _close_scope(ref: weakref.ref[_Scope]) -> None:
    with _lock:
        _alive.discard(ref)
        if not _alive:
            object.__setattr__(config, "__class__", Config)


def _all_checked(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: _one_checked(name, value) for name, value in changes.items()}


def _one_checked(name: str, value: Any) -> Any:
    if name not in FIELDS:
        _refuse(name)
    try:
        return _checked(name, value)
    except ValueError as error:
        fix = (
            f"{name}={FIELDS[name].default!r}, which it is unless told; print(ge2.config) lists all"
        )
        raise InputError(f"config.{name} {error}; got {value!r}", fix=fix) from None


def _refuse(name: str) -> NoReturn:
    """AttributeError too, so that `hasattr` and `copy` work."""
    fix = "" if name.startswith("_") else _nearest(name, FIELDS)  # it was Python that asked
    raise UnknownSetting(f"there is no setting {name!r}", fix=fix)


# --- the environment
# ----------------------------------------------------------------------------------------


def _from_environment(name: str) -> Any:
    text = _environment.get(variable(name))
    if text is None:
        return FIELDS[name].default
    try:
        return _checked(name, _parse(name, text))
    except ValueError as error:
        default = FIELDS[name].default
        _tell(f"{variable(name)}={text!r}: {error}; {default!r} is used", f"{_kind(name)}")
        return default


def _read_environment() -> None:
    _environment.update(
        (name, text) for name, text in os.environ.items() if name.startswith("GE2_")
    )
    known = {variable(name) for name in FIELDS}
    for name in _environment:
        if name not in known and not name.startswith("GE2_TEST_"):
            _tell(
                f"{name} is set in the environment, but ge2 has no such setting",
                _nearest(name, known),
            )


def _tell(what: str, fix: str) -> None:
    """A warning that stops nothing, even where warnings are errors."""
    try:
        warn(what, fix, once=what)
    except Ge2Warning:
        logger().warning("%s (try %s)", what, fix)


# --- what others keep in the environment
# --------------------------------------------------------------------

COMPILERS_READ: Final = (
    "CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "SDKROOT",
    "MACOSX_DEPLOYMENT_TARGET", "CCC_OVERRIDE_OPTIONS",
)  # fmt: skip
OPENMP_WAITS: Final = "GOMP_SPINCOUNT"
# some 20 us: long enough between two loops, too short to disturb a matrix product
SPINS: Final = "2000"


def cache_folder() -> str | None:
    """The folder of the cache: by the setting, XDG_CACHE_HOME, or below the home; "": nowhere;
    None: unwanted.
    """
    if config.cache_dir:
        return None if config.cache_dir == "none" else os.path.abspath(config.cache_dir)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):  # the standard says that others are to be ignored
        return os.path.join(shared, "ge2")
    home = os.path.expanduser("~") if os.environ.get("HOME") != "" else ""
    return (
        os.path.join(home, ".cache", "ge2") if os.path.isabs(home) and os.path.isdir(home) else ""
    )


def compiler_variables() -> tuple[str, ...]:
    """The environment's variables that change what a C compiler makes."""
    return tuple(f"{name}={os.environ[name]}" for name in COMPILERS_READ if name in os.environ)


def environment_with(**changes: str) -> dict[str, str]:
    """The environment for a program that we start."""
    return {**os.environ, **changes}


def program_path() -> str:
    """The folders in which programs are looked for."""
    return os.environ.get("PATH", os.defpath)


def cuda_folders() -> tuple[str, ...]:
    """Folders that may hold the libraries of an installed CUDA toolkit."""
    roots = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    return tuple(os.path.join(root, "lib64") for root in (*roots, "/usr/local/cuda"))


@contextmanager
def brief_waits() -> Iterator[None]:
    """OpenMP that is loaded inside lets idle threads sleep soon, unless the user set it otherwise.

    By default they spin for milliseconds on the cores that NumPy's matrix products need. Only the C
    library's environment changes, for a moment; `os.environ` does not.
    """
    if OPENMP_WAITS in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    try:
        os.putenv(OPENMP_WAITS, SPINS)
        yield
    finally:
        os.unsetenv(OPENMP_WAITS)


@after_fork
def _after_fork() -> None:
    global _lock
    _lock = RLock()


config: Final = Config()
_read_environment()
