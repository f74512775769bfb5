"""*Blocking.* What an index directory lies on, and how much room an index will want there."""

from __future__ import annotations

import re
from pathlib import Path

from streamdedup.index.geometry import Geometry
from streamdedup.settings.sections import Settings

NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs"}
    | {"nfs4", "ocfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs"}
)
"""File systems that are shared with other machines, by their names in Linux. LMDB maps files into
memory and trusts the locks of one kernel."""
PASSING = frozenset({"aufs", "overlay", "ramfs", "tmpfs"})
"""File systems that go with a container or with the machine's power."""

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
_SLACK_PERCENT = 135
"""The window is let go in parts, and files are merged before the old ones go."""


def existing(directory: Path) -> Path:
    """Return the directory, or the nearest one above it that there is."""
    directory = directory.absolute()
    while not directory.exists():
        directory = directory.parent
    return directory


def file_system(directory: Path) -> str | None:
    """Return the type of the file system that an existing directory lies on.

    Returns:
        Its name in Linux, such as ``ext4``; None where the system does not say (not Linux).
    """
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    mounted: dict[Path, str] = {}
    for line in lines:
        place, _, kind = line.partition(" - ")
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), place.split()[4])
        mounted[Path(point)] = kind.split()[0]  # a later one hides an earlier one
    resolved = directory.resolve()
    for parent in (resolved, *resolved.parents):
        if parent in mounted:
            return mounted[parent]
    return None


def document_bytes(settings: Settings) -> int:
    """Return the bytes that a kept document takes in the index, without its text."""
    return Geometry.of(settings.index, settings.dedup.sketch_parameters()).document_bytes


def needed_bytes(settings: Settings) -> int:
    """Return the room that an index with a full window may take, without texts."""
    return settings.index.window_documents * document_bytes(settings) * _SLACK_PERCENT // 100


def used_bytes(directory: Path) -> int:
    """Return what the files below a directory take on the disk."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:  # a worker at work removes files
            continue
    return total
