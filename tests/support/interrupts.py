"""*Blocking.* Interrupts a call at a chosen step, as Ctrl-C does at any moment."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any

import streamdedup

_PACKAGE = str(Path(streamdedup.__file__).parent)


def interrupt_at(step: int, call: Callable[[], object]) -> bool:
    """Call a function, and raise ``KeyboardInterrupt`` at one of its steps.

    The steps are those at which CPython looks for signals: the start of each function of the
    package, and the end of each call of a C function from the package.

    Args:
        step: how many steps of this thread come before the interrupt.
        call: the function.

    Returns:
        Whether the interrupt came before the function returned.
    """
    left = step

    def count(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        code = frame.f_code
        if code.co_flags & CO_GENERATOR or not code.co_filename.startswith(_PACKAGE):
            return  # what is raised while a generator is discarded is lost
        if event in ("call", "c_return"):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

    sys.setprofile(count)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False
