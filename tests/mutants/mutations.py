"""*Pure.* The mutants of a module: its source with one small change each.

mutmut's operators make the changes. mutmut itself changes undecorated functions only; here the
kernels, the properties, and the fields and constants of classes and modules are changed as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

import libcst as cst
import libcst.matchers as m
from libcst.metadata import CodeRange, MetadataWrapper, WhitespaceInclusivePositionProvider
from mutmut.mutation.mutators import mutation_operators

_UNTYPED = {"cast", "TypeVar", "ParamSpec", "NewType"}
"""Calls that only type checkers read."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed module.

    Attributes:
        name: the function or class, and the lines before and after; unique in the module.
        first_line: first line of the changed code.
        last_line: its last line.
        source: the whole module after the change.
    """

    name: str
    first_line: int
    last_line: int
    source: str


def mutants_of(source: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of its lines."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    visitor = _Changes(source, wrapper.module)
    wrapper.visit(visitor)
    found: dict[str, Mutant] = {}
    names: Counter[str] = Counter()
    sources = {source}
    for mutant in visitor.found:
        if mutant.source in sources:
            continue
        sources.add(mutant.source)
        names[mutant.name] += 1
        name = mutant.name if names[mutant.name] == 1 else f"{mutant.name} ({names[mutant.name]})"
        found[name] = replace(mutant, name=name)
    return sorted(found.values(), key=lambda mutant: mutant.first_line)


class _Changes(cst.CSTVisitor):
    """Collects mutants; skips what no test can notice.

    That is: docstrings, annotations, decorators, arguments of classes, text of errors and logs.
    """

    METADATA_DEPENDENCIES = (WhitespaceInclusivePositionProvider,)

    def __init__(self, source: str, module: cst.Module) -> None:
        super().__init__()
        self._source = source
        self._lines = source.splitlines(keepends=True)
        self._module = module
        self._scope: list[str] = []
        self._raises = 0
        self.found: list[Mutant] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if _is_skipped(node):
            return False
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._scope.append(node.name.value)
        self._raises += isinstance(node, cst.Raise)
        for changed in _changed(node, in_raise=self._raises > 0):
            self.found.append(self._mutant(node, changed))
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if _is_skipped(original_node):
            return
        if isinstance(original_node, cst.FunctionDef | cst.ClassDef):
            self._scope.pop()
        self._raises -= isinstance(original_node, cst.Raise)

    def _mutant(self, node: cst.CSTNode, changed: cst.CSTNode) -> Mutant:
        where = self.get_metadata(WhitespaceInclusivePositionProvider, node)
        assert isinstance(where, CodeRange)
        first, last = where.start.line, where.end.line
        head = "".join(self._lines[: first - 1]) + self._lines[first - 1][: where.start.column]
        tail = self._lines[last - 1][where.end.column :] + "".join(self._lines[last:])
        source = head + self._module.code_for_node(changed) + tail
        before = self._lines[first - 1 : last]
        after = source.splitlines(keepends=True)[first - 1 :]
        after = after[: len(after) - (len(self._lines) - last)]
        scope = ".".join(self._scope) or "module"
        name = f"{scope}: {_difference(before, after)}"
        return Mutant(name, first, last, source)


_SKIPPED = (
    m.Annotation()
    | m.Decorator()
    | m.Import()
    | m.ImportFrom()
    | m.Expr(value=m.SimpleString() | m.ConcatenatedString())
    | m.Call(func=m.OneOf(*(m.Name(name) for name in _UNTYPED)))
    | m.Call(func=m.Attribute(value=m.Name("log")))
    | m.If(test=m.Name("TYPE_CHECKING"))
    | m.Arg(
        keyword=m.OneOf(*(m.Name(name) for name in ("metaclass", "frozen", "kw_only", "strict")))
    )
)


def _is_skipped(node: cst.CSTNode) -> bool:
    is_alias = isinstance(node, cst.Assign) and _is_type_alias(node)
    return is_alias or m.matches(node, _SKIPPED)


def _is_type_alias(node: cst.Assign) -> bool:
    target = node.targets[0].target
    return (
        isinstance(target, cst.Name)
        and target.value.lstrip("_")[:1].isupper()
        and not (target.value.isupper())
    )


def _changed(node: cst.CSTNode, *, in_raise: bool) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.BaseString) and in_raise:
        return
    if m.matches(node, m.Call(func=m.Name("len") | m.Name("isinstance"))):
        return
    asserted = _asserted(node) if isinstance(node, cst.Call) else None
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            changes = [one for one in operator(node) if not asserted or asserted in one.args]
            # Of a text, the other changes are its case.
            yield from changes[:1] if isinstance(node, cst.BaseString) else changes


def _asserted(call: cst.Call) -> cst.Arg | None:
    """Return the argument that makes ``zip`` raise an error, if the code has one."""
    named = (arg for arg in call.args if arg.keyword and arg.keyword.value == "strict")
    return next(named, None)


def _difference(before: list[str], after: list[str]) -> str:
    """Return the lines that differ, on one line."""
    old, new = ([" ".join(line.split()) for line in lines] for lines in (before, after))
    removed, added = [], []
    for kind, *span in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            removed += old[span[0] : span[1]]
            added += new[span[2] : span[3]]
    return f"{' '.join(removed)} => {' '.join(added)}"
