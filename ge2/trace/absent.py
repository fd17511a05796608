"""Attributes of NumPy's arrays that a traced value has not, and what to write instead of each."""

from __future__ import annotations

from typing import Final

LAYOUT: Final = "np.copy(x) where layout matters: a traced value has no memory yet"
BYTES: Final = "x.astype(dtype), or the function of the array before it is traced"
FILES: Final = "ge2.debug.callback(f, x), or the array after the function has returned"

# fmt: off
INSTEAD: Final[dict[str, str]] = {
    **dict.fromkeys(("base", "data", "ctypes", "flags", "setflags", "strides"), LAYOUT),
    **dict.fromkeys(("byteswap", "getfield", "setfield"), BYTES),
    **dict.fromkeys(("dump", "dumps", "tobytes", "tofile"), FILES),
    "device":    "jit(f, device=...), or the device of the array before it is traced",
    "itemset":   "x[i] = value",
    "newbyteorder": BYTES,
    "ptp":       "np.ptp(x)",
    "resize":    "np.resize(x, shape), which gives a new array",
    "to_device": "the device of the arguments",
}
# fmt: on
