"""*Blocking.* The programs that drain a topic: the worker as a user starts it, and plain copies."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.pipeline_topics import PARTITIONS
from deploy.processes import Child, worker

_START_S = 300.0
"""How long a worker may take to be ready: the first start on a machine compiles kernels."""
_SAMPLE = re.compile(r"^(streamdedup_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Party:
    """A program that reads a source topic and commits output in transactions.

    Attributes:
        name: the name in tables.
        records: records per transaction of a copy; None for streamdedup.
        ids: transactional ids of a copy.
        mode: streamdedup's mode.
    """

    name: str
    records: int | None = None
    ids: int = 1
    mode: str = "single"


COPY = Party("copy", 1000, 1)
BEST_COPY = Party("best copy", 5000, 2)
WORKER = Party("streamdedup")
SPLIT = Party("edge and judge", mode="split")
PARTIES = (COPY, BEST_COPY, WORKER)


class Place:
    """Where one run of a party takes place: its folder, its topics and its group.

    Args:
        bootstrap: the broker.
        source: the source topic, which runs may share.
        name: a name that no other run has.
        folder: an existing folder for the index, the configuration and the log.
        settings: settings that differ from the defaults.
    """

    def __init__(
        self,
        bootstrap: str,
        source: str,
        name: str,
        folder: Path,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.bootstrap = bootstrap
        self.source = source
        self.group = name
        outputs = ["clean", "duplicates", "dead_letter", "changelog"]
        if (settings or {}).get("mode") == "split":
            outputs += ["sketches", "verdicts"]
        self.topics = {output: f"{name}-{output.replace('_', '-')}" for output in outputs}
        self.folder = folder / name
        self.folder.mkdir()
        self.config = self.folder / "streamdedup.yaml"
        content = {
            "kafka": {"bootstrap_servers": bootstrap, "group_id": name},
            "topics": {"source": source, **self.topics},
            "index": {"directory": str(self.folder / "index")},
            "status": {"port": 0},
            "log": {"format": "json"},
        }
        self.config.write_text(yaml.safe_dump(content | (settings or {})))

    def create_topics(self, partitions: int = PARTITIONS) -> None:
        """Create the source and the outputs, if they are missing, as a user does."""
        command = [sys.executable, "-m", "streamdedup", "topics", "create"]
        command += ["--config", str(self.config)]
        subprocess.run(
            [*command, "--partitions", str(partitions)], check=True, stdout=subprocess.DEVNULL
        )

    def start(self, party: Party) -> Child:
        """Start a party."""
        command = worker(self.config)
        if party.records is not None:
            command = [
                *[sys.executable, "-m", "benchmarks.pipeline_copy", self.bootstrap, self.source],
                *[self.topics["clean"], self.group],
                *["--records", str(party.records), "--ids", str(party.ids)],
            ]
        return Child(command, self.folder / "log")


def wait_until_ready(child: Child) -> None:
    """Wait until a worker judges documents."""
    child.wait_for(lambda: Samples.of(child).sum("ready") == 1, _START_S, "the start of the worker")


class Samples:
    """The samples of a worker's metrics at one time."""

    def __init__(self, page: str = "") -> None:
        self._values = {
            (name, tuple(_LABEL.findall(labels))): float(value)
            for name, labels, value in _SAMPLE.findall(page)
        }

    @classmethod
    def of(cls, child: Child) -> Samples:
        """Request the metrics of a worker; a process without a status server has none."""
        return cls(child.get("/metrics")[1] if child.address() else "")

    def sum(self, name: str) -> float:
        """Return the sum of all samples of a name, without the prefix."""
        return sum(self._of(name).values())

    def by_label(self, name: str) -> dict[str, float]:
        """Return the samples of a name by the value of their only label."""
        return {labels[0][1]: value for labels, value in self._of(name).items() if labels}

    def _of(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        wanted = f"streamdedup_{name}"
        return {labels: value for (full, labels), value in self._values.items() if full == wanted}


def stages(first: Samples, last: Samples, documents: int) -> dict[str, float]:
    """Return the microseconds that batches spent in each stage between two looks, per document."""
    name = "batch_duration_seconds_sum"
    before = first.by_label(name)
    return {
        stage: (seconds - before.get(stage, 0.0)) / documents * 1e6
        for stage, seconds in last.by_label(name).items()
    }
