"""The kernels that users write for operations of their own: the body is theirs, its parameters are ours."""

from __future__ import annotations

import textwrap
from dataclasses import fields
from typing import Any, final

from ge2.base.dtypes import BOOL, FLOAT32, FLOAT64, HALF, INT64
from ge2.codegen.c.axes import strides_of
from ge2.codegen.c.text import Argument, CKernel, Operand, Text, whole
from ge2.codegen.c.typed import HELD, STORED, helpers_of, number, spelt
from ge2.ir import ArrayType
from ge2.kernels.generated import Generated, Operands, Pieces, copying
from ge2.kernels.kernel import Problem
from ge2.kernels.loops import described
from ge2.ops.own import Own


@final
class COwn(Generated):
    name = "a kernel of your own in C"

    def refuses(self, problem: Problem) -> str:
        if not isinstance(problem.op, Own):
            return f"{problem.op.name} is an operation of ge2"
        return "" if problem.op.c else f"{problem.op.name} has no C"

    def pieces(self, problem: Problem, ins: Operands, outs: Operands, threads: int) -> Pieces:
        return Writing(problem, threads).run(ins, outs)


class Writing:
    def __init__(self, problem: Problem, threads: int) -> None:
        assert isinstance(problem.op, Own)
        self.op, self.problem, self.threads = problem.op, problem, threads
        self.arguments: list[Argument] = []
        self.lines: list[str] = []
        self.copies: list[CKernel] = []
        self.temps: list[int] = []

    def run(self, ins: Operands, outs: Operands) -> Pieces:
        op, problem = self.op, self.problem
        for name, t, operand in zip(names_of(op, len(ins)), problem.inputs, ins, strict=True):
            self.given(name, t, operand)
        results = [f"y{i}" for i in range(len(outs))] if op.several else ["y"]
        after = []
        for name, t, operand in zip(results, problem.outs, outs, strict=True):
            wide = held(t)
            target = operand if wide == t else self.temp(wide)
            if wide != t:
                after.append(copying(wide, t, target, operand, self.threads))
            self.add(f"{STORED[wide.dtype]} *{name}", "result", (target, wide.dtype))
            self.described(name, wide)
        for f in fields(op):  # type: ignore[arg-type]
            self.parameter(f.name, getattr(op, f.name))
        self.arguments.append(Argument("int threads", "threads"))
        dtype = held((*problem.inputs, *problem.outs)[0]).dtype
        body = textwrap.dedent(spelt(op.c, dtype)).strip("\n").splitlines()
        texts = (
            *map(Text, self.lines),
            Text("(void)threads;"),
            Text("", body=tuple(map(Text, body)) or (Text(";"),)),
        )
        helpers = helpers_of(op.helpers, dtype)
        kernel = CKernel(op.name, described(problem), tuple(self.arguments), texts, 1, helpers=helpers)
        return Pieces((*self.copies, kernel, *after), tuple(self.temps))

    def add(self, declaration: str, kind: str, value: Any) -> None:
        self.arguments.append(Argument(declaration, kind, value))

    def given(self, name: str, t: ArrayType, operand: Operand) -> None:
        """An operand: as it lies, or a copy in C order (half types as float32), or a number."""
        wide = held(t)
        ctype = STORED[wide.dtype]
        if operand.value:
            self.add(f"{HELD[t.dtype]} {name}_given", "value", (operand, t.dtype))
            self.lines.append(f"const {ctype} {name}_value = {name}_given;")
            self.lines.append(f"const {ctype} *const {name} = &{name}_value;")
        else:
            if wide != t or (operand.strides != strides_of(t.shape) and t.size > 1):
                temp = self.temp(wide)
                self.copies.append(copying(t, wide, operand, temp, self.threads))
                operand = temp
            self.add(f"const {ctype} *{name}", "array", (operand, wide.dtype))
        self.described(name, wide)

    def temp(self, t: ArrayType) -> Operand:
        self.temps.append(t.nbytes)
        return whole("temp", len(self.temps) - 1, t.shape)

    def described(self, name: str, t: ArrayType) -> None:
        """The names beside an array: the type of its elements, its sizes."""
        sizes = [f"{name}_n{i}" for i in range(t.ndim)]
        for size, n in zip(sizes, t.shape, strict=True):
            self.add(f"int64_t {size}", "size", n)
        self.lines += [
            f"typedef {STORED[t.dtype]} {name}_t;",
            f"const int64_t {name}_shape[] = {{{', '.join(sizes) or '1'}}};",
            f"const int64_t {name}_ndim = {t.ndim}, {name}_size = {' * '.join(sizes) or '1'};",
            f"(void){name}, (void){name}_shape, (void){name}_ndim, (void){name}_size;",
            f"(void)sizeof({name}_t);",
        ]

    def parameter(self, name: str, value: Any) -> None:
        """A field that is a number, or a tuple of integers."""
        if isinstance(value, bool | int | float):
            dtype = BOOL if isinstance(value, bool) else INT64 if isinstance(value, int) else FLOAT64
            ctype = {BOOL: "int", INT64: "int64_t", FLOAT64: "double"}[dtype]
            self.lines.append(f"const {ctype} {name} = {number(value, dtype)};")
        elif isinstance(value, tuple) and value and all(type(v) is int for v in value):
            listed = ", ".join(number(v, INT64) for v in value)
            self.lines.append(f"const int64_t {name}[] = {{{listed}}};")
        else:
            return
        self.lines.append(f"(void){name};")


def held(t: ArrayType) -> ArrayType:
    """The type in which a user's C meets an array: half types as float32."""
    return t.with_dtype(FLOAT32) if t.dtype in HALF else t


def names_of(op: Own, count: int) -> list[str]:
    """What the operands are called in C."""
    fixed = [name for name in op.operands if not name.startswith("*")]
    more = next((name[1:] for name in op.operands if name.startswith("*")), "x")
    return [*fixed, *(f"{more}{i}" for i in range(count - len(fixed)))][:count]
