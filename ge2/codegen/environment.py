"""Templates rendered: the one Jinja environment, and texts that were rendered before, on disk."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import is_dataclass
from functools import cache
from importlib.util import cache_from_source
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np

from ge2.base.cache import VERSION, content_key
from ge2.base.cache import cache as kept
from ge2.base.config import config
from ge2.base.errors import CompileError
from ge2.base.record import outlines
from ge2.base.source import FOLDER, pattern, templates

if TYPE_CHECKING:
    from jinja2 import BytecodeCache, Environment
    from jinja2.bccache import Bucket

    class Text(Protocol):
        """A statement, and what it encloses."""

        @property
        def code(self) -> str: ...
        @property
        def comment(self) -> str: ...
        @property
        def body(self) -> Sequence[Text]: ...
        @property
        def pragma(self) -> str: ...
        @property
        def end(self) -> str: ...


# -------- Texts that were rendered before, on disk: a process that finds all of a program there
# imports no Jinja.
# The pages of a program are one entry of the cache. An entry is found by what the program looks
# like from outside, which is a guess and may be wrong; a page in it by all that its template is
# given, which is not. So whatever is found, a page is the text that rendering would give.


WRITERS = (
    "codegen",
    "targets/c/emit",
    "targets/c/blocked.py",
    "targets/cuda/emit",
)  # what writes texts
LEAVES = (str, int, float, bool, bytes, type(None), np.dtype, np.generic)
LEAF, MANY = ("a leaf",), ("a sequence",)


@final
class Pages:
    """The texts of a program by their keys: those that were `there`, and those that it has."""

    __slots__ = ("has", "there", "version")

    def __init__(self, there: dict[str, str], version: str) -> None:
        self.there, self.has, self.version = there, dict[str, str](), version


_pages: ContextVar[Pages | None] = ContextVar("ge2_pages", default=None)


@contextmanager
def cached_pages(title: str, *looks: str) -> Iterator[None]:
    """Inside, texts of a program are looked for in the cache, and put
    there at the end if any is new.

    `title` and `looks` are what it looks like; inside another program it is part of that.
    """
    if _pages.get() is not None:
        yield
        return
    on_disk = kept().path is not None
    key = content_key("texts", VERSION, title, *looks)
    pages = Pages(read(kept().get(key) or b"") if on_disk else {}, writing(user_templates()))
    token = _pages.set(pages)
    try:
        yield
    finally:
        _pages.reset(token)
    if on_disk and not pages.has.keys() <= pages.there.keys():
        about = {"kind": "texts", "name": f"texts of {title}", "version": VERSION}
        kept().put(key, written(pages.has), about)


def page(template: str, view: object) -> tuple[Pages, str] | None:
    """The pages of the program that is written, and the key of a text;
    None if it is not to be kept.
    """
    pages = _pages.get()
    if pages is None:
        return None
    parts: list[str] = []
    if not spelt(view, parts):
        return None
    # no part has a line's end
    return pages, content_key("page", pages.version, template, "\n".join(parts))


def spelt(x: Any, parts: list[str]) -> bool:
    """Adds all that a value consists of; False if it holds something whose
    text does not say it.
    """
    kind: Any = type(x)
    names = names_of(kind)
    if names is LEAF:
        parts.append(f"{kind.__name__} {x!r}")
        return True
    if names is MANY:
        parts.append(f"{kind.__name__} {len(x)}")
        inside = x
    elif names is not None:
        parts.append(f"{kind.__module__}.{kind.__qualname__}")
        inside = [getattr(x, name) for name in names]
    elif isinstance(x, frozenset) and all(isinstance(each, str | tuple) for each in x):
        parts.append("set")
        inside = (sorted(x),)
    else:
        return False
    for each in inside:
        own: Any = type(each)
        if names_of(own) is LEAF:  # most are
            parts.append(f"{own.__name__} {each!r}")
        elif not spelt(each, parts):
            return False
    return True


@cache
def names_of(kind: type) -> tuple[str, ...] | None:
    """The fields of a record, or how a value of another kind is spelt; None of what is not, and
    where equal ones are two: variables.
    """
    if issubclass(kind, LEAVES):
        return LEAF
    if issubclass(kind, (tuple, list)):
        return MANY
    if not is_dataclass(kind) or kind.__eq__ is object.__eq__:
        return None
    return tuple(f.name for f in outlines(kind))


def user_templates() -> str:
    """The folder of templates that the user put before ours (`GE2_TEMPLATES`); "" if there is none.

    CompileError where it is none.
    """
    if config.templates and not os.path.isdir(config.templates):
        raise CompileError(
            f"there is no folder of templates {config.templates!r}",
            fix="GE2_TEMPLATES names a folder that has cuda/ or c/ in it, or nothing",
        )
    return os.path.abspath(config.templates) if config.templates else ""


def writing(users: str = "") -> str:
    """The contents of what writes texts: modules, templates, and a folder of the user's."""
    return content_key(ours(), *contents([users], ".jinja")) if users else ours()


@cache
def ours() -> str:
    return content_key(*contents([*(os.path.join(FOLDER, name) for name in WRITERS), templates()]))


def contents(places: Sequence[str], ending: str = "") -> list[str | bytes]:
    """The names and contents of files, and of those in folders whose names end so."""
    parts: list[str | bytes] = []
    for root in places:
        alone = [(os.path.dirname(root), list[str](), [os.path.basename(root)])]
        for folder, folders, files in alone if os.path.isfile(root) else os.walk(root):
            folders[:] = sorted(
                name for name in folders if name not in ("__pycache__", "include", "shim")
            )
            for name in sorted(name for name in files if name.endswith(ending)):
                with open(os.path.join(folder, name), "rb") as file:
                    parts += [os.path.relpath(os.path.join(folder, name), root), file.read()]
    return parts


# ------------------------------------------------------------------------------ compiled templates
# A program that is new renders its texts; what Jinja made of the templates is Python's byte code, and
# is where that of this package does; in the cache where that cannot be written, or a user's are
# among them.


def compiled_templates(jinja: str, users: str) -> dict[str, bytes]:
    """The byte code of templates by their keys."""
    key = compiled_key(jinja, users)
    return unpacked(_as_bytecode(key) or kept().get(key) or b"")


def keep_compiled(found: dict[str, bytes], jinja: str, users: str) -> None:
    key = compiled_key(jinja, users)
    content = packed(found)
    if users or not _keep_as_bytecode(key, content):
        about = {"kind": "texts", "name": "compiled templates", "version": VERSION}
        kept().put(key, content, about)


def _as_bytecode(key: str) -> bytes:
    """The compiled templates that are kept with this package's byte code; b"" unless they have the key."""
    try:
        with open(_bytecode_path(), "rb") as file:
            return file.read() if file.readline() == key.encode() + b"\n" else b""
    except (OSError, NotImplementedError):
        return b""


def _keep_as_bytecode(key: str, content: bytes) -> bool:
    """Puts it there; False where byte code cannot be written or is not wanted."""
    try:
        path = _bytecode_path()
        if sys.dont_write_bytecode:
            return False
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.{os.getpid()}", "wb") as file:
            file.write(key.encode() + b"\n" + content)
        os.replace(file.name, path)
    except (OSError, NotImplementedError):
        return False
    return True


def _bytecode_path() -> str:
    """The path of the compiled templates. NotImplementedError where Python has no tag for its cache of
    byte code (`sys.implementation.cache_tag` is None), which callers take for: keep none.
    """
    path = cache_from_source(os.path.join(FOLDER, "codegen", "templates.py"))
    return path.removesuffix(".pyc") + ".jinja"


def compiled_key(jinja: str, users: str) -> str:
    return content_key("compiled templates", VERSION, jinja, sys.version, writing(users))


# ----------------------------------------------------------------------------------------- an entry


def written(texts: Mapping[str, str]) -> bytes:
    """Key, length and text of each page."""
    return packed({key: text.encode("utf-8", "surrogatepass") for key, text in texts.items()})


def read(content: bytes) -> dict[str, str]:
    """
    >>> read(written({"a1": "one", "b2": ""})), read(b"no entry")
    ({'a1': 'one', 'b2': ''}, {})
    """
    try:
        return {k: text.decode("utf-8", "surrogatepass") for k, text in unpacked(content).items()}
    except UnicodeDecodeError:
        return {}


def packed(parts: Mapping[str, bytes]) -> bytes:
    """Key, length and content of each part."""
    return b"".join(
        each for key, data in parts.items() for each in (f"{key} {len(data)}\n".encode(), data)
    )


def unpacked(content: bytes) -> dict[str, bytes]:
    """The parts again; none of what is no entry."""
    found, at = dict[str, bytes](), 0
    try:
        while at < len(content):
            end = content.index(b"\n", at)
            key, _, length = content[at:end].decode().partition(" ")
            at = end + 1 + int(length)
            found[key] = content[end + 1 : at]
    except ValueError:
        return {}
    return found


# -------- The one Jinja environment. Templates hold the text of kernels; Python holds the
# decisions.


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
    r"((?:(?:static |GE2_[A-Z_]+ )?void )?\w+\()(.*)(\)(?:;| \{))"
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
    may be at hand (`cached_pages`).
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
