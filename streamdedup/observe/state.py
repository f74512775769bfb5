"""*Pure.* What a worker says about itself: the phase it is in, and when it last made progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from streamdedup.observe.recent import Recent

Phase = Literal["starting", "replaying", "running", "draining", "waiting_for_broker", "stopped"]


@dataclass(slots=True)
class WorkerState:
    """What the status pages show; the worker writes it, in the event loop's thread.

    Attributes:
        phase: what the worker is doing.
        reason: why it is not running, for a person to read.
        replay_done: changelog offset up to which the start has come.
        replay_total: changelog offset at which the replay ends.
        partitions: partitions of the source that are read.
        lag: records of each partition that are not read yet.
        positions: offset of each partition that will be read next.
        applied_offset: changelog offset up to which the index is complete.
        shortage: what will soon stop the worker, for a person to read.
        recent: what the page shows of the latest batches; None where there is no page.
    """

    phase: Phase = "starting"
    reason: str = ""
    replay_done: int = 0
    replay_total: int = 0
    partitions: int = 0
    lag: dict[int, int] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    applied_offset: int = 0
    shortage: str = ""
    recent: Recent | None = None

    def enter(self, phase: Phase, reason: str = "") -> None:
        """Go over to a phase, with the reason where it needs one."""
        self.phase, self.reason = phase, reason

    @property
    def ready(self) -> bool:
        """Whether documents are being judged, and will be."""
        return self.phase == "running" and not self.shortage

    def explanation(self) -> str:
        """Return one line that says why the worker is ready, or not."""
        if self.ready:
            return "ready"
        if self.phase == "replaying":
            return f"replaying the changelog: at {self.replay_done} of {self.replay_total}"
        if self.phase == "running":
            return f"running: {self.shortage}"
        words = self.phase.replace("_", " ")
        return f"{words}: {self.reason}" if self.reason else words
