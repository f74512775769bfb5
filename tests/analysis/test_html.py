"""The picture of the HTML page; tests/cli/test_evaluate.py has the page itself."""

from __future__ import annotations

import pytest

from streamdedup.analysis.html import picture
from streamdedup.analysis.report import BINS, BandingReport
from streamdedup.sketch.bands import Banding


def test_bars_stand_on_a_logarithmic_scale() -> None:
    """An empty bar has no height, one candidate is visible, and a power of ten is on its tick."""
    histogram = [0, 1, 10, 1000, *[0] * (BINS - 4)]
    shown = picture(BandingReport(Banding(20, 7), 256, 10**6, [], histogram=histogram), 0.8)
    heights = [bar.height for bar in shown.bars]
    assert len(heights) == BINS
    assert heights[0] == 0
    assert 0 < heights[1] < heights[2] < heights[3]
    assert shown.bars[3].label == "0.06 to 0.08: 1,000"
    foot = shown.frame.top + shown.frame.height
    ticks = {tick.label: foot - tick.at for tick in shown.counts}
    assert list(ticks) == ["0", "1", "10", "100", "1\u202fk"]
    assert ticks["10"] == pytest.approx(heights[2])
    assert ticks["1\u202fk"] == pytest.approx(shown.frame.height)


def test_curve_spans_the_frame() -> None:
    """The S-curve goes from the lower left corner to the upper right corner."""
    shown = picture(BandingReport(Banding(20, 7), 256, 0, []), 0.8)
    points = [tuple(map(float, point.split(","))) for point in shown.curve.split()]
    frame = shown.frame
    assert points[0] == (frame.left, frame.top + frame.height)
    assert points[-1] == (frame.left + frame.width, frame.top)
    assert shown.threshold_x == pytest.approx(frame.left + 0.8 * frame.width)
