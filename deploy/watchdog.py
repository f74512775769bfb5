"""*Blocking.* Ends processes and containers when the process that started them has ended.

It runs as a separate script, ``watchdog.py OWNER-PID``: a thread of the owner would not survive
SIGKILL, and the kernel's signal on a parent's death follows the parent's thread, not its process.
Each line of standard input names something to end, with tabs between the fields:

    process    PID  FOLDER
    container  ID   FOLDER

When the owner has ended, or closes the pipe, the watchdog ends what still runs, with the group that
a process leads, and deletes the folders.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

_PAUSE_S = 0.5


def identity(pid: int) -> str:
    """Return when a process was started, since its number may be used again; empty if it ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    if Path("/proc/self").exists():
        return ""
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def end_container(name: str) -> None:
    """Remove a container."""
    import docker  # noqa: PLC0415 - takes a third of a second, and is rarely needed
    from docker.errors import DockerException  # noqa: PLC0415

    with contextlib.suppress(DockerException):
        docker.from_env().containers.get(name).remove(force=True, v=True)


def main(owner: int) -> None:
    """Read what to watch until the owner has ended; then end all of it."""
    watched: list[tuple[str, str, str, str]] = []

    def read() -> None:
        for line in sys.stdin:
            kind, name, folder = line.rstrip("\n").split("\t")
            watched.append((kind, name, folder, identity(int(name)) if kind == "process" else ""))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    while reader.is_alive() and os.getppid() == owner:
        reader.join(_PAUSE_S)
    reader.join(_PAUSE_S)
    for kind, name, folder, started in watched:
        if kind == "container":
            end_container(name)
        elif started and identity(int(name)) == started:
            with contextlib.suppress(OSError):
                os.killpg(int(name), signal.SIGKILL)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
