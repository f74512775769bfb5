"""*Blocking.* ``streamdedup warm``: compiles every kernel ahead of time."""

from __future__ import annotations

import time

import typer

from streamdedup.cli.terminal import interruptible
from streamdedup.errors import SettingsError


def warm() -> None:
    """Compile all kernels now, so that no later command waits for it.

    Numba keeps them in a cache: in the installed package, in the home, or in `NUMBA_CACHE_DIR`. An
    image with a read-only file system needs this command in its build. A second run finds all
    kernels in the cache.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    from rich.console import Console

    began = time.monotonic()
    with (
        interruptible("interrupted; the kernels compiled so far are kept"),
        Console(stderr=True).status("Compiling the kernels, for some 30 seconds"),
    ):
        from streamdedup import kernels
        from streamdedup.cli.kernel_jobs import LAST, SIDE_BY_SIDE, compiled_by

        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(len(SIDE_BY_SIDE), context) as processes:
            try:
                compiled = sum(processes.map(compiled_by, SIDE_BY_SIDE))
                compiled += processes.submit(compiled_by, LAST).result()
            except BaseException:
                for process in multiprocessing.active_children():
                    process.kill()
                raise
    has_cache, outlook = kernels.outlook()
    if not has_cache:
        raise SettingsError(outlook)
    seconds = time.monotonic() - began
    typer.echo(f"{compiled} kernels compiled in {seconds:.0f} s; {outlook}")
