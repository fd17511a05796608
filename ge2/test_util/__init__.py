"""Checks for what you write: derivatives against differences, operations of
your own against their laws.
"""

from __future__ import annotations

from ge2.base.tracebacks import publish
from ge2.test_util.grads import check_grads as check_grads
from ge2.test_util.grads import check_op as check_op

__all__ = ["check_grads", "check_op"]
publish(globals())


def __dir__() -> list[str]:
    return __all__
