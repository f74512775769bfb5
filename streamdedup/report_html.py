"""*Pure.* An evaluation as one HTML page that needs nothing else: no script, font or picture."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from streamdedup import report as words
from streamdedup.evaluate import BINS, BandingReport, Example, Report
from streamdedup.report import Grid

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fff; --soft: #667; --line: #d5d8dd;
  --bar: #7aa2d6; --curve: #c2410c; --good: #15803d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6ea; --paper: #15181c; --soft: #99a;
  --line: #333a42; --bar: #3f6ea8; --curve: #fb923c; --good: #4ade80; } }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
dt { color: var(--soft); } dd { margin: 0; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; border-top: 1px solid
  var(--line); padding: .5rem 0; overflow-wrap: anywhere; }
.pair p { margin: 0; } .facts { color: var(--soft); }
pre { padding: .75rem; border: 1px solid var(--line); overflow-x: auto; }
svg { width: 100%; height: auto; max-width: 48rem; }
svg text { fill: var(--soft); font-size: 11px; }
.bar { fill: var(--bar); } .curve { fill: none; stroke: var(--curve); stroke-width: 2; }
.axis { stroke: var(--line); } .mark { stroke: var(--soft); stroke-dasharray: 3 3; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_LEFT, _TOP, _WIDE, _HIGH = 50, 10, 680, 240
"""The frame of a picture, in its own units."""


def page(report: Report) -> str:
    """Return the page."""
    facts = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in words.overview(report)
    )
    parts = [
        "<h1>How good the sketches are</h1>",
        f"<dl>{facts}</dl>",
        _grid(words.truth_grid(report)),
    ]
    if len(report.bandings) > 1:
        parts.append(_grid(words.comparison_grid(report)))
    parts += [_banding(banding, report) for banding in report.bandings]
    parts += [
        "<h2>Background, and proposed settings</h2>",
        _paragraphs(words.background_sentences(report)),
        f"<pre>{escape(words.proposal(report))}</pre>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>streamdedup: evaluation</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _grid(grid: Grid) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in grid.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n"
        for row in grid.rows
    )
    return (
        f'<h2>{escape(grid.title)}</h2>\n<div class="wide"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _banding(banding: BandingReport, report: Report) -> str:
    return "\n".join(
        [
            _grid(words.banding_grid(banding, report.threshold)),
            _paragraphs(words.banding_sentences(banding, report.documents)),
            _histogram(banding, report.threshold),
            _examples("The most similar pairs that were missed", banding.misses),
            _examples("The least similar pairs that passed for duplicates", banding.alarms),
        ]
    )


def _paragraphs(sentences: Iterable[str]) -> str:
    return "\n".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)


def _examples(title: str, examples: list[Example]) -> str:
    if not examples:
        return ""
    pairs = []
    for example in examples:
        shown = words.excerpt(example)
        sides = "".join(
            f"<div><p><strong>{escape(name)}</strong></p><p>{escape(text)}</p></div>"
            for name, text in zip(shown.ids, shown.texts, strict=True)
        )
        pairs.append(f'<p class="facts">{escape(shown.facts)}</p><div class="pair">{sides}</div>')
    return f"<h3>{escape(title)}</h3>\n" + "\n".join(pairs)


def _histogram(banding: BandingReport, threshold: float) -> str:
    """Draw the candidates by true similarity, on a scale of powers of ten, and the S-curve."""
    top = max(1.0, math.ceil(math.log10(max(banding.histogram) + 1)))
    parts = [_ordinate(power / top, f"{10**power:,}") for power in range(1, int(top) + 1)]
    for place, count in enumerate(banding.histogram):
        high = _HIGH * math.log10(count + 1) / top
        parts.append(
            f'<rect class="bar" x="{_x(place / BINS):.1f}" y="{_TOP + _HIGH - high:.1f}" '
            f'width="{_WIDE / BINS - 1:.1f}" height="{high:.1f}"><title>{place / BINS:.2f} to '
            f"{(place + 1) / BINS:.2f}: {count:,}</title></rect>"
        )
    points = " ".join(
        f"{_x(step / 100):.1f},{_y(banding.banding.candidate_probability(step / 100)):.1f}"
        for step in range(101)
    )
    parts += [_abscissa(tenth / 10) for tenth in range(0, 11, 2)]
    mark = f"{_x(threshold):.1f}"
    parts += [
        f'<line class="mark" x1="{mark}" x2="{mark}" y1="{_TOP}" y2="{_TOP + _HIGH}"/>',
        f'<polyline class="curve" points="{points}"/>',
    ]
    caption = (
        f"Candidates of {banding.banding} by true Jaccard similarity (bars, powers of ten), and "
        "the probability that a pair of that similarity is compared (line, 0 to 1)"
    )
    return (
        f'<figure><svg viewBox="0 0 {_LEFT + _WIDE + 20} {_TOP + _HIGH + 30}" role="img" '
        f'aria-label="{escape(caption)}">{"".join(parts)}</svg>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _x(share: float) -> float:
    return _LEFT + _WIDE * share


def _y(share: float) -> float:
    return _TOP + _HIGH * (1 - share)


def _ordinate(share: float, label: str) -> str:
    y = f"{_y(share):.1f}"
    return (
        f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + _WIDE}" y1="{y}" y2="{y}"/>'
        f'<text x="{_LEFT - 5}" y="{y}" text-anchor="end" dominant-baseline="middle">{label}</text>'
    )


def _abscissa(at: float) -> str:
    return f'<text x="{_x(at):.1f}" y="{_TOP + _HIGH + 18}" text-anchor="middle">{at:g}</text>'
