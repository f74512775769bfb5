"""*Blocking.* A watchdog that ends a broker when the process that started it has ended.

It runs as a separate script: a thread of the owner would not survive SIGKILL, and the kernel's
signal on a parent's death follows the parent's thread, not its process.

    watchdog.py process OWNER-PID FOLDER COMMAND...   prints the pid, returns the exit status
    watchdog.py container OWNER-PID FOLDER ID         only watches the owner

When the owner has ended, the watchdog ends the process or the container, and deletes FOLDER.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable

_PAUSE_SECONDS = 0.5


def wait_for_end(owner: int) -> None:
    """Wait until the process `owner`, which must be the parent, has ended."""
    while os.getppid() == owner:
        time.sleep(_PAUSE_SECONDS)


def watch_process(owner: int, folder: str, command: list[str]) -> int:
    """Run `command` until it or `owner` ends; return its exit status."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    print(child.pid, flush=True)
    owner_ended = threading.Event()

    def kill_when_orphaned() -> None:
        wait_for_end(owner)
        owner_ended.set()
        child.kill()

    threading.Thread(target=kill_when_orphaned, daemon=True).start()
    status = child.wait()
    if owner_ended.is_set():
        shutil.rmtree(folder, ignore_errors=True)
    return status


def watch_container(owner: int, folder: str, container_id: str) -> int:
    """Remove the container when `owner` has ended."""
    wait_for_end(owner)
    shutil.rmtree(folder, ignore_errors=True)
    import docker  # noqa: PLC0415 - takes a third of a second, and is rarely needed
    from docker.errors import DockerException  # noqa: PLC0415

    with contextlib.suppress(DockerException):
        docker.from_env().containers.get(container_id).remove(force=True, v=True)
    return 0


def main(arguments: list[str]) -> int:
    """Run one of the two modes of the module's docstring."""
    mode, owner, folder, *rest = arguments
    modes: dict[str, Callable[[], int]] = {
        "process": lambda: watch_process(int(owner), folder, rest),
        "container": lambda: watch_container(int(owner), folder, rest[0]),
    }
    return modes[mode]()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
