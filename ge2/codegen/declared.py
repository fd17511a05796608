"""Names that generated C or CUDA declares where they are declared already: two
values would share a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ge2.base.config import config
from ge2.base.errors import VerifyError

ASIDE = re.compile(
    r"/\*.*?\*/|//[^\n]*|^[ \t]*#[^\n]*|\"(?:\\.|[^\"\\])*\"", re.DOTALL | re.MULTILINE
)
MARK = re.compile(r"[(){};]")
NOT_TYPES = frozenset((
    "return", "else", "goto", "case", "typedef", "using", "delete", "new", "throw", "sizeof", "break", "if",
    "while", "switch", "do",
))  # fmt: skip
DECLARED = re.compile(
    r"(?:(?:static|extern|const|constexpr|inline|volatile|register|unsigned|struct|alignas|__shared__"
    r"|__align__\(\d+\)|_Alignas\(\w+\))\s+)*"
    r"(?P<type>[A-Za-z_]\w*)(?:<[^;={}]*>)?(?:\s+(?:_Complex|const|int|long))*"
    r"(?P<mark>\s+|\s*[*&]+\s*)(?P<rest>[^;]*)",
    re.DOTALL,
)
NAME = re.compile(
    r"(?:[*&]|const\b|__restrict__\b|restrict\b|\s)*\(?\s*(?:[*&]\s*)?(?:const\s+)?(\w+)\s*(?:=(?!=)|\[|$|\))"
)
LOOP = re.compile(r"for ?\((.*?);")
FUNCTION = re.compile(r"\b(?:void|int)\b.*\w\(([^()]*)\)$")


def checked(source: str) -> str:
    """The source of a kernel, which in check mode declares no name where it is declared already."""
    if config.check and (names := declared_twice(source)):
        raise VerifyError(f"a kernel declares {', '.join(names)} twice:\n{source}")
    return source


def declared_twice(source: str) -> list[str]:
    """The names that a scope, or one around it, has already; a loop's own are
    of the scope of its body.

    >>> declared_twice("void f(int n) { { int a; } { float a; } for (int i = 0; i < n; i++) { int i = 2; } }")
    ['i']
    >>> declared_twice("void f(float by) { const float a = 1, by = 2; }")
    ['by']
    """
    found: list[str] = []
    scopes: list[set[str]] = [set()]
    for head, mark in pieces(ASIDE.sub(" ", source)):
        if mark == "}":
            del scopes[-1:]
            scopes = scopes or [set()]
            continue
        begins = LOOP.match(head) or FUNCTION.search(head)
        if begins and mark == ";":
            continue  # a loop of one statement, whose names nothing else sees
        scopes += [set()] if begins else []
        for name in declarations(head):
            found += [name] if any(name in scope for scope in scopes) else []
            scopes[-1].add(name)
        scopes += [set()] if mark == "{" and not begins else []
    return found


def pieces(text: str) -> Iterator[tuple[str, str]]:
    """Pairs of the text before each brace or semicolon that is in no parentheses, and that mark."""
    depth, begin = 0, 0
    for found in MARK.finditer(text):
        mark = found[0]
        depth += (mark == "(") - (mark == ")")
        if depth == 0 and mark in "{};":
            yield " ".join(text[begin : found.start()].split()), mark
            begin = found.end()


def declarations(head: str) -> Iterator[str]:
    """The names that a statement, the head of a loop or that of a function declares."""
    loop, function = LOOP.match(head), FUNCTION.search(head)
    if function:
        for each in split(function[1]):
            yield from named(each)
    elif loop:
        yield from named(loop[1])
    else:
        yield from named(head)


def named(text: str) -> Iterator[str]:
    found = DECLARED.fullmatch(text.strip())
    if found is None or found["type"] in NOT_TYPES:
        return
    for each in split(found["rest"]):
        name = NAME.match(each)
        if name:
            yield name[1]


def split(text: str) -> list[str]:
    """The parts between commas that no parentheses or braces hold."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return found
