"""The safetensors format: the length of a header, the header as JSON, and the arrays' bytes.

A header has a dtype, a shape and a range of bytes for each name. Ranges cover all bytes behind the
header once. https://huggingface.co/docs/safetensors describes the format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any, BinaryIO, Final

import ml_dtypes
import numpy as np

from ge2.base.arrays import BFLOAT16, FP8
from ge2.io.files import Stored, damaged, wrong_name

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


def write(file: BinaryIO, arrays: Mapping[str, Any], host: Any) -> None:
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


def opened(file: BinaryIO, path: str) -> dict[str, Stored]:
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
        name: Stored(dtype, shape, partial(read, file, path, dtype, shape, 8 + length + begin))
        for name, (dtype, shape, begin, _) in found.items()
    }


def read(
    file: BinaryIO, path: str, dtype: np.dtype, shape: tuple[int, ...], at: int
) -> np.ndarray[Any, Any]:
    x = np.empty(shape, dtype)
    file.seek(at)
    if file.readinto(x.reshape(-1).view(np.uint8)) != x.nbytes:  # type: ignore[attr-defined]
        raise damaged(path, "it was cut short while it was read")
    return x if dtype.isnative else x.astype(dtype.newbyteorder("="))


# ------------------------------------------------------------------------------------------ header


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
