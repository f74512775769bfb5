"""*Blocking* (reads its template). An evaluation as one HTML page that loads nothing else."""

from __future__ import annotations

import math
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from streamdedup.analysis import words
from streamdedup.analysis.report import BINS, BandingReport, EvaluationReport

_TITLE = "How good the sketches are"
_TEMPLATE = "evaluate.html.j2"


class Frame(NamedTuple):
    """The plot area of a picture and the margins around it, in units of the picture."""

    left: float = 90
    top: float = 30
    width: float = 620
    height: float = 260
    right: float = 80
    bottom: float = 60


class CountTick(NamedTuple):
    """A labelled line of the scale of counts."""

    y: float
    label: str


class Bar(NamedTuple):
    """A bar of the histogram; it stands on the foot of the frame."""

    x: float
    width: float
    height: float
    label: str


class SCurvePicture(NamedTuple):
    """The coordinates of a histogram of candidates and its S-curve.

    Attributes:
        frame: the plot area.
        counts: the logarithmic scale of counts.
        bars: candidates by true similarity.
        curve: points of the S-curve, as SVG writes them.
        threshold_x: position of the threshold.
    """

    frame: Frame
    counts: list[CountTick]
    bars: list[Bar]
    curve: str
    threshold_x: float


def page(report: EvaluationReport) -> str:
    """Return the page."""
    return template(_TEMPLATE).render(report=report, title=_TITLE, words=words, picture=picture)


def template(name: str) -> Template:
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
            CountTick(foot - height(count), _short(count))
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
