"""The limits of a GPU, as kernels are planned for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

from ge2.base.arrays import COMPLEX128, FLOAT64
from ge2.base.record import hashed_record
from ge2.ir import Eqn, GraphOp
from ge2.program import Program, computing
from ge2.targets.cuda.tuning import Tuning

# -------- What a GPU has and allows: as its driver says, or as NVIDIA documents it, for machines
# without one.


KB: Final = 1 << 10
MB: Final = 1 << 20
GB: Final = 1 << 30

# Bytes of a kernel's parameters, as every driver takes them, and from CUDA 12.1 on.
PARAMETERS: Final = 4 * KB
MORE_PARAMETERS: Final = 32764

# The same on every GPU that CUDA runs on: blocks along each axis of a grid, threads along each axis
# of a block, and of a warp.
GRID_MOST: Final = (2**31 - 1, 65535, 65535)
BLOCK_MOST: Final = (1024, 1024, 64)
WARP: Final = 32


@final
@hashed_record
class Limits:
    """Sizes in bytes.

    `shared_optin`: of shared memory a block, beyond 48 KB only where it is asked for.

    `double`: how many times as long as in float32 a multiply-add takes in float64. `emulated`: how
    many blocks may wait for each other where multiprocessors are not real. `grid`: blocks along
    each axis of a grid, at most. `parameters`: of a kernel, at most. `tuning`: what kernels for it are planned by.

    >>> H200.architecture, H200.multiprocessors, H200.shared_optin // 1024
    ('sm_90a', 132, 227)
    """

    name: str
    architecture: str  # as NVRTC takes it
    multiprocessors: int
    threads_per_block: int = 1024
    threads_per_multiprocessor: int = 2048
    registers_per_multiprocessor: int = 65536
    registers_per_thread: int = 255
    shared_static: int = 48 * KB
    shared_optin: int = 227 * KB
    shared_per_multiprocessor: int = 228 * KB
    l2: int = 50 * MB
    memory: int = 80 * GB
    bandwidth: float = 3.35e12  # bytes a second, of memory
    clock: float = 1.4e9  # of multiprocessors a second, under load, as an H200 took its time
    double: int = 2
    emulated: int = 0
    grid: tuple[int, int, int] = GRID_MOST
    parameters: int = MORE_PARAMETERS
    tuning: Tuning = Tuning()

    @property
    def generation(self) -> int:
        """The compute capability as one number: 90 for sm_90a; 0 of a name that is none."""
        digits = self.architecture.strip("sm_af")
        return int(digits) if digits.isdigit() else 0

    @property
    def threads(self) -> int:
        """Returns how many the device holds at once."""
        return self.multiprocessors * self.threads_per_multiprocessor

    @property
    def together(self) -> int:
        """Blocks that may wait for each other: one a multiprocessor, whatever it needs."""
        return self.emulated or self.multiprocessors

    @property
    def slow_in_double(self) -> bool:
        return self.double >= self.tuning.slow_double


# Tuning guides and data sheets of Ampere, Hopper and Blackwell; L2 of the H200
# as its driver reports it.
A100: Final = Limits(
    "A100",
    "sm_80",
    108,
    shared_optin=163 * KB,
    shared_per_multiprocessor=164 * KB,
    l2=40 * MB,
    bandwidth=2.039e12,
)
H100: Final = Limits("H100", "sm_90a", 132)
H200: Final = Limits("H200", "sm_90a", 132, l2=60 * MB, memory=141_000_000_000, bandwidth=4.8e12)
B200: Final = Limits("B200", "sm_100a", 148, l2=126 * MB, memory=180_000_000_000, bandwidth=7.7e12)

KNOWN: Final = (A100, H100, H200, B200)

# The chip of a program whose GPU is not known: of a text that is asked for without one, or a test.
ASSUMED: Final = H200

# Multiply-adds in float32 for one in float64, by compute capability: quotients of the
# table "Throughput of Native Arithmetic Instructions" in the CUDA C++ Programming
# Guide. A GPU that is there tells its own.
DOUBLE: Final = {
    "75": 32, "80": 2, "86": 64, "87": 64, "89": 64, "90": 2, "100": 2, "103": 64, "120": 64, "121": 64,
}  # fmt: skip

# Of a multiprocessor by compute capability: its threads, the kilobytes of shared memory that a block
# may ask for, and those of all blocks. From "Technical Specifications per Compute Capability" in the
# same guide.
MULTIPROCESSOR: Final = {
    "75": (1024, 64, 64), "80": (2048, 163, 164), "86": (1536, 99, 100), "87": (1536, 163, 164),
    "89": (1536, 99, 100), "90": (2048, 227, 228), "100": (2048, 227, 228), "103": (2048, 227, 228),
    "120": (1536, 99, 100), "121": (1536, 99, 100),
}  # fmt: skip


def multiprocessor(arch: str) -> tuple[int, int, int]:
    """Threads of a multiprocessor, and kilobytes of shared memory of a block and of all; of an
    architecture that we do not know, the least of its time.

    >>> multiprocessor("sm_90a"), multiprocessor("sm_999")
    ((2048, 227, 228), (1536, 99, 100))
    """
    return MULTIPROCESSOR.get(capability(arch), (1536, 99, 100))


def capability(arch: str) -> str:
    return arch.removeprefix("sm_").rstrip("af")


def double_ratio(arch: str) -> int:
    """Returns how much longer float64 takes than float32; of an architecture that we do not
    know, the worst there is.

    >>> double_ratio("sm_90a"), double_ratio("sm_89"), double_ratio("sm_103a")
    (2, 64, 64)
    """
    return DOUBLE.get(capability(arch), max(DOUBLE.values()))


# -------- What a kernel is planned by: how much of a GPU there is, whichever it is.


@final
@hashed_record
class Chip:
    """Multiprocessors, and of each of them its threads, its registers and the bytes of
    its shared memory; `most`: bytes that a single block may have, and
    `static` without asking; `thread_registers`: those of a thread at most; `l2`: bytes of
    the cache of all; `together`: blocks that may wait for each other; `grid`: blocks along each axis
    of a grid, at most; `tuning`: the numbers that are no limits.
    """

    multiprocessors: int
    threads: int
    registers: int
    shared: int
    most: int
    static: int
    thread_registers: int
    l2: int
    together: int = 1
    grid: tuple[int, int, int] = GRID_MOST
    tuning: Tuning = Tuning()

    @staticmethod
    def of(limits: Limits) -> Chip:
        return Chip(
            limits.multiprocessors,
            limits.threads_per_multiprocessor,
            limits.registers_per_multiprocessor,
            limits.shared_per_multiprocessor - limits.tuning.spare,
            limits.shared_optin - limits.tuning.spare,
            limits.shared_static,
            limits.registers_per_thread,
            limits.l2,
            limits.together,
            limits.grid,
            limits.tuning,
        )


# -------- Steps that compute in float64 on a GPU that has few units for it: a sentence with the
# user's line.


WIDE: Final = (FLOAT64, COMPLEX128)


def slow(eqn: Eqn, limits: Limits) -> str:
    """Returns what is said of a step that computes in float64 on such a GPU; nothing of any other."""
    found = in_double(eqn) if limits.slow_in_double else None
    if found is None:
        return ""
    at = f" at {found.source}" if found.source is not None else ""
    return f"computes in float64{at}, which {limits.name} does at 1/{limits.double} of the rate of float32"


def in_double(eqn: Eqn) -> Eqn | None:
    """The first equation of a step that computes on elements of float64, as
    those that move them do not.
    """
    if isinstance(eqn.op, GraphOp):
        found = (in_double(e) for graph in eqn.op.graphs() for e in graph.eqns)
        return next((e for e in found if e is not None), None)
    return eqn if is_wide(eqn) and computing(eqn).operations else None


def is_wide(eqn: Eqn) -> bool:
    types = [a.type for a in (*eqn.inputs, *eqn.outs)]
    return any(t.dtype in WIDE and not t.weak for t in types)


def slow_products(program: Program, limits: Limits) -> Iterator[str]:
    """The same of matrix products, which are no kernels of ours, as sentences."""
    for step in program.steps:
        if step.kind == "matmul" and (words := slow(step.eqn, limits)):
            yield f"a matrix product {words}"
