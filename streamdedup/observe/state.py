"""*Pure.* The state of a worker: its phase, its progress, and why it is not ready."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from streamdedup.batches import Verdicts
from streamdedup.model import Outcome
from streamdedup.observe.quality import LiveQuality
from streamdedup.observe.recent import RecentActivity

Phase = Literal[
    "starting",
    "replaying",
    "standby",
    "running",
    "draining",
    "waiting_for_broker",
    "waiting_for_registry",
    "stopped",
]


@dataclass(slots=True)
class WorkerState:
    """What the status pages show; the worker writes it in the event loop's thread."""

    phase: Phase = "starting"
    reason: str = ""  # why it is not running, in plain text
    replay_done: int = 0  # changelog offset up to which entries were replayed
    replay_total: int = 0  # changelog offset at which the replay ends
    partitions: int = 0  # of the source, that are read
    lag: dict[int, int] = field(default_factory=dict)  # unread records, by source partition
    positions: dict[int, int] = field(default_factory=dict)  # next offset, by source partition
    judged: Counter[Outcome] = field(default_factory=Counter)  # since the start, by verdict
    documents: int | None = None  # in the index; None before it is open, or without an index
    applied_offset: int = 0  # changelog offset up to which the index is complete
    shortage: str = ""  # what will soon stop the worker, in plain text
    recovery: str = ""  # why a batch is being recovered, in plain text
    busy: bool = False  # records are read that have no verdict yet
    steps: int = 0  # of the work so far: phases, replayed entries, committed batches
    stuck: str = ""  # why the process should be restarted; empty if the work advances
    recent: RecentActivity | None = None  # what the page shows; None without a page
    quality: LiveQuality | None = None  # of the verdicts; None before there is a role

    def enter(self, phase: Phase, reason: str = "") -> None:
        """Enter a phase; the new reason replaces the previous one."""
        self.phase, self.reason = phase, reason
        self.steps += 1

    def count(self, verdicts: Verdicts) -> None:
        """Count the verdicts of a committed batch."""
        self.judged.update(verdicts.tally())

    @property
    def ready(self) -> bool:
        """Whether the worker judges documents or stands by, and nothing will soon stop it."""
        works = self.phase in {"running", "standby"}
        return works and not (self.shortage or self.recovery or self.stuck)

    @property
    def behind(self) -> int:
        """Changelog offsets that the index of a standby does not have yet; else 0."""
        return max(0, self.replay_total - self.replay_done) if self.phase == "standby" else 0

    @property
    def must_advance(self) -> bool:
        """Whether the work has to take a step, because neither brokers nor records are awaited."""
        return self.phase in {"starting", "replaying", "draining"} or self.busy

    def degradations(self) -> dict[str, bool]:
        """Return what keeps the worker from full service, by the reasons of the metric."""
        return {
            "broker": self.phase == "waiting_for_broker",
            "disk": bool(self.shortage),
            "pool": bool(self.recovery),
            "registry": self.phase == "waiting_for_registry",
            "replay": self.phase == "replaying",
            "stuck": bool(self.stuck),
        }

    def explanation(self) -> str:
        """Return one line that says whether the worker is ready, and why not."""
        if self.ready:
            return f"standby: {self.behind} offsets behind" if self.phase == "standby" else "ready"
        if self.phase == "replaying":
            return f"replaying the changelog: offset {self.replay_done} of {self.replay_total}"
        if self.phase in {"running", "standby"}:
            return f"{self.phase}: {self.stuck or self.shortage or self.recovery}"
        phase = self.phase.replace("_", " ")
        return f"{phase}: {self.reason}" if self.reason else phase
