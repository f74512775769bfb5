"""*Blocking.* Pictures: S-curves and the histogram of candidates, as PNG or SVG, and as text.

matplotlib is optional (``pip install 'streamdedup[plot]'``) and imported where it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plotext

from streamdedup.errors import InputError, SettingsError
from streamdedup.sketch.bands import Banding

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from streamdedup.analysis.report import Report

_SUFFIXES = (".png", ".svg")
_STEPS = 200
_INCHES = (8.0, 4.5)
_MARKERS = ("●", "+", "x", "o", "-", "*", "~")
_COLOURS = ("green", "blue", "magenta", "orange", "cyan", "red", "gray")
_ROWS, _COLUMNS = 18, 78
_CURVE = "#c2410c"


def check_target(path: Path) -> None:
    """Refuse early what cannot be drawn later.

    Raises:
        SettingsError: matplotlib is not installed, or the name is of no known kind.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise SettingsError(f"--plot {path}: the name must end in .png or .svg")
    _new_figure()


def curve(banding: Banding) -> tuple[list[float], list[float]]:
    """Return points of an S-curve: similarities, and the probabilities there."""
    at = [step / _STEPS for step in range(_STEPS + 1)]
    return at, [banding.candidate_probability(x) for x in at]


def draw_curves(bandings: Sequence[Banding], threshold: float, *, colour: bool) -> str:
    """Draw S-curves as text, for a terminal.

    Args:
        bandings: whose curves; the first is drawn last, over the others.
        threshold: marked by a vertical line.
        colour: whether the text may hold colour codes.
    """
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(_COLUMNS, _ROWS)
    styles = list(zip(bandings, _MARKERS, _COLOURS, strict=False))
    plotext.vline(threshold, "gray")
    for banding, marker, shade in reversed(styles):
        label = f"{banding.bands} x {banding.rows}"
        plotext.plot(*curve(banding), marker=marker, color=shade, label=label)
    plotext.xlim(0, 1)
    plotext.ylim(0, 1)
    plotext.xlabel("Jaccard similarity")
    plotext.title("probability that a pair is compared")
    drawn: str = plotext.build()
    return drawn if colour else plotext.uncolorize(drawn)


def save_curves(path: Path, bandings: Sequence[Banding], threshold: float) -> None:
    """Save a picture of S-curves.

    Raises:
        SettingsError: matplotlib is not installed.
        InputError: the file cannot be written.
    """
    figure = _new_figure()
    axes = figure.add_subplot()
    for banding in bandings:
        axes.plot(*curve(banding), label=str(banding))
    _label_curves(axes, threshold)
    axes.set_xlabel("Jaccard similarity")
    axes.legend(loc="upper left")
    _save(figure, path)


def save_histograms(path: Path, report: Report) -> None:
    """Save the candidates of each banding by true similarity, with the S-curve over them.

    Raises:
        SettingsError: matplotlib is not installed.
        InputError: the file cannot be written.
    """
    figure = _new_figure()
    count = len(report.bandings)
    figure.set_size_inches(_INCHES[0], _INCHES[1] * count)
    all_axes = figure.subplots(count, squeeze=False)[:, 0].tolist()
    for axes, banding in zip(all_axes, report.bandings, strict=True):
        bars = len(banding.histogram)
        starts = [place / bars for place in range(bars)]
        axes.bar(starts, banding.histogram, width=1 / bars, align="edge", color="#5c8cc8")
        # Below one there is nothing but none.
        axes.set_yscale("symlog", linthresh=1, linscale=0.4)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylabel("candidate pairs")
        axes.set_xlabel("true Jaccard similarity")
        axes.set_title(str(banding.banding))
        over = axes.twinx()
        over.plot(*curve(banding.banding), color=_CURVE)
        _label_curves(over, report.threshold)
        # As coloured as the curve: that is the axis to read it by.
        over.yaxis.label.set_color(_CURVE)
        over.tick_params(axis="y", labelcolor=_CURVE)
        over.legend(loc="upper left")
    _save(figure, path)


def _label_curves(axes: Axes, threshold: float) -> None:
    axes.axvline(
        threshold, color="dimgray", linestyle=":", linewidth=1.5, label=f"threshold {threshold:g}"
    )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("probability that a pair is compared")


def _new_figure() -> Figure:
    try:
        # Not through pyplot, which would ask for a display.
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise SettingsError("--plot needs matplotlib: pip install 'streamdedup[plot]'") from None
    return Figure(figsize=_INCHES, layout="constrained")


def _save(figure: Figure, path: Path) -> None:
    options: dict[str, Any] = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    try:
        figure.savefig(path, dpi=150, **options)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
