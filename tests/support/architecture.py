"""The import rules of docs/internals/architecture.md, as a function of the source files.

Every import counts: at the top, inside a function, and under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

LAYERS: tuple[tuple[str, ...], ...] = (
    ("cli", "__main__"),
    ("roles",),
    ("observe", "analysis"),
    ("files", "spark"),
    ("engine", "admin"),
    ("index", "kafka", "registry"),
    ("dedup", "formats"),
    ("settings",),
    ("sketch",),
    ("batches",),
    ("columns",),
    ("failpoints", "kernels", "extras", "model", "errors"),
)
"""From the top down. A room imports rooms of lower layers, and its own modules."""

ONLY_IMPORTERS: Mapping[str, tuple[str, ...]] = {
    "aiokafka": ("streamdedup.kafka.",),
    "lmdb": ("streamdedup.index.",),
    "prometheus_client": ("streamdedup.observe.metrics",),
}
"""Who may import a library; a name that ends with a dot stands for every module below it."""

OUTSIDE: Mapping[str, tuple[str, ...]] = {
    "streamdedup.": (),
    "deploy.": (),
    "tests.testkit.": ("deploy.",),
    "tests.benchmarks.": ("benchmarks.", "deploy.", "tests."),
    "tests.": ("deploy.", "tests."),
    "benchmarks.": ("deploy.", "tests.testkit."),
}
"""What else of the repository a module imports, by its name's first part that is listed here.
Everything imports the product and its own part."""

NOT_PURE = frozenset(
    {
        *("aiohttp", "asyncio", "concurrent", "fcntl", "io", "lmdb", "mmap", "multiprocessing"),
        *("os", "random", "shutil", "signal", "socket", "subprocess", "tempfile", "threading"),
        *("time", "urllib"),
    }
)
"""What a module whose docstring opens with *Pure.* does not import: clocks, I/O and threads."""

COLOURS = ("*Pure", "*Blocking", "*Async")
_FACADE = "streamdedup"
_MODULE = re.compile(r"`([a-z_]+(?:/[a-z_]*)*)`")


class Import(NamedTuple):
    """One imported module, and the line of the import."""

    module: str
    line: int


def trespasses(sources: Mapping[str, str], table: str) -> list[str]:
    """Return a line for each import, module or docstring that breaks a rule.

    Args:
        sources: the source of every module, by its dotted name; packages by their own name.
        table: the text of docs/internals/architecture.md, which names every module.
    """
    trees = {name: _parsed(text) for name, text in sources.items()}
    imports = {name: list(_targets(tree, trees)) for name, tree in trees.items()}
    return [
        *_other_layers(table),
        *_wrong_places(trees, table),
        *_wrong_colours(trees),
        *_upward(imports),
        *_cycles(imports),
        *_second_importers(imports),
        *_impure(trees, imports),
        *_numba_in_settings(imports),
        *_raises_in_groups(trees),
        *_shared_names(trees),
    ]


def outside(sources: Mapping[str, str]) -> list[str]:
    """Return a line for each import by which the product, demos, tests or benchmarks mix.

    Args:
        sources: the source of every module of the repository, by its dotted name.
    """
    trees = {name: _parsed(text) for name, text in sources.items()}
    tops = {name.partition(".")[0] for name in sources}
    found = []
    for module, tree in trees.items():
        own = next(part for part in OUTSIDE if f"{module}.".startswith(part))
        allowed = ("streamdedup.", own, *OUTSIDE[own])
        found += [
            f"{module}:{line}: imports {target}, but {own}* imports only {', '.join(allowed)}"
            for target, line in _targets(tree, trees)
            if target.partition(".")[0] in tops and not f"{target}.".startswith(allowed)
        ]
    return found


# The tests change one module at a time, so that most are parsed and walked only once.
@functools.cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


@functools.cache
def _nodes(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


def _targets(tree: ast.Module, known: Mapping[str, ast.Module]) -> Iterator[Import]:
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield Import(whole if whole in known else node.module, node.lineno)


def _room(module: str) -> str:
    """Return the part of a module's name that the layers name."""
    return module.split(".")[1] if "." in module else module


def _other_layers(table: str) -> Iterator[str]:
    *layers, ground = (tuple(room for room in layer if room != "__main__") for layer in LAYERS)
    line = " > ".join([*(" | ".join(layer) for layer in layers), ", ".join(ground)])
    if line not in table:
        yield f"docs/internals/architecture.md does not show these layers: {line}"


def _wrong_places(trees: Mapping[str, ast.Module], table: str) -> Iterator[str]:
    rooms = {room for layer in LAYERS for room in layer}
    named = set(_MODULE.findall(table))
    for module in trees:
        if module == _FACADE:
            continue
        if _room(module) not in rooms:
            yield f"{module}: not a room; the layers do not name it"
        path = "/".join(module.split(".")[1:])
        folder, _, name = path.rpartition("/")
        if not {path, f"{path}/"} & named and not (f"{folder}/" in named and name in named):
            yield f"{module}: docs/internals/architecture.md does not name it"


def _wrong_colours(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    for module, tree in trees.items():
        docstring = ast.get_docstring(tree) or ""
        if tree.body and module != _FACADE and not docstring.startswith(COLOURS):
            yield f"{module}: the docstring does not open with Pure, Blocking or Async"


def _upward(imports: Mapping[str, Sequence[Import]]) -> Iterator[str]:
    rank = {room: number for number, layer in enumerate(LAYERS) for room in layer}
    for module, imported in imports.items():
        for target, line in imported:
            if not target.startswith("streamdedup.") or module == _FACADE:
                continue
            ours, theirs = _room(module), _room(target)
            if ours != theirs and rank.get(theirs, -1) <= rank.get(ours, -1) and ours != "__main__":
                yield f"{module}:{line}: imports {target}, which is not in a lower layer"


def _cycles(imports: Mapping[str, Sequence[Import]]) -> Iterator[str]:
    """Yield one circle of modules for each module from which one can be reached again."""
    arrows = {
        module: sorted({target for target, _ in imported if target in imports} - {_FACADE})
        for module, imported in imports.items()
        if module != _FACADE
    }
    finished: set[str] = set()

    def visit(module: str, path: list[str]) -> Iterator[str]:
        if module in path:
            yield "circle: " + " > ".join([*path[path.index(module) :], module])
        elif module not in finished:
            for target in arrows[module]:
                yield from visit(target, [*path, module])
            finished.add(module)

    for module in arrows:
        yield from visit(module, [])


def _second_importers(imports: Mapping[str, Sequence[Import]]) -> Iterator[str]:
    for module, imported in imports.items():
        for target, line in imported:
            allowed = ONLY_IMPORTERS.get(target.partition(".")[0], (module,))
            if not any(
                module == one or (one[-1] == "." and module.startswith(one)) for one in allowed
            ):
                yield f"{module}:{line}: imports {target}, which only {' and '.join(allowed)} may"


def _impure(
    trees: Mapping[str, ast.Module], imports: Mapping[str, Sequence[Import]]
) -> Iterator[str]:
    for module, imported in imports.items():
        if not (ast.get_docstring(trees[module]) or "").startswith("*Pure"):
            continue
        for target, line in imported:
            if target.partition(".")[0] in NOT_PURE:
                yield f"{module}:{line}: is pure, and imports {target}"


def _numba_in_settings(imports: Mapping[str, Sequence[Import]]) -> Iterator[str]:
    """Follow every import that settings lead to, in the order of breadth."""
    paths = {module: [module] for module in imports if _room(module) == "settings"}
    queue = list(paths)
    for module in queue:
        for target, _ in imports[module]:
            if target.partition(".")[0] in {"numba", "llvmlite"}:
                yield "numba is reached from settings: " + " > ".join([*paths[module], target])
            elif target in imports and target not in paths and target != _FACADE:
                paths[target] = [*paths[module], target]
                queue.append(target)


def _raises_in_groups(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Find errors that become a group before Python 3.11.4 (gh-103590)."""
    for module, tree in trees.items():
        for statement in _nodes(tree):
            handlers = statement.handlers if isinstance(statement, ast.TryStar) else []
            for node in itertools.chain.from_iterable(map(ast.walk, handlers)):
                if isinstance(node, ast.Raise):
                    yield f"{module}:{node.lineno}: raises inside of except*"


def _shared_names(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Find classes of one name: a reader cannot know which of them a sentence means."""
    first: dict[str, str] = {}
    for module, tree in sorted(trees.items()):
        for node in _nodes(tree):
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            other = first.setdefault(node.name, module)
            if other != module:
                yield f"{module}:{node.lineno}: class {node.name}, which {other} defines as well"
