"""The one Jinja environment. Templates hold the text of kernels; Python holds the decisions."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

PACKAGED = Path(__file__).parents[1] / "templates"  # where a wheel puts them
MARGIN = 66  # the column of comments
CHECKOUT = Path(__file__).parents[2] / "templates"  # where a checkout keeps them


@cache
def environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # `import ge2` does without

    found = Environment(
        loader=FileSystemLoader([PACKAGED, CHECKOUT]),
        undefined=StrictUndefined,  # a misspelt name is an error, not an empty string
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    found.globals["margin"] = margin
    found.globals["note"] = note
    return found


def margin(code: str, comment: str, indent: int) -> str:
    """A line of code with its comment in the margin.

    >>> margin("f(x)", "why", 4)
    'f(x)                                                            # why'
    """
    return f"{code:<{MARGIN - indent}}  # {comment}" if comment else code


def note(line: Any, indent: int) -> str:
    """A line of C with its comment in the margin."""
    code = " " * indent + str(line.code)
    return f"{code:<{MARGIN}}  /* {line.comment} */" if line.comment else code


def render(template: str, view: object) -> str:
    return environment().get_template(template).render(k=view)
