"""Many processes use one cache at once, some of them are killed: no reader sees
anything but what was put.

The program of each test is this file, run on its own, so that only what the cache needs is in the
processes that it forks. GE2_TEST_CACHE=full takes the numbers that the cache was accepted with.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path

from ge2.base.cache import Cache, content_key

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("GE2_TEST_CACHE") == "full"
PROCESSES, OPERATIONS, KEYS = 16, 2000 if FULL else 200, 200
KILLED = 200 if FULL else 60
KEY_NAMES = [content_key(str(i)) for i in range(KEYS)]


def run(program: str, folder: Path, *numbers: int) -> list[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    command = [
        sys.executable, "-W", "error::UserWarning", __file__, program, str(folder),
        *map(str, numbers),
    ]  # fmt: skip
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


def test_many_processes_at_once(tmp_path):
    wrong, hits, removed = map(int, run("operations", tmp_path, PROCESSES, OPERATIONS))
    assert wrong == 0
    assert hits > PROCESSES * OPERATIONS // 10  # or else nothing was tried
    assert removed > 0


def test_processes_killed_while_they_write(tmp_path):
    wrong, found, unfinished = map(int, run("killed", tmp_path, KILLED))
    assert wrong == 0
    assert found > 0
    # or else none was killed in the middle, which few may be by luck
    assert unfinished > 0 or not FULL
    kept = Cache(str(tmp_path))
    assert not [entry for entry in kept.entries(verify=True) if entry.trouble]


def test_a_reader_keeps_what_is_pruned_under_it(tmp_path):
    wrong, hits, removed = map(int, run("pruned", tmp_path, 3000 if FULL else 400))
    assert wrong == 0
    assert hits > 0 < removed


# ------------------------------------------------------------------------------------- the programs


def content(key: str, version: int) -> bytes:
    """What is put under a key: one can tell from it what it must be."""
    return f"{key} {version:06} ".encode() * (1 + version % 97)


def is_right(key: str, found: bytes) -> bool:
    version = found[len(key) + 1 : len(key) + 7]
    return version.isdigit() and found == content(key, int(version))


def each_forked(count, work) -> list[int]:
    """The sums of the tuples that `work(i)` returns in as many children."""
    pipes = []
    for i in range(count):
        ours, theirs = os.pipe()
        if os.fork() == 0:
            os.close(ours)
            try:
                os.write(theirs, " ".join(map(str, work(i))).encode())
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(0)
        os.close(theirs)
        pipes.append(ours)
    # nothing, if a child has failed
    rows = [os.read(pipe, 1000).decode().split() for pipe in pipes]
    for _ in pipes:
        os.wait()
    return [sum(map(int, column)) for column in zip(*rows, strict=True)]


def operations(folder: str, processes: int, count: int) -> list[int]:
    def work(seed: int) -> tuple[int, int, int]:
        draw, kept, wrong, hits, removed = random.Random(seed), Cache(folder, 1 << 19), 0, 0, 0
        for _ in range(count):
            key, what = draw.choice(KEY_NAMES), draw.random()
            if what < 0.4:
                kept.put(key, content(key, draw.randrange(10**6)), {"by": str(seed)})
            elif what < 0.99:
                found = kept.get(key)
                hits += found is not None
                wrong += found is not None and not is_right(key, found)
            else:
                removed += len(kept.prune(draw.randrange(1, 1 << 19)))
        return wrong, hits, removed

    return each_forked(processes, work)


def killed(folder: str, count: int) -> list[int]:
    draw, kept, wrong, found = random.Random(1), Cache(folder), 0, 0
    for i in range(count):
        begun, tell = os.pipe()
        child = os.fork()
        if child == 0:
            for version in range(10**6):
                key = KEY_NAMES[version % 5]
                kept.put(key, content(key, version) * 200, {"by": str(i)})
                if version == 0:
                    os.write(tell, b".")
        os.read(begun, 1)  # on a busy machine the first of it would come after the last kill
        os.close(begun)
        os.close(tell)
        time.sleep(draw.random() * 0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for key in KEY_NAMES[:5]:
            read = kept.get(key)
            found += read is not None
            wrong += read is not None and not is_right(key, read[: len(read) // 200])
    return [wrong, found, sum(name.startswith(".") for name in os.listdir(kept.path))]


def pruned(folder: str, milliseconds: int) -> list[int]:
    def work(number: int) -> tuple[int, int, int]:
        kept, wrong, hits, removed = Cache(folder), 0, 0, 0
        end, i = time.monotonic() + milliseconds / 1000, 0
        while time.monotonic() < end:
            i += 1
            key = KEY_NAMES[i % 10]
            if number == 0:
                kept.put(key, content(key, i) * 50, {})
            elif number == 1:
                removed += len(kept.prune(i % 7 * 1000 + 1)) if i % 20 else len(kept.clear())
            else:
                found = kept.get(key)
                hits += found is not None
                wrong += found is not None and not is_right(key, found[: len(found) // 50])
        return wrong, hits, removed

    return each_forked(3, work)


if __name__ == "__main__":
    warnings.simplefilter("error")
    program, place, *numbers = sys.argv[1:]
    print(*globals()[program](place, *map(int, numbers)))
