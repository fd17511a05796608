"""The driver that is the CPU's (`fake_cuda.c`), and copies of the extension for it."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace

from ge2.base.toolchain.compiler import extension
from ge2.targets.cuda.launch.extension import parts

HERE = Path(__file__).parent


def fake_driver(folder, *options):
    """The driver, compiled into a folder."""
    path = folder / "fake_cuda.so"
    words = [
        "cc",
        "-O1",
        "-Wall",
        "-Werror",
        "-shared",
        "-fPIC",
        *options,
        str(HERE / "fake_cuda.c"),
    ]
    subprocess.run([*words, "-o", str(path)], check=True)
    found = ctypes.CDLL(str(path))
    found.context_of_fake.restype = ctypes.c_void_p
    found.path = str(path)
    return found


def launches_extension(name):
    """The extension, which loads its driver once a process: a copy of it by a name of its own."""
    source, flags, key = parts()
    return extension(source.replace("ge2_launches", name), name, (*flags, "-O0"), key)


def seen(driver, name):
    return ctypes.c_int.in_dll(driver, name).value


def set_(driver, name, value):
    ctypes.c_int.in_dll(driver, name).value = value


def address(x):
    return x.ctypes.data


def on_device(x):
    """As CuPy's array tells its place."""
    return SimpleNamespace(data=SimpleNamespace(ptr=address(x)), host=x)
