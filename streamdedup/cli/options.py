"""*Pure.* The options that several commands share, and the settings that flags override.

typer takes one parameter per flag, so the signature of a command lists its option types. An option
of one command is declared beside that command.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdedup.errors import SettingsError

if TYPE_CHECKING:
    from streamdedup.model import Position

INPUT, JUDGEMENT, OUTPUT = "Input", "Judgement", "Output"
"""The panels of a long help text."""

MOST_BANDS, MOST_ROWS, MOST_VALUES = 1000, 1000, 9000
"""Bounds of dedup.bands, dedup.rows and dedup.num_perm, here because the settings load late."""
POSITION = "TOPIC:PARTITION:OFFSET"
"""How help texts write a position."""


def filled(param: typer.CallbackParam, value: Any) -> Any:
    """Return the path of an option or argument, or its paths, unless one is empty."""
    if value == "" or (isinstance(value, list) and "" in value):
        name = "a FILE" if isinstance(value, list) else param.opts[0]
        raise SettingsError(f"{name} is empty; give a path, or . for the working directory")
    return value


def _path(param: typer.CallbackParam, value: Any) -> Path | None:
    return None if filled(param, value) is None else Path(value)


FILLED: dict[str, Any] = {"path_type": str, "callback": _path}
"""Of options and arguments whose path must not be empty. ``Path("")`` is the working directory, in
which a command with an unset variable would write."""
_CONFIG = typer.Option("--config", "-c", **FILLED, help="YAML file with the settings.")
ConfigFile = Annotated[Path | None, _CONFIG]
RequiredConfigFile = Annotated[Path, _CONFIG]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_FILES = typer.Argument(
    metavar="FILE...",
    callback=filled,
    help="JSON Lines or CSV (plain, gzip, bzip2, xz, zstd), Parquet or Arrow; directories and "
    "quoted patterns; - is stdin (JSON Lines).",
)
Files = Annotated[list[str], _FILES]
OptionalFiles = Annotated[list[str] | None, _FILES]
Threshold = Annotated[
    float | None,
    typer.Option(
        help="Similarity of a duplicate (dedup.threshold, by default 0.8).",
        rich_help_panel=JUDGEMENT,
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Normalisation: plain, post, news, forum, or steps with commas (dedup.profile).",
        rich_help_panel=JUDGEMENT,
    ),
]
NumPerm = Annotated[
    int | None,
    typer.Option(help="MinHash values per signature (dedup.num_perm).", rich_help_panel=JUDGEMENT),
]
CorpusDocuments = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Documents in the index (dedup.corpus_documents).",
        rich_help_panel=JUDGEMENT,
    ),
]
TextField = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH",
        help="Column or dotted path of the text (records.text_fields, by default text). Repeat it "
        "to join several texts.",
        rich_help_panel=INPUT,
    ),
]
IdField = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Column or dotted path of the id (records.id_field, by default id). A document "
        "without an id is FILE:LINE.",
        rich_help_panel=INPUT,
    ),
]


def overrides(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings whose flags were given; the others keep their configured values."""
    given = {
        section: {name: value for name, value in values.items() if value is not None}
        for section, values in sections.items()
    }
    return {section: values for section, values in given.items() if values}


def positions(texts: Iterable[str]) -> list[Position]:
    """Return the positions that arguments name, each once.

    Raises:
        typer.BadParameter: a text is not a position.
    """
    from streamdedup.model import parse_position

    try:
        return list(dict.fromkeys(parse_position(text) for text in texts))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
