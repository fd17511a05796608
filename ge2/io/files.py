"""Files of arrays: whole or absent, what is in them, NumPy's npz format and safetensors."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from tokenize import TokenError
from typing import Any, BinaryIO, Final, final

import ml_dtypes
import numpy as np
from numpy.lib import format as npy

from ge2.base.arrays import BFLOAT16, EXTENDED, FP8, known, short
from ge2.base.errors import FileError, InputError
from ge2.base.record import record
from ge2.base.source import here

# -------- Files that are whole or absent: written beside their path, and renamed when they are on
# the disk.


PART: Final = ".part"  # ends the names of files that are being written
NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
YOUNG: Final = 60.0  # seconds in which a file may exist and not be locked yet


@contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` at the end of the `with`, and not before all of it is
    on the disk.

    Whenever the process, or the machine, stops, `path` is what it was or what it shall be. An error
    leaves what it was, and no other file.
    """
    path = os.path.realpath(path)  # the file that a link names, not the link
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    folder, name = os.path.split(path)
    part = os.path.join(folder, f".{name}.{secrets.token_hex(4)}{PART}")
    try:
        fd = os.open(part, NEW, 0o666)
    except OSError as error:
        error.filename = path  # and not a name that nobody chose
        raise
    try:
        with os.fdopen(fd, "wb") as file:
            lock(fd)
            yield file
            file.flush()
            os.fsync(fd)
            os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise
    sync(folder)


def sync(folder: str) -> None:
    """Has the names in a folder written to the disk, where the system can do that."""
    if hasattr(os, "O_DIRECTORY"):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def lock(fd: int) -> bool:
    """Locks an open file until it is closed or its process ends; False if another has it."""
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # no locks on this system, or on this disk
        return False
    return True


def remove_unfinished(folder: str) -> None:
    """Removes the files that processes which were killed have left behind in a folder."""
    for entry in os.scandir(folder):
        if not (entry.name.startswith(".") and entry.name.endswith(PART)):
            continue
        with suppress(OSError):  # another process may remove it as well
            if time.time() - entry.stat(follow_symlinks=False).st_mtime < YOUNG:
                continue
            fd = os.open(entry.path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
            try:
                if lock(fd):
                    os.unlink(entry.path)
            finally:
                os.close(fd)


# -------- The contents of a file of arrays: names, types, and a function that reads each; and its
# errors.


Path = str | os.PathLike[str]
AGAIN: Final = "writing it again, or downloading it again"


@record
class Stored:
    """An array of a file that is open, which `read` reads into memory of its own."""

    dtype: np.dtype
    shape: tuple[int, ...]
    read: Callable[[], Any]

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def __str__(self) -> str:
        return type_words(self.dtype, self.shape)


def type_words(dtype: np.dtype, shape: tuple[int, ...]) -> str:
    """The type of an array as in a graph's text, f32[2,3]."""
    return f"{short(dtype) if known(dtype) else dtype}[{','.join(map(str, shape))}]"


def path_text(path: Any) -> str:
    """A path as text. InputError for what is none."""
    if isinstance(path, str | os.PathLike):
        return os.fspath(path)
    what = f"a path is a text or a pathlib.Path; got a {type(path).__name__}"
    raise InputError(what, where=here(), fix="save(path, tree), with the path first")


def damaged(path: str, why: str, fix: str = AGAIN) -> FileError:
    return FileError(f"{path!r} cannot be read: {why}", where=here(), fix=fix)


def wrong_name(name: str) -> str:
    """The reason why no array may have this name; empty if one may.

    Names are keys and never paths, but other programs unpack the same files.
    """
    if not name or not name.isprintable():
        return "it is empty, or holds characters that cannot be printed"
    if ".." in name.replace("\\", "/").split("/") or name[0] in "/\\" or name[1:2] == ":":
        return "it is a path that leads out of a folder"
    return ""


# -------- NumPy's npz format: a zip archive of npy files, without pickled objects.


EXTENDED_DTYPES: Final = "__dtypes__"  # the array that names dtypes that NumPy lacks, as JSON
LONGEST_OF_NPY: Final = 10_000  # bytes of the header of an array
OLDEST: Final = (1980, 1, 1, 0, 0, 0)  # the time of every member: equal trees, equal files
WRONG: Final = (
    ValueError, TypeError, SyntaxError, RecursionError, MemoryError, EOFError, OSError,
    RuntimeError, KeyError, AttributeError, OverflowError, zipfile.BadZipFile, zlib.error, TokenError,
    StopIteration,
)  # fmt: skip


def write_archive(file: BinaryIO, arrays: Mapping[str, Any], host: Any) -> None:
    """Writes arrays, each fetched by `host` when its turn comes.

    `np.load` reads those of ml_dtypes as void of their size, as it does what `np.savez` writes.
    """
    names = {name: x.dtype.name for name, x in arrays.items() if x.dtype in EXTENDED}
    with zipfile.ZipFile(file, "w") as archive:
        for name, x in arrays.items():
            put(archive, name, x, host)
        if names:
            put(archive, EXTENDED_DTYPES, np.frombuffer(json.dumps(names).encode(), np.uint8), host)


def put(archive: zipfile.ZipFile, name: str, x: Any, host: Any) -> None:
    x = np.ascontiguousarray(host(x)).reshape(x.shape)  # which would give a number an axis
    x = x.view(f"V{x.itemsize}") if x.dtype in EXTENDED else x
    with archive.open(zipfile.ZipInfo(f"{name}.npy", OLDEST), "w", force_zip64=True) as member:
        npy.write_array(member, x, allow_pickle=False)


def open_archive(file: BinaryIO, path: str) -> dict[str, Stored]:
    """The arrays of an open file. FileError if it is not of the format, or not whole."""
    try:
        archive = zipfile.ZipFile(file)
    except WRONG as error:
        why = f"it is no zip archive, or is cut short ({first_line(error)})"
        raise damaged(path, why) from None
    found: dict[str, Stored] = {}
    for member in archive.infolist():
        name = member.orig_filename.removesuffix(".npy")
        if why := wrong_name(name):
            raise damaged(path, f"the name {name!r:.100} is refused: {why}", "another file")
        if name in found or name == member.filename:
            why = "is there twice" if name in found else "is no array of NumPy's"
            raise damaged(path, f"its member {name!r} {why}")
        found[name] = stored(archive, member, name, path)
    return with_dtypes(found, path)


def stored(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, path: str) -> Stored:
    """An array by its header, whose size must be that of the member."""
    try:
        with archive.open(member) as f:
            version = npy.read_magic(f)
            if version not in ((1, 0), (2, 0)):
                raise ValueError(f"version {version} of the npy format")
            header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = header(f, LONGEST_OF_NPY)
            length = member.file_size - f.tell()
    except WRONG as error:
        raise damaged(path, f"the header of {name!r} is damaged ({first_line(error)})") from None
    if dtype.hasobject:
        why = f"{name!r} holds Python objects, and to read those is to run what they say"
        raise damaged(path, why, fix="arrays of numbers")
    if dtype.itemsize * math.prod(shape) != length or min(shape, default=0) < 0:
        why = f"{name!r} is to have shape {shape} of {dtype}, and has {length} bytes"
        raise damaged(path, f"{why:.300}")
    dtype = dtype.newbyteorder("=")
    return Stored(dtype, shape, partial(read_member, archive, member, name, path, dtype))


def read_member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, path: str, dtype: np.dtype
) -> Any:
    try:
        with archive.open(member) as f:
            x = npy.read_array(f, allow_pickle=False, max_header_size=LONGEST_OF_NPY)
            f.read()  # to its end, where its checksum is compared
    except WRONG as error:
        raise damaged(path, f"{name!r} is damaged ({first_line(error)})") from None
    return x.astype(dtype, order="C", copy=False)


def with_dtypes(found: dict[str, Stored], path: str) -> dict[str, Stored]:
    """The arrays with the dtypes that NumPy does not know; void of two bytes is bfloat16 of another
    program.
    """
    words: Any = {}
    if EXTENDED_DTYPES in found:
        try:
            words = json.loads(found.pop(EXTENDED_DTYPES).read().tobytes())
            words = {name: extended(word) for name, word in words.items()}
        except WRONG as error:
            raise damaged(path, f"its record of dtypes is damaged ({first_line(error)})") from None
    for name, x in found.items():
        if x.dtype.kind != "V" or x.dtype.names:
            continue
        dtype = words.get(name, BFLOAT16 if x.dtype.itemsize == 2 else None)
        if dtype is None or dtype.itemsize != x.dtype.itemsize:
            why = f"{name!r} has a dtype that NumPy does not know, and the file does not say which"
            raise damaged(path, why, fix="a file written by ge2.io.save, or safetensors")
        found[name] = Stored(dtype, x.shape, partial(viewed, x, dtype))
    return found


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class."""
    return (str(error).splitlines() or [type(error).__name__])[0][:100]


def extended(word: str) -> np.dtype:
    return next(dtype for dtype in EXTENDED if dtype.name == word)


def viewed(x: Stored, dtype: np.dtype) -> Any:
    return x.read().view(dtype)


# -------- The safetensors format: the length of a header, the header as JSON, and the arrays' bytes.
# A header has a dtype, a shape and a range of bytes for each name. Ranges cover all bytes behind the
# header once. https://huggingface.co/docs/safetensors describes the format.


DTYPES: Final = {
    "BOOL": np.dtype(bool), "C64": np.dtype(np.complex64),
    **{f"{kind.upper()}{8 * n}": np.dtype(f"<{kind}{n}") for kind in "iu" for n in (1, 2, 4, 8)},
    **{f"F{8 * n}": np.dtype(f"<f{n}") for n in (2, 4, 8)}, "BF16": BFLOAT16,
    "F8_E4M3": FP8[0], "F8_E5M2": FP8[1], "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}  # fmt: skip
NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
METADATA: Final = "__metadata__"
ABOUT: Final = {"format": "pt"}  # Hugging Face's loaders refuse a file that names no such format
LONGEST: Final = 100_000_000  # bytes of a header, as the format's own library limits it
FIELDS: Final = {"dtype", "shape", "data_offsets"}


def write_tensors(file: BinaryIO, arrays: Mapping[str, Any], host: Any) -> None:
    """Writes arrays, each fetched by `host` when its turn comes; wider dtypes first, so that
    all are aligned.
    """
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {METADATA: ABOUT}
    end = 0
    for name in order:
        dtype = arrays[name].dtype.newbyteorder("=")
        begin, end = end, end + dtype.itemsize * math.prod(arrays[name].shape)
        shape = list(arrays[name].shape)
        header[name] = {"dtype": NAMES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for name in order:
        x = np.ascontiguousarray(host(arrays[name]))
        x = x.astype(x.dtype.newbyteorder("<"), copy=False)
        file.write(x.reshape(-1).view(np.uint8).data)


def open_tensors(file: BinaryIO, path: str) -> dict[str, Stored]:
    """The arrays of an open file. FileError if it is not of the format, or not whole."""
    size = file.seek(0, 2)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        why = f"its header is to have {length} bytes, and the file has {size}" if size >= 8 else ""
        raise damaged(path, why or f"it has {size} bytes, and a header begins with 8")
    if length > LONGEST:
        raise damaged(path, f"its header is to have {length} bytes; the format allows {LONGEST}")
    found = entries(parsed(file.read(length), path), path)
    check_ranges(found, size - 8 - length, path)
    return {
        name: Stored(
            dtype, shape, partial(read_tensor, file, path, dtype, shape, 8 + length + begin)
        )
        for name, (dtype, shape, begin, _) in found.items()
    }


def read_tensor(
    file: BinaryIO, path: str, dtype: np.dtype, shape: tuple[int, ...], at: int
) -> np.ndarray[Any, Any]:
    x = np.empty(shape, dtype)
    file.seek(at)
    if file.readinto(x.reshape(-1).view(np.uint8)) != x.nbytes:  # type: ignore[attr-defined]
        raise damaged(path, "it was cut short while it was read")
    return x if dtype.isnative else x.astype(dtype.newbyteorder("="))


def parsed(text: bytes, path: str) -> dict[str, Any]:
    """The header as a dict without the metadata."""
    try:
        found = json.loads(text.decode(), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        why = f"its header is no JSON ({str(error)[:100]})"
        raise damaged(path, why, fix="a file in the safetensors format") from None
    if not isinstance(found, dict):
        raise damaged(path, "its header is no JSON object", fix="a file in the safetensors format")
    found.pop(METADATA, None)
    return found


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def entries(
    header: Mapping[str, Any], path: str
) -> dict[str, tuple[np.dtype, tuple[int, ...], int, int]]:
    """Dtype, shape, and range of bytes by name."""
    found = {}
    for name, entry in header.items():
        if why := wrong_name(name):
            raise damaged(path, f"the name {name!r:.100} is refused: {why}", "another file")
        if not isinstance(entry, dict) or entry.keys() != FIELDS:
            raise damaged(path, f"its entry {name!r} has not the fields {', '.join(FIELDS)}")
        dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
        if dtype is None:
            why = f"{name!r} has the dtype {entry['dtype']!r:.40}, which NumPy and ml_dtypes lack"
            raise damaged(path, why, f"one of {', '.join(DTYPES)}")
        shape, offsets = entry["shape"], entry["data_offsets"]
        if not (counts(shape) and counts(offsets) and len(offsets) == 2 and len(shape) <= 64):
            raise damaged(path, f"shape and offsets of {name!r} are not lists of sizes")
        begin, end = offsets
        if end - begin != dtype.itemsize * math.prod(shape):
            words = f"{end - begin} bytes for {entry['dtype']} of shape {tuple(shape)}"
            raise damaged(path, f"{name!r} is to have {words:.200}")
        found[name] = dtype, tuple(shape), begin, end
    return found


def counts(x: Any) -> bool:
    return isinstance(x, list) and all(type(n) is int and 0 <= n < 1 << 62 for n in x)


def check_ranges(found: Mapping[str, tuple[Any, Any, int, int]], size: int, path: str) -> None:
    """FileError unless the ranges cover `size` bytes, each once."""
    ranges = sorted((begin, end, name) for name, (_, _, begin, end) in found.items())
    last = ranges[-1][1] if ranges else 0
    if last > size:
        raise damaged(path, f"it is cut short: {size} of {last} bytes of arrays are there")
    for (_, end, before), (begin, _, name) in pairwise([(0, 0, ""), *ranges]):
        if begin < end:
            raise damaged(path, f"{before!r} and {name!r} overlap", "another file")
        if begin > end:
            raise damaged(path, f"{begin - end} bytes before {name!r} belong to no array")
    if last < size:
        raise damaged(path, f"{size - last} bytes at its end belong to no array")


@final
@record
class Format:
    """A format of files, by how arrays are written and found; `lacks`: dtypes that it has no name for."""

    write: Callable[[BinaryIO, Mapping[str, Any], Any], None]
    opened: Callable[[BinaryIO, str], dict[str, Stored]]
    lacks: Callable[[np.dtype], bool]


FORMATS: Final = {
    ".safetensors": Format(write_tensors, open_tensors, lambda dtype: dtype not in NAMES),
    ".npz": Format(write_archive, open_archive, lambda dtype: False),
}
