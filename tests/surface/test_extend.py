"""Operations from outside the package: rules, C, batches, and what the front door refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ge2
from ge2 import extend
from ge2.base.config import config
from ge2.base.errors import ArgumentError, CompileError, NoRuleError, TypeRuleError
from ge2.test_util import check_op
from tests.together import needs_compiler

P = np.linspace(0.1, 0.9, 5)
X = np.arange(12.0).reshape(3, 4)

logit = extend.elementwise(
    "test_logit",
    lambda p: np.log(p / (1 - p)),
    "logit_$t({0})",
    lambda y, p: 1 / (p * (1 - p)),
    helpers="static inline $T logit_$t($T p) { return ge2_log_$t(p / (1 - p)); }",
    cuda="logit_$t({0}) * 1",
)
norm2 = extend.elementwise(
    "test_norm2",
    lambda a, b: a * a + b * b,
    "{0} * {0} + {1} * {1}",
    lambda y, a, b: 2 * a,
    lambda y, a, b: 2 * b,
    takes="if",
)


@extend.op
class Smooth(extend.Op):
    share: float
    name = "test_smooth"
    batch = extend.in_front

    def infer(self, x):
        return (x,)

    def reference(self, x):
        return (x + self.share * (np.roll(x, 1, -1) + np.roll(x, -1, -1))).astype(x.dtype)

    def vjp(self, cts, ys, xs, wanted):
        return [self(cts[0])]

    c = """
    const int64_t n = x_shape[x_ndim - 1];
    for (int64_t i = 0; i < x_size; i++) {
        const x_t *row = x + i / n * n;  // of the element
        y[i] = x[i] + (x_t)share * (row[(i + n - 1) % n] + row[(i + 1) % n]);
    }
    """
    cuda = """
    const int64_t n = x_shape[x_ndim - 1], i = thread % n;
    const x_t *row = x + (thread - i);
    y[thread] = x[thread] + (x_t)share * (row[(i + n - 1) % n] + row[(i + 1) % n]);
    """


@extend.op
class Extremes(extend.Op):
    """Two results, two operands, no derivative, no batch."""

    name = "test_extremes"
    several = True

    def infer(self, x, w):
        return (x.with_shape(x.shape[:-1]),) * 2

    def reference(self, x, w):
        return (x * w).min(-1), (x * w).max(-1)

    c = """
    for (int64_t r = 0; r < y0_size; r++) {
        y0[r] = INFINITY, y1[r] = -INFINITY;
        for (int64_t i = 0; i < w_size; i++) {
            const x_t v = x[r * w_size + i] * w[i];
            y0[r] = v < y0[r] ? v : y0[r];
            y1[r] = v > y1[r] ? v : y1[r];
        }
    }
    """
    cuda = """
    y0[thread] = 1 / (y0_t)0, y1[thread] = -1 / (y1_t)0;
    for (int64_t i = 0; i < w_size; i++) {
        const x_t v = x[thread * w_size + i] * w[i];
        y0[thread] = v < y0[thread] ? v : y0[thread];
        y1[thread] = v > y1[thread] ? v : y1[thread];
    }
    """


smooth, extremes = Smooth(0.25), Extremes()
W = np.array([1.0, -1.0, 2.0, 0.0])


# -------------------------------------------------------------------------------------- elementwise


def test_an_expression_obeys_the_laws():
    check_op(
        logit,
        [
            P, P.astype(np.float32), P.astype(np.float16), P.astype(ge2.bfloat16),
            np.zeros((0, 2)) + 0.5,
        ],
    )  # fmt: skip
    check_op(
        norm2,
        [(P, P[::-1]), (np.arange(3), np.arange(3)), (P.astype(np.float32), P.astype(np.float32))],
    )


def test_an_expression_promotes_and_broadcasts():
    assert norm2([1, 2], 3).tolist() == [10, 13] and norm2(1, 2) == 5
    assert ge2.jit(norm2)(np.ones((2, 1), np.float32), np.ones(3, np.int32)).dtype == np.float64
    assert ge2.jit(norm2)(np.ones((2, 1)), np.ones(3)).shape == (2, 3)
    assert logit(np.array([1], np.int8)).dtype == np.float16
    assert ge2.jit(logit)(np.array([0, 1])).tolist() == [-np.inf, np.inf]
    assert ge2.grad(norm2)(2.0, 1.0) == 4.0


@needs_compiler
def test_an_expression_is_fused_with_its_neighbours():
    low = ge2.jit(lambda p: np.tanh(2 * logit(p)) + norm2(p, 1.0)).lower(P)
    assert len(low.kernels) == 1
    text = low.as_text("c")
    assert text.count("static inline double logit_f64(double p)") == 1 and "ge2_log_f64" in text
    np.testing.assert_allclose(low.compile()(P), np.tanh(2 * logit(P)) + P * P + 1, rtol=1e-14)


def test_predicates_have_no_derivative():
    above = extend.elementwise(
        "test_above", lambda x: x > 1, "{0} > 1", None, result=bool, takes="if"
    )
    check_op(above, [np.array([0.5, 1.5]), np.array([1, 2])])
    assert ge2.grad(lambda x: np.where(above(x), x * x, x).sum())(
        np.array([0.5, 1.5])
    ).tolist() == [1.0, 3.0]


def test_defined_again_it_is_another():
    def make(k):
        return extend.elementwise(
            "test_again", lambda x: x * k, f"{{0}} * {k}", lambda y, x: float(k)
        )

    first = make(2)
    double = ge2.jit(lambda x: first(x))
    assert double(np.ones(2)).tolist() == [2.0, 2.0]
    second = make(3)
    assert first.op != second.op
    assert ge2.jit(lambda x: second(x))(np.ones(2)).tolist() == [3.0, 3.0]
    assert double(np.ones(3)).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("test_no", np.sin, "sin({0}, {1})", None), "is no expression of 1 operands"),
        (("test_no", np.sin, "{ {0}; }", None), "is no expression of 1 operands"),
        (("test_no", np.sin, "sin(x)", None), "does not read operand .0."),
        (("test_no", np.sin, "sin({0})"), "has no operands"),
        (("sin", np.sin, "sin({0})", None), "sin is an operation of ge2"),
        (("Sin", np.sin, "sin({0})", None), "no name of small letters"),
    ],
)
def test_expressions_that_are_refused(arguments, says):
    with pytest.raises(ArgumentError, match=says) as error:
        extend.elementwise(*arguments)
    assert "test_extend.py" in str(error.value)
    with pytest.raises(ArgumentError, match="not made of b, i, f and c"):
        extend.elementwise("test_no", np.sin, "sin({0})", None, takes="z")
    with pytest.raises(ArgumentError, match="is no expression"):
        extend.elementwise("test_no", np.sin, "sin({0})", None, cuda="sinf({1})")
    with pytest.raises(ArgumentError, match="takes 2 operands; got 1"):
        norm2(1.0)


@needs_compiler
def test_an_expression_may_be_another_in_cuda():
    odd = extend.elementwise(
        "test_odd", lambda x: 2 * x, "{0} * 2", lambda y, x: 2.0, cuda="{0} + {0} + ($T)0.5"
    )
    with config.using(executor="shim"):
        # so that one sees what ran
        assert ge2.jit(lambda x: odd(x))(P).tolist() == (2 * P + 0.5).tolist()
        np.testing.assert_allclose(ge2.jit(lambda p: logit(p))(P), logit(P), rtol=1e-15, atol=1e-16)
    assert ge2.jit(lambda x: odd(x) * 1)(P).tolist() == (2 * P).tolist()
    with pytest.raises(AssertionError, match=r"test_odd of f64\[5\]: executed in CUDA"):
        check_op(odd, [P])


# ------------------------------------------------------------------------------------------ classes


def test_a_class_obeys_the_laws():
    half = [X.astype(np.float16), X.astype(ge2.bfloat16)]
    check_op(smooth, [X, X[0], np.ones((2, 1), np.float32), np.zeros((0, 3)), *half])
    check_op(extremes, [(X, W), (X.astype(np.float32), W.astype(np.float32))])


def test_it_is_called_with_whatever_numpy_takes():
    assert smooth([1.0, 2.0]).tolist() == [2.0, 2.5]
    assert np.array_equal(ge2.jit(lambda x: smooth(x) * np.ones(4))(X), smooth(X))
    traced = ge2.make_jaxpr(smooth)(X)
    assert "test_smooth[share=0.25]" in str(traced)
    assert ge2.parse(str(traced)) == traced.graph


@needs_compiler
def test_jit_runs_the_c():
    @extend.op
    class Marked(extend.Op):
        by: int
        on: bool
        steps: tuple[int, ...]
        name = "test_marked"

        def infer(self, x):
            return (x,)

        def reference(self, x):
            return x

        helpers = "static $T marked_$t($T x, int64_t by) { return x + ($T)by; }"
        c = "for (int64_t i = 0; i < x_size; i++) y[i] = on ? marked_$t(x[i], by * steps[1]) : 0;"

    f = Marked(5, True, (1, 2))
    assert np.array_equal(ge2.jit(f)(X), X + 10)  # so that one sees what ran
    # operands lie in C order
    assert np.array_equal(ge2.jit(lambda x: f(x.T * 2) - 1)(X), X.T * 2 + 9)
    assert np.array_equal(ge2.jit(f)(X.astype(np.float16)), (X + 10).astype(np.float16))
    assert ge2.jit(lambda x: f(x * 2.0))(3.0) == 6.0 and np.array_equal(f(X), X)
    with config.using(executor="blocked"):
        assert np.array_equal(ge2.jit(f)(X), X)


@needs_compiler
def test_any_number_of_operands():
    @extend.op
    class Total(extend.Op):
        name = "test_total"
        batch = extend.in_front

        def infer(self, x, *rest):
            return (x,)

        def reference(self, x, *rest):
            return x + sum(rest)

        c = "for (int64_t i = 0; i < x_size; i++) y[i] = x[i] + rest0[i] + rest1[i];"

    check_op(Total(), [(X, X, 2 * X)])


def test_the_dtype_of_a_reference_is_looked_at():
    wide = extend.elementwise("test_wide", lambda x: x * np.ones(1), "{0}", lambda y, x: 1.0)
    with pytest.raises(
        TypeRuleError, match=r"returns f64\[5\]; its type rule says f32\[5\]"
    ) as error:
        wide(P.astype(np.float32))
    assert "test_extend.py" in str(error.value)


def test_without_a_batch_vmap_is_a_loop():
    two = np.stack([X, X + 1])
    low, high = ge2.vmap(extremes, (0, None))(two, W)
    assert np.array_equal(low, [extremes(x, W)[0] for x in two])
    assert np.array_equal(high, [extremes(x, W)[1] for x in two])
    text = str(ge2.make_jaxpr(ge2.vmap(extremes, (0, None)))(two, W))
    assert text.count("test_extremes") == 1 and "scan[" in text
    assert np.array_equal(
        ge2.jit(ge2.vmap(extremes, (1, None)))(X[:, None, :], W)[0], [extremes(X, W)[0]]
    )
    assert str(ge2.make_jaxpr(ge2.vmap(smooth))(two)).count("test_smooth") == 1
    assert ge2.vmap(extremes, (0, None))(two[:0], W)[0].shape == (0, 3)


def test_its_rules_may_be_numpy():
    @extend.op
    class Weighted(extend.Op):
        name = "test_weighted"

        def infer(self, x):
            return (x.with_shape(()),)

        def reference(self, x):
            return (x * np.arange(4.0)).sum()

        def vjp(self, cts, ys, xs, wanted):
            return [np.broadcast_to(cts[0], (4,)) * np.arange(4.0)]

    f = Weighted()
    assert ge2.jit(ge2.grad(f))(X[0]).tolist() == [0.0, 1.0, 2.0, 3.0]
    assert ge2.jvp(f, (X[0],), (np.ones(4),))[1] == 6.0
    assert np.array_equal(ge2.vmap(ge2.grad(f))(X), np.tile(np.arange(4.0), (3, 1)))


def test_its_rules_may_return_arrays():
    @extend.op
    class Three(extend.Op):
        name = "test_three"

        def infer(self, x):
            return (x,)

        def reference(self, x):
            return x * 0 + 3

        def vjp(self, cts, ys, xs, wanted):
            return [np.zeros(4)]

        def jvp(self, ts, ys, xs):
            return [np.zeros(4)]

        def batch(self, xs, axes, size):
            return [np.full((size, 4), 3.0)], [0]

    f = Three()
    check_op(f, [np.ones(4)])
    assert ge2.jit(ge2.vmap(f))(X).tolist() == [[3.0] * 4] * 3
    assert ge2.jit(ge2.grad(lambda x: f(x).sum()))(X[0]).tolist() == [0.0] * 4
    assert ge2.jvp(f, (X[0],), (X[0],))[1].tolist() == [0.0] * 4


def test_without_a_derivative_it_says_so():
    with pytest.raises(NoRuleError, match="test_extremes has no derivative") as error:
        ge2.grad(lambda x: extremes(x, W)[0].sum())(X)
    assert "test_extend.py" in str(error.value)


def test_another_type_than_the_rule_says():
    class Narrow(extend.Op):
        name = "test_narrow"

        def infer(self, x):
            return (x,)

        def reference(self, x):
            return x.astype(np.float32)

    f = extend.op(Narrow)()
    with pytest.raises(TypeRuleError, match=r"returns f32\[3,4\]; its type rule says f64\[3,4\]"):
        f(X)
    with pytest.raises(
        AssertionError, match=r"the reference gives f32\[3,4\], the type rule f64\[3,4\]"
    ):
        check_op(f, [X])


@needs_compiler
def test_c_that_the_compiler_refuses():
    wrong = extend.elementwise("test_wrong", lambda x: x, "{0} +", lambda y, x: 1.0)
    with pytest.raises(CompileError, match=r"with test_wrong of your own in it") as error:
        ge2.jit(lambda x: wrong(x))(P)
    assert "error:" in str(error.value) and "GE2_EXECUTOR=blocked runs the reference" in str(
        error.value
    )
    assert np.array_equal(ge2.jit(smooth)(X), smooth(X))  # the compiler is well


@needs_compiler
def test_jit_runs_the_cuda_on_a_gpu():
    @extend.op
    class Marked(extend.Op):
        by: float
        name = "test_marked_cuda"

        def infer(self, x):
            return (x,)

        def reference(self, x):
            return x

        cuda = "y[thread] = x[thread] + (y_t)by;"

    f = Marked(2.5)
    with config.using(executor="shim"):
        low = ge2.jit(lambda x: f(x.T * 2) - 1).lower(X)
        assert np.array_equal(low.compile()(X), X.T * 2 + 1.5)  # so that one sees what ran
        assert ge2.jit(ge2.vmap(f))(X).tolist() == (X + 2.5).tolist()
        assert ge2.jit(lambda x: f(x * 2.0))(3.0) == 6.0  # a Python number has no memory there
    assert np.array_equal(ge2.jit(f)(X), X)
    with pytest.raises(AssertionError, match=r"test_marked_cuda.* of f64\[3,4\]: executed in CUDA"):
        check_op(f, [X])


@needs_compiler
def test_cuda_that_the_compiler_refuses():
    """The error shows the line of this file, for a body and for a function of helpers."""

    @extend.op
    class Refused(extend.Op):
        name = "test_refused"

        def infer(self, x):
            return (x,)

        def reference(self, x):
            return x

        cuda = """
        const $T one = 1;
        y[thread] = x[thread] + missing;  // line of the body
        """

    class Helped(extend.Op):
        name = "test_helped"
        infer, reference = Refused.infer, Refused.reference
        cuda = "y[thread] = half_$t(x[thread]);"
        helpers = """
        static $T half_$t($T x) {
            return x / absent;  // line of the helpers
        }
        """

    for made, word, marked in (
        (Refused(), "missing", "y[thread] = x[thread] + missing;  // line of the body"),
        (extend.op(Helped)(), "absent", "return x / absent;  // line of the helpers"),
    ):
        lines = Path(__file__).read_text().splitlines()
        (at,) = [n for n, line in enumerate(lines, 1) if line.strip() == marked]
        with config.using(executor="shim"), pytest.raises(CompileError, match=word) as error:
            ge2.jit(lambda x, made=made: made(x) * 2)(X)
        said = str(error.value)
        assert f"the CUDA of {made.name}, an operation of your own" in said
        assert f"test_extend.py:{at}\n" in said and f"> {at} |" in said
        assert "bug of ge2" not in said and said.count("  try") == 1


def rules(**more):
    return {
        "infer": lambda self, x: (x,),
        "reference": lambda self, x: x,
        "name": "test_made",
        **more,
    }


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        ({"reference": lambda self, x: x, "name": "test_made"}, NoRuleError, "Made has no infer"),
        (
            {"infer": lambda self, x: (x,), "name": "test_made"},
            NoRuleError,
            "Made has no reference",
        ),
        (rules(name="add"), ArgumentError, "add is an operation of ge2"),
        (rules(name=None), ArgumentError, "Made has no name"),
        (rules(name="two words"), ArgumentError, "Made has no name of small letters"),
        (rules(cuda=lambda self: ""), ArgumentError, "cuda of Made is a function"),
        (rules(reference=lambda self, y: y, c=";"), ArgumentError, "has an operand y, which means"),
        (
            rules(reference=lambda self, y: y, cuda=";"),
            ArgumentError,
            "has an operand y, which means",
        ),
        (
            rules(reference=lambda self, thread: 0, cuda=";"),
            ArgumentError,
            "has an operand thread, which",
        ),
    ],
)
def test_classes_that_are_refused(body, kind, says):
    with pytest.raises(kind, match=says) as error:
        extend.op(type("Made", (extend.Op,), body))
    assert "test_extend.py" in str(error.value)
    with pytest.raises(ArgumentError, match="decorates a class"):
        extend.op(lambda x: x)


# ----------------------------------------------------------------------- functions of an expression

EXECUTORS = ("reference", "blocked", "c", "shim")
CALLS = {  # what an expression calls, and the error's first words
    "ge2_sinn_$t({0})": "ge2_sinn_f64, which no header of target c defines",
    "ge2_tanh(ge2_sinn({0}))": "ge2_sinn_f64, which no header of target c defines",
    "lost_$t({0}) + 1": "lost_f64, which no header of target c defines",
    "sinn({0})": "sinn, which no header of target c defines",
}


@pytest.mark.exhaustive("executor")
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("text", CALLS)
def test_a_function_that_no_header_defines_fails_the_type_rule(text, executor):
    f = extend.elementwise("test_lost", np.sin, text, None)
    with config.using(executor=executor), pytest.raises(TypeRuleError, match=CALLS[text]) as error:
        ge2.jit(lambda x: 2 * f(x))(P)
    assert "a function of that name in helpers" in str(error.value)
    with pytest.raises(TypeRuleError, match=CALLS[text]):
        f(P)


def test_a_function_that_only_cuda_lacks_fails_too():
    f = extend.elementwise("test_lost", np.sin, "sin({0})", None, cuda="ge2_sinn({0})")
    with pytest.raises(TypeRuleError, match="ge2_sinn_f64, which no header of target cuda"):
        ge2.jit(f)(P)


def test_functions_that_headers_helpers_and_the_compiler_define_are_known():
    c = "ge2_max_$t(fma({0}, 2.0, 1.0), twice_$t(($T)ge2_cast({0}))) + sqrtf(1.0f)"
    cuda = "ge2_max({0}, __fmaf_rn({0}, 2.0f, rsqrt(4.0)))"
    helpers = "#define THREE 3\nstatic inline $T twice_$t($T x) { return x + x; }"
    f = extend.elementwise("test_found", np.sin, c, None, helpers=helpers, cuda=cuda)
    for dtype in (np.float16, np.float32, np.float64):
        assert f.op.infer(ge2.ir.ArrayType((3,), np.dtype(dtype)))[0].dtype == dtype
