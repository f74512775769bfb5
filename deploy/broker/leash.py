"""*Blocking.* Ties a broker to its owner: the process that asked for it, even if it is SIGKILLed.

Run as a script of its own, because a thread of the owner would die with it, and because the
kernel's own signal on a parent's death follows the parent's thread and not its process:

    leash.py process OWNER-PID FOLDER COMMAND...   runs COMMAND, prints its pid, ends as it ends
    leash.py container OWNER-PID FOLDER ID         only watches the owner

When the owner is gone, the process is killed or the container ID removed, and FOLDER with it.
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


def outlive(owner: int) -> None:
    """Return when the process `owner`, which must be the parent, has gone."""
    while os.getppid() == owner:
        time.sleep(_PAUSE_SECONDS)


def hold_process(owner: int, folder: str, command: list[str]) -> int:
    """Run `command` until it ends, or until `owner` does; return its exit status."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    print(child.pid, flush=True)
    owner_gone = threading.Event()

    def kill_when_orphaned() -> None:
        outlive(owner)
        owner_gone.set()
        child.kill()

    threading.Thread(target=kill_when_orphaned, daemon=True).start()
    status = child.wait()
    if owner_gone.is_set():
        shutil.rmtree(folder, ignore_errors=True)
    return status


def hold_container(owner: int, folder: str, container_id: str) -> int:
    """Remove the container when `owner` has gone."""
    outlive(owner)
    shutil.rmtree(folder, ignore_errors=True)
    import docker  # noqa: PLC0415 - takes a third of a second, and is seldom needed
    from docker.errors import DockerException  # noqa: PLC0415

    with contextlib.suppress(DockerException):
        docker.from_env().containers.get(container_id).remove(force=True, v=True)
    return 0


def main(arguments: list[str]) -> int:
    """Run one of the two forms above."""
    form, owner, folder, *rest = arguments
    forms: dict[str, Callable[[], int]] = {
        "process": lambda: hold_process(int(owner), folder, rest),
        "container": lambda: hold_container(int(owner), folder, rest[0]),
    }
    return forms[form]()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
