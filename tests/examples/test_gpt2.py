"""GPT-2 of examples/gpt2: its weights and its mathematics, its tokens, training and text."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from pydoc_data.topics import topics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ge2
from examples.gpt2.__main__ import main
from examples.gpt2.bpe import END, LETTERS, Tokenizer, merged, words
from examples.gpt2.data import Tokens, write
from examples.gpt2.model import GPT2, SIZES, Config, published
from examples.gpt2.sample import chosen, generate
from examples.gpt2.train import Options, started, training
from ge2.base.config import config as settings

TINY = Config(vocabulary=50, context=16, width=8, layers=2, heads=2)
BLOCK = {
    "ln_1.weight": (8,), "ln_1.bias": (8,), "attn.c_attn.weight": (8, 24), "attn.c_attn.bias": (24,),
    "attn.c_proj.weight": (8, 8), "attn.c_proj.bias": (8,), "ln_2.weight": (8,), "ln_2.bias": (8,),
    "mlp.c_fc.weight": (8, 32), "mlp.c_fc.bias": (32,), "mlp.c_proj.weight": (32, 8),
    "mlp.c_proj.bias": (8,),
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_compiled():
    with settings.using(executor="blocked"):
        yield


def weights_of(rng):
    """Random weights under the names, and of the shapes, of the published ones."""
    shapes = {"wte.weight": (50, 8), "wpe.weight": (16, 8), "ln_f.weight": (8,), "ln_f.bias": (8,)}
    shapes |= {f"h.{i}.{name}": shape for i in range(2) for name, shape in BLOCK.items()}
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def by_hand(w, ids):
    """The scores after ids[t] as the paper has them, in float64, a position and a head at a time."""
    w = {name: x.astype(np.float64) for name, x in w.items()}

    def norm(x, at):
        z = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return z * w[f"{at}.weight"] + w[f"{at}.bias"]

    def linear(x, at):
        return x @ w[f"{at}.weight"] + w[f"{at}.bias"]

    def attention(qkv):
        found = np.zeros((len(qkv), 8))
        for head in range(2):
            q, k, v = (qkv[:, i * 8 + head * 4 : i * 8 + head * 4 + 4] for i in range(3))
            for t in range(len(qkv)):
                e = np.exp(k[: t + 1] @ q[t] / 2)
                found[t, head * 4 : head * 4 + 4] = e / e.sum() @ v[: t + 1]
        return found

    x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]
    for i in range(2):
        y = attention(linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"))
        x = x + linear(y, f"h.{i}.attn.c_proj")
        z = linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
        gelu = 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
        x = x + linear(gelu, f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


# ------------------------------------------------------------------------------------------ weights


@pytest.fixture
def model(rng, tmp_path):
    ge2.io.save(tmp_path / "model.safetensors", weights_of(rng))
    return published(tmp_path / "model.safetensors", TINY)


def test_published_weights_give_the_scores_of_the_paper(rng, tmp_path):
    weights, ids = weights_of(rng), rng.integers(0, 50, 9)
    others = {f"transformer.{name}": x for name, x in weights.items()}
    others |= {"lm_head.weight": weights["wte.weight"], "transformer.h.0.attn.bias": np.ones(1)}
    ge2.io.save(tmp_path / "model.safetensors", others)
    model = published(tmp_path / "model.safetensors", TINY)
    assert np.allclose(model(ids[None])[0], by_hand(weights, ids), atol=2e-5)
    ge2.io.save(tmp_path / "again.safetensors", model)
    again = ge2.io.load(tmp_path / "again.safetensors")
    assert again.keys() == weights.keys()
    assert all(np.array_equal(again[name], weights[name]) for name in weights)


def test_124_million_parameters():
    like = ge2.eval_shape(lambda: GPT2.init(ge2.random.key(0), SIZES["124M"]))
    assert sum(x.size for x in ge2.tree.leaves(like)) == 124_439_808


# ------------------------------------------------------------------------------------------- tokens


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    """A folder of a vocab.json and a merges.txt: of bytes, and of the pairs that are frequent."""
    folder, merges = tmp_path_factory.mktemp("vocabulary"), []
    pieces = [[LETTERS[b] for b in word.encode()] for word in words(topics["assert"])]
    for _ in range(80):
        counts = {}
        for piece in pieces:
            for pair in pairwise(piece):
                counts[pair] = counts.get(pair, 0) + 1
        merges.append(max(counts, key=counts.get))
        pieces = [merged(piece, merges[-1]) for piece in pieces]
    names = [*LETTERS.values(), *map("".join, merges), END]
    (folder / "vocab.json").write_text(json.dumps({n: i for i, n in enumerate(names)}))
    lines = ["#version: 0.2", *map(" ".join, merges), ""]
    (folder / "merges.txt").write_text("\n".join(lines), "utf-8")
    return folder


@pytest.fixture(scope="session")
def tokenizer(vocabulary):
    return Tokenizer.of_folder(vocabulary)


@given(st.text())
def test_any_text_comes_back(tokenizer, text):
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert "".join(words(text)) == text


def test_merges_make_tokens_fewer(tokenizer):
    text = topics["assert"]
    tokens = tokenizer.encode(text)
    assert len(tokens) < 0.6 * len(text)
    assert tokenizer.decode(tokens) == text
    assert tokenizer.end == len(tokenizer.vocabulary) - 1


def test_words_are_cut_as_by_the_published_pattern():
    r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    assert words("It's 10km,  isn't\n\n it? ") == [
        "It", "'s", " 10", "km", ",", " ", " isn", "'t", "\n\n", " it", "?", " ",
    ]  # fmt: skip
    assert words("\xe9t\xe9 \u4e00\u516b x\xb2\u2167\xa0\xa0y") == [
        "\xe9t\xe9", " \u4e00\u516b", " x", "\xb2\u2167", "\xa0", "\xa0", "y",
    ]  # fmt: skip
    assert words("e\u0301\x1cx") == ["e", "\u0301\x1c", "x"]


def test_a_stretch_lies_within_one_file(tmp_path):
    paths = [tmp_path / "a.bin", tmp_path / "b.bin", tmp_path / "c.bin"]
    for path, first, count in zip(paths, (0, 100, 200), (9, 3, 5), strict=True):
        write(path, np.arange(first, first + count))
    data = Tokens(paths, length=4, batch=200)
    found = {tuple(row) for row in data[0].tolist()}
    assert found == {tuple(range(s, s + 5)) for s in (0, 1, 2, 3, 4, 200)}
    assert np.array_equal(data[3], Tokens(paths, 4, 200)[3])
    with pytest.raises(ValueError, match="no file has 11 tokens"):
        Tokens(paths, 10, 1)
    with pytest.raises(ValueError, match="65536 does not fit"):
        write(tmp_path / "d.bin", [2**16])


# ----------------------------------------------------------------------------------------- training


def fresh(seed=0):
    config = TINY._replace(layers=1)
    return started(config, GPT2.init(ge2.random.key(seed), config), Options())


def losses(options, start=None, until=None):
    """Losses of training on a text that repeats, and what there is after it."""
    data = Tokens([np.tile(np.random.default_rng(0).integers(0, 50, 23), 20)], 16, 4)
    steps = islice(training(start or fresh(), data, options), until)
    found = [(now, float(value)) for now, value in steps]
    return [value for _, value in found], found[-1][0]


def test_training_fused_and_not_gives_the_same_curve():
    options = Options(steps=6, rate=2e-2, warmup=2)
    fused, _ = losses(options)
    with settings.using(passes_off=("fuse",)):
        apart, _ = losses(options)
    with ge2.disable_jit():
        plain, _ = losses(options._replace(parts=2))
    assert np.allclose(fused, apart, rtol=1e-4)
    assert np.allclose(fused, plain, rtol=1e-4)
    assert abs(fused[0] - np.log(50)) < 0.1
    assert fused[-1] < 0.9 * fused[0]


def test_mixed_precision_is_near():
    options = Options(steps=6, rate=1e-2, warmup=2)
    full, _ = losses(options)
    low, _ = losses(options._replace(precision="bf16"))
    assert full != low
    assert np.allclose(full, low, rtol=1e-2)


def test_what_is_saved_goes_on_as_if_it_had_not_stopped(tmp_path):
    options = Options(steps=6, rate=1e-2, warmup=2)
    want, end = losses(options)
    first, stopped = losses(options, until=4)
    ge2.io.save_state(tmp_path, 4, stopped)
    rest, again = losses(options, ge2.io.load_state(tmp_path, into=fresh(seed=1)))
    assert first + rest == want
    assert all(map(np.array_equal, ge2.tree.leaves(again), ge2.tree.leaves(end)))


# --------------------------------------------------------------------------------------------- text


def test_caches_give_what_the_model_gives_of_the_text_so_far(model):
    """Beyond the context, too, where it goes on from the last half."""
    tokens = [3, 1, 4]
    for token in generate(model, tokens[:], 20, ge2.random.key(0), temperature=0.0):
        start = 0 if len(tokens) <= 16 else len(tokens) - 8 - (len(tokens) - 17) % 9
        assert token == model(np.array(tokens[start:])[None])[0, -1].argmax()
        tokens.append(token)


def test_tokens_are_sampled_by_their_probabilities():
    logits = np.log(np.array([0.5, 0.2, 0.25, 0.05], np.float32))
    keys = ge2.random.split(ge2.random.key(0), 4000)
    every = ge2.jit(ge2.vmap(lambda key: chosen(logits, key, 1.0)))(keys)
    two = ge2.jit(ge2.vmap(lambda key: chosen(logits, key, 0.5, 2)))(keys)
    assert np.allclose(np.bincount(every) / 4000, np.exp(logits), atol=0.025)
    assert np.allclose(np.bincount(two, minlength=3) / 4000, [0.8, 0, 0.2], atol=0.025)


def test_the_same_seed_writes_the_same(model):
    texts = [
        list(generate(model, [1], 8, ge2.random.key(seed), 1.0, 10)) for seed in (0, 0, 1)
    ]  # fmt: skip
    assert texts[0] == texts[1] != texts[2]


def test_the_commands(tmp_path, vocabulary, capsys):
    text, tokens, saved = tmp_path / "text", tmp_path / "tokens.bin", tmp_path / "run"
    text.write_text(topics["assert"])
    main(["tokens", str(text), "--vocabulary", str(vocabulary), "-o", str(tokens)])
    words = ["train", str(tokens), "--size", "tiny", "--save", str(saved), "--batch", "2"]
    words += ["--length", "16", "--vocabulary", str(vocabulary)]
    main([*words, "--steps", "2", "--every", "1", "--warmup", "1"])
    main([*words, "--steps", "3"])
    main(["sample", str(saved), "--vocabulary", str(vocabulary), "--count", "5", "--seed", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(END)
    assert list(ge2.io.read_log(saved / "log.jsonl")["step"]) == [1, 2, 3]
    given = {"vocab_size": 337, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    (vocabulary / "config.json").write_text(json.dumps(given))
    weights = ge2.io.load(ge2.io.latest(saved))
    weights = {n.removeprefix("model."): x for n, x in weights.items() if n.startswith("model.")}
    ge2.io.save(vocabulary / "model.safetensors", weights)
    main(
        ["sample", str(vocabulary), "--vocabulary", str(vocabulary), "--count", "5", "--seed", "1"]
    )
    assert capsys.readouterr().out.splitlines() == lines[1:]
