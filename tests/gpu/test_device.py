"""A GPU runs the cubins that NVRTC makes: the chosen GPU, on the current
stream, with all its memory.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ge2.base.cache import cache
from ge2.base.config import config
from ge2.base.errors import CompileError, DeviceError, InputError
from ge2.base.source import Ge2Warning
from ge2.cli import main
from ge2.targets.cuda.limits import double_ratio
from ge2.targets.cuda.load import driver
from ge2.targets.cuda.load.gpu import cupy, current_gpu, gpu

AXPY = """
extern "C" __global__ void __launch_bounds__(256)
axpy(const float *__restrict__ a, const float *__restrict__ b, float *c_out, int n_i, float k) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n_i) c_out[i] = a[i] * k + b[i];
}
"""
SHARED = """
extern "C" __global__ void __launch_bounds__(1024) backwards(const float *a, float *b_out, int n_i) {
    extern __shared__ float row[];
    for (int i = threadIdx.x; i < n_i; i += 1024) row[i] = a[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n_i; i += 1024) b_out[i] = row[n_i - 1 - i];
}
"""
SLOW = """
extern "C" __global__ void slow(float *a, long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
    a[0] += 1.0f;
}
"""


@pytest.fixture(autouse=True)
def kept(tmp_path):
    with config.using(cache_dir=str(tmp_path / "cache")):
        yield cache()


@pytest.fixture
def device():
    return gpu(0)


def launch_axpy(device, n=1000, dtype=np.float32):
    xp = device.xp
    a, b = xp.arange(n, dtype=dtype), xp.ones(n, dtype)
    c = xp.empty_like(a)
    kernel = device.module(AXPY).get_function("axpy")
    kernel(((n + 255) // 256,), (256,), (a, b, c, np.int32(n), np.float32(0.5)))
    return c


ATTRIBUTES = {  # of cudaDeviceAttr
    "MaxSharedMemoryPerBlock": 8,
    "MultiProcessorCount": 16,
    "L2CacheSize": 38,
    "MaxThreadsPerMultiProcessor": 39,
    "ComputeCapabilityMajor": 75,
    "ComputeCapabilityMinor": 76,
    "MaxSharedMemoryPerBlockOptin": 97,
}


def test_limits_are_those_of_the_device(device):
    """CuPy's runtime says the same as the driver."""
    runtime = device.xp.cuda.runtime

    def attribute(name):
        return runtime.deviceGetAttribute(ATTRIBUTES[name], device.number)

    limits = device.limits
    assert limits.name == runtime.getDeviceProperties(0)["name"].decode()
    assert limits.multiprocessors == attribute("MultiProcessorCount")
    assert limits.shared_optin == attribute("MaxSharedMemoryPerBlockOptin")
    assert limits.shared_static == attribute("MaxSharedMemoryPerBlock")
    assert limits.l2 == attribute("L2CacheSize")
    assert limits.threads_per_multiprocessor == attribute("MaxThreadsPerMultiProcessor")
    capability = attribute("ComputeCapabilityMajor"), attribute("ComputeCapabilityMinor")
    assert limits.architecture.rstrip("a") == "sm_{}{}".format(*capability)
    assert (capability == (9, 0)) == (limits.architecture == "sm_90a")
    assert limits.memory == device.xp.cuda.Device(0).mem_info[1]
    assert 1e11 < limits.bandwidth < 2e13
    assert limits.double == double_ratio(limits.architecture)


def test_a_kernel_runs(device):
    found = device.xp.asnumpy(launch_axpy(device))
    np.testing.assert_array_equal(found, np.arange(1000, dtype=np.float32) * np.float32(0.5) + 1)


def test_addresses_serve_as_arrays(device):
    xp = device.xp
    a = xp.arange(300, dtype=np.float32)
    kernel = device.module(AXPY).get_function("axpy")
    address = np.uint64(a.data.ptr)
    kernel((2,), (256,), (address, address, address, np.int32(300), np.float32(3.0)))
    np.testing.assert_array_equal(xp.asnumpy(a), np.arange(300, dtype=np.float32) * 4)


def test_figures_are_those_of_the_driver(device):
    """What ptxas says while it compiles is what the driver says of the loaded function."""
    module = device.module(SHARED + AXPY)
    ask = device.xp.cuda.driver.funcGetAttribute
    for usage in module.binary.kernels:
        function = module.get_function(usage.name)
        assert (ask(4, function.ptr), ask(3, function.ptr)) == (usage.registers, usage.stack)
        assert ask(1, function.ptr) == usage.shared
    assert {usage.name for usage in module.binary.kernels} == {"axpy", "backwards"}


def test_all_shared_memory_can_be_asked_for(device):
    xp, most = device.xp, device.limits.shared_optin
    n = most // 4
    a = xp.arange(n, dtype=np.float32)
    b = xp.empty_like(a)
    device.module(SHARED).get_function("backwards")(
        (1,), (1024,), (a, b, np.int32(n)), shared_mem=most
    )
    np.testing.assert_array_equal(xp.asnumpy(b), np.arange(n, dtype=np.float32)[::-1])


def test_the_current_stream_is_taken(device):
    """The kernel of a busy stream is not waited for on another, and is by its own."""
    xp = device.xp
    kernel = device.module(SLOW).get_function("slow")
    a = xp.zeros(1, np.float32)
    xp.cuda.Device(0).synchronize()
    stream = xp.cuda.Stream(non_blocking=True)
    with stream:
        assert device.stream() == stream
        kernel((1,), (1,), (a, np.int64(200_000_000)))
        assert not stream.done
    assert device.stream() != stream
    stream.synchronize()
    assert a.get()[0] == 1.0


def test_a_launch_can_be_captured(device):
    xp = device.xp
    a, b, c = xp.arange(256, dtype=np.float32), xp.ones(256, np.float32), xp.zeros(256, np.float32)
    kernel = device.module(AXPY).get_function("axpy")
    stream = xp.cuda.Stream(non_blocking=True)
    xp.cuda.Device(0).synchronize()
    with stream:
        stream.begin_capture()
        kernel((1,), (256,), (a, b, c, np.int32(256), np.float32(2.0)))
        graph = stream.end_capture()
        assert not c.get(stream=stream).any()
        graph.launch(stream=stream)
        stream.synchronize()
    np.testing.assert_array_equal(c.get(), np.arange(256, dtype=np.float32) * 2 + 1)


def test_what_a_cubin_is_not(device):
    with pytest.raises(InputError, match="no kernel other\n  try  axpy"):
        device.module(AXPY).get_function("other")
    with pytest.raises(CompileError, match="NVRTC refuses axpy.cu"):
        device.module(AXPY.replace("a[i]", "wrong[i]"))


def test_a_cubin_for_another_gpu_is_refused(device, monkeypatch):
    from dataclasses import replace

    from ge2.targets.cuda.load.gpu import CudaDevice

    other = "sm_80" if device.limits.architecture != "sm_80" else "sm_90"
    wrong = CudaDevice(0, replace(device.limits, architecture=other), device.xp)
    with pytest.raises(CompileError, match=f"refuses a cubin for {other}: .*NO_BINARY_FOR_GPU"):
        wrong.module(AXPY)


def test_from_a_damaged_cache_and_from_none(device, kept, tmp_path):
    from ge2.targets.cuda.load import nvrtc

    nvrtc._binaries.clear()  # what another test left
    device._modules.clear()
    first = device.module(AXPY)
    path = Path(kept.path, first.binary.key)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    nvrtc._binaries.clear()
    del first
    with pytest.warns(Ge2Warning, match="is made again"):
        launch_axpy(device)
    assert path.read_bytes()[-1000:] == whole[-1000:]
    with config.using(cache_dir="none"):
        nvrtc._binaries.clear()
        launch_axpy(device)


def test_many_modules_are_compiled_at_once(device):
    sources = [AXPY.replace("* k", f"* k * {n}.0f") for n in range(8)]
    device.prepare(sources)
    modules = [device.module(source) for source in sources]
    assert len({module.binary.key for module in modules}) == 8
    xp = device.xp
    one, c = xp.ones(1, np.float32), xp.empty(1, np.float32)
    for n, module in enumerate(modules):
        module.get_function("axpy")((1,), (256,), (one, one, c, np.int32(1), np.float32(2.0)))
        assert c.get()[0] == 2.0 * n + 1


def test_modules_go_when_nobody_has_them(device):
    for n in range(200):
        device.module(AXPY.replace("* k", f"* k * {n}.5f"))
    assert len(device._modules) <= 1


def test_each_device_has_its_own_modules():
    count = len(driver().gpus)
    if count < 2:
        pytest.skip("one GPU")
    for number in range(count):
        device = gpu(number)
        with device.here():
            assert current_gpu() is device
            found = launch_axpy(device)
            assert found.device.id == number
            np.testing.assert_array_equal(
                found.get(), np.arange(1000, dtype=np.float32) * np.float32(0.5) + 1
            )
    assert gpu(0).module(AXPY) is not gpu(1).module(AXPY)
    assert gpu(0).module(AXPY).binary is gpu(1).module(AXPY).binary


def test_the_current_device_is_found():
    assert current_gpu() is gpu(cupy().cuda.runtime.getDevice())
    with pytest.raises(DeviceError, match="no GPU 99"):
        gpu(99)


def test_the_trial_and_the_doctor(capsys):
    done = subprocess.run([sys.executable, "-m", "ge2.cli.doctor"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "it gives the right result on" in done.stdout
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "ok      a kernel" in said
    assert driver().gpus[0].name in said
