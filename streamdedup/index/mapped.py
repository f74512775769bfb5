"""*Blocking.* A file of a segment, mapped for reading, and the checksums of its values.

Rule 1: only the manifest says where values lie. LMDB wrote the file, but does not open it again:
it trusts its own pages, and a damaged one could kill the process.
Rule 2: a value is what was written only if its checksum says so. docs/adr/0010-checksums.md lists
who checks it, and when.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from streamdedup.columns import I64, U8
from streamdedup.errors import REMEDY, IndexDamaged
from streamdedup.index.layout import FileEntry, sum_of
from streamdedup.index.lmdb_errors import translated
from streamdedup.index.memory import address


class Mapped:
    """A file of a segment, mapped for reading.

    Args:
        path: the file.
        entry: its record in the manifest.
        fresh: whether this process has just written it; its first readers need not check it then.

    Raises:
        IndexDamaged: it is missing or has another size, its record leads out of it, or its first or
            last value is not what was written. The others are not read yet.

    Attributes:
        path: the file.
        start: address of the first byte.
        sizes: ``(n,)`` int64: bytes of each value.
        addresses: ``(n,)`` int64: address of each value.
    """

    def __init__(self, path: Path, entry: FileEntry, *, fresh: bool) -> None:
        self.path = path
        size = path.stat().st_size if path.exists() else 0
        if size != entry.size:  # reading beyond the end of a file would kill the process
            raise IndexDamaged(f"{path} has {size} bytes instead of {entry.size}; {REMEDY}")
        self._offsets = np.frombuffer(entry.offsets, dtype=np.int64)
        self.sizes = np.frombuffer(entry.sizes, dtype=np.uint32).astype(np.int64)
        self._sums = np.frombuffer(entry.sums, dtype=np.uint64)
        offsets, sizes = self._offsets, self.sizes
        if (
            not 0 < len(offsets) == len(sizes) == len(self._sums)
            or offsets.min() < 0
            or sizes.min() < 1
            or (offsets > size - sizes).any()
        ):
            raise IndexDamaged(f"{path}: the manifest names values outside of it; {REMEDY}")
        self._unchecked = np.full(len(self), not fresh)
        self._any_unchecked = not fresh
        with translated(path), path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
            self._map.madvise(mmap.MADV_RANDOM)
        self._bytes: U8 | None = np.frombuffer(self._map, dtype=np.uint8)
        self.start = address(self._bytes)
        self.addresses = self.start + self._offsets
        if fresh:
            return
        try:
            self.check({0, len(self) - 1})
        except IndexDamaged:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._offsets)

    def close(self) -> None:
        """Unmap the file. Reading one of its addresses afterwards kills the process."""
        self._bytes = None
        # The traceback of an error may still hold a value; the file is unmapped when it goes.
        with contextlib.suppress(BufferError):
            self._map.close()

    @property
    def is_open(self) -> bool:
        """Whether the file is mapped."""
        return self._bytes is not None

    @property
    def name(self) -> str:
        """The segment's name and the file's."""
        return f"{self.path.parent.name}/{self.path.name}"

    def value(self, number: int) -> U8:
        """Return a value as a view of the map, unchecked."""
        if self._bytes is None:
            raise RuntimeError(f"{self.path} is closed")
        return self._bytes[self._offsets[number] : self._offsets[number] + self.sizes[number]]

    def check(self, numbers: Iterable[int]) -> None:
        """Check values.

        Raises:
            IndexDamaged: one is not what was written.
        """
        for number in numbers:
            self.will_need([number])
            if sum_of(self.value(number)) != self._sums[number]:
                raise self.damage([number])
            self._unchecked[number] = False

    def check_once(self, numbers: I64) -> None:
        """Check the values that were not checked yet.

        Raises:
            IndexDamaged: one is not what was written.
        """
        if self._any_unchecked and self._unchecked[numbers].any():
            self.check(np.unique(numbers[self._unchecked[numbers]]).tolist())
            self._any_unchecked = bool(self._unchecked.any())

    def read(self, number: int) -> U8:
        """Read a value from the file, without the map: faster if it is not in memory yet.

        Raises:
            IndexDamaged: it is not what was written.
        """
        value = np.empty(int(self.sizes[number]), dtype=np.uint8)
        try:
            with self.path.open("rb") as file:
                file.seek(int(self._offsets[number]))
                complete = file.readinto(value.data) == len(value)
        except OSError:  # the disk cannot read its own blocks
            complete = False
        if not complete or sum_of(value) != self._sums[number]:
            raise self.damage([number])
        return value

    def read_through(self, part_bytes: int) -> Iterator[int]:
        """Read the file from front to back, so that it is in the page cache.

        Args:
            part_bytes: most bytes of a part.

        Yields:
            The bytes of each part. The end comes earlier if the file is closed or cannot be read.
        """
        part = bytearray(part_bytes)
        with contextlib.suppress(OSError), self.path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while self.is_open and (size := file.readinto(part)):
                yield size

    def is_sound_on_disk(self, file: int, number: int) -> bool:
        """Return whether a value is what was written, read without the map.

        Args:
            file: descriptor of the open file.
            number: number of the value.
        """
        try:
            value = os.pread(file, int(self.sizes[number]), int(self._offsets[number]))
        except OSError:  # the disk cannot read its own blocks
            return False
        return sum_of(value) == int(self._sums[number])

    def damage(self, numbers: list[int]) -> IndexDamaged:
        """Return the error for values that are not what was written."""
        more = f", and {len(numbers) - 1} more," if len(numbers) > 1 else ""
        return IndexDamaged(
            f"{self.path} is damaged: the value at byte {self._offsets[numbers[0]]}{more} is not "
            f"what was written; {REMEDY}"
        )

    def will_need(self, numbers: Iterable[int]) -> None:
        """Ask the system to read values."""
        for number in numbers:
            start = int(self._offsets[number]) & -mmap.PAGESIZE
            end = int(self._offsets[number] + self.sizes[number])
            self._map.madvise(mmap.MADV_WILLNEED, start, end - start)

    def will_need_page(self, page: int) -> None:
        """Ask the system to read the page that begins at an address in memory."""
        self._map.madvise(mmap.MADV_WILLNEED, page - self.start, mmap.PAGESIZE)
