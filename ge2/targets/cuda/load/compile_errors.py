"""What a compiler says of CUDA with a user's own text in it, told of
the line of the user's program.
"""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Sequence
from typing import Final, final

from ge2.base.errors import CompileError, CompilerTrouble
from ge2.base.record import record
from ge2.base.source import Source, of_function
from ge2.ir import GraphOp, Op
from ge2.ops.pointlike import Elementwise
from ge2.ops.user_ops import Own
from ge2.targets.cuda.emit.kernel import CudaKernel
from ge2.targets.cuda.load.nvrtc_log import excerpt

FIX: Final = "other CUDA; an operation without it runs its reference"
WORDS: Final = (re.compile(r"NVRTC refuses .* for sm_\w+: (.+)"), re.compile(r"error: (.+)"))
TYPED: Final = ((r"\$t", r"\w+"), (r"\$T", r"[\w ]+"))  # what stands for a dtype


@final
@record
class Written:
    """A text of the user's, of the operation of that name, which is defined near that line, or is
    the whole of that file.
    """

    name: str
    text: str
    near: Source | None
    file: str = ""


def written(op: Op, kernel: CudaKernel | None = None) -> list[Written]:
    """The texts of the user's that are in the CUDA of an operation, or in place of it."""
    if kernel is not None and kernel.file:
        return [Written(os.path.basename(kernel.file), kernel.text, None, kernel.file)]
    if isinstance(op, GraphOp):
        return [each for g in op.graphs() for e in g.eqns for each in written(e.op)]
    if isinstance(op, Own) and op.files:
        return [Written(op.name, text, None, file) for text, file in op.files]
    if isinstance(op, Own) and op.cuda:
        return [Written(op.name, text, op.defined) for text in (op.cuda, op.helpers)]
    if isinstance(op, Elementwise) and op.edition:
        return [Written(op.name, op.lowering.helpers, of_function(op.ufunc))]
    return []


def blamed(error: CompileError, name: str, source: str, texts: Sequence[Written]) -> CompileError:
    """The error, or one that says which line of the user's it is.

    `source` is that of kernel `name`.
    """
    if not texts or isinstance(error, CompilerTrouble):
        return error
    said = str(error)
    words = next((found[1] for each in WORDS if (found := each.search(said))), said.split("\n")[0])
    found = re.search(rf"\b{name}\.cu[:(](\d+)(?::\d+: error|\)|$)", said, re.MULTILINE)
    place = (
        None
        if found is None
        else next(filter(None, (placed(w, source, int(found[1])) for w in texts)), None)
    )
    if place is None:
        own = " and ".join(dict.fromkeys(w.name for w in texts))
        rest = "\n".join(line for line in said.split("\n") if not line.startswith("  try"))
        return CompileError(f"the CUDA of {name}, with {own} of your own in it: {rest}", fix=FIX)
    whose, where = place
    if "." in whose:  # a file, in place of a kernel of ge2
        return CompileError(f"{whose} does not compile: {words}", where=where)
    return CompileError(
        f"the CUDA of {whose}, an operation of your own: {words}", where=where, fix=FIX
    )


def placed(each: Written, source: str, line: int) -> tuple[str, str] | None:
    """Whose text a line of a source belongs to, and where that stands;
    None if it is in no line of it.
    """
    lines = each.text.splitlines()
    first = next((n for n, words in enumerate(lines) if words.strip()), None)
    begin = None if first is None else begins(source, lines[first:])
    if begin is None or first is None or not begin <= line <= begin + len(lines) - first:
        # of a template, lines that are printed as they are
        shown = source.splitlines()[line - 1].strip() if each.file else ""
        n = next((n for n, words in enumerate(lines) if shown and words.strip() == shown), -1)
    else:
        n = min(first + line - begin, len(lines) - 1)  # behind the last line stands a brace of ours
    if n < 0:
        return None
    at = beginning(each)
    if at is None:
        return each.name, f"line {n + 1} of its text\n{excerpt(each.text, n + 1)}"
    file, start = at
    whole = "".join(linecache.getlines(file))
    return each.name, f"{os.path.basename(file)}:{start + n}\n{excerpt(whole, start + n)}"


def begins(source: str, lines: Sequence[str]) -> int | None:
    """The number of the line of a source with which a user's lines begin, indented and typed."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    wanted = "\n".join(rf"[ \t]*{typed(each.strip())}" for each in lines)
    found = re.search(rf"^{wanted}", source, re.MULTILINE)
    return None if found is None else source.count("\n", 0, found.start()) + 1


def typed(line: str) -> str:
    text = re.escape(line)
    for sign, words in TYPED:
        text = text.replace(re.escape(sign.replace("\\", "")), words)
    return text


def beginning(each: Written) -> tuple[str, int] | None:
    """The file and the line where a text begins, if the file has it letter by letter."""
    if each.file:
        return each.file, 1
    if each.near is None:
        return None
    lines = linecache.getlines(each.near.file)
    whole, above = "".join(lines), len("".join(lines[: each.near.line - 1]))
    at = whole.find(each.text, above)
    if at < 0:  # a decorator that is called further down
        at = whole.rfind(each.text, 0, above)
    return None if at < 0 else (each.near.file, whole.count("\n", 0, at) + 1)
