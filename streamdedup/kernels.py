"""*Blocking* (the cache writes files). The ``@kernel`` decorator, and numba's cache.

Numba caches kernels in ``NUMBA_CACHE_DIR``, in the package or in the home. If it can write to none
of them, a private folder for temporary files has the cache; without that, each process compiles.

Numba rejects a cache folder that it cannot write to. :class:`WarmedCacheLocator` accepts one: set
``NUMBA_CACHE_DIR`` to the folder, and ``NUMBA_CACHE_LOCATOR_CLASSES`` to
``streamdedup.kernels.WarmedCacheLocator``.

Rule 1: a kernel is compiled again when its file has changed, or that of a kernel that it calls. It
must import the other one by its name. After a change of an intrinsic or constant that kernels of
other files use, delete the cache.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import signal
import stat
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
    outlook = "later runs find them in a cache"  # what later runs can expect
    has_cache = True

    def on_start(self, compilation: event.Event) -> None:
        # Child processes compile at the same time as their parent.
        if not self._announced and multiprocessing.parent_process() is None:
            self._announced = True
            log.warning("compiling kernels, some 15 seconds; %s", self.outlook)
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

    With ``inline="always"`` it is copied into every kernel that calls it.
    """

    def compiled(plain: Callable[P, R]) -> Callable[P, R]:
        dispatcher: Any = numba.njit(nogil=True, boundscheck=False, inline=inline)(plain)
        if hasattr(dispatcher, "compile"):  # not with NUMBA_DISABLE_JIT
            _enable_caching(dispatcher)
            dispatcher.compile = uninterrupted(dispatcher.compile)
            # By value, it would lose its cache, and each process that gets it would compile it.
            dispatcher.__reduce_ex__ = lambda _: plain.__qualname__
        return cast("Callable[P, R]", dispatcher)

    return compiled if function is None else compiled(function)


def _enable_caching(dispatcher: Any) -> None:
    """Cache a kernel in the first folder that can be written to; without one, do not cache it."""
    try:
        dispatcher.enable_caching()
    except RuntimeError:  # of numba: there is no such folder
        config: Any = numba.config
        configured = config.CACHE_DIR
        try:
            config.CACHE_DIR = str(_own_folder())
            dispatcher.enable_caching()
        except (OSError, RuntimeError):
            _compiling.has_cache = False
            _compiling.outlook = (
                "no folder for their cache can be written to, so each process compiles them; set "
                "NUMBA_CACHE_DIR to one"
            )
            return
        else:
            _compiling.outlook = (
                f"later runs find them in {config.CACHE_DIR}, until it is emptied; to keep "
                "them, set NUMBA_CACHE_DIR to a folder that can be written to"
            )
        finally:
            config.CACHE_DIR = configured  # which other libraries use
    cache = dispatcher._cache  # noqa: SLF001 - numba has no other way to keep a full disk harmless
    save = cache.save_overload

    def save_if_possible(*arguments: Any) -> None:
        try:
            save(*arguments)
        except OSError as error:
            log.warning(
                "cannot cache a kernel: %s; set NUMBA_CACHE_DIR to a folder with free space", error
            )

    cache.save_overload = save_if_possible
    # Nor to make a cached kernel depend on other files than its own.
    stamps = [(path.stat().st_mtime, path.stat().st_size) for path in _called(dispatcher.py_func)]
    if stamps:
        cache._cache_file._source_stamp = (cache._cache_file._source_stamp, *stamps)  # noqa: SLF001


def _called(function: Callable[..., Any]) -> list[Path]:
    """Return the other files with kernels that a kernel calls, directly or not."""
    own, found, unseen = function.__code__.co_filename, set[str](), [function]
    while unseen:
        caller = unseen.pop()
        found.add(caller.__code__.co_filename)
        named = (caller.__globals__.get(name) for name in caller.__code__.co_names)
        plain = (getattr(each, "py_func", None) for each in named)
        unseen += [each for each in plain if each is not None and each is not caller]
    return sorted(Path(path) for path in found - {own})


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


def outlook() -> tuple[bool, str]:
    """Return whether later runs find compiled kernels, and where, in words."""
    return _compiling.has_cache, _compiling.outlook


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
    files, it is not cached.
    """

    def ensure_cache_path(self) -> None:
        """Accept the folder as it is, or replace it by a writable copy."""
        try:
            super().ensure_cache_path()  # type: ignore[no-untyped-call]
        except OSError:
            folder = Path(self._cache_path)
            with contextlib.suppress(OSError):
                copy = _own_folder() / folder.name
                copy.mkdir(exist_ok=True)
                for file in folder.glob("*.nb[ci]"):
                    # Another process may create the same links at the same time.
                    with contextlib.suppress(FileExistsError):
                        copy.joinpath(file.name).symlink_to(file)
                self._cache_path = str(copy)


def _own_folder() -> Path:
    """Return a folder for temporary files that only this user can change, or raise an OSError.

    Numba would execute files that others can change.
    """
    own = Path(tempfile.gettempdir(), f"streamdedup-kernels-{os.getuid()}")
    own.mkdir(mode=0o700, exist_ok=True)
    found = own.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
        raise PermissionError(f"{own} is not a folder that only user {os.getuid()} can change")
    return own
