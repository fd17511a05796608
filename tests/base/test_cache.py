"""The cache gives back what was put there, or nothing; no state of a disk changes an answer."""

from __future__ import annotations

import errno
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import warnings
from pathlib import Path

import pytest

from ge2.base import cache as store
from ge2.base import source
from ge2.base.cache import HEAD, HOUR, PRUNED, VERSION, Cache, cache, content_key
from ge2.base.config import config
from ge2.base.errors import CacheTrouble, InputError
from ge2.base.source import Ge2Warning

ROOT = Path(__file__).parents[2]
ABOUT = {"name": "f", "source": "model.py:3"}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "_said", set())
    return Cache(str(tmp_path / "cache"))


def quietly(action):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Ge2Warning)
        return action()


def key(number):
    return content_key(str(number))


# --------------------------------------------------------------------------------------------- keys


def test_keys_frame_their_parts():
    parts = [
        (), ("",), (b"",), ("", ""), ("a", "b"), ("ab",), ("a", b"b"), ("1:sa",), ("s1:a",),
        ("é",),
    ]  # fmt: skip
    assert len({content_key(*each) for each in parts}) == len(parts)
    assert content_key("\ud800")  # a path need not be text


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_keys_are_the_same_in_every_process(seed):
    program = "from ge2.base.cache import content_key; print(content_key('a', b'b', 'c' * 1000))"
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert found.stdout.split() == [content_key("a", b"b", "c" * 1000)]


@pytest.mark.parametrize("bad", ["", "../x", "a/b", ".hidden", "a b", "é", "a\0"])
def test_only_keys_are_keys(kept, bad):
    with pytest.raises(InputError, match="no key"):
        kept.get(bad)
    with pytest.raises(InputError, match="no key"):
        kept.put(bad, b"", {})


def test_the_version_in_keys_is_that_of_the_package():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION


# -------------------------------------------------------------------------------------- get and put


@pytest.mark.parametrize("content", [b"", b"x", os.urandom(100_000)])
def test_what_was_put_is_what_one_gets(kept, content):
    assert kept.get(key(1)) is None
    kept.put(key(1), b"something else", {})
    kept.put(key(1), content, ABOUT)
    assert kept.get(key(1)) == content
    assert kept.get(key(2)) is None
    (entry,) = kept.entries(verify=True)
    assert (entry.key, entry.about, entry.trouble) == (key(1), ABOUT, "")


def test_the_folder_is_private(kept):
    kept.put(key(1), b"x", {})
    assert os.stat(kept.path).st_mode & 0o777 == 0o700
    assert os.stat(os.path.join(kept.path, key(1))).st_mode & 0o777 == 0o600
    os.chmod(kept.path, 0o777)
    assert kept.get(key(1)) == b"x"
    assert os.stat(kept.path).st_mode & 0o777 == 0o700


def test_nothing_but_entries_is_left_behind(kept):
    for i in range(5):
        kept.put(key(i), b"x", {})
    assert sorted(os.listdir(kept.path)) == sorted(map(key, range(5)))


def test_no_descriptor_is_left_open(kept):
    before = os.listdir("/dev/fd")
    for i in range(20):
        kept.put(key(i), b"x", {})
        kept.get(key(i))
        Path(kept.path, key(i)).write_bytes(b"y")
        quietly(lambda i=i: kept.get(key(i)))
    kept.entries()
    assert len(os.listdir("/dev/fd")) == len(before)


def test_two_formats_side_by_side(kept, monkeypatch):
    kept.put(key(1), b"one", {})
    monkeypatch.setattr(store, "FORMAT", 2)
    later = Cache(os.path.dirname(kept.path))
    assert later.path != kept.path
    assert later.get(key(1)) is None
    later.put(key(1), b"two", {})
    monkeypatch.undo()
    assert (kept.get(key(1)), later.entries()[0].trouble) == (
        b"one",
        "it is no entry of this format",
    )


def test_an_entry_of_another_format_in_our_folder_is_made_again(kept, monkeypatch):
    monkeypatch.setattr(store, "FORMAT", 2)
    kept.put(key(1), b"two", {})
    monkeypatch.undo()
    monkeypatch.setattr(source, "_said", set())
    with pytest.warns(Ge2Warning, match="no entry of this format"):
        assert kept.get(key(1)) is None


# ------------------------------------------------------------------------------------------- damage


def damage(data, draw):
    """The bytes cut short, made longer, or with one bit flipped."""
    kind, at = draw.randrange(3), draw.randrange(len(data))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data + draw.randbytes(draw.randrange(1, 50))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def test_each_damaged_entry_is_noticed_and_repaired(kept):
    draw = random.Random(7)
    contents = {key(i): draw.randbytes(draw.randrange(2000)) for i in range(200)}
    for each, content in contents.items():
        kept.put(each, content, ABOUT)
        path = Path(kept.path, each)
        path.write_bytes(damage(path.read_bytes(), draw))
    assert sum(bool(entry.trouble) for entry in kept.entries(verify=True)) == 200
    assert quietly(lambda: [kept.get(each) for each in contents]) == [None] * 200
    for each, content in contents.items():
        kept.put(each, content, ABOUT)
    assert {each: kept.get(each) for each in contents} == contents


@pytest.mark.exhaustive
@pytest.mark.parametrize("at", range(HEAD.size))
def test_each_byte_of_the_head_matters(kept, at):
    kept.put(key(1), b"content", ABOUT)
    path = Path(kept.path, key(1))
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)
    assert quietly(lambda: kept.get(key(1))) is None


def test_an_entry_under_another_key_is_none(kept):
    kept.put(key(1), b"content", {})
    os.rename(os.path.join(kept.path, key(1)), os.path.join(kept.path, key(2)))
    assert quietly(lambda: kept.get(key(2))) is None


def test_damage_is_said_once(kept):
    for i in range(3):
        kept.put(key(i), b"x", {})
        Path(kept.path, key(i)).write_bytes(b"")
    with pytest.warns(Ge2Warning, match="is made again") as said:
        assert [kept.get(key(i)) for i in range(3)] == [None] * 3
    assert len(said) == 1


def link(path):
    target = path.with_name("target")
    path.rename(target)
    path.symlink_to(target)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def folder(path):
    path.unlink()
    path.mkdir()
    (path / "file").write_text("")


def listener(path):
    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def dangling(path):
    path.unlink()
    path.symlink_to("nowhere")


@pytest.mark.parametrize("spoil", [link, dangling, pipe, folder, listener])
def test_what_is_no_file_is_replaced(kept, spoil):
    kept.put(key(1), b"x", {})
    spoil(Path(kept.path, key(1)))
    with pytest.warns(Ge2Warning, match="is made again"):
        assert kept.get(key(1)) is None
    kept.put(key(1), b"y", {})
    assert kept.get(key(1)) == b"y"
    assert Path(kept.path, key(1)).is_file()
    assert not Path(kept.path, key(1)).is_symlink()


def test_a_file_of_another_user_is_not_read(kept, monkeypatch):
    kept.put(key(1), b"x", {})
    real = store._regular

    def foreign(fd):
        monkeypatch.setattr(os, "geteuid", lambda: 1 + os.fstat(fd).st_uid)
        return real(fd)

    monkeypatch.setattr(store, "_regular", foreign)
    with pytest.warns(Ge2Warning, match="another user"):
        assert kept.get(key(1)) is None


# ---------------------------------------------------------------------- folders that cannot be used


def unusable(kept, why):
    """No entry is kept or found, and this is said once."""

    def use():
        kept.put(key(1), b"x" * 100_000, {})
        found = kept.get(key(1))
        kept.put(key(2), b"x" * 100_000, {})
        return found

    with pytest.warns(Ge2Warning, match=why) as said:
        assert use() is None
    assert len(said) == 1
    assert "GE2_CACHE_DIR" in str(said[0].message)


def test_a_folder_of_another_user_is_not_used(kept, monkeypatch):
    kept.put(key(3), b"x", {})
    monkeypatch.setattr(os, "geteuid", lambda: 1 + os.stat(kept.path).st_uid)
    unusable(kept, "another user")
    assert os.listdir(kept.path) == [key(3)]


def test_a_folder_that_others_may_write_is_not_used(kept, monkeypatch):
    kept.put(key(3), b"x", {})
    os.chmod(kept.path, 0o770)

    def refuse(*_):
        raise PermissionError(errno.EPERM, "no modes here")

    monkeypatch.setattr(os, "fchmod", refuse)
    unusable(kept, "may write")


def test_a_symbolic_link_is_not_followed(kept, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "cache").mkdir()
    Path(kept.path).symlink_to(tmp_path / "elsewhere")
    unusable(kept, "symbolic link")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_the_folder_above_may_be_a_link(kept, tmp_path):
    (tmp_path / "large disk").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "large disk")
    kept.put(key(1), b"x", {})
    assert kept.get(key(1)) == b"x"


def test_a_file_in_place_of_the_folder(kept, tmp_path):
    (tmp_path / "cache").write_text("")
    unusable(kept, "Not a directory")


@pytest.mark.parametrize("written", [0, 1000])
def test_a_full_disk(kept, monkeypatch, written):
    real = os.write

    def write(fd, data):
        if written and len(data) == 100_000 + HEAD.size + 2:
            return real(fd, data[:written])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write)
    unusable(kept, "No space left")
    assert os.listdir(kept.path) == []
    monkeypatch.undo()
    kept.put(key(1), b"x", {})
    assert kept.get(key(1)) == b"x"


LIMITED = """
import resource, sys, warnings
from ge2.base.cache import Cache
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
kept = Cache(sys.argv[1])
kept.put("1", b"x" * 100_000, {})
kept.put("2", b"x" * 1_000, {})
print(kept.get("1"), len(kept.get("2")))
"""


def test_a_file_larger_than_the_system_allows(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == ["None", "1000"], found.stderr
    assert found.stderr.count("Ge2Warning") == 1
    assert len(os.listdir(tmp_path / f"v{store.FORMAT}")) == 1


def test_a_disk_that_can_only_be_read(kept, monkeypatch):
    kept.put(key(1), b"x", {})
    real_open = os.open
    os.utime(os.path.join(kept.path, key(1)), (0, 0))

    def read_only(path, flags, *rest, **more):
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real_open(path, flags, *rest, **more)

    def no_time(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(os, "utime", no_time)
    with pytest.warns(Ge2Warning, match="Read-only"):
        kept.put(key(2), b"y", {})
    assert (kept.get(key(1)), kept.get(key(2))) == (b"x", None)


def test_without_a_home(monkeypatch):
    monkeypatch.setattr(source, "_said", set())
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for home in ("", "/nonexistent/home"):
        monkeypatch.setenv("HOME", home)
        with config.using(cache_dir=""):
            assert cache().path == ""
    unusable(Cache(""), "no home")
    with pytest.raises(CacheTrouble, match="no home"):
        Cache("").entries()
    assert not os.path.exists("/nonexistent")


def test_where_it_is(monkeypatch, tmp_path):
    version = f"v{store.FORMAT}"
    monkeypatch.setenv("HOME", str(tmp_path))
    with config.using(cache_dir=""):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert cache().path == str(tmp_path / "xdg" / "ge2" / version)
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        assert cache().path == str(tmp_path / ".cache" / "ge2" / version)
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache().path == str(tmp_path / ".cache" / "ge2" / version)
    with config.using(cache_dir=str(tmp_path / "own"), cache_limit=3):
        assert (cache().path, cache().limit) == (str(tmp_path / "own" / version), 3 << 20)


def test_unwanted_it_is_silent():
    with config.using(cache_dir="none"):
        cache().put(key(1), b"x", {})
        assert cache().get(key(1)) is None
        with pytest.raises(CacheTrouble, match="switched off"):
            cache().entries()


# ----------------------------------------------------------------------------------------- its size


def aged(kept, name, seconds):
    then = time.time() - seconds
    os.utime(os.path.join(kept.path, name), (then, then))


def filled(kept, count, size=1000):
    for i in range(count):
        kept.put(key(i), bytes(size), {})
        aged(kept, key(i), (count - i) * 10 * HOUR)
    return kept.entries()[0].size


def test_what_was_not_used_for_longest_goes_first(kept):
    size = filled(kept, 10)
    kept.get(key(0))  # the oldest is in use again
    gone = kept.prune(5 * size)
    assert [entry.key for entry in gone] == [key(i) for i in (1, 2, 3, 4, 5)]
    assert {entry.key for entry in kept.entries()} == {key(i) for i in (0, 6, 7, 8, 9)}
    assert kept.prune(5 * size) == []


def test_it_bounds_its_size_by_itself(kept):
    size = filled(kept, 20)
    bounded = Cache(os.path.dirname(kept.path), 5 * size)
    bounded.put(key(20), bytes(1000), {})
    assert [entry.key for entry in bounded.entries()] == [key(i) for i in (20, 19, 18, 17, 16)]
    for i in range(21, 30):
        bounded.put(key(i), bytes(1000), {})
    assert len(bounded.entries()) == 14  # it looks at its size now and then
    aged(bounded, PRUNED, HOUR)
    bounded.put(key(30), bytes(1000), {})
    assert len(bounded.entries()) == 5


def test_what_dead_processes_left_is_removed(kept):
    filled(kept, 2)
    for name, age in ((".12-old", 2 * HOUR), (".13-new", 60)):
        Path(kept.path, name).write_text("half of an entry")
        aged(kept, name, age)
    kept.prune(1 << 30)
    assert sorted(os.listdir(kept.path)) == sorted([".13-new", key(0), key(1)])


def test_clear(kept):
    assert kept.clear() == []
    filled(kept, 3)
    Path(kept.path, ".12-old").write_text("half of an entry")
    aged(kept, ".12-old", HOUR)
    assert len(kept.clear()) == 3
    assert os.listdir(kept.path) == []
    kept.put(key(1), b"x", {})
    assert kept.get(key(1)) == b"x"


def test_a_folder_removed_meanwhile_is_made_again(kept, monkeypatch):
    real = os.rename

    def cleared(*names, **folders):
        monkeypatch.setattr(os, "rename", real)
        shutil.rmtree(kept.path)
        real(*names, **folders)

    kept.put(key(1), b"x", {})
    monkeypatch.setattr(os, "rename", cleared)
    kept.put(key(1), b"y", {})
    assert kept.get(key(1)) == b"y"
