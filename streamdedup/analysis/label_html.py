"""*Blocking* (reads its template). A report on labels as one HTML page that loads nothing else."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from streamdedup.analysis import label_words
from streamdedup.analysis.agreement import LabelReport
from streamdedup.analysis.html import Frame, template
from streamdedup.analysis.threshold import logistic

_TITLE = "The threshold that labels propose"
_STEP = 0.05
_POINTS = 100
_RADIUS = 3.0
"""Radius of the circle of one pair."""
_STEEP = 1e4
"""Slope that a curve is drawn with if one similarity separates the labels."""


class SimilarityTick(NamedTuple):
    """A label of the scale of similarities."""

    x: float
    label: str


class Point(NamedTuple):
    """The pairs of a level of similarity."""

    x: float
    y: float
    radius: float
    label: str


class MarkedLine(NamedTuple):
    """A vertical line with a label."""

    x: float
    label: str
    anchor: str


class LabelPicture(NamedTuple):
    """The coordinates of the labels and the fitted curve.

    Attributes:
        frame: the plot area.
        ticks: the scale of similarities.
        points: the levels.
        marks: the current and the proposed threshold.
        curve: points of the fitted curve, as SVG writes them; empty without a proposal.
        interval: the ends of the interval; None without a proposal.
    """

    frame: Frame
    ticks: list[SimilarityTick]
    points: list[Point]
    marks: list[MarkedLine]
    curve: str
    interval: tuple[float, float] | None


def page(report: LabelReport) -> str:
    """Return the page."""
    return template("labels.html.j2").render(
        report=report, title=_TITLE, words=label_words, picture=picture(report)
    )


def picture(report: LabelReport) -> LabelPicture:
    """Lay out the labels over the similarities that have some, and the thresholds."""
    frame, proposal = Frame(), report.proposal
    thresholds = [report.threshold] + ([] if proposal is None else [proposal.threshold])
    lows = [level.low for level in report.levels] + thresholds
    highs = [level.high for level in report.levels] + thresholds
    begin = math.floor(min(lows) / _STEP) * _STEP
    end = max(begin + _STEP, math.ceil(max(highs) / _STEP) * _STEP)

    def across(similarity: float) -> float:
        share = (similarity - begin) / (end - begin)
        return frame.left + frame.width * min(1.0, max(0.0, share))

    def height(share: float) -> float:
        return frame.top + frame.height * (1 - share)

    marks = [MarkedLine(across(report.threshold), f"now {report.threshold:g}", "middle")]
    curve, interval = "", None
    if proposal is not None:
        # The two labels stand on the outer sides of their lines.
        below = proposal.threshold < report.threshold
        now, then = ("start", "end") if below else ("end", "start")
        marks = [
            MarkedLine(across(report.threshold), f"now {report.threshold:g}", now),
            MarkedLine(across(proposal.threshold), f"proposed {proposal.threshold:g}", then),
        ]
        interval = across(proposal.low or 0.0), across(proposal.high or 1.0)
        xs = np.linspace(begin, end, _POINTS + 1)
        slope = _STEEP if proposal.slope is None else proposal.slope
        shares = logistic(slope * (xs - proposal.threshold))
        curve = " ".join(
            f"{across(x):.1f},{height(y):.1f}"
            for x, y in zip(xs.tolist(), shares.tolist(), strict=True)
        )
    return LabelPicture(
        frame=frame,
        ticks=[
            SimilarityTick(across(begin + step * _STEP), f"{begin + step * _STEP:.2f}")
            for step in range(round((end - begin) / _STEP) + 1)
        ],
        points=[
            Point(
                across((level.low + level.high) / 2),
                height(level.same / (level.same + level.different)),
                _RADIUS * math.sqrt(level.same + level.different),
                f"{level.low:g} to {level.high:g}: {level.same:g} same, "
                f"{level.different:g} different",
            )
            for level in report.levels
        ],
        marks=marks,
        curve=curve,
        interval=interval,
    )
