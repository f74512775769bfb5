"""*Blocking* (owns a thread). How good the verdicts are: the estimates and the shadow sample."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from streamdedup.batches import JudgementCounts, Verdicts
from streamdedup.columns import RecordColumns
from streamdedup.dedup.quality import Figure, Figures, Quality, Sums, interval
from streamdedup.observe.shadow import Shadow
from streamdedup.settings.sections import Settings

_DECIMALS = 6


class LiveQuality:
    """What a process knows of the quality of its verdicts.

    Args:
        settings: all settings.
        judges: whether the process compares signatures; an edge does not.
        shadow: the shadow sample; None without one, as for a judge, which has no texts.

    Attributes:
        target: share of the pairs at the threshold that the settings promise to find.
        sums: the sums over all documents since the process started, each by what was known when it
            was judged.
    """

    def __init__(self, settings: Settings, *, judges: bool, shadow: Shadow | None) -> None:
        dedup = settings.dedup
        self.target = min(dedup.recall, dedup.banding().candidate_probability(dedup.threshold))
        self.sums = Sums()
        self.shadow = shadow
        self._quality = Quality(dedup) if judges else None

    def add_comparisons(self, counts: JudgementCounts, documents: int) -> None:
        """Add a judgement that is committed.

        Args:
            counts: its counts.
            documents: how many documents were judged.
        """
        if self._quality is not None:
            added = self._quality.add(counts, documents)
            self.sums = Sums(*(sum(pair) for pair in zip(self.sums, added, strict=True)))

    def add_records(self, records: RecordColumns, verdicts: Verdicts) -> None:
        """Add a batch whose verdicts are committed.

        Args:
            records: the batch.
            verdicts: the verdicts on it, in the order of the records.
        """
        if self.shadow is not None:
            self.shadow.add(records, verdicts)

    def figures(self) -> Figures | None:
        """Return the estimates; None for a process that does not judge."""
        return None if self._quality is None else self._quality.figures()

    def shadow_results(self) -> Counter[str]:
        """Return how many sampled documents had each result, and how many were skipped."""
        if self.shadow is None:
            return Counter()
        return self.shadow.results + Counter(skipped=self.shadow.skipped)

    def close(self) -> None:
        """Wait for the shadow sample."""
        if self.shadow is not None:
            self.shadow.close()

    def described(self) -> dict[str, Any]:
        """Return everything as /status shows it; an unknown number is None."""
        figures = self.figures()
        return {
            "target": _rounded(self.target),
            "estimate": None if figures is None else _described(figures),
            "shadow": None if self.shadow is None else self._described_shadow(),
        }

    def _described_shadow(self) -> dict[str, Any]:
        results = self.shadow_results()
        found = results["found"]
        shares = {
            "recall": found + results["missed"] + results["refuted"],
            "bucket_recall": found + results["missed"],
            "precision": found + results["wrong"],
        }
        return {
            "documents": {
                name: results[name]
                for name in ("found", "missed", "refuted", "wrong", "alone", "skipped")
            },
            **{name: _share(found, count) for name, count in shares.items()},
        }


def _described(figures: Figures) -> dict[str, Any]:
    sums = figures.sums
    return {
        "documents": figures.documents,
        "repeats": {
            name: _rounded(getattr(sums, name)) for name in ("found", "missed", "refuted", "false")
        },
        "recall": _figure(figures.recall),
        "precision": _figure(figures.precision),
        "pairs": {"pairs": figures.pairs.pairs, **_figure(figures.pairs.recall)},
        "levels": [
            {
                "low": _rounded(level.low),
                "high": _rounded(level.high),
                "pairs": level.pairs,
                **_figure(level.recall),
            }
            for level in figures.levels
        ],
    }


def _figure(figure: Figure) -> dict[str, float | None]:
    return {"value": _rounded(figure.value), "standard_error": _rounded(figure.error)}


def _share(found: int, count: int) -> dict[str, float | int | None]:
    low, high = interval(found, count)
    return {
        "value": _rounded(found / count if count else math.nan),
        "low": _rounded(low),
        "high": _rounded(high),
        "documents": count,
    }


def _rounded(number: float) -> float | None:
    """Return a number as JSON has it: NaN is not JSON."""
    return None if math.isnan(number) else round(number, _DECIMALS)
