"""*Blocking.* A stream of documents that a test appends to a source topic block by block."""

from __future__ import annotations

from tests.support.corpora import Documents
from tests.support.patience import wait_until
from tests.support.stage import Stage
from tests.support.workers import WorkerProcess

PARTITIONS = 3
BLOCK = 300


class Feed:
    """Documents for one stage, of which every fifth repeats the text of an earlier one.

    Args:
        stage: whose source topic.
        partitions: of the source topic.

    Attributes:
        fed: documents in the source topic.
    """

    def __init__(self, stage: Stage, partitions: int = PARTITIONS) -> None:
        self._stage = stage
        self._partitions = partitions
        self._documents = Documents()
        self.fed = 0

    def add(self, *, copies_only: bool = False) -> None:
        """Append a block to the source topic."""
        block = self._documents.block(BLOCK, copies_only=copies_only)
        for partition in range(self._partitions):
            self._stage.produce_json(block[partition :: self._partitions], partition)
        self.fed += BLOCK

    def is_committed(self) -> bool:
        """Tell whether all documents are judged and their offsets committed."""
        return sum(self._stage.committed().values()) == self.fed

    def add_if_committed(self, worker: WorkerProcess) -> None:
        """Append a block if the worker, which must run, has judged the ones before."""
        worker.assert_running()
        if self.is_committed():
            self.add()

    def wait(self, worker: WorkerProcess) -> None:
        """Wait until a worker, which must not end, has judged all documents."""

        def is_committed() -> bool:
            worker.assert_running()
            return self.is_committed()

        wait_until(is_committed, f"{self.fed} documents to be judged")
