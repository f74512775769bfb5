"""*Blocking.* Flame graphs of a running worker, by py-spy, which must be installed."""

from __future__ import annotations

import shutil
from pathlib import Path

from deploy.processes import Child, ProcessEnded

_RATE = 200
_SECONDS = 20
_FINISH_S = 60.0


class Profile:
    """Records the main process of the worker once for each case; a recorded run is slower.

    Args:
        folder: folder for the pictures.

    Raises:
        ProcessEnded: py-spy is not installed.
    """

    def __init__(self, folder: Path) -> None:
        program = shutil.which("py-spy")
        if program is None:
            raise ProcessEnded("--profile needs py-spy: pip install '.[bench]'")
        self._program = program
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._recorded: set[str] = set()
        self._recorder: Child | None = None

    def record(self, name: str, pid: int) -> None:
        """Begin to record a process, if this name was not recorded yet."""
        if name in self._recorded:
            return
        self._recorded.add(name)
        picture = self._folder / f"{name.replace(' ', '-')}.svg"
        command = [self._program, "record", "--pid", str(pid), "--output", str(picture)]
        options = ["--rate", str(_RATE), "--duration", str(_SECONDS), "--threads", "--nonblocking"]
        self._recorder = Child([*command, *options], picture.with_suffix(".log"))

    def finish(self) -> None:
        """Wait for the picture; the recorder ends with the recorded process."""
        if self._recorder is not None:
            self._recorder.wait(_FINISH_S)
            self._recorder = None
