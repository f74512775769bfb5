"""*Blocking* (reads templates). Evaluations and labels as one HTML page that loads nothing else."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from streamdedup.analysis import agreement, words
from streamdedup.analysis.agreement import LabelReport
from streamdedup.analysis.report import BINS, BandingReport, EvaluationReport
from streamdedup.analysis.threshold import logistic

_STEP = 0.05
_POINTS = 100
_RADIUS = 3.0  # radius of the circle of one pair
_STEEP = 1e4  # slope that a curve is drawn with if one similarity separates the labels


class Frame(NamedTuple):
    """The plot area of a picture and the margins around it, in units of the picture."""

    left: float = 90
    top: float = 30
    width: float = 620
    height: float = 260
    right: float = 80
    bottom: float = 60


class Tick(NamedTuple):
    """A label of a scale, at a coordinate."""

    at: float
    label: str


class Bar(NamedTuple):
    """A bar of the histogram; it stands on the foot of the frame."""

    x: float
    width: float
    height: float
    label: str


class SCurvePicture(NamedTuple):
    """The coordinates of a histogram of candidates and its S-curve."""

    frame: Frame
    counts: list[Tick]  # the logarithmic scale of counts
    bars: list[Bar]  # candidates by true similarity
    curve: str  # points of the S-curve, as SVG writes them
    threshold_x: float


def page(report: EvaluationReport) -> str:
    """Return the page of an evaluation."""
    return _template("evaluate.html.j2").render(
        report=report, title="Near-duplicates", words=words, picture=picture
    )


def _template(name: str) -> Template:
    """Return a template of this package; it escapes values, and refuses undefined ones."""
    environment = Environment(
        loader=PackageLoader("streamdedup.analysis"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    return environment.get_template(name)


def picture(banding: BandingReport, threshold: float) -> SCurvePicture:
    """Lay out the histogram of a banding."""
    frame = Frame()
    powers = max(1, math.ceil(math.log10(max(1, *banding.histogram))))
    # The scale is that of count + 1: no candidates have no height, and one candidate is visible.
    top = math.log10(10**powers + 1)
    foot = frame.top + frame.height

    def height(count: int) -> float:
        return frame.height * math.log10(count + 1) / top

    points = (
        (
            frame.left + frame.width * step / 100,
            foot - frame.height * banding.banding.candidate_probability(step / 100),
        )
        for step in range(101)
    )
    return SCurvePicture(
        frame=frame,
        counts=[
            Tick(foot - height(count), _short(count))
            for count in (0, *(10**power for power in range(powers + 1)))
        ],
        bars=[
            Bar(
                x=frame.left + frame.width * bar / BINS,
                width=frame.width / BINS - 1,
                height=height(count),
                label=f"{bar / BINS:.2f} to {(bar + 1) / BINS:.2f}: {count:,}",
            )
            for bar, count in enumerate(banding.histogram)
        ],
        curve=" ".join(f"{x:.1f},{y:.1f}" for x, y in points),
        threshold_x=frame.left + frame.width * threshold,
    )


def _short(count: int) -> str:
    """Write a power of ten in few characters, for narrow screens."""
    for size, sign in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count // size}\u202f{sign}"
    return str(count)


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
    """The coordinates of the labels and the fitted curve."""

    frame: Frame
    ticks: list[Tick]
    points: list[Point]  # the levels
    marks: list[MarkedLine]  # the current and the proposed threshold
    curve: str  # points of the fitted curve, as SVG writes them; empty without a proposal
    interval: tuple[float, float] | None  # None without a proposal


def label_page(report: LabelReport) -> str:
    """Return the page of a report on labels."""
    return _template("labels.html.j2").render(
        report=report,
        title="The threshold that labels propose",
        words=agreement,
        picture=label_picture(report),
    )


def label_picture(report: LabelReport) -> LabelPicture:
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
            Tick(across(begin + step * _STEP), f"{begin + step * _STEP:.2f}")
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
