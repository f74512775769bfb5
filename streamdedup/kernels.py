"""*Blocking* (the cache locator writes files). The ``@kernel`` decorator, and numba's cache.

Numba rejects a cache folder that it cannot write to. :class:`WarmedCacheLocator` accepts one: set
``NUMBA_CACHE_DIR`` to the folder, and ``NUMBA_CACHE_LOCATOR_CLASSES`` to
``streamdedup.kernels.WarmedCacheLocator``.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import numba
from numba.core.caching import UserProvidedCacheLocator

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a loop that runs without the interpreter's lock."""
    return cast("Callable[P, R]", numba.njit(nogil=True, cache=True, boundscheck=False)(function))


class WarmedCacheLocator(UserProvidedCacheLocator):
    """Finds numba's cache in ``NUMBA_CACHE_DIR``, also where nothing can be written there.

    A kernel that is not in a read-only folder is compiled, and kept in the folder for temporary
    files, where the others are linked to. Without such a folder it is an error.
    """

    def ensure_cache_path(self) -> None:
        """Accept the folder as it is, or put one in its place that can be written to."""
        try:
            super().ensure_cache_path()  # type: ignore[no-untyped-call]
        except OSError:
            with contextlib.suppress(OSError):
                self._cache_path = _writable_copy(Path(self._cache_path))


def _writable_copy(folder: Path) -> str:
    """Return a folder of this user with links to all the files of another."""
    own = Path(tempfile.gettempdir(), f"streamdedup-kernels-{os.getuid()}")
    own.mkdir(mode=0o700, exist_ok=True)
    if own.lstat().st_uid != os.getuid():
        # What lies there would be run.
        raise PermissionError(f"{own} belongs to another user")
    copy = own / folder.name
    copy.mkdir(exist_ok=True)
    for file in folder.glob("*.nb[ci]"):
        # Another process may do the same at the same time.
        with contextlib.suppress(FileExistsError):
            copy.joinpath(file.name).symlink_to(file)
    return str(copy)
