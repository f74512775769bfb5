"""*Blocking.* The disk below the index directory: its file system, its room, and their checks."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from streamdedup.admin.findings import OPERATOR, Findings
from streamdedup.errors import IndexUnusable
from streamdedup.index.directory import holds_index
from streamdedup.index.layout import Geometry
from streamdedup.settings.sections import Settings

NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs"}
    | {"nfs4", "ocfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs"}
)
"""File systems that machines share, by their names in Linux.

LMDB maps files into memory and relies on the locks of one kernel.
"""
EPHEMERAL = frozenset({"aufs", "overlay", "ramfs", "tmpfs"})
"""File systems that are lost with the container or with the machine's power."""

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
_SLACK_PERCENT = 135
"""The window expires in slices, and a merge writes the new segment before it removes the old."""
_BLOCK_BYTES = 512
"""The unit of ``st_blocks``, whatever the file system's own block size is."""


def check_disk(settings: Settings, findings: Findings) -> None:
    """Check that the index directory can be written, and that its disk suits an index."""
    directory = settings.index.directory
    ancestor = nearest_existing(directory)
    exists = ancestor == directory.absolute()
    with findings.guarded("index directory"):
        holds_index(directory)  # raises an error if this user may not look at it
        if not ancestor.is_dir():
            raise IndexUnusable(
                f"{directory}: {ancestor} is not a directory; change index.directory"
            )
        if not os.access(ancestor, os.W_OK | os.X_OK):
            raise IndexUnusable(
                f"{directory}: this user cannot write to {ancestor}; grant write access, or change "
                "index.directory"
            )
        state = "exists" if exists else "the first start creates it"
        findings.ok("index directory", f"{directory} ({state})")
    check, kind = "file system", file_system(ancestor)
    if kind is None:
        findings.skip(check, "this operating system does not report the type of a file system")
    elif kind in NETWORK or kind.startswith("fuse"):
        findings.warn(
            check,
            f"{kind} may be shared over a network, where LMDB does not work; use a local disk or a "
            "block device",
            OPERATOR,
        )
    elif kind in EPHEMERAL:
        findings.warn(
            check,
            f"{kind} is lost with the container or with the machine's power: the next start then "
            "replays the whole changelog; mount a volume",
            OPERATOR,
        )
    else:
        findings.ok(check, kind)
    on_disk = shutil.disk_usage(ancestor).free + (used_bytes(directory) if exists else 0)
    budget, needed = settings.index.disk_budget, needed_bytes(settings)
    room = on_disk if budget is None else min(on_disk, budget)
    limit = "the disk has" if budget is None or budget > on_disk else "index.disk_budget allows"
    texts = ", and room for the texts" if settings.dedup.keeps_texts else ""
    estimate = (
        f"{settings.index.window_documents} documents (index.window_documents) of "
        f"{document_bytes(settings)} bytes, and room to merge, need {_readable(needed)}{texts}; "
        f"{limit} {_readable(room)}"
    )
    if room < needed:
        remedy = "free disk space, raise index.disk_budget, or lower index.window_documents"
        findings.warn("disk room", f"{estimate}: {remedy}", OPERATOR)
    else:
        findings.ok("disk room", estimate)


def nearest_existing(directory: Path) -> Path:
    """Return the absolute directory, or its nearest ancestor that exists."""
    directory = directory.absolute()
    while not os.access(directory, os.F_OK):
        directory = directory.parent
    return directory


def file_system(directory: Path) -> str | None:
    """Return the type of the file system that holds a directory; None if it is not reported."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    types: dict[Path, str] = {}
    for line in lines:
        mount, _, source = line.partition(" - ")
        point = _OCTAL.sub(lambda escape: chr(int(escape[1], 8)), mount.split()[4])
        types[Path(point)] = source.split()[0]  # a later mount hides an earlier one
    resolved = directory.resolve()
    return next((types[each] for each in (resolved, *resolved.parents) if each in types), None)


def document_bytes(settings: Settings) -> int:
    """Return the bytes that a kept document takes in the index, without its text."""
    return Geometry.of(settings.index, settings.dedup.sketch_parameters()).document_bytes


def needed_bytes(settings: Settings) -> int:
    """Return the disk space that an index with a full window may need, without texts."""
    return settings.index.window_documents * document_bytes(settings) * _SLACK_PERCENT // 100


def used_bytes(directory: Path) -> int:
    """Return the disk space that the files below a directory occupy."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # a running worker removes files
            total += path.lstat().st_blocks * _BLOCK_BYTES
    return total


def _readable(size: int) -> str:
    """Write a size in megabytes, or in gigabytes from one gigabyte on."""
    return f"{size / 1e9:.1f} GB" if size >= 10**9 else f"{size / 1e6:.1f} MB"
