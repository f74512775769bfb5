"""*Blocking.* S-curves, as a PNG or SVG file and as text.

matplotlib is optional (the extra ``plot``) and imported when a file is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plotext

from streamdedup.errors import InputError, SettingsError
from streamdedup.extras import install
from streamdedup.sketch.bands import Banding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SUFFIXES = (".png", ".svg")
_STEPS = 200
_INCHES = (8.0, 4.5)
_MARKERS = ("●", "+", "x", "o", "-", "*", "~")
_COLOURS = ("green", "blue", "magenta", "orange", "cyan", "red", "gray")
_ROWS, _COLUMNS = 18, 78


def check_target(path: Path) -> None:
    """Check, before any work, that a picture can be saved; a SettingsError says why not."""
    if path.suffix.lower() not in _SUFFIXES:
        raise SettingsError(f"--plot {path}: the name must end in .png or .svg")
    _new_figure()


def curve(banding: Banding) -> tuple[list[float], list[float]]:
    """Return points of an S-curve: similarities and candidate probabilities."""
    similarities = [step / _STEPS for step in range(_STEPS + 1)]
    return similarities, [banding.candidate_probability(x) for x in similarities]


def draw_curves(bandings: Sequence[Banding], threshold: float, *, colour: bool) -> str:
    """Draw S-curves as text, for a terminal, and the threshold as a vertical line."""
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(_COLUMNS, _ROWS)
    styles = list(zip(bandings, _MARKERS, _COLOURS, strict=False))
    plotext.vline(threshold, "gray")
    for banding, marker, shade in reversed(styles):  # the first is in front of the others
        label = f"{banding.bands} x {banding.rows}"
        plotext.plot(*curve(banding), marker=marker, color=shade, label=label)
    plotext.xlim(0, 1)
    plotext.ylim(0, 1)
    plotext.xlabel("Jaccard similarity")
    plotext.title("probability that a pair is compared")
    drawn: str = plotext.build()
    return drawn if colour else plotext.uncolorize(drawn)


def save_curves(path: Path, bandings: Sequence[Banding], threshold: float) -> None:
    """Save a picture of S-curves; an InputError says why not. See :func:`check_target`."""
    figure = _new_figure()
    axes = figure.add_subplot()
    for banding in bandings:
        axes.plot(*curve(banding), label=str(banding))
    axes.axvline(
        threshold, color="dimgray", linestyle=":", linewidth=1.5, label=f"threshold {threshold:g}"
    )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("Jaccard similarity")
    axes.set_ylabel("probability that a pair is compared")
    axes.legend(loc="upper left")
    options: dict[str, Any] = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    try:
        figure.savefig(path, dpi=150, **options)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def _new_figure() -> Figure:
    try:
        # pyplot would need a display.
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingsError(
            f"--plot needs matplotlib, which is not installed; run {install('plot')}"
        ) from None
    return Figure(figsize=_INCHES, layout="constrained")
