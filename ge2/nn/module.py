"""A module: a frozen dataclass, and so a pytree of the arrays that its fields hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any, dataclass_transform

from ge2.base.errors import FrozenError
from ge2.base.names import INSIDE
from ge2.base.source import here
from ge2.nn.values import described


def static(**options: Any) -> Any:
    """A field that is no array: a number, a word or a function, and part of a signature.

    Options are those of `dataclasses.field`.

    >>> class Scale(Module):
    ...     by: Any
    ...     power: int = static(default=1)
    ...     def __call__(self, x):
    ...         return self.by * x**self.power
    >>> import numpy as np, ge2
    >>> ge2.tree.leaves(Scale(np.float64(3.0), power=2))
    [np.float64(3.0)]
    >>> ge2.grad(lambda model: model(2.0))(Scale(3.0, power=2))
    Scale(by=4.0, power=2)
    """
    return field(metadata={"static": True}, **options)


def state(**options: Any) -> Any:
    """A field of arrays that calls change and no optimiser does: its gradient is zero, and weight
    decay without a mask leaves it out. Options are those of `dataclasses.field`.

    >>> class Counted(Module):
    ...     weight: Any
    ...     mean: Any = state()
    >>> import numpy as np
    >>> from ge2 import optim
    >>> model = Counted(np.ones(2), np.ones(2))
    >>> optimizer = optim.sgd(0.1, decay=0.5)
    >>> model, _ = optimizer.update(Counted(np.zeros(2), np.zeros(2)), optimizer.init(model), model)
    >>> model.weight, model.mean
    (array([0.95, 0.95]), array([1., 1.]))
    """
    return field(metadata={"state": True}, **options)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(static, state, field))
class Module:
    """A base class whose subclasses are frozen dataclasses with a `repr` of one line.

    There is nothing else in it: parameters are the arrays that fields hold, alone or in lists,
    tuples, dicts and modules; fields made by `static` are no parameters. A dataclass of yours needs
    no base to be a module, and a dict of arrays with a function does all that a module does.

    >>> class Affine(Module):
    ...     weight: Any
    ...     bias: Any = None
    >>> import numpy as np
    >>> Affine(np.ones((2, 3), np.float32))
    Affine(weight=f32[2,3])
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, eq=False, repr=False)(cls)
        cls.__setattr__ = refused  # type: ignore[method-assign]

    def __repr__(self) -> str:
        shown = ((f.name, getattr(self, f.name)) for f in fields(self))  # type: ignore[arg-type]
        inside = ", ".join(f"{name}={text(x)}" for name, x in shown if x is not None)
        return f"{type(self).__name__}({inside})"

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            fix = INSIDE["a module"].get(name)
            text = f"a {type(self).__name__} has no attribute {name!r}"
            raise AttributeError(f"{text}\n  try  {fix}" if fix else text, name=name, obj=self)

    def replace(self, **changes: Any) -> Any:
        """The same module with other values of some fields.

        >>> class Affine(Module):
        ...     weight: Any
        >>> Affine(1.0).replace(weight=2.0)
        Affine(weight=2.0)
        """
        return replace(self, **changes)  # type: ignore[type-var]


def refused(module: Any, name: str, value: Any) -> None:
    """Assignment to an attribute of a module: FrozenError, which says what to write instead."""
    kind = type(module).__name__
    if name in (f.name for f in fields(module)):
        what = f"modules are values: the field {name!r} of a {kind} cannot be assigned to"
        raise FrozenError(what, where=here(), fix=f"model = model.replace({name}=...)")
    what = f"{name!r} is no field of the module {kind}, and cannot be assigned"
    fix = f"the field `{name}: Any` in the class, and a classmethod `init` that makes {kind}({name}=...)"
    raise FrozenError(what, where=here(), fix=fix)


def text(x: Any) -> str:
    """A field's value in a few words: an array by its type, a function by its name."""
    if hasattr(x, "dtype"):
        return described(x)
    if isinstance(x, Module):
        return type(x).__name__
    if isinstance(x, list | tuple):
        return f"[{', '.join(counted([text(y) for y in x]))}]"
    if isinstance(x, dict):
        return f"{{{', '.join(f'{k}: {text(y)}' for k, y in x.items())}}}"
    return str(getattr(x, "__name__", repr(x)))


def counted(words: list[str]) -> Iterator[str]:
    """The words, those that follow their like as a number of them."""
    while words:
        n = next((i for i, word in enumerate(words) if word != words[0]), len(words))
        yield words[0] if n == 1 else f"{n} x {words[0]}"
        words = words[n:]


@lru_cache(256)
def options(kind: Any) -> frozenset[str]:
    """The names of what a call of a module takes."""
    return frozenset(signature(kind.__call__).parameters)


def applied(module: Any, x: Any, key: Any, training: bool) -> Any:
    """A module or a function of x; `key` and `training` are passed to one that takes them."""
    if not isinstance(module, Module):
        return module(x)
    call: Any = module
    given, takes = {"key": key, "training": training}, options(call.__class__)
    return call(x, **{name: value for name, value in given.items() if name in takes})
