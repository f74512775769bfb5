"""*Pure.* Changes the functions of an imported module to those of a mutant.

A new import would import everything again that depends on the module.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from itertools import chain
from types import CodeType, FunctionType

_SHELL = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags")


def swap(path: str, old_source: str, new_source: str) -> bool:
    """Change the imported functions of a file.

    Returns:
        Whether all changes are inside functions; if not, nothing was changed.
    """
    old = compile(old_source, path, "exec", dont_inherit=True)
    new = compile(new_source, path, "exec", dont_inherit=True)
    functions = defaultdict(list)
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename == path:
            functions[each.__code__].append(each)
    pairs = _changed(old, new, set(functions))
    if pairs is None or any(a.co_freevars != b.co_freevars for a, b in pairs):
        return False
    for before, after in pairs:
        for function in functions[before]:
            function.__code__ = after
    return True


def _changed(
    old: CodeType, new: CodeType, functions: set[CodeType]
) -> list[tuple[CodeType, CodeType]] | None:
    """Return the code of the functions that differ; None if other code differs."""
    if old == new:
        return []
    if old in functions:
        return [(old, new)]
    if any(getattr(old, name) != getattr(new, name) for name in _SHELL):
        return None
    plain, other = ([each for each in code.co_consts if not _is_code(each)] for code in (old, new))
    if [(type(each), each) for each in plain] != [(type(each), each) for each in other]:
        return None
    inner = [
        _changed(*pair, functions)
        for pair in zip(old.co_consts, new.co_consts, strict=True)
        if _is_code(pair[0])
    ]
    found = [each for each in inner if each is not None]
    return list(chain(*found)) if len(found) == len(inner) else None


def _is_code(constant: object) -> bool:
    return isinstance(constant, CodeType)
