"""The one Jinja environment. Templates hold the text of kernels; Python holds the decisions."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from threading import RLock
from typing import TYPE_CHECKING, Any

from ge2.base.cache import content_key
from ge2.base.errors import CompileError
from ge2.base.formatting import pattern
from ge2.base.source import templates
from ge2.codegen.rendered_cache import compiled_templates, keep_compiled, page, user_templates

if TYPE_CHECKING:
    from jinja2 import BytecodeCache, Environment
    from jinja2.bccache import Bucket

    from ge2.codegen.text import Text


# ----------------------------------------------------------------------------------------- comment
# The one way in which what a user names comes into generated text.
#
# Names of functions, scopes and operations and formats of `debug.print` stand in comments
# of C, CUDA and Python and in docstrings, nowhere else. There they must not end what they
# stand in, nor begin anything.


PAIRS = pattern(r"\*(?=/)|/(?=\*)|\?(?=\?)")  # an end, a beginning, a trigraph
FOREIGN = pattern(r"[^\n\x20-\x7e]")


def comment(text: object) -> str:
    r"""A text, of several lines perhaps, as it may stand in a comment or a
    docstring of any language.

    >>> print(comment("a*/b /*/ what??/ caf\xe9 \\"))
    a* /b / * / what? ?/ caf\xe9 \\
    """
    plain = str(text).replace("\\", "\\\\").replace('"""', "'''")
    return FOREIGN.sub(spelled, PAIRS.sub(r"\g<0> ", plain))


def one_line(text: object) -> str:
    r"""A name or an equation as it may stand in a comment of one line.

    >>> print(one_line("f\n#include <evil.h>"))
    f\x0a#include <evil.h>
    """
    return comment(text).replace("\n", r"\x0a")


def spelled(found: re.Match[str]) -> str:
    """The number of a character, in printable ASCII."""
    code = ord(found[0])
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )


# ------------------------------------------------------------------------------------- environment


MARGIN = 66  # the column of comments
WIDTH = 110  # of a line of C
ROOM = WIDTH - MARGIN - len("  /*  */")  # for the words of a comment
CALL = pattern(
    r"((?:(?:static |GE2_SHARED |GE2_SINGLE )?void )?\w+\()(.*)(\)(?:;| \{))"
)  # a call as a statement, or how a function begins
GLUE = "\0"
NOTHING = "\1"  # in place of statements that there are none of: its line is left out
LONG = pattern(rf"^(.{{{MARGIN}}}  /\* )(.{{{ROOM + 1},}}) \*/$", re.MULTILINE)
EMPTY = pattern(rf"^ *{NOTHING}\n", re.MULTILINE)

_rendering = RLock()  # a fork waits for it: in the child, locks of Jinja's would be held for ever


OURS = "ge2:"  # before the name of a template of ours that the user's of that name extends


_texts: dict[str, tuple[str, str]] = {}  # templates that are texts of a user's: path and content


def template_of(path: str, text: str) -> str:
    """The name of a template that is a file of a user's, as it was read: another content has
    another name.
    """
    name = f"{path}@{content_key(text)[:16]}"
    _texts[name] = path, text
    return name


def environment() -> Environment:
    return _environment(user_templates())


def _bytecode(users: str) -> BytecodeCache:
    """The compiled templates that the cache of files holds."""
    import jinja2
    from jinja2 import BytecodeCache

    kept, passing = compiled_templates(jinja2.__version__, users), set[str]()

    class Compiled(BytecodeCache):
        """Templates as Python's byte code, all of them one entry of the cache of files."""

        def load_bytecode(self, bucket: Bucket) -> None:
            if code := kept.get(bucket.key + bucket.checksum):
                bucket.bytecode_from_string(code)

        def get_bucket(
            self, environment: Environment, name: str, filename: str | None, source: str
        ) -> Bucket:
            found = super().get_bucket(environment, name, filename, source)
            if name in _texts:
                passing.add(found.key)
            return found

        def dump_bytecode(self, bucket: Bucket) -> None:
            if bucket.key in passing:  # a text that is being edited
                return
            kept[bucket.key + bucket.checksum] = bucket.bytecode_to_string()
            keep_compiled(kept, jinja2.__version__, users)

    return Compiled()


@cache
def _environment(users: str) -> Environment:
    """The templates of ours, and before them those of a folder of the user's."""
    from jinja2 import (  # `import ge2` does without
        ChoiceLoader,
        Environment,
        FileSystemLoader,
        FunctionLoader,
        PrefixLoader,
        StrictUndefined,
    )

    class Templates(Environment):
        def join_path(self, template: str, parent: str) -> str:
            """A template that extends its own name means ours, which it stands before."""
            return f"{OURS}{template}" if template == parent else template

    def text(name: str) -> tuple[str, str, None] | None:
        return (_texts[name][1], name, None) if name in _texts else None

    ours = FileSystemLoader(templates())
    before = [FileSystemLoader(users)] if users else []
    found = Templates(
        loader=ChoiceLoader(
            [*before, ours, PrefixLoader({"ge2": ours}, ":"), FunctionLoader(text)]
        ),
        undefined=StrictUndefined,  # a misspelt name is an error, not an empty string
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_bytecode(users),
        keep_trailing_newline=True,
        autoescape=False,
        optimized=False,  # there is no constant to fold, and looking for one takes time
    )
    found.globals["margin"] = margin
    found.globals["note"] = note
    found.globals["wrap"] = wrap
    found.filters["comment"], found.filters["one_line"] = comment, one_line
    found.filters["moved"] = moved
    found.filters["statements"], found.filters["enclosed"] = statements, enclosed
    return found


def margin(code: str, words: str, indent: int) -> str:
    """A line of code with its comment in the margin.

    >>> margin("f(x)", "why", 4)
    'f(x)                                                            # why'
    """
    return f"{code:<{MARGIN - indent}}  # {one_line(words)}" if words else code


def note(line: Any, indent: int) -> str:
    """A line of C with its comment in the margin, or above it where the code needs the margin.

    Where it stands depends on the code alone: comments have sizes in them, and code for
    other sizes is to have the same lines, or it would be compiled again. What the
    margin has no room for is cut.
    """
    code, said = wrap(line.code, indent), one_line(line.comment)
    if not said:
        return code
    if len(code) > MARGIN:
        return f"{' ' * indent}/* {said} */\n{code}"
    return f"{code:<{MARGIN}}  /* {said} */"


def cut(found: re.Match[str]) -> str:
    """A comment as the margin has room for it."""
    return f"{found[1]}{found[2][: ROOM - 3].rstrip()}... */"


def statements(what: str | Sequence[Text], indent: int) -> str:
    """Statements, or text, as a template prints them at a column; a line of nothing is left out.

    The first line stands where the template has the call, the others below it.
    """
    text = moved(what, indent) if isinstance(what, str) else "\n".join(rows_of(what, indent))
    return text.lstrip(" ") or NOTHING


def moved(text: str, indent: int) -> str:
    """Lines of which the first is to begin at a column; comments stay in their margin."""
    rows = text.rstrip("\n").split("\n")
    shift = " " * (indent - (len(rows[0]) - len(rows[0].lstrip(" "))))
    return "\n".join(row and realigned(shift + row, len(shift)) for row in rows)


def realigned(row: str, shift: int) -> str:
    """Move the comment of an indented line back to the margin, or above the line if it is too long."""
    at = MARGIN + shift
    if not shift or row[at : at + 5] != "  /* ":
        return row
    code = row[:at].rstrip()
    if len(code) <= MARGIN:
        return f"{code:<{MARGIN}}{row[at:]}"
    return f"{' ' * (len(code) - len(code.lstrip()))}{row[at:].strip()}\n{code}"


def enclosed(texts: Sequence[Text], indent: int) -> str:
    """The statements that a head at a column encloses: in braces, unless there is only one."""
    if len(texts) == 1 and not texts[0].pragma and not texts[0].body:
        return f"\n{note(texts[0], indent + 4)}"
    return "\n".join((" {", *rows_of(texts, indent + 4), f"{' ' * indent}}}"))


def rows_of(texts: Sequence[Text], indent: int) -> Iterator[str]:
    """Lines of C, each with what it encloses."""
    space = " " * indent
    for t in texts:
        if t.pragma:
            yield space + t.pragma
        if not t.body:
            yield note(t, indent)
        elif len(t.body) > 1 or t.body[0].pragma or t.body[0].body or t.end:
            yield f"{space}{t.code} {{" if t.code else f"{space}{{"
            yield from rows_of(t.body, indent + 4)
            yield f"{space}}}{t.end}"
        else:
            yield space + t.code
            yield note(t.body[0], indent + 4)


def wrap(code: str, indent: int) -> str:
    """A line of C as lines that are not too long: what stands in its parentheses comes between.

    >>> print(wrap("f(" + ", ".join(30 * ["abc"]) + ");", 0))
    f(
        abc, abc, abc, abc, abc, abc, abc, abc, abc, abc, abc, abc, abc, abc, abc, abc, abc, abc, abc, abc,
        abc, abc, abc, abc, abc, abc, abc, abc, abc, abc
    );
    """
    space = " " * indent
    if indent + len(code) <= WIDTH or '"' in code or not CALL.fullmatch(code):
        return space + code
    head, arguments, tail = CALL.fullmatch(code).groups()  # type: ignore[union-attr]
    glued = re.sub(r"(?<!,) ", GLUE, arguments)
    lines = textwrap.wrap(glued, WIDTH - indent - 4, break_long_words=False, break_on_hyphens=False)
    return "\n".join(
        [space + head, *(f"{space}    {each.replace(GLUE, ' ')}" for each in lines), space + tail]
    )


def rendered(template: str, view: object) -> str:
    """The text of a template. CompileError, with file and line, where one of a user's is wrong."""
    with _rendering:
        try:
            text = environment().get_template(template).render(k=view)
        except Exception as error:
            if template not in _texts:
                raise
            raise refused(error, template) from None
    return LONG.sub(cut, EMPTY.sub("", text))


def refused(error: Exception, template: str) -> Exception:
    """An error that repeats the message of Jinja, or of an expression in a template, and names the line
    of the user's file.
    """
    path, line, at = _texts[template][0], getattr(error, "lineno", None), error.__traceback__
    while at is not None:
        line = at.tb_lineno if at.tb_frame.f_code.co_filename == template else line
        at = at.tb_next
    what = f"{os.path.basename(path)} is no template that can be printed: {error}"
    return CompileError(what, where=f"{path}:{line}" if line else path)


def render(template: str, view: object) -> str:
    """The text; what was rendered before, in this process or another,
    may be at hand (`kept_pages`).
    """
    found = page(template, view)
    if found is None:
        return rendered(template, view)
    pages, key = found
    text = pages.has.get(key) or pages.there.get(key)
    if text is None:
        text = rendered(template, view)
    pages.has[key] = text
    return text


def _before_fork() -> None:
    _rendering.acquire()


def _after_fork_in_parent() -> None:
    with suppress(RuntimeError):  # this module was imported since
        _rendering.release()


def _after_fork() -> None:
    global _rendering
    _rendering = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork
    )
