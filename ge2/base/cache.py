"""A disk cache of bytes by key, with checksums: a damaged entry counts as missing.

The folder may be shared by many processes and several versions of ge2, be full, or be damaged; none
of this changes an answer. An entry is a file that names its format, its length and its checksum; it
is written beside its place and renamed into it, so a reader sees a whole entry or none. Nothing
here raises for what a disk does: the cache says once what is wrong, and the work is done anew.
`docs/design/cache.md` has the reasons.
"""

from __future__ import annotations

import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache as once
from typing import TYPE_CHECKING, Any, Final, final

from ge2.base.config import cache_folder, config
from ge2.base.errors import CacheTrouble, InputError
from ge2.base.record import record
from ge2.base.source import warn

if TYPE_CHECKING:
    from hashlib import blake2b

# of ge2, and so part of keys; the package's own record of it is slow to read
VERSION: Final = "0.1.0"
FORMAT: Final = 1  # of an entry; each format has a folder of its own

MAGIC: Final = b"ge2 kept"
# magic, format, bytes of the description, of the content, checksum
HEAD: Final = struct.Struct("<8sIIQ32s")
LONGEST: Final = 1 << 28  # no kernel comes near it: a length beyond is damage

READ: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# or else a pipe in place of an entry would wait for ever
ENTRY: Final = READ | getattr(os, "O_NONBLOCK", 0)
FOLDER: Final = READ | getattr(os, "O_DIRECTORY", 0)
NEW: Final = (
    os.O_WRONLY
    | os.O_CREAT
    | os.O_EXCL
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
)

BY_FOLDER: Final = os.open in os.supports_dir_fd
UNFINISHED: Final = "."  # begins the names of files that are being written
PRUNED: Final = ".pruned"  # its time is that of the last look at the size of it all
HOUR: Final = 3600.0
OFTEN: Final = 600.0  # seconds between two such looks
STALE: Final = 600.0  # seconds after which nobody is still writing a file


# --------------------------------------------------------------------------------------------- keys


def content_key(*parts: str | bytes) -> str:
    """A name for these parts, in this order: other parts have another name, and
    every process the same one.

    >>> content_key("ab", "c") == content_key("a", "bc"), content_key("a") == content_key(b"a")
    (False, False)
    """
    digest = blake(20)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(b"%c%d:" % (b"b" if isinstance(part, bytes) else b"s", len(data)))
        digest.update(data)
    return digest.hexdigest()


def blake(size: int) -> blake2b:
    try:
        from _blake2 import blake2b  # hashlib loads OpenSSL too, which takes ten times as long
    except ImportError:
        from hashlib import blake2b
    return blake2b(digest_size=size)


# ------------------------------------------------------------------------------------------ entries


@final
@record
class Entry:
    """An entry, as listed.

    `used`: when it was last read, to the hour. `trouble`: why it is damaged.
    """

    key: str
    size: int
    used: float
    about: dict[str, str]
    trouble: str = ""

    @property
    def kind(self) -> str:
        """The kind of entry: "cubin", "C program", ...; "unknown" where it does not say, or is
        damaged.
        """
        return self.about.get("kind", "unknown")


@final
class Damaged(Exception):
    """The reason why a file is not the entry that its name says."""


def packed(key: str, content: bytes, about: dict[str, str]) -> bytes:
    import json  # only for writing and listing

    words = json.dumps(about, ensure_ascii=True).encode()
    return b"".join((_head(key, words, content), words, content))


def _head(key: str, words: bytes | memoryview, content: bytes | memoryview) -> bytes:
    digest = blake(32)
    digest.update(b"%d:%s:%d:%d:" % (FORMAT, key.encode(), len(words), len(content)))
    digest.update(words)
    digest.update(content)
    return HEAD.pack(MAGIC, FORMAT, len(words), len(content), digest.digest())


def unpacked(key: str, data: bytes) -> tuple[bytes, bytes]:
    """The description and the content of an entry; Damaged unless both were
    written under this key.
    """
    words, length = _lengths(data, len(data))
    start = HEAD.size + words
    view = memoryview(data)
    if _head(key, view[HEAD.size : start], view[start:]) != data[: HEAD.size]:
        raise Damaged("its checksum does not fit")
    return data[HEAD.size : start], data[start : start + length]


def _lengths(head: bytes, size: int) -> tuple[int, int]:
    if len(head) < HEAD.size:
        raise Damaged("it is cut short")
    magic, version, words, content, _ = HEAD.unpack_from(head)
    if magic != MAGIC or version != FORMAT:
        raise Damaged("it is no entry of this format")
    if HEAD.size + words + content != size:
        raise Damaged("its length is not the one it names")
    return words, content


def _read(fd: int, size: int) -> bytes:
    parts = []
    while size > 0 and (part := os.read(fd, size)):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


# ---------------------------------------------------------------------------------------- the store


@final
class Cache:
    """Bytes by key, in a folder that this user alone may write. `limit` is in bytes; 0: none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kept = Cache(folder)
    ...     kept.put("5eed", b"content", {"name": "f"})
    ...     kept.get("5eed"), kept.get("0dd")
    (b'content', None)
    """

    __slots__ = ("limit", "path")

    def __init__(self, folder: str | None, limit: int = 0) -> None:
        self.path = os.path.join(folder, f"v{FORMAT}") if folder else folder
        self.limit = limit

    def get(self, key: str) -> bytes | None:
        """The content under a key.

        What is damaged, not ours, or cannot be read counts as missing.
        """
        _checked(key)
        if self.path is None:
            return None
        try:
            with self._opened() as folder:
                return self._content(folder, key)
        except FileNotFoundError:
            return None
        except (OSError, CacheTrouble) as error:
            self._say_unusable(error)
            return None

    def put(self, key: str, content: bytes, about: dict[str, str]) -> None:
        """Keeps a content under a key, in place of any other.

        `about` is for people who list the cache.
        """
        _checked(key)
        if self.path is None or len(content) > LONGEST:
            return
        data = packed(key, content, about)
        try:
            try:
                self._put(key, data)
            except FileNotFoundError:  # somebody cleared the cache meanwhile
                self._put(key, data)
        except (OSError, CacheTrouble) as error:
            self._say_unusable(error)

    def entries(self, verify: bool = False) -> list[Entry]:
        """The entries, the last used first; `verify` reads all of each.

        CacheTrouble if it cannot be.
        """

        def read(folder: int) -> list[Entry]:
            return [found for name in _names(folder) if (found := _entry(folder, name, verify))]

        return sorted(self._asked(read), key=lambda e: (-e.used, e.key))

    def check(self) -> None:
        """Puts an entry there, reads it and removes it. CacheTrouble if any of it fails."""
        key = content_key("check", os.urandom(8))

        def check(folder: int) -> list[Entry]:
            _place(folder, key, packed(key, b"check", {}))
            read = self._content(folder, key)
            _remove(folder, key)
            if read != b"check":
                raise CacheTrouble(
                    f"the cache {self.path} gives back something else than was put there"
                )
            return []

        self._asked(check, make=True)

    def remove(self, entries: list[Entry]) -> list[Entry]:
        def remove(folder: int) -> list[Entry]:
            for entry in entries:
                _remove(folder, entry.key)
            return entries

        return self._asked(remove)

    def prune(self, limit: int) -> list[Entry]:
        """Removes what was not used for longest until `limit` bytes are left;
        returns what it removed.
        """
        return self._asked(lambda folder: _shrink(folder, limit))

    def clear(self) -> list[Entry]:
        """Removes every entry; returns what it removed.

        What other processes are writing now will stay.
        """
        return self.prune(0)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Inside, whoever else asks for a turn waits: threads, and processes with the same folder.
        Where there is no folder, or no locks, nobody waits.
        """
        with ExitStack() as held:
            with suppress(OSError, CacheTrouble, ImportError):
                import fcntl

                fcntl.flock(held.enter_context(self._opened(make=True)), fcntl.LOCK_EX)
            yield

    def _asked(self, work: Callable[[int], list[Entry]], make: bool = False) -> list[Entry]:
        """The entries that a person asks for: a missing folder is empty, any other error is raised."""
        if self.path is None:
            raise CacheTrouble("there is no cache: it is switched off", fix="unset GE2_CACHE_DIR")
        try:
            with self._opened(make) as folder:
                return work(folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CacheTrouble(f"the cache {self.path} cannot be used: {error.strerror}") from error

    def _put(self, key: str, data: bytes) -> None:
        with self._opened(make=True) as folder:
            _place(folder, key, data)
            if self.limit and _is_due(folder):
                _shrink(folder, self.limit)

    @contextmanager
    def _opened(self, make: bool = False) -> Iterator[int]:
        """A descriptor of the folder, once it is known to be ours.

        All files are reached through it.
        """
        if not self.path:
            raise CacheTrouble("there is no home to keep them in", fix=OWN_FOLDER)
        if not BY_FOLDER:
            raise CacheTrouble(
                "this system cannot open files by their folder", fix="GE2_CACHE_DIR=none"
            )
        fd = _folder(self.path, make)
        try:
            _ensure_private(fd)
            yield fd
        finally:
            os.close(fd)

    def _content(self, folder: int, key: str) -> bytes | None:
        try:
            fd = os.open(key, ENTRY, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._say_damaged(key, str(error.strerror))
            return None
        try:
            state = _regular(fd)
            content = unpacked(key, _read(fd, state.st_size))[1]
            _touch(fd, state)
            return content
        except (Damaged, OSError) as error:
            self._say_damaged(key, str(error))
            return None
        finally:
            os.close(fd)

    def _say_damaged(self, key: str, why: str) -> None:
        what = f"{os.path.join(self.path or '', key)} is not used, and is made again: {why}"
        warn(
            what,
            "ge2 cache verify, to see whether there is more of it",
            once=("cache entries", self.path),
        )

    def _say_unusable(self, error: OSError | CacheTrouble) -> None:
        why = error.strerror if isinstance(error, OSError) else _first_line(error)
        what = f"compiled kernels are not kept on disk, in {self.path or 'any cache'}: {why}"
        warn(what, OWN_FOLDER, once=("cache", self.path))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


OWN_FOLDER: Final = "GE2_CACHE_DIR=a folder of your own, with space in it; or none"


def cache() -> Cache:
    """The cache of the settings, as they are now."""
    return _cache(cache_folder(), config.cache_limit)


@once
def _cache(folder: str | None, megabytes: int) -> Cache:
    return Cache(folder, megabytes << 20)


# ------------------------------------------------------------------------------- the folder's files


def _checked(key: str) -> str:
    if not (key.isascii() and key.isalnum()):
        raise InputError(f"{key!r} is no key of the cache", fix="content_key(...)")
    return key


def _folder(path: str, make: bool) -> int:
    try:
        return os.open(path, FOLDER)
    except FileNotFoundError:
        if not make:
            raise
    except OSError as error:
        if os.path.islink(path):
            raise CacheTrouble(f"{path} is a symbolic link", fix=OWN_FOLDER) from error
        raise
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    return os.open(path, FOLDER)


def _ensure_private(fd: int) -> None:
    """CacheTrouble unless the folder is this user's and no other's.

    Entries in it are checked one by one.
    """
    state = os.fstat(fd)
    if state.st_uid != os.geteuid():
        raise CacheTrouble("the folder belongs to another user")
    if state.st_mode & 0o077:
        with suppress(OSError):  # some file systems know no modes
            os.fchmod(fd, 0o700)
        if os.fstat(fd).st_mode & 0o022:
            raise CacheTrouble("other users may write into the folder")


def _regular(fd: int) -> os.stat_result:
    state = os.fstat(fd)
    if not stat.S_ISREG(state.st_mode):
        raise Damaged("it is not a file")
    if state.st_uid != os.geteuid():
        raise Damaged("it belongs to another user")
    if state.st_size > LONGEST:
        raise Damaged("it is longer than any entry")
    return state


def _touch(fd: int, state: os.stat_result) -> None:
    """Notes that an entry is in use, at most once an hour."""
    if time.time() - state.st_mtime > HOUR:
        with suppress(OSError):  # on a disk that cannot be written
            os.utime(fd)


def _place(folder: int, key: str, data: bytes) -> None:
    """Writes a file beside its place and renames it; whatever happens, no half of it stays."""
    name = f"{UNFINISHED}{os.getpid()}-{os.urandom(8).hex()}"
    fd = os.open(name, NEW, 0o600, dir_fd=folder)
    try:
        try:
            _write(fd, data)
        finally:
            os.close(fd)
        if not _is_file_or_free(folder, key):
            _remove(folder, key)
        os.rename(name, key, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise


def _is_file_or_free(folder: int, key: str) -> bool:
    try:
        return not stat.S_ISDIR(os.stat(key, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return True


def _remove(folder: int, name: str) -> None:
    """Removes what has the name, be it even a folder; others may have removed it already."""
    with suppress(FileNotFoundError):
        try:
            os.unlink(name, dir_fd=folder)
        except (IsADirectoryError, PermissionError):
            import shutil

            shutil.rmtree(name, dir_fd=folder)


def _names(folder: int) -> list[str]:
    return [name for name in os.listdir(folder) if not name.startswith(UNFINISHED)]


def _entry(folder: int, name: str, verify: bool) -> Entry | None:
    """An entry as its file describes it; nothing if the file is gone meanwhile."""
    try:
        state = os.stat(name, dir_fd=folder, follow_symlinks=False)
        about, trouble = _description(folder, name, verify)
    except FileNotFoundError:
        return None
    return Entry(name, state.st_size, state.st_mtime, about, trouble)


def _description(folder: int, name: str, verify: bool) -> tuple[dict[str, str], str]:
    import json

    try:
        fd = os.open(name, ENTRY, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        return {}, str(error.strerror)
    try:
        state = _regular(fd)
        words = _words(fd, name, state.st_size, verify)
        about: Any = json.loads(words)
        return (about, "") if isinstance(about, dict) else ({}, "its description is none")
    except (Damaged, OSError, ValueError) as error:
        return {}, str(error)
    finally:
        os.close(fd)


def _words(fd: int, name: str, size: int, verify: bool) -> bytes:
    if verify:
        return unpacked(name, _read(fd, size))[0]
    return _read(fd, _lengths(_read(fd, HEAD.size), size)[0])


# ----------------------------------------------------------------------------------------- its size


def _is_due(folder: int) -> bool:
    """True if nobody has looked at the size of the cache for a while; the one that asks looks."""
    with suppress(FileNotFoundError):
        if abs(time.time() - os.stat(PRUNED, dir_fd=folder).st_mtime) < OFTEN:
            return False
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    fd = os.open(PRUNED, flags, 0o600, dir_fd=folder)
    try:
        os.utime(fd)
    finally:
        os.close(fd)
    return True


def _shrink(folder: int, limit: int) -> list[Entry]:
    """Removes what was not used for longest, and what dead processes left.

    Readers keep what they opened.
    """
    states = [(name, state) for name in os.listdir(folder) if (state := _state(folder, name))]
    for name, state in states:
        if name.startswith(UNFINISHED) and name != PRUNED and time.time() - state.st_mtime > STALE:
            _remove(folder, name)
    kept = sorted(
        (
            (state.st_mtime, name, state.st_size)
            for name, state in states
            if not name.startswith(UNFINISHED)
        ),
        reverse=True,
    )
    gone, total = [], sum(size for _, _, size in kept)
    while kept and (total > limit or not limit):
        used, name, size = kept.pop()
        _remove(folder, name)
        gone.append(Entry(name, size, used, {}))
        total -= size
    return gone


def _state(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
