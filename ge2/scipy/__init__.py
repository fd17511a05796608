"""Functions under SciPy's names, which need no SciPy."""

from ge2.scipy import special as special

__all__ = ["special"]


def __dir__() -> list[str]:
    return __all__
