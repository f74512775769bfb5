"""*Blocking.* A corpus that every installation has: the docstrings of the standard library.

They are real text with real near-duplicates: a method documented again in a subclass, sibling
functions, copied modules. Reading them imports and runs no module.
"""

from __future__ import annotations

import ast
import itertools
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

import msgspec

_LEFT_OUT = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
)
"""Folders that are not the library itself; its tests are much code and little text."""
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
_DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(root: Path | None = None) -> Iterator[tuple[str, str]]:
    """Yield the name and the cleaned text of every docstring below a folder, in a stable order.

    The folder is by default the installed standard library. The name is ``module:qualname``, for
    the docstring of a module ``module``. One that is defined again ends with the number of its
    definition.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if not _LEFT_OUT.isdisjoint(parts[:-1]):
            continue
        try:
            with tokenize.open(path) as file, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(file.read())
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
            continue  # it is broken, or written for another Python
        yield from _of_module(".".join(parts).removesuffix(".__init__"), tree)


def write_docstrings(path: Path) -> int:
    """Write the docstrings as JSON Lines; return their number."""
    count = 0
    with path.open("wb") as file:
        for name, text in docstrings():
            file.write(msgspec.json.encode({"id": name, "text": text}) + b"\n")
            count += 1
    return count


def _of_module(module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    own = ast.get_docstring(tree)
    if own and _is_text(own):
        yield module, own
    seen: dict[str, int] = {}
    for qualname, text in _of_body(tree, ""):
        seen[qualname] = seen.get(qualname, 0) + 1
        suffix = f"#{seen[qualname]}" if seen[qualname] > 1 else ""
        yield f"{module}:{qualname}{suffix}", text


def _of_body(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    # Expressions hold no docstring.
    for child in itertools.chain.from_iterable(getattr(node, name, ()) for name in _BLOCKS):
        if not isinstance(child, _DOCUMENTED):
            yield from _of_body(child, prefix)
            continue
        text = ast.get_docstring(child)
        if text and _is_text(text):
            yield prefix + child.name, text
        yield from _of_body(child, f"{prefix}{child.name}.")


def _is_text(text: str) -> bool:
    """Whether JSON can encode the text: an escape in the source may be a lone surrogate."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
