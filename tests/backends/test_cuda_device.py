"""The driver is asked through its library, and a GPU keeps the device's
contract: tried without either.
"""

from __future__ import annotations

import gc
import shutil
import subprocess
import threading
from contextlib import nullcontext
from contextvars import copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from ge2.base.config import config
from ge2.base.errors import CompileError, CompilerTrouble, DeviceError, InputError
from ge2.targets.cuda import load as driver_module
from ge2.targets.cuda.launch import library_call
from ge2.targets.cuda.limits import H200, KB
from ge2.targets.cuda.load import Driver, arena, driver, nvrtc
from ge2.targets.cuda.load import gpu as module
from ge2.targets.cuda.load.gpu import CudaDevice, gpu
from ge2.targets.cuda.load.nvrtc import compile

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

# What the driver's library says on a machine with an H200, and on others.
LIBCUDA = """
#include <string.h>
#include <stddef.h>
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuInit(unsigned flags) { return STATUS; }
int cuGetErrorName(int e, const char **t) { *t = e == 999 ? "CUDA_ERROR_UNKNOWN" : 0; return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *d, int n) { *d = n + 40; return 0; }
int cuDeviceGetName(char *t, int n, int d) {
    strncpy(t, d == 40 ? "NVIDIA H200" : "NVIDIA A10", n);
    return 0;
}
int cuDeviceTotalMem_v2(size_t *n, int d) { *n = 150000000000; return 0; }
int cuDeviceGetAttribute(int *v, int which, int d) {
    switch (which) {
    case 75: *v = d == 40 ? 9 : 8; break;
    case 76: *v = d == 40 ? 0 : 6; break;
    case 16: *v = 132; break;
    case 97: *v = 232448; break;
    case 36: *v = 3201000; break;
    case 37: *v = 6144; break;
    case 87: *v = d == 40 ? 2 : 64; break;
    default: *v = which; break;
    }
    return 0;
}
"""


@pytest.fixture
def libcuda(tmp_path, monkeypatch):
    def make(status: int) -> None:
        source, path = tmp_path / "cuda.c", tmp_path / "libcuda.so.1"
        source.write_text(LIBCUDA)
        subprocess.run(
            ["cc", "-shared", "-fPIC", f"-DSTATUS={status}", "-o", path, source], check=True
        )
        monkeypatch.setattr(driver_module, "LIBRARY", str(path))
        monkeypatch.setattr(driver_module, "KERNEL_MODULE", str(tmp_path / "version"))

    driver.cache_clear()
    yield make
    driver.cache_clear()


@needs_compiler
def test_the_driver_tells_its_gpus(libcuda, tmp_path):
    (tmp_path / "version").write_text("580.159.04\n")
    libcuda(0)
    found = driver()
    assert (found.cuda, found.version, found.trouble) == ((13, 0), "580.159.04", "")
    h200, a10 = found.gpus
    assert (h200.name, h200.architecture, h200.multiprocessors) == ("NVIDIA H200", "sm_90a", 132)
    assert (h200.shared_optin, h200.memory) == (227 * KB, 150_000_000_000)
    assert h200.bandwidth == pytest.approx(4.917e12, rel=1e-3)
    assert (h200.threads_per_block, h200.shared_static, h200.l2) == (1, 8, 38)
    assert (a10.name, a10.architecture) == ("NVIDIA A10", "sm_86")
    assert (h200.double, a10.double) == (2, 64)


@needs_compiler
def test_a_driver_without_gpus(libcuda):
    libcuda(100)
    assert driver() == Driver((13, 0), "", ())


@needs_compiler
def test_a_driver_that_does_not_work(libcuda):
    libcuda(999)
    assert driver() == Driver((13, 0), "", (), "cuInit says CUDA_ERROR_UNKNOWN")
    gpu.cache_clear()
    with pytest.raises(DeviceError, match="CUDA_ERROR_UNKNOWN"):
        gpu(0)


def test_no_driver(libcuda, monkeypatch):
    monkeypatch.setattr(driver_module, "LIBRARY", "libcuda.so.nowhere")
    assert driver() is None
    gpu.cache_clear()
    with pytest.raises(DeviceError, match="no NVIDIA driver"):
        gpu(0)


@pytest.mark.parametrize("number", [2, -1])
def test_a_gpu_that_is_not_there(monkeypatch, number):
    monkeypatch.setattr(module, "driver", lambda: Driver((13, 0), "", (H200, H200)))
    with pytest.raises(DeviceError, match=f"no GPU {number}: this process sees 2"):
        gpu.__wrapped__(number)


# -------------------------------------------------------------------- the contract, with a stand-in


class DriverError(RuntimeError):
    pass


class Loaded:
    """What CuPy's Module does, as far as it is used: a cubin has the kernels
    that its bytes name.
    """

    def load(self, cubin: bytes) -> None:
        if b"bad" in cubin:
            raise DriverError("CUDA_ERROR_INVALID_IMAGE")
        self.cubin = cubin

    def get_function(self, name: str) -> SimpleNamespace:
        if name.encode() not in self.cubin:
            raise DriverError("CUDA_ERROR_NOT_FOUND")
        return SimpleNamespace(ptr=name)


class RawModule:
    """What CuPy documents: a file with a cubin, which is read when something of it is asked for."""

    paths: ClassVar[list[str]] = []

    def __init__(self, *, path: str) -> None:
        self.path = path
        self.paths.append(path)

    @property
    def module(self) -> Loaded:
        found = Loaded()
        found.load(Path(self.path).read_bytes())
        return found


@pytest.fixture(params=["from memory", "by a path"])
def device(request, monkeypatch):
    monkeypatch.setattr(arena, "_by_path", {})
    asked = []
    driver = SimpleNamespace(
        CUDADriverError=DriverError,
        funcGetAttribute=lambda which, f: {1: 400}[which],
        funcSetAttribute=lambda f, which, value: asked.append((f, which, value)),
    )
    cuda = SimpleNamespace(
        driver=driver, Device=lambda n: nullcontext(n), get_current_stream=lambda: "stream"
    )
    if request.param == "from memory":
        cuda.Module = Loaded
    made = CudaDevice(1, H200, SimpleNamespace(cuda=cuda, RawModule=RawModule))
    return SimpleNamespace(device=made, asked=asked)


SOURCE = 'extern "C" __global__ void twice(float *a) { a[threadIdx.x] *= 2.0f; }'


@pytest.fixture(autouse=True)
def kept(tmp_path):
    with config.using(cache_dir=str(tmp_path / "cache")):
        yield


def nvrtc_is_there() -> bool:
    try:
        return bool(module.compile(SOURCE, "sm_90a").cubin)
    except CompilerTrouble:
        return False


needs_nvrtc = pytest.mark.skipif(not nvrtc_is_there(), reason="no NVRTC")


@needs_nvrtc
def test_a_module_is_remembered_while_somebody_has_it(device):
    first = device.device.module(SOURCE)
    assert device.device.module(SOURCE) is first
    assert first.binary.arch == "sm_90a"
    assert first.get_function("twice") is first.get_function("twice")
    assert device.device.module(SOURCE.replace("2.0f", "3.0f")) is not first
    del first
    gc.collect()
    assert len(device.device._modules) == 0


@needs_nvrtc
def test_both_ways_load_the_same_cubin_of_the_same_cache(device, monkeypatch):
    """A path is of one cubin, and goes when it was read."""
    monkeypatch.setattr(RawModule, "paths", [])
    first = device.device.module(SOURCE)
    assert first._loaded.cubin == first.binary.cubin == compile(SOURCE, "sm_90a").cubin
    other = device.device.module(SOURCE.replace("2.0f", "3.0f"))
    del first
    gc.collect()
    assert device.device.module(SOURCE)._loaded.cubin != other._loaded.cubin
    paths = [*RawModule.paths]
    assert len({*paths}) == len(paths) == (0 if hasattr(device.device.xp.cuda, "Module") else 2)
    assert not any(Path(path).parent.exists() for path in paths)


@needs_nvrtc
def test_a_kernel_may_ask_for_all_shared_memory(device):
    device.device.module(SOURCE).get_function("twice")
    assert device.asked == [("twice", 8, 227 * KB - 400)]


@needs_nvrtc
def test_a_kernel_that_is_not_there(device):
    with pytest.raises(InputError, match="no kernel thrice\n  try  twice"):
        device.device.module(SOURCE).get_function("thrice")


@needs_nvrtc
def test_a_cubin_that_the_driver_refuses(device):
    with pytest.raises(CompileError, match=r"refuses a cubin for sm_90a: CUDA_ERROR_INVALID_IMAGE"):
        device.device.module(SOURCE.replace("twice", "bad"))


@needs_nvrtc
def test_sources_are_prepared_together(device, monkeypatch):
    sources = [SOURCE.replace("2.0f", f"{n}.0f") for n in range(3)]
    device.device.prepare(sources)
    monkeypatch.setattr("ge2.targets.cuda.load.nvrtc.loaded_nvrtc", None)
    modules = [device.device.module(source) for source in sources]
    assert len({module.binary.key for module in modules}) == 3
    assert device.device.stream() == "stream"
    assert repr(device.device) == "CudaDevice(1, H200)"


def of_cuda(monkeypatch, *cuda):
    monkeypatch.setattr(library_call, "driver", lambda: Driver(cuda, "", (H200,)) if cuda else None)


@needs_nvrtc
def test_the_kernel_that_decides_is_loaded_once_as_ptx(device, monkeypatch):
    of_cuda(monkeypatch, 13, 0)
    assert device.device.decider == "ge2_decide" and device.device.switches
    monkeypatch.setattr(library_call, "ptx", None)
    assert device.device.decider == "ge2_decide"


def test_an_older_driver_decides_less(device, monkeypatch):
    of_cuda(monkeypatch, 12, 3)
    assert device.device.decider == 0 and not device.device.switches
    of_cuda(monkeypatch, 12, 7)
    assert not device.device.switches
    of_cuda(monkeypatch)
    assert not device.device.switches


@pytest.mark.parametrize(
    "trouble", [CompilerTrouble("no NVRTC"), DriverError("CUDA_ERROR_NOT_FOUND")]
)
def test_what_does_not_load_decides_nothing(device, monkeypatch, trouble):
    def refused(*_):
        raise trouble

    of_cuda(monkeypatch, 13, 0)
    monkeypatch.setattr(library_call, "ptx", refused)
    assert device.device.decider == 0


def test_no_cupy(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    with pytest.raises(
        DeviceError,
        match="through CuPy, which cannot be imported.*\n  try  pip install 'ge2\\[cuda13\\]'",
    ):
        module.cupy()


def test_the_attributes_are_those_of_the_driver():
    """Their numbers, as NVIDIA's own binding has them."""
    bindings = pytest.importorskip("cuda.bindings.driver")
    names = {
        "multiprocessors": "MULTIPROCESSOR_COUNT",
        "threads_per_block": "MAX_THREADS_PER_BLOCK",
        "threads_per_multiprocessor": "MAX_THREADS_PER_MULTIPROCESSOR",
        "registers_per_multiprocessor": "MAX_REGISTERS_PER_MULTIPROCESSOR",
        "shared_static": "MAX_SHARED_MEMORY_PER_BLOCK",
        "shared_optin": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
        "shared_per_multiprocessor": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
        "l2": "L2_CACHE_SIZE",
        "double": "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO",
    }
    known = bindings.CUdevice_attribute
    assert {
        word: int(getattr(known, f"CU_DEVICE_ATTRIBUTE_{name}")) for word, name in names.items()
    } == driver_module.ATTRIBUTES
    functions = bindings.CUfunction_attribute
    assert int(functions.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) == module.FIXED_SHARED
    assert int(functions.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) == module.MOST_SHARED


@needs_nvrtc
def test_several_threads_compile_at_once(device, monkeypatch):
    """Nothing of the device's holds one back while another is with the compiler."""
    met, asked, found = threading.Barrier(2, timeout=30), nvrtc._asked, []

    def slowly(tools, order):
        met.wait()  # each waits for the other to be here too
        return asked(tools, order)

    monkeypatch.setattr(nvrtc, "_asked", slowly)

    def ask(n):
        found.append(device.device.module(SOURCE.replace("2.0f", f"{n}.25f")))

    threads = [threading.Thread(target=copy_context().run, args=(ask, n)) for n in (81, 82)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert len(found) == 2


@needs_nvrtc
def test_sources_that_differ_in_comments_are_one_module(device):
    first = device.device.module(SOURCE + " /* f32[256] */")
    assert device.device.module(SOURCE + " /* f32[192] */") is first
    assert device.device.module("\n" + SOURCE) is not first  # machine code knows its lines
