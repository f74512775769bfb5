"""*Blocking.* ``make measure``: how much there is to read, counted from the source and the docs."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

SHORT_FILE_LINES = 100
SHORT_FUNCTION_LINES = 6
_DOCSTRING_OWNERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Function:
    """A private function or method.

    Attributes:
        module: the dotted name of its module.
        name: its name, after that of its class.
        lines: of its body, without the docstring.
        uses: how often its name occurs in its module, without the definition.
    """

    module: str
    name: str
    lines: int
    uses: int


def sources() -> dict[str, str]:
    """Return the source of every module of the product that is not empty, by its dotted name."""
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): (
            path.read_text(encoding="utf-8")
        )
        for path in sorted((ROOT / "streamdedup").rglob("*.py"))
    }
    return {module: source for module, source in found.items() if source}


def docstring_lines(source: str) -> int:
    """Return how many lines of a module are docstrings."""
    total = 0
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                total += (statement.end_lineno or 0) - statement.lineno + 1
    return total


def classes(found: dict[str, str]) -> dict[str, list[str]]:
    """Return the modules that define a class, by the name of the class."""
    defined: dict[str, list[str]] = defaultdict(list)
    for module, source in found.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(module)
    return defined


def module_names(found: Iterable[str]) -> Counter[str]:
    """Return how many modules have a name, without packages."""
    return Counter(module.rpartition(".")[2] for module in found)


def private_functions(module: str, source: str) -> Iterator[Function]:
    """Yield the private functions and methods of a module."""
    names = Counter(
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.NAME
    )
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not node.name.startswith("_") or node.name.startswith("__"):
            continue
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
        yield Function(module, node.name, lines, names[node.name] - 1)


def words(paths: Iterable[Path]) -> int:
    """Return how many words pages have, without blocks of code."""
    return sum(
        len(
            re.sub(
                r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
            ).split()
        )
        for path in paths
    )


def _table() -> list[tuple[str, str]]:
    found = sources()
    lengths = {module: len(source.splitlines()) for module, source in found.items()}
    documented = sum(map(docstring_lines, found.values()))
    defined = classes(found)
    shared = {name: modules for name, modules in defined.items() if len(modules) > 1}
    modules = {name: count for name, count in module_names(found).items() if count > 1}
    private = [each for name, source in found.items() for each in private_functions(name, source)]
    once = [each for each in private if each.uses == 1]
    short = [each for each in once if each.lines <= SHORT_FUNCTION_LINES]
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    # Users need no page below: docs/internals and docs/adr are for developers.
    deep = [path for path in (ROOT / "docs").rglob("*.md") if path not in pages]
    return [
        ("lines of the product", f"{sum(lengths.values()):,}"),
        ("of them docstrings", f"{documented:,}"),
        ("files", f"{len(found)}"),
        (
            f"of them under {SHORT_FILE_LINES} lines",
            f"{sum(length < SHORT_FILE_LINES for length in lengths.values())}",
        ),
        ("classes", f"{sum(map(len, defined.values()))}"),
        ("class names that classes share", f"{len(shared)}: {_named(shared)}"),
        ("module names used twice", f"{len(modules)}: {_named(modules)}"),
        ("private functions", f"{len(private)}"),
        ("used once", f"{len(once)}"),
        (f"used once, of {SHORT_FUNCTION_LINES} lines or fewer", f"{len(short)}"),
        ("words of the pages that a user reads", f"{words(pages):,}"),
        ("words of all pages", f"{words(pages + deep):,}"),
    ]


def _named(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


if __name__ == "__main__":
    for what, count in _table():
        sys.stdout.write(f"| {what} | {count} |\n")
