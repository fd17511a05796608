"""The driver that is the CPU's (`fake_cuda.c`), and copies of the extension for it."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from ge2.base import compiler
from ge2.base.detect import toolchain
from ge2.targets.cuda.launch import Address, HostScalar, LaunchList
from ge2.targets.cuda.launch.library_call import (
    NAME,
    STREAM,
    Function,
    LibraryCall,
    Passed,
    Table,
    parts,
)

HERE = Path(__file__).parent


def fake_driver(folder, *options):
    """The driver, compiled into a folder."""
    path = folder / "fake_cuda.so"
    words = [
        "cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", *options, str(HERE / "fake_cuda.c"),
    ]  # fmt: skip
    subprocess.run([*words, "-o", str(path)], check=True)
    found = ctypes.CDLL(str(path))
    found.context_of_fake.restype = ctypes.c_void_p
    found.path = str(path)
    return found


def launches_extension():
    """The extension, which loads its driver once a process: a copy that is compiled once, and
    loaded anew.
    """
    source, flags, key = parts()
    flags = (*flags, "-O0")
    compiler._libraries.pop(compiler.library_key(toolchain(), source, flags, key), None)
    return compiler.extension(source, NAME, flags, key)


def seen(driver, name):
    return ctypes.c_int.in_dll(driver, name).value


def set_(driver, name, value):
    ctypes.c_int.in_dll(driver, name).value = value


def address(x):
    return x.ctypes.data


def on_device(x):
    """As CuPy's array tells its place."""
    return SimpleNamespace(data=SimpleNamespace(ptr=address(x)), host=x)


NUMBER = HostScalar("number", 4)


def at(array, offset=0):
    """A place in an array by its number."""
    return Address(str(array), offset)


def launch_list(items, arrays, numbers=(), callers=(), ready=None, captured=True):
    """A list whose arrays are named by their numbers."""
    names, theirs = tuple(map(str, range(arrays))), frozenset(map(str, callers))
    return LaunchList(tuple(items), names, tuple(numbers), theirs, ready, captured)


def address_of(driver, name):
    """The address of a function of the driver."""
    return ctypes.cast(getattr(driver, name), ctypes.c_void_p).value


def fake_product(driver, n):
    """A library's product of n elements, by its launch's arguments: two factors, the result."""
    first, other, result = map(Passed, range(3))
    words = (n, 1, 1, first, 1, other, 1, 1, result, 1, 1, 1, 1, 1, 1, STREAM)
    return LibraryCall("fake", [Function("fake_matmul", address_of(driver, "fake_matmul"), words)])


def biased_product(driver, n, descriptor):
    """Calls in order, with numbers of all kinds, and addresses in memory that functions read: of
    (x, bias, out, a number), out = 2 * number * x + 0.5 * bias.
    """
    x, bias, out, number = map(Passed, range(4))
    words = {
        "fake_describe": (descriptor, -7, Table((bias,)), 8),
        "fake_biased": (
            n, 2.0, descriptor, Table((x, out, 9)), np.float32(0.5), -5, Table((number,)), STREAM,
            200, 1 << 40,
        ),
        "fake_end": (),
    }  # fmt: skip
    found = [Function(name, address_of(driver, name), given) for name, given in words.items()]
    return LibraryCall("fake", found, explained="number {}".format)
