"""vmap: axes, structures, sizes, and errors."""

from __future__ import annotations

import numpy as np
import pytest

from ge2.base.errors import ConcretizationTypeError, InputError
from ge2.transforms import grad, make_jaxpr, vmap
from tests.transforms.functions import close


def here(error):
    return "test_vmap.py" in str(error.value)


def test_axes_may_be_negative_and_differ():
    a, b = np.arange(24.0).reshape(2, 3, 4), np.arange(3.0)
    got = vmap(lambda a, b: a * b, in_axes=(-2, 0), out_axes=1)(a, b)
    close(got, np.stack([a[:, i] * b[i] for i in range(3)], axis=1))
    close(vmap(lambda a: a, in_axes=2, out_axes=-1)(a), a)
    close(vmap(lambda a: a, np.int64(1), np.int64(1))(a), a)


def test_trees_of_axes():
    tree = {"w": np.ones((3, 2)), "b": [np.arange(6.0).reshape(2, 3), 4.0]}
    got = vmap(
        lambda t, x: (t["w"] * x, t["b"][0] + t["b"][1]),
        in_axes=({"w": 0, "b": [1, None]}, None),
        out_axes=(0, 1),
    )(tree, 2.0)
    close(got[0], np.full((3, 2), 2.0))
    close(got[1], np.arange(6.0).reshape(2, 3) + 4.0)


def test_prefixes_stand_for_whole_trees():
    tree = {"a": np.ones((3, 2)), "b": [np.ones(3)]}
    f = lambda t: {"y": t["a"] * t["b"][0], "k": [t["b"][0]]}  # noqa: E731
    found = vmap(f, in_axes=(0,), out_axes={"y": 1, "k": 0})(tree)
    assert found["y"].shape == (2, 3) and found["k"][0].shape == (3,)


def test_keyword_arguments_are_mapped_over_their_first_axis():
    got = vmap(lambda x, scale, mode="a": x * scale if mode == "a" else x)(
        np.ones((2, 3)), scale=np.array([1.0, 2.0])
    )
    close(got, np.outer([1.0, 2.0], np.ones(3)))
    assert vmap(lambda x, mode: x)(np.ones(2), mode="b").shape == (2,)


def test_shared_results():
    got = vmap(lambda x, y: (x * 2, y * 3.0, 7), in_axes=(0, None), out_axes=(0, None, None))(
        np.ones(2), 5.0
    )
    close(got[0], [2.0, 2.0])
    assert got[1:] == (15.0, 7) and type(got[1]) is float
    close(vmap(lambda x, y: y, in_axes=(0, None))(np.ones(2), 5.0), [5.0, 5.0])


def test_axis_size():
    close(vmap(lambda: np.ones(2), axis_size=3)(), np.ones((3, 2)))
    close(vmap(lambda x: x, in_axes=None, axis_size=2)(1.0), [1.0, 1.0])
    assert vmap(lambda x: x * 2, axis_size=0)(np.ones((0, 4))).shape == (0, 4)


def test_integers_and_bools():
    x = np.arange(6).reshape(2, 3)
    got = vmap(lambda x: (x > 2, x // 2, np.argmax(x)))(x)
    assert (got[0] == (x > 2)).all() and got[0].dtype == bool
    assert got[1].dtype == x.dtype and (got[2] == 2).all()


def test_results_are_owned():
    x = np.ones((2, 3))
    y, z = vmap(lambda x: (x, x))(x)
    assert not np.shares_memory(x, y) and not np.shares_memory(y, z)
    assert vmap(lambda x: x, out_axes=1)(x).flags.c_contiguous


def test_closures_over_outer_traced_values():
    f = lambda w: np.sum(vmap(lambda x: np.sin(x * w))(np.arange(3.0)))  # noqa: E731
    close(grad(f)(0.5), np.sum(np.cos(np.arange(3.0) * 0.5) * np.arange(3.0)))
    outer = vmap(lambda w: vmap(lambda x: x * w)(np.arange(3.0)))(np.arange(2.0))
    close(outer, np.outer(np.arange(2.0), np.arange(3.0)))


def test_shared_operands_of_products_are_not_repeated():
    graph = make_jaxpr(vmap(lambda w, x: w @ x, in_axes=(None, 0)))(
        np.ones((4, 3)), np.ones((5, 3))
    ).graph
    assert [e.op.name for e in graph.eqns].count("broadcast_in_dim") == 0


# ------------------------------------------------------------------------------------------- errors


def test_mapped_axes_that_differ_are_named():
    with pytest.raises(InputError, match=r"x has 2, y\['a'\] has 3") as error:
        vmap(lambda x, y: x)(np.ones(2), {"a": np.ones(3)})
    assert here(error)
    with pytest.raises(InputError, match="axis_size is 4"):
        vmap(lambda x: x, axis_size=4)(np.ones(2))


@pytest.mark.parametrize("axis", [2, -3, "0", 0.0])
def test_an_axis_that_is_not_there(axis):
    with pytest.raises(InputError, match=r"x, f64\[2,2\], has no axis") as error:
        vmap(lambda x: x, in_axes=axis)(np.ones((2, 2)))
    assert here(error)


def test_numbers_have_no_axis():
    with pytest.raises(InputError, match=r"x\[0\], ~f64\[\], has no axis 0"):
        vmap(lambda x: x)([1.0, 2.0])


def test_nothing_mapped():
    with pytest.raises(InputError, match="no argument is mapped.*") as error:
        vmap(lambda x: x, in_axes=None)(np.ones(2))
    assert here(error) and "axis_size" in str(error.value)


def test_as_many_axes_as_arguments():
    with pytest.raises(InputError, match="in_axes has 1 entries.*2 arguments") as error:
        vmap(lambda x, y: x, in_axes=(0,))(np.ones(2), np.ones(2))
    assert here(error)


def test_axes_of_another_structure():
    with pytest.raises(InputError, match="in_axes") as error:
        vmap(lambda t: t["a"], in_axes=({"b": 0},))({"a": np.ones(2)})
    assert here(error)
    with pytest.raises(InputError, match="out_axes") as error:
        vmap(lambda x: (x, x), out_axes=(0, 0, 0))(np.ones(2))
    assert here(error)


def test_a_mapped_result_needs_an_axis():
    with pytest.raises(InputError, match=r"out_axes=None, but the result\['y'\]") as error:
        vmap(lambda x: {"y": x, "z": 1.0}, out_axes=None)(np.ones(2))
    assert here(error)


def test_an_axis_that_results_do_not_have():
    with pytest.raises(InputError, match=r"out_axes=2, but the result\[1\].*has 1 axes") as error:
        vmap(lambda x: (x[:, None], x[0]), out_axes=(2, 2))(np.ones((2, 2)))
    assert here(error)


def test_a_mapped_value_decides_no_branch():
    with pytest.raises(ConcretizationTypeError, match="x is mapped by vmap") as error:
        vmap(lambda x: x if x > 0 else -x)(np.ones(2))
    assert here(error) and "np.where" in str(error.value)
    close(vmap(lambda x, n: x if n > 0 else -x, in_axes=(0, None))(np.ones(2), 1), [1.0, 1.0])


def test_a_mapped_value_decides_no_branch_in_a_nested_transform():
    with pytest.raises(ConcretizationTypeError, match="mapped by vmap"):
        vmap(grad(lambda x: x if x > 0 else -x))(np.ones(2))
    close(
        grad(lambda w: np.sum(vmap(lambda x, w: x * w if w > 0 else x, (0, None))(np.ones(2), w)))(
            2.0
        ),
        2.0,
    )
