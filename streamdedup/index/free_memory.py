"""*Blocking.* How much memory a process can fill with the page cache, as Linux tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
_LIMIT_FILES = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)
"""Limit, use, and what the use counts of the page cache: of cgroup 2, and of cgroup 1."""


def free_memory(root: Path = ROOT) -> int:
    """Return the bytes that the machine and the control group of the process leave.

    What the page cache takes counts as free: the kernel gives it back on demand.

    Args:
        root: where the file systems ``proc`` and ``sys`` are mounted.

    Returns:
        The bytes; 0 if the operating system does not tell.
    """
    machine = _fields(root / "proc/meminfo").get("MemAvailable:", 0) * 1024
    return max(0, min([machine, *_left_by_groups(root)]))


def _left_by_groups(root: Path) -> Iterator[int]:
    """Yield what each control group above the process leaves, if it has a limit."""
    for folder in _groups(root):
        for limit, used, cached in _LIMIT_FILES:
            most = _number(folder / limit)
            if most is not None:
                stat = _fields(folder / "memory.stat")
                use = _number(folder / used) or 0
                yield most - use + sum(stat.get(name, 0) for name in cached)


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of the control groups; in a container, that of its own is at the top."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            top = root / "sys/fs/cgroup" / controllers
            folder = top / path.strip("/")
            yield from (top, *(each for each in (folder, *folder.parents) if top in each.parents))


def _number(path: Path) -> int | None:
    """Return the number in a file; None if there is no such file, or no number in it."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers of a file of names and numbers."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines)
    return {each[0]: int(each[1]) for each in words if len(each) > 1 and each[1].isdecimal()}
