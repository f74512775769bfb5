"""*Pure.* The header of an index: its format, its sketch parameters and its changelog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import msgspec

from streamdedup.errors import REMEDY, IndexDamaged, IndexMismatch
from streamdedup.sketch.normalize import resolve
from streamdedup.sketch.parameters import UNKNOWN_SEED, SketchParameters

FORMAT = 4
"""Version of the layout on disk; docs/format.md specifies it."""


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The identity of an index.

    Attributes:
        format: version of the layout.
        parameters: everything that the bits of a sketch depend on.
        log: the changelog whose offsets the index has applied.
    """

    format: int
    parameters: dict[str, int | str | bool]
    log: str


def decode_header(raw: bytes, directory: Path) -> Header:
    """Return the header that some bytes hold.

    Raises:
        IndexMismatch: the index has another format.
        IndexDamaged: the bytes are not a header.
    """
    try:
        layout = msgspec.json.decode(raw).get("format")
        if layout != FORMAT:
            raise IndexMismatch(
                f"{directory} has index format {layout}, this release reads {FORMAT}; use the "
                f"release that wrote it, or {REMEDY}"
            )
        return msgspec.json.decode(raw, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError, RecursionError) as error:
        raise IndexDamaged(f"{directory}: the header cannot be read: {error}") from error


def difference(stored: Header, expected: Header) -> str:
    """Say in which way a stored header differs from the expected one, and what to do."""
    differences = [
        f"{name} {stored.parameters.get(name)} (the settings say {value})"
        for name, value in expected.parameters.items()
        if stored.parameters.get(name) != value and name not in ("seed", "seed_hash")
    ]
    differences += _seed_difference(stored.parameters, expected.parameters)
    if differences:
        return (
            f"the index was built with {', '.join(differences)}; restore the settings, or use "
            "another index directory and changelog; if the other worker of a pair has these "
            "settings, remove this index directory: a worker rebuilds it from their changelog"
        )
    return f"the index belongs to {stored.log}, not to {expected.log}; use another directory"


def _seed_difference(
    stored: Mapping[str, int | str | bool], expected: Mapping[str, int | str | bool]
) -> list[str]:
    """Say in which way the seeds differ, at most one of which is shown; [] if they do not."""
    if stored.get("seed_hash") == expected.get("seed_hash"):
        if stored.get("seed") == expected.get("seed"):
            return []
        return [f"seed {stored.get('seed')} (the settings say {expected.get('seed')})"]
    if "seed_hash" not in stored:
        return [f"seed {stored.get('seed')} (the settings have a dedup.seed_file)"]
    if "seed_hash" not in expected:
        return ["a secret seed (the settings have no dedup.seed_file)"]
    return ["another secret seed than that in dedup.seed_file"]


def parameters_of(header: Header) -> SketchParameters:
    """Return the sketch parameters that an index was built with.

    Raises:
        IndexMismatch: this release does not support such sketches.
    """
    names = {field.name for field in fields(SketchParameters)}
    values = {name: value for name, value in header.parameters.items() if name in names}
    if values.get("seed_hash"):
        values["seed"] = UNKNOWN_SEED
    try:
        parameters = SketchParameters(**values)  # type: ignore[arg-type] # compared below
        described = {
            **parameters.described(),
            "profile_version": resolve(parameters.profile).version,
        }
    except (TypeError, ValueError) as error:
        raise IndexMismatch(
            f"the index's parameters are not valid in this release: {error}"
        ) from None
    if described != header.parameters:
        raise IndexMismatch(
            "the index was built by a release that sketches texts differently; use that release"
        )
    return parameters
