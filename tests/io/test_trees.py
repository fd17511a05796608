"""Files of arrays: what is saved is loaded, by other programs too; what is damaged is an error."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections import namedtuple

import ml_dtypes
import numpy as np
import pytest

import ge2
from ge2 import nn
from ge2.base.arrays import SHORT
from ge2.errors import ArgumentError, FileError, InputError
from ge2.io import Map
from ge2.io.files import PART
from tests.fake_cupy import stand_in

SUFFIXES = ("safetensors", "npz")
Pair = namedtuple("Pair", "x y")


@pytest.fixture(params=SUFFIXES)
def path(request, tmp_path):
    return str(tmp_path / f"model.{request.param}")


def same(a, b):
    """Equal structures, and leaves of equal type, dtype and bits."""
    assert ge2.tree.structure(a) == ge2.tree.structure(b)
    for x, y in zip(ge2.tree.leaves(a), ge2.tree.leaves(b), strict=True):
        assert type(x) is type(y)
        if isinstance(x, np.ndarray | np.generic):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            assert x.tobytes() == y.tobytes()
        else:
            assert x == y


def zeros(tree):
    return ge2.tree.map(
        lambda x: np.zeros_like(x) if isinstance(x, np.ndarray) else type(x)(), tree
    )


def a_tree():
    rng = np.random.default_rng(0)
    return {
        "model": nn.Sequential.of(nn.Linear.init(ge2.random.key(0), 3, 4), nn.relu),
        "pair": Pair(rng.normal(size=(2, 3)).T, [np.arange(6)[::2], None]),
        "numbers": (3, True, -0.0, "gr\u00fc\u00df", np.float32(2.5), np.array(7, np.int8)),
        "empty": np.zeros((0, 3), np.float16),
        7: ge2.random.key(5),
    }  # fmt: skip


def test_what_is_saved_is_loaded(path):
    tree = {k: v for k, v in a_tree().items() if k != 7} | {"key": ge2.random.key(5)}
    ge2.io.save(path, tree)
    same(ge2.io.load(path, into=zeros(tree)), tree)
    flat = ge2.io.load(path)
    assert {"model.modules.0.weight", "pair.x", "pair.y.0", "numbers.4", "key"} <= set(flat)
    assert all(
        x.flags.writeable and x.flags.aligned and x.flags.c_contiguous for x in flat.values()
    )
    types = ge2.io.contents(path)
    assert {name: (x.shape, x.dtype) for name, x in flat.items()} == {
        name: (t.shape, t.dtype) for name, t in types.items()
    }
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_dtype_and_byte_order(suffix, tmp_path):
    path = str(tmp_path / f"x.{suffix}")
    dtypes = [d for d in SHORT if suffix == "npz" or d != np.complex128]
    bits = np.random.default_rng(1).integers(0, 256, 48, np.uint8)
    xs = {f"a{i}": (bits % 2 if d.kind == "b" else bits).view(d) for i, d in enumerate(dtypes)}
    ge2.io.save(path, xs)
    same(ge2.io.load(path), xs)
    same(ge2.io.load(path, into=zeros(xs)), xs)
    swapped = {n: x.astype(x.dtype.newbyteorder()) for n, x in xs.items() if x.dtype.kind in "iu"}
    ge2.io.save(path, swapped)
    same(ge2.io.load(path, into=swapped), {n: xs[n] for n in swapped})


def test_a_single_array_has_a_name(path):
    ge2.io.save(path, np.arange(3))
    assert list(ge2.io.load(path)) == ["value"]
    same(ge2.io.load(path, into=np.zeros(3, int)), np.arange(3))


def test_what_is_loaded_can_be_donated(path):
    """Views cannot, and every run that goes on from a state would begin with a warning."""
    tree = {
        "a": np.ones((2, 3)),
        "b": np.asfortranarray(np.ones((3, 4))),
        "c": np.ones(2, ml_dtypes.bfloat16),
    }
    ge2.io.save(path, tree)
    swapped = ge2.io.load(path, into=tree, map={"b": ("b", lambda x: x[::-1])})
    for found in (ge2.io.load(path), ge2.io.load(path, into=tree), swapped):
        assert all(x.flags.owndata and x.flags.c_contiguous for x in found.values())


def test_arrays_of_a_gpu_are_saved_and_loaded_to_where_they_are(path, monkeypatch):
    model = nn.MLP.init(ge2.random.key(1), (3, 4, 2))
    with stand_in(monkeypatch) as cupy:
        there = ge2.tree.map(cupy.asarray, model)
        ge2.io.save(path, there)
        same(ge2.io.load(path, into=model), model)
        found = ge2.io.load(path, into=ge2.tree.map(cupy.zeros_like, there))
        assert {type(x) for x in ge2.tree.leaves(found)} == {cupy.ndarray}
        same(ge2.tree.map(lambda x: x.get(), found), model)


def test_types_stand_for_a_model(path):
    model = nn.MLP.init(ge2.random.key(1), (3, 4, 2))
    ge2.io.save(path, model)
    like = ge2.eval_shape(lambda key: nn.MLP.init(key, (3, 4, 2)), ge2.random.key(0))
    same(ge2.io.load(path, into=like), model)


def by_the_format(tensors, header=None, tail=b""):
    """A safetensors file written from the format's description alone."""
    data, entries = b"", {}
    for name, (word, x) in tensors.items():
        entries[name] = {
            "dtype": word,
            "shape": list(x.shape),
            "data_offsets": [len(data), len(data) + x.nbytes],
        }
        data += x.tobytes()
    text = header if header is not None else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data + tail


def test_files_of_other_programs(tmp_path):
    half = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    path = tmp_path / "a.safetensors"
    path.write_bytes(by_the_format({"b": ("I8", np.arange(3, dtype="i1")), "w": ("BF16", half)}))
    same(ge2.io.load(path), {"b": np.arange(3, dtype="i1"), "w": half})
    np.savez_compressed(tmp_path / "a.npz", w=np.asfortranarray(np.eye(2)), half=half)
    same(ge2.io.load(tmp_path / "a.npz"), {"w": np.eye(2), "half": half})
    ge2.io.save(tmp_path / "b.npz", {"file": np.eye(2), "half": half})
    found = np.load(tmp_path / "b.npz")
    assert (found["half"].view(half.dtype) == half).all()
    assert (found["file"] == np.eye(2)).all()


def test_the_package_of_the_format_reads_and_writes_the_same(tmp_path):
    theirs = pytest.importorskip("safetensors.numpy")
    tree = {
        "w": np.eye(3, dtype=np.float16),
        "n": np.array(3),
        "half": np.ones(5, ml_dtypes.bfloat16),
    }
    ge2.io.save(tmp_path / "a.safetensors", tree)
    same(
        dict(sorted(theirs.load_file(tmp_path / "a.safetensors").items())),
        dict(sorted(tree.items())),
    )
    theirs.save_file(tree, tmp_path / "b.safetensors")
    same(ge2.io.load(tmp_path / "b.safetensors", into=zeros(tree)), tree)


# ----------------------------------------------------------------------------------------- damage


ONE = {"a": ("F32", np.zeros(2, np.float32))}


def header(**entry):
    return json.dumps(
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | entry}
    ).encode()


TWO = b'{"a":{"dtype":"I8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"I8","shape":[4],"data_offsets":[%d,%d]}}'
HOSTILE = {
    "nothing": (b"", "has 0 bytes"),
    "seven bytes": (b"1234567", "has 7 bytes"),
    "a huge header": ((1 << 62).to_bytes(8, "little") + b"{}", "to have 4611686018427387904 bytes"),
    "no JSON": (by_the_format(ONE, b"\x80\x04pickle"), "no JSON"),
    "no object": (by_the_format(ONE, b"[1, 2]"), "no JSON object"),
    "deep": (by_the_format(ONE, b"[" * 200_000), "no JSON"),
    "a name twice": (by_the_format(ONE, b'{"a":1,"a":2}'), "twice"),
    "no fields": (by_the_format(ONE, b'{"a":{"dtype":"F32"}}'), "has not the fields"),
    "an entry of text": (by_the_format(ONE, b'{"a":"F32"}'), "has not the fields"),
    "a dtype of none": (by_the_format(ONE, header(dtype="O8")), "the dtype 'O8'"),
    "a dtype of a list": (by_the_format(ONE, header(dtype=["F32"])), "the dtype"),
    "a negative size": (by_the_format(ONE, header(shape=[-2])), "not lists of sizes"),
    "a size of text": (by_the_format(ONE, header(shape=["2"])), "not lists of sizes"),
    "a true size": (by_the_format(ONE, header(shape=[True, 2])), "not lists of sizes"),
    "a fraction": (by_the_format(ONE, header(shape=[2.0])), "not lists of sizes"),
    "a vast size": (by_the_format(ONE, header(shape=[1 << 61])), "is to have 8 bytes"),
    "a product that wraps": (by_the_format(ONE, header(shape=[1 << 33, 1 << 33])), "8 bytes"),
    "many axes": (by_the_format(ONE, header(shape=[1] * 1000 + [2])), "not lists of sizes"),
    "three offsets": (by_the_format(ONE, header(data_offsets=[0, 8, 9])), "not lists of sizes"),
    "backwards": (by_the_format(ONE, header(data_offsets=[8, 0])), "-8 bytes"),
    "beyond the end": (by_the_format(ONE, header(data_offsets=[8, 16])), "cut short: 8 of 16"),
    "overlap": (by_the_format(ONE, TWO % (4, 8)), "'a' and 'b' overlap"),
    "a hole": (by_the_format(ONE, TWO % (9, 13), b"12345"), "1 bytes before 'b'"),
    "a tail": (by_the_format(ONE, tail=b"code"), "4 bytes at its end"),
    "a path": (by_the_format({"../../a": ONE["a"]}), "leads out of a folder"),
    "a path of Windows": (by_the_format({"..\\a": ONE["a"]}), "leads out of a folder"),
    "a root": (by_the_format({"/etc/passwd": ONE["a"]}), "leads out of a folder"),
    "a zero in a name": (by_the_format({"a\0b": ONE["a"]}), "cannot be printed"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("read", [ge2.io.load, ge2.io.contents], ids=["load", "contents"])
def test_a_hostile_file_is_an_error(name, read, tmp_path):
    data, words = HOSTILE[name]
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(FileError, match=words) as error:
        read(path)
    assert all(part in str(error.value) for part in (str(path), "  at   test_trees.py", "  try  "))
    assert len(str(error.value)) < 800


def archive(members, **options):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as z:
        for name, data in members:
            z.writestr(name, data)
    return file.getvalue()


def npy(x, **options):
    file = io.BytesIO()
    np.lib.format.write_array(file, x, **options)
    return file.getvalue()


ARRAY = npy(np.arange(4.0))
VOID = npy(np.ones(2, ml_dtypes.float8_e5m2).view("V1"))
HOSTILE_NPZ = {
    "no archive": (b"PK but none", "no zip archive"),
    "objects": (archive([("a.npy", npy(np.array([{}]), allow_pickle=True))]), "Python objects"),
    "no array": (archive([("run.py", b"print()")]), "no array of NumPy's"),
    "no magic": (archive([("a.npy", b"\x80\x04pickle")]), "header of 'a' is damaged"),
    "a nest": (archive([("a.npy", ARRAY.replace(b"(4,)", b"((((", 1))]), "is damaged"),
    "a vast shape": (archive([("a.npy", ARRAY.replace(b"(4,), } ", b"(4<<60,)}"))]), "is damaged"),
    "more": (archive([("a.npy", ARRAY.replace(b"(4,)", b"(9,)"))]), "shape (9,) of float64, and has 32"),
    "less": (archive([("a.npy", ARRAY.replace(b"(4,)", b"(3,)"))]), "shape (3,)"),
    "negative": (archive([("a.npy", ARRAY.replace(b"(4,), ", b"(-4,),"))]), "(-4,)"),
    "a path": (archive([("../../a.npy", ARRAY)]), "leads out of a folder"),
    "a dtype unknown": (archive([("a.npy", VOID)]), "does not say which"),
    "a record of junk": (archive([("a.npy", ARRAY), ("__dtypes__.npy", ARRAY)]), "record of dtypes"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_NPZ)
def test_a_hostile_archive_is_an_error(name, tmp_path):
    data, words = HOSTILE_NPZ[name]
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    with pytest.raises(FileError) as error:
        ge2.io.load(path)
    assert words in str(error.value)
    assert all(part in str(error.value) for part in (str(path), "  at   test_trees.py", "  try  "))
    assert os.listdir(tmp_path) == ["a.npz"]


def test_a_file_cut_anywhere_is_an_error(path):
    ge2.io.save(path, {"w": np.arange(8.0), "half": np.ones(3, ml_dtypes.bfloat16)})
    with open(path, "rb") as file:
        data = file.read()
    for size in (*range(0, len(data), 29), len(data) - 1):
        with open(path, "wb") as file:
            file.write(data[:size])
        with pytest.raises(FileError):
            ge2.io.load(path)


def test_a_changed_byte_of_an_archive_is_an_error_or_changes_nothing(tmp_path):
    path = tmp_path / "a.npz"
    tree = {"w": np.arange(4.0)}
    ge2.io.save(path, tree)
    data = path.read_bytes()
    for at in range(0, len(data), 3):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x11]) + data[at + 1 :])
        try:
            found = ge2.io.load(path)
        except FileError:
            continue
        assert [x.tobytes() for x in found.values()] == [tree["w"].tobytes()]


# ------------------------------------------------------------------------------------------ leaves


@pytest.mark.parametrize(
    ("tree", "kind", "words"),
    [
        ({"a.b": 1, "a": {"b": 2}}, ArgumentError, "['a']['b'] and ['a.b'] have one name, 'a.b'"),
        ({"../a": 1}, ArgumentError, "leads out of a folder"),
        ({"": 1, "b": 1}, ArgumentError, "it is empty"),
        ({"a": object()}, InputError, "no array of numbers"),
        ({"a": np.array(["x"])}, InputError, "no array of numbers"),
        ({"a": np.ma.masked_array([1.0, 2.0], [0, 1])}, InputError, "its mask would be lost"),
        ({"a": 1 << 70}, InputError, "no array of numbers"),
        ({"a": 2j}, InputError, "which safetensors has no name for"),
    ],
)
def test_what_cannot_be_saved_is_an_error_and_leaves_the_file(tree, kind, words, tmp_path):
    path = tmp_path / "a.safetensors"
    ge2.io.save(path, {"old": 1})
    with pytest.raises(kind) as error:
        ge2.io.save(path, tree)
    assert words in str(error.value)
    assert "  try  " in str(error.value)
    assert list(ge2.io.load(path)) == ["old"]


def test_a_traced_value_cannot_be_saved(path):
    with pytest.raises(InputError, match="what is traced has no elements"):
        ge2.jit(lambda x: ge2.io.save(path, x))(np.ones(2))
    assert not os.path.exists(path)


def test_a_path_of_another_kind_is_an_error(tmp_path):
    for name, words in (("m.pt", "to read it is to run"), ("m", "try  m.safetensors")):
        with pytest.raises(ArgumentError, match=words):
            ge2.io.load(name)
    with pytest.raises(InputError, match="a path is a text or a pathlib.Path; got a dict"):
        ge2.io.save({"w": 1}, tmp_path / "m.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(IsADirectoryError, match="folder.npz'$"):
        ge2.io.save(tmp_path / "folder.npz", 1)
    with pytest.raises(FileNotFoundError, match="'.*absent/m.npz'"):
        ge2.io.save(tmp_path / "absent" / "m.npz", 1)


def test_what_fails_in_the_middle_leaves_the_old_file(path, monkeypatch):
    ge2.io.save(path, {"w": np.ones(3)})
    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                ge2.io.save(path, {"w": np.zeros(3)})
        assert ge2.io.load(path)["w"].all()
    assert not [n for n in os.listdir(os.path.dirname(path)) if n.endswith(PART)]


# -------------------------------------------------------------------------------------------- maps


LINEAR = {"weight": np.arange(6.0, dtype=np.float32).reshape(3, 2), "bias": np.ones(2, np.float32)}


@pytest.mark.parametrize(
    ("stored", "words", "fix"),
    [
        ({"weight": LINEAR["weight"].T}, "'weight' is f32[3,2] in into, and f32[2,3] in", "np.transpose"),
        ({"weight": np.ones((5, 2))}, "f64[5,2] in", "a model of these sizes"),
        ({"weights": LINEAR["weight"], "weight": None}, "lacks 'weight'", "map={'weight': 'weights'}"),
        ({"more": np.ones(1)}, "into has no place for 'more'", "strict=False"),
        ({"weight": np.ones((3, 2), np.int64)}, "i64[3,2] in", "x.astype('float32')"),
    ],
)  # fmt: skip
def test_a_file_of_another_model_is_an_error(stored, words, fix, path):
    ge2.io.save(path, LINEAR | stored)
    with pytest.raises(FileError) as error:
        ge2.io.load(path, into=LINEAR)
    assert words in str(error.value)
    assert fix in str(error.value).splitlines()[-1]


def test_loads_of_a_part(path):
    ge2.io.save(path, {"weight": LINEAR["weight"], "more": 1})
    found = ge2.io.load(path, into=zeros(LINEAR) | {"bias": LINEAR["bias"]}, strict=False)
    same(found, LINEAR)


@pytest.mark.parametrize(
    ("value", "into", "fits"),
    [
        (np.float64(1 / 3), np.float32(0), True),
        (np.float32(0.1), np.zeros((), ml_dtypes.bfloat16), True),
        (np.int64(7), np.int8(0), True),
        (np.int64(700), np.int8(0), False),
        (np.int64(-1), np.uint8(0), False),
        (3, 0, True),
        (3.0, 0, False),
        (True, 0, False),
        (1, 0.0, False),
    ],
)
def test_dtypes_change_within_their_kind(value, into, fits, path):
    ge2.io.save(path, value)
    if fits:
        found = ge2.io.load(path, into=into)
        assert type(found) is type(into)
        assert found == np.asarray(value).astype(np.asarray(into).dtype)
    else:
        with pytest.raises(FileError, match="in into, and"):
            ge2.io.load(path, into=into)


def test_maps_rename_split_join_and_stack(path):
    q, k, v = np.random.default_rng(0).normal(size=(3, 12, 4, 4))
    stored = {f"h.{i}.qkv": np.concatenate([q[i], k[i], v[i]], -1) for i in range(12)}
    ge2.io.save(path, stored | {"h.0.mask": np.ones(1)})
    each = Map(
        {f"blocks.{{i}}.{n}": ("h.{i}.qkv", lambda x, p=p: np.split(x, 3, -1)[p]) for p, n in enumerate("qkv")},
        ignore=("h.{i}.mask",),
    )  # fmt: skip
    blocks = [{"q": q[i], "k": k[i], "v": v[i]} for i in range(12)]
    same(ge2.io.load(path, into={"blocks": zeros(blocks)}, map=each)["blocks"], blocks)
    stack = {"blocks": {"q": q, "k": k, "v": v}}
    same(ge2.io.load(path, into=zeros(stack), map=each.stacked()), stack)
    ge2.io.save(path, stack)
    joined = {"kv": ("blocks.k", "blocks.v"), "q": "blocks.q"}
    found = ge2.io.load(
        path,
        into={"q": zeros(q), "kv": np.zeros((12, 4, 8))},
        map={"q": "blocks.q", "kv": (joined["kv"], lambda k, v: np.concatenate([k, v], -1))},
    )
    same(found, {"q": q, "kv": np.concatenate([k, v], -1)})


def gpt2_of_hugging_face(rng, layers=2, width=8, words=11, length=6):
    """Random weights under the published names, in the published layouts."""
    shapes = {"wte.weight": (words, width), "wpe.weight": (length, width)}
    shapes |= {f"ln_f.{p}": (width,) for p in ("weight", "bias")}
    for i in range(layers):
        for name, ins, outs in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):
            shapes |= {f"h.{i}.{name}.weight": (ins, outs), f"h.{i}.{name}.bias": (outs,)}
        shapes |= {f"h.{i}.ln_{n}.{p}": (width,) for n in (1, 2) for p in ("weight", "bias")}
    found = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    masks = {f"h.{i}.attn.bias": np.ones((1, 1, length, length), np.float32) for i in range(layers)}
    return found | masks


class Block(nn.Module):
    norm1: nn.LayerNorm
    attention: nn.MultiHeadAttention
    norm2: nn.LayerNorm
    mlp: nn.MLP


class GPT(nn.Module):
    tokens: nn.Embedding
    positions: nn.Embedding
    blocks: object
    norm: nn.LayerNorm


def block(key):
    attention, mlp = ge2.random.split(key)
    return Block(
        nn.LayerNorm.init(8), nn.MultiHeadAttention.init(attention, 8, heads=2),
        nn.LayerNorm.init(8), nn.MLP.init(mlp, (8, 32, 8), activation=nn.gelu),
    )  # fmt: skip


def gpt(blocks):
    tables = (nn.Embedding.init(ge2.random.key(i), n, 8) for i, n in enumerate((11, 6)))
    return GPT(*tables, blocks, nn.LayerNorm.init(8))


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_gpt2_by_its_published_names(prefix, path):
    weights = gpt2_of_hugging_face(np.random.default_rng(0))
    ge2.io.save(path, {prefix + name: x for name, x in weights.items()})
    keys = ge2.random.split(ge2.random.key(0), 2)
    model = ge2.io.load(path, into=gpt([block(k) for k in keys]), map=ge2.io.GPT2)
    attention = model.blocks[1].attention
    x = np.random.default_rng(1).normal(size=(5, 8)).astype(np.float32)
    qkv = x @ weights["h.1.attn.c_attn.weight"] + weights["h.1.attn.c_attn.bias"]
    parts = [layer(x) for layer in (attention.query, attention.key, attention.value)]
    np.testing.assert_allclose(np.concatenate(parts, -1), qkv, rtol=1e-5, atol=1e-6)
    assert (model.blocks[0].mlp.layers[1].weight == weights["h.0.mlp.c_proj.weight"]).all()
    assert (model.norm.bias == weights["ln_f.bias"]).all()
    shapes = ge2.eval_shape(lambda keys: gpt(ge2.vmap(block)(keys)), keys)
    scanned = ge2.io.load(path, into=shapes, map=ge2.io.GPT2.stacked())
    same(ge2.tree.map(lambda x: x[1], scanned.blocks), model.blocks[1])


def test_every_public_map_argument_that_is_none_is_an_error(path):
    ge2.io.save(path, LINEAR)
    with pytest.raises(ArgumentError, match="map is a dict"):
        ge2.io.load(path, into=LINEAR, map=["weight"])
    for bad in (7, ("weight", 3), ("weight",)):
        with pytest.raises(ArgumentError, match="the source of 'weight' is a name, or a pair"):
            ge2.io.load(path, into=LINEAR, map={"weight": bad})
    with pytest.raises(FileError, match=r"lacks 'wieght', .*: 'weight' is to come from 'wieght'"):
        ge2.io.load(path, into=LINEAR, map={"weight": "wieght"})
    with pytest.raises(FileError, match=r"its source in map gives f32\[2,3\]"):
        ge2.io.load(path, into=LINEAR, map={"weight": ("weight", np.transpose)})
    with pytest.raises(ArgumentError, match="load was given none"):
        ge2.io.load(path, map={"a": "b"})


def test_a_transposed_array_is_named_as_the_file_names_it(tmp_path):
    path = str(tmp_path / "a.npz")
    ge2.io.save(path, {"fc": LINEAR["weight"].T, "bias": LINEAR["bias"]})
    with pytest.raises(FileError) as error:
        ge2.io.load(path, into=LINEAR, map={"weight": "fc"})
    fix = str(error.value).split("try  ")[1]
    loaded = eval(f"ge2.io.load(path, into=LINEAR, {fix})", {**globals(), "path": path})
    np.testing.assert_array_equal(loaded["weight"], LINEAR["weight"])
