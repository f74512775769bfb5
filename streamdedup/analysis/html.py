"""*Pure.* An evaluation as one HTML page that needs nothing else: no script, font or picture."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

from streamdedup.analysis import words
from streamdedup.analysis.report import BINS, BandingReport, Example, Report
from streamdedup.analysis.words import Grid
from streamdedup.dedup.differences import Part

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fff; --soft: #5a606b; --line: #d5d8dd;
  --bar: #5c8cc8; --curve: #c2410c; --mark: #ffe9a8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e6ea; --paper: #15181c; --soft: #a3a8b3;
  --line: #333a42; --bar: #4a7ab5; --curve: #fb923c; --mark: #5a4304; } }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
p, figcaption { max-width: 48rem; }
.wide { overflow-x: auto; }
.wide:focus-visible { outline: 2px solid var(--curve); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child { position: sticky; left: 0; background: var(--paper); text-align: left; }
th:first-child, td { white-space: nowrap; } tbody th { font-weight: inherit; }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
dt { color: var(--soft); } dd { margin: 0; }
.pair { border-top: 1px solid var(--line); padding: .75rem 0; overflow-wrap: anywhere; }
.pair p { margin: 0; }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr));
  gap: .5rem 2rem; }
mark { background: var(--mark); color: var(--ink); border-bottom: 1px solid; }
.soft { color: var(--soft); }
pre { padding: .75rem; border: 1px solid var(--line); white-space: pre-wrap; }
figure { margin: 1.5rem 0; }
svg { display: block; width: 100%; height: auto; max-width: 48rem; }
svg text { fill: var(--soft); font-size: 13px; } svg .right { fill: var(--curve); }
@media (max-width: 36rem) { svg text { font-size: 22px; } dl { grid-template-columns: 1fr; }
  dd { margin-bottom: .25rem; } table { font-size: .8rem; }
  th, td { padding-right: .4rem; } }
.bar { fill: var(--bar); } .curve { fill: none; stroke: var(--curve); stroke-width: 2; }
.halo { stroke: var(--paper); stroke-width: 5; }
.axis { stroke: var(--line); } .mark { stroke: var(--soft); stroke-dasharray: 3 3; }
"""
_TITLE = "How good the sketches are"
_MINUS = "\u2212"
"""As wide as a plus, which a hyphen is not."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_LEFT, _TOP, _WIDE, _HIGH, _RIGHT, _BOTTOM = 90, 30, 620, 260, 80, 60
"""The frame of a picture and what is around it, in its own units."""


def page(report: Report) -> str:
    """Return the page."""
    facts = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in words.overview(report)
    )
    parts = [
        f"<h1>{_TITLE}</h1>",
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
        f"<title>{_TITLE}: {report.documents:,} documents at {report.threshold:g}</title>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def _grid(grid: Grid) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in grid.columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(number.replace('-', _MINUS))}</td>" for number in numbers)
        + "</tr>\n"
        for name, *numbers in grid.rows
    )
    # Who has no mouse must be able to reach and scroll a table that is too wide.
    return (
        f"<h2>{escape(grid.title)}</h2>\n"
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(grid.title)}">'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>\n"
        f'<p class="soft">{escape(grid.note)}</p>'
    )


def _banding(banding: BandingReport, report: Report) -> str:
    return "\n".join(
        [
            _grid(words.banding_grid(banding, report)),
            _paragraphs(words.banding_sentences(banding, report)),
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
            f'<div><p><strong>{escape(name)}</strong></p><p dir="auto">{_marked(parts)}</p></div>'
            for name, parts in zip(shown.ids, shown.texts, strict=True)
        )
        pairs.append(
            f'<div class="pair"><p class="soft">{escape(shown.facts)}</p>'
            f'<div class="sides">{sides}</div></div>'
        )
    return (
        f'<h3>{escape(title)}</h3>\n<p class="soft">Only the surroundings of differences are '
        "shown; <mark>what differs</mark> is marked.</p>\n" + "\n".join(pairs)
    )


def _marked(parts: Iterable[Part]) -> str:
    return "".join(
        f"<mark>{escape(text)}</mark>" if differs else escape(text) for text, differs in parts
    )


def _histogram(banding: BandingReport, threshold: float) -> str:
    """Draw the candidates by true similarity, on a scale of powers of ten, and the S-curve."""
    powers = max(1, math.ceil(math.log10(max(1, *banding.histogram))))
    # One more than there are, so that none is at the foot and one still shows.
    top = math.log10(10**powers + 1)
    ticks = [0, *(10**power for power in range(powers + 1))]
    parts = [_ordinate(math.log10(tick + 1) / top, _short(tick)) for tick in ticks]
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
    mark = f"{_x(threshold):.1f}"
    parts += [
        *(_text(_x(fifth / 5), _TOP + _HIGH + 22, f"{fifth / 5:g}") for fifth in range(6)),
        *(
            _text(_LEFT + _WIDE + 8, _y(half / 2), f"{half / 2:g}", "start", "right")
            for half in range(3)
        ),
        f'<line class="mark" x1="{mark}" x2="{mark}" y1="{_TOP}" y2="{_TOP + _HIGH}"/>',
        _text(_x(threshold), _TOP - 14, f"threshold {threshold:g}"),
        # The curve would hardly show over the bars.
        f'<polyline class="curve halo" points="{points}"/>',
        f'<polyline class="curve" points="{points}"/>',
        _text(_x(0.5), _TOP + _HIGH + 48, "true Jaccard similarity"),
        _upright(18, "candidate pairs"),
        _upright(_LEFT + _WIDE + _RIGHT - 18, "probability", "right"),
    ]
    size = f"{_LEFT + _WIDE + _RIGHT} {_TOP + _HIGH + _BOTTOM}"
    return (
        f'<figure><svg viewBox="0 0 {size}" role="img" aria-label="Candidates of {banding.banding} '
        f'by true similarity, and the S-curve">{"".join(parts)}</svg>'
        "<figcaption>Bars: candidate pairs of each true similarity, on a scale of powers of ten. "
        "Line: the probability that a pair of that similarity shares a band.</figcaption></figure>"
    )


def _x(share: float) -> float:
    return _LEFT + _WIDE * share


def _y(share: float) -> float:
    return _TOP + _HIGH * (1 - share)


def _ordinate(share: float, label: str) -> str:
    y = f"{_y(share):.1f}"
    line = f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + _WIDE}" y1="{y}" y2="{y}"/>'
    return line + _text(_LEFT - 8, _y(share), label, "end")


def _text(x: float, y: float, label: str, anchor: str = "middle", kind: str = "") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" '
        f'dominant-baseline="central">{label}</text>'
    )


def _upright(x: float, label: str, kind: str = "") -> str:
    """Return the name of an axis, read from below."""
    text = _text(0, 0, label, kind=kind)
    return f'<g transform="translate({x} {_y(0.5):.1f}) rotate(-90)">{text}</g>'


def _short(count: int) -> str:
    """Write a power of ten so that it fits beside the picture on a narrow screen too."""
    for size, sign in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count // size}\u202f{sign}"
    return str(count)
