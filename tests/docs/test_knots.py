"""Modules know each other in one direction, in types as well as when they run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

HOME = Path(__file__).parents[2]
Edges = Mapping[str, Mapping[str, bool]]  # whether a module imports another for its types alone


def modules(home: Path) -> dict[str, Path]:
    found = {
        ".".join(p.relative_to(home).with_suffix("").parts): p for p in home.glob("ge2/**/*.py")
    }
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


def imports(tree: ast.AST, typed: bool = False) -> Iterator[tuple[str, bool]]:
    """The names that a module imports, also inside functions, and whether for types alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{a.name}", typed) for a in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.name, typed) for a in node.names)
        elif not isinstance(node, ast.expr):  # which has none, and is most of a tree
            test = node.test if isinstance(node, ast.If) else None
            within = typed or (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING")
            yield from imports(node, within)


def edges(texts: Mapping[str, str]) -> Edges:
    found: dict[str, dict[str, bool]] = {}
    for name, text in texts.items():
        mine = found[name] = dict[str, bool]()
        for wanted, typed in imports(ast.parse(text)):
            other = wanted if wanted in texts else wanted.rpartition(".")[0]
            if other in texts and other != name:
                mine[other] = mine.get(other, True) and typed
    return found


def reached(known: Mapping[str, Iterable[str]], start: str) -> set[str]:
    seen, todo = {start}, [start]
    while todo:
        new = set(known[todo.pop()]) - seen
        seen |= new
        todo += new
    return seen


def knots(known: Edges) -> list[str]:
    """Imports for types alone by which two modules know each other that else would not."""
    running = {
        name: [n for n, typed in others.items() if not typed] for name, others in known.items()
    }
    found = []
    for name, others in known.items():
        for other in (n for n, typed in others.items() if typed):
            both = other in reached(running, name) and name in reached(running, other)
            if name in reached(known, other) and not both:
                found.append(f"{name} -> {other}")
    return found


def test_no_import_for_types_alone_ties_a_knot() -> None:
    """A Protocol says what is asked of a value of a module above, or the type moves."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in modules(HOME).items()}
    assert len(texts) > 200 and knots(edges(texts)) == []


def test_a_knot_is_found() -> None:
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ge2.b import B\n"
    assert knots(edges({"ge2.a": typed, "ge2.b": "import ge2.a"})) == ["ge2.a -> ge2.b"]
    assert knots(edges({"ge2.a": typed, "ge2.b": ""})) == []
    lazily = "def f():\n    from ge2.b import B\n"
    assert knots(edges({"ge2.a": typed + lazily, "ge2.b": "import ge2.a"})) == []
