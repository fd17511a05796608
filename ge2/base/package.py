"""The folders of this package: of its modules, and of the templates and headers
that kernels are made of.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Final

PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@cache
def templates(*names: str) -> str:
    """A file or folder among the templates, where a wheel puts them, or
    where a checkout keeps them.
    """
    folders = (
        os.path.join(PACKAGE, "templates"),
        os.path.join(os.path.dirname(PACKAGE), "templates"),
    )
    return os.path.join(next(filter(os.path.isdir, folders), folders[0]), *names)
