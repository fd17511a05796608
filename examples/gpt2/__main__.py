"""GPT-2: files of tokens, training, text. Its sizes, and a small one of letters."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np

import ge2
from examples.gpt2 import characters
from examples.gpt2.bpe import END, Tokenizer
from examples.gpt2.data import Tokens, write
from examples.gpt2.model import GPT2, SIZES, Config, published
from examples.gpt2.sample import generate
from examples.gpt2.train import Options, started, training


def main(words=None):
    options = arguments().parse_args(words)
    options.run(options)


def arguments():
    parser = argparse.ArgumentParser(prog="python -m examples.gpt2", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run, help):
        found = commands.add_parser(run.__name__, help=help, description=help)
        found.set_defaults(run=run)
        return found.add_argument

    add = command(tokens, "write texts as a file of tokens, the last of each one <|endoftext|>")
    add("texts", nargs="+", metavar="TEXT")
    add("--vocabulary", required=True, help="folder of a vocab.json and a merges.txt")
    add("-o", "--output", required=True)

    add = command(train, "train on files of tokens, from nothing, weights, or where it stopped")
    add("files", nargs="+", metavar="TOKENS")
    add("--size", choices=SIZES, default="124M")
    add("--vocabulary", help="folder of a vocab.json whose size is the model's (GPT-2's)")
    add("--weights", help="folder of published weights (config.json beside them), to begin with")
    add("--save", default="gpt2", help="folder of states, to go on from if there are (%(default)s)")
    add("--every", type=int, default=100, help="steps from state to state (%(default)s)")
    add("--batch", type=int, default=8)
    add("--length", type=int, help="tokens of a stretch (the context)")
    add("--seed", type=int, default=0)
    add("--device", choices=("cpu", "cuda"), default="cpu")
    for field, value in Options._field_defaults.items():
        add(f"--{field}", type=type(value), default=value, help="%(default)s")

    add = command(sample, "write a text")
    add("source", metavar="FOLDER", help="of states of train, or of published weights")
    add("--vocabulary", required=True, help="folder of a vocab.json and a merges.txt")
    add("--prompt", default=END)
    add("--count", type=int, default=100)
    add("--temperature", type=float, default=0.8)
    add("--top-k", type=int, default=50)
    add("--seed", type=int, default=0)
    add("--device", choices=("cpu", "cuda"), default="cpu")

    add = command(letters, "a small model of letters, of the text that ships with Python")
    add("--steps", type=int, default=1000)
    add("--picture", metavar="FILE", help="of the losses, by matplotlib")
    return parser


def tokens(options):
    tokenizer = Tokenizer.of_folder(options.vocabulary)
    texts = (Path(path).read_text("utf-8") for path in options.texts)
    found = [x for text in texts for x in (*tokenizer.encode(text), tokenizer.end)]
    write(options.output, found)
    print(f"{len(found):,} tokens of {len(options.texts)} texts")


def train(options):
    how = Options(*(getattr(options, field) for field in Options._fields))
    start = ge2.io.load_state(options.save, into=placed(begin(options, how), options.device))
    length = options.length or start["config"].context
    data = Tokens(options.files, length, options.batch, options.seed)
    os.makedirs(options.save, exist_ok=True)
    first, log = start["state"]["step"], os.path.join(options.save, "log.jsonl")
    bar = ge2.io.progress(
        training(start, data, how), how.steps - first, label="train", start=first,
        tokens=options.batch * length, log=log,
    )  # fmt: skip
    for now, value in bar:
        bar.record(loss=value)
        step = now["state"]["step"]
        if step % options.every == 0 or step == how.steps:
            ge2.io.save_state(options.save, step, now)


def placed(tree, device):
    """The arrays of a tree on a device."""
    if device == "cpu":
        return tree
    import cupy

    return ge2.tree.map(lambda x: x if np.isscalar(x) else cupy.asarray(x), tree)


def begin(options, how):
    """Where training begins: at given weights, or at nothing."""
    if options.weights:
        return started(*of_hub(options.weights), how)
    config = SIZES[options.size]
    if options.vocabulary:
        count = len(Tokenizer.of_folder(options.vocabulary).vocabulary)
        config = config._replace(vocabulary=count)
    return started(config, GPT2.init(ge2.random.key(options.seed), config), how)


def of_hub(folder):
    """The configuration and the model of a folder as those on the Hugging Face hub."""
    config = Config.of_json(json.loads(Path(folder, "config.json").read_text()))
    return config, published(Path(folder, "model.safetensors"), config)


def of_state(path):
    """The model of a state that `train` saved."""
    config = ge2.io.load(path, into={"config": Config()}, strict=False)["config"]
    like = ge2.eval_shape(lambda: GPT2.init(ge2.random.key(0), config))
    return ge2.io.load(path, into={"model": like}, strict=False)["model"]


def sample(options):
    state = ge2.io.latest(options.source)
    model = of_state(state) if state else of_hub(options.source)[1]
    model, tokenizer = placed(model, options.device), Tokenizer.of_folder(options.vocabulary)
    prompt = tokenizer.encode(options.prompt) if options.prompt != END else [tokenizer.end]
    key = ge2.random.key(options.seed)
    found = generate(model, prompt, options.count, key, options.temperature, options.top_k)
    print(tokenizer.decode([*prompt, *found]))


def letters(options):
    began, losses = time.perf_counter(), []

    def each(step, loss):
        losses.append(loss)
        if step % max(options.steps // 10, 1) == 0:
            print(
                f"step {step:5}   loss {loss:.3f}   {time.perf_counter() - began:.0f} s", flush=True
            )

    model, alphabet, held, table = characters.train(options.steps, each)
    print(f"on text it has not seen: {held:.3f}; a table of pairs of letters has {table:.3f}")
    print(characters.write(model, alphabet, "The ", 400))
    if options.picture:
        draw(options.picture, losses, held, table)


def draw(path, losses, held, table):
    import matplotlib.pyplot as plt

    plt.figure(figsize=(4, 2.6))
    plt.plot(losses, lw=0.5)
    plt.axhline(table, color="k", lw=0.8, ls="--", label="a table of pairs")
    plt.axhline(held, color="C1", lw=0.8, label="at the end, of new text")
    plt.legend(fontsize=7)
    plt.title("nats a letter, step by step", fontsize=8)
    plt.savefig(path, dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main()
