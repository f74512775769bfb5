"""*Blocking.* Reads labelled pairs: the downloads of the page, and tables made by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

import msgspec

from streamdedup.analysis.agreement import DIFFERENT, SAME, UNSURE, Answer, Label
from streamdedup.errors import InputError
from streamdedup.files.lines import LineReader
from streamdedup.settings.sections import Settings
from streamdedup.sketch.sketcher import Sketcher
from streamdedup.sketch.texts import jaccard, shingle_sets

_ANSWERS = (SAME, DIFFERENT, UNSURE)
_LINE_BYTES = 4 * 1024**2  # longest line that is read; a pair of long texts is shorter
_IDENTITIES = (("position", "original_position"), ("id", "original_id"), ("text", "original_text"))
"""Fields that identify a pair, the best first."""


def read_labels(paths: Iterable[str], settings: Settings) -> list[Label]:
    """Read labels from JSON Lines, or from tables with tabs and a line of names.

    A label has ``label`` (same, different or unsure) and a similarity: ``jaccard`` or ``estimate``,
    or two texts, ``text`` and ``original_text``, whose Jaccard similarity is computed. Files are
    plain or compressed; ``-`` is standard input.

    Raises:
        InputError: a file cannot be read, has an invalid line or no label, or the labels were given
            with different sketch parameters.
    """
    measure = _Measure(settings)
    labels: list[Label] = []
    for path in paths:
        found = [_label(row, place, path, measure) for place, row in _rows(path)]
        if not found:
            raise InputError(f"{path} has no label")
        labels += found
    fingerprints = sorted({label.fingerprint for label in labels if label.fingerprint})
    if len(fingerprints) > 1:
        raise InputError(
            f"the labels were given with different sketch parameters ({', '.join(fingerprints)}), "
            "so their similarities cannot be compared; pass only the labels of one fingerprint"
        )
    return labels


class _Measure:
    """Computes the Jaccard similarity of two texts under the settings."""

    def __init__(self, settings: Settings) -> None:
        parameters = settings.dedup.sketch_parameters()
        self._sketcher = Sketcher(parameters)
        self._shingling = parameters.shingling()

    def __call__(self, texts: Sequence[str]) -> float:
        return jaccard(*shingle_sets(self._sketcher.normalise(texts), self._shingling))


def _rows(path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of a file, each with the name of its place."""
    names: list[str] | None = None
    with closing(LineReader(path, _LINE_BYTES)) as reader:
        while (line := reader.read()) is not None:
            place = f"{reader.name}:{line.number + 1}"
            if line.size > _LINE_BYTES:
                raise InputError(f"{place}: the line is longer than {_LINE_BYTES:,} bytes")
            if not line.content.strip():
                continue
            if names is None and line.content.lstrip().startswith(b"{"):
                yield place, _object(line.content, place)
                continue
            try:
                cells = line.content.decode().rstrip("\r").split("\t")
            except UnicodeDecodeError as error:
                raise InputError(f"{place}: the line is not valid UTF-8") from error
            if names is None:
                names = _names(cells, place)
            elif len(cells) != len(names):
                raise InputError(
                    f"{place}: the row has {len(cells)} cells, the first line {len(names)} names"
                )
            else:
                yield place, dict(zip(names, cells, strict=True))


def _object(content: bytes, place: str) -> Mapping[str, Any]:
    try:
        row = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{place}: the line is not valid JSON: {error}") from error
    return cast("dict[str, Any]", row)  # it starts with a brace


def _names(cells: list[str], place: str) -> list[str]:
    names = [cell.strip().lower() for cell in cells]
    if "label" not in names:
        raise InputError(
            f"{place}: expected JSON Lines, or a first line with the names of the columns, "
            "separated by tabs, one of them label"
        )
    return names


def _label(row: Mapping[str, Any], place: str, path: str, measure: _Measure) -> Label:
    answer = row.get("label")
    answer = answer.strip().lower() if isinstance(answer, str) else answer
    if answer not in _ANSWERS:
        raise InputError(f"{place}: label {answer!r} is not same, different or unsure")
    pairs = (tuple(_string(row, name) for name in names) for names in _IDENTITIES)
    return Label(
        pair=next(filter(all, pairs), (place,)),
        similarity=_similarity(row, place, measure),
        answer=cast("Answer", answer),
        source=path,
        time=_string(row, "time"),
        threshold=_number(row, "threshold", place),
        fingerprint=_string(row, "fingerprint"),
    )


def _similarity(row: Mapping[str, Any], place: str, measure: _Measure) -> float:
    for name in ("jaccard", "estimate"):
        if (number := _number(row, name, place)) is not None:
            return number
    texts = [row.get(name) for name in ("text", "original_text")]
    if not all(isinstance(text, str) and text for text in texts):
        raise InputError(
            f"{place}: a label needs jaccard or estimate, or both text and original_text"
        )
    return measure(cast("list[str]", texts))


def _number(row: Mapping[str, Any], name: str, place: str) -> float | None:
    """Return a number from 0 to 1, or None if it is absent."""
    value = row.get(name)
    if value is None or value == "":
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= 1:
        raise InputError(f"{place}: {name} {value!r} is not a number from 0 to 1")
    return number


def _string(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else "" if value is None else str(value)
