"""*Blocking* (the cache locator writes files). The ``@kernel`` decorator, and numba's cache.

Numba rejects a cache folder that it cannot write to. :class:`WarmedCacheLocator` accepts one: set
``NUMBA_CACHE_DIR`` to the folder, and ``NUMBA_CACHE_LOCATOR_CLASSES`` to
``streamdedup.kernels.WarmedCacheLocator``.

Rule 1: a kernel calls no kernel of another file. Numba compiles a cached kernel again only when the
kernel's own file has changed. After a change of an intrinsic or constant that kernels of other
files use, delete the cache.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, cast, overload

import numba
from numba.core import event
from numba.core.caching import UserProvidedCacheLocator

log = logging.getLogger(__name__)  # without a configuration, it writes warnings to stderr

P = ParamSpec("P")
R = TypeVar("R")


class _Compiling(event.TimingListener):
    """Times the compilation of kernels, and says once why a start takes long."""

    _announced = False

    def on_start(self, compilation: event.Event) -> None:
        # Child processes compile at the same time as their parent.
        if not self._announced and multiprocessing.parent_process() is None:
            self._announced = True
            log.warning("compiling kernels, some 15 seconds; later runs find them in a cache")
        super().on_start(compilation)  # type: ignore[no-untyped-call]


_compiling = _Compiling()  # type: ignore[no-untyped-call]
event.register("numba:compile", _compiling)  # type: ignore[no-untyped-call]


@overload
def kernel(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def kernel(*, inline: Literal["never", "always"]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def kernel(
    function: Callable[P, R] | None = None, /, *, inline: Literal["never", "always"] = "never"
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a function at its first call, to run without the interpreter lock.

    Array indices are not checked. The annotations are for readers and mypy: numba infers types from
    the arguments. With ``NUMBA_DISABLE_JIT=1`` the function stays plain Python.

    Args:
        function: the function.
        inline: ``always`` copies the function into every kernel that calls it.
    """

    def compiled(plain: Callable[P, R]) -> Callable[P, R]:
        jit = numba.njit(nogil=True, cache=True, boundscheck=False, inline=inline)
        dispatcher: Any = jit(plain)
        if hasattr(dispatcher, "compile"):  # not with NUMBA_DISABLE_JIT
            dispatcher.compile = uninterrupted(dispatcher.compile)
        return cast("Callable[P, R]", dispatcher)

    return compiled if function is None else compiled(function)


def uninterrupted(compile_: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Hold back SIGINT and SIGTERM while a kernel is compiled or loaded.

    Their handlers may raise. An exception in the middle leaves numba in a state in which other
    threads, such as one that still writes an index, get wrong errors or crash.
    """

    def shielded(signature: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return compile_(signature)
        held: list[int] = []
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        changed = {number: handler for number, handler in handlers.items() if callable(handler)}
        try:
            for number in changed:
                signal.signal(number, lambda number, _: held.append(number))
            return compile_(signature)
        finally:
            for number, handler in changed.items():
                signal.signal(number, handler)
            for pending in held:
                signal.raise_signal(pending)

    return shielded


def compile_seconds() -> float:
    """Return how long this process has compiled kernels; loading cached ones does not count."""
    return float(_compiling.duration) if _compiling.done else 0.0


def spare_collector() -> None:
    """Exempt the objects that exist now from garbage collection, numba's hundred thousands.

    Looking at them takes a collection 100 ms, in which no other thread runs.
    """
    gc.collect()
    gc.freeze()


class WarmedCacheLocator(UserProvidedCacheLocator):
    """Finds numba's cache in ``NUMBA_CACHE_DIR``, even if that folder is read-only.

    A kernel that is missing from a read-only folder is compiled, and cached in the folder for
    temporary files, next to links to the other kernels. Without a writable folder for temporary
    files, compiling a missing kernel fails.
    """

    def ensure_cache_path(self) -> None:
        """Accept the folder as it is, or replace it by a writable copy."""
        try:
            super().ensure_cache_path()  # type: ignore[no-untyped-call]
        except OSError:
            with contextlib.suppress(OSError):
                self._cache_path = _writable_copy(Path(self._cache_path))


def _writable_copy(folder: Path) -> str:
    """Return a folder that belongs to this user and links to every file of another folder."""
    own = Path(tempfile.gettempdir(), f"streamdedup-kernels-{os.getuid()}")
    own.mkdir(mode=0o700, exist_ok=True)
    if own.lstat().st_uid != os.getuid():
        # Numba would execute the files in it.
        raise PermissionError(f"{own} belongs to another user")
    copy = own / folder.name
    copy.mkdir(exist_ok=True)
    for file in folder.glob("*.nb[ci]"):
        # Another process may create the same links at the same time.
        with contextlib.suppress(FileExistsError):
            copy.joinpath(file.name).symlink_to(file)
    return str(copy)
