"""*Blocking* (loads settings). The options that commands share, and the settings under flags.

typer takes one parameter per flag, so the signature of a command lists its option types. An option
of one command is declared beside that command.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamdedup.errors import SettingsError

if TYPE_CHECKING:
    from streamdedup.model import Position
    from streamdedup.settings.sections import Settings

for_input = partial(typer.Option, rich_help_panel="Input")
for_judgement = partial(typer.Option, rich_help_panel="Judgement")
for_output = partial(typer.Option, rich_help_panel="Output")
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
to_file = partial(typer.Option, metavar="FILE", **FILLED)
_CONFIG = typer.Option("--config", "-c", **FILLED, help="YAML file with the settings.")
ConfigFile = Annotated[Path | None, _CONFIG]
RequiredConfigFile = Annotated[Path, _CONFIG]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_FILES = typer.Argument(
    metavar="FILE...",
    callback=filled,
    help="JSON Lines or CSV (plain, gzip, bzip2, xz, zstd), Parquet or Arrow; directories and "
    "quoted patterns; - is stdin.",
)
Files = Annotated[list[str], _FILES]
OptionalFiles = Annotated[list[str] | None, _FILES]
Threshold = Annotated[
    float | None, for_judgement(help="Similarity of a duplicate (dedup.threshold, by default 0.8).")
]
Profile = Annotated[
    str | None,
    for_judgement(
        metavar="NAME",
        help="Normalisation: plain, post, news, forum, or steps with commas (dedup.profile).",
    ),
]
NumPerm = Annotated[
    int | None, for_judgement(help="MinHash values per signature (dedup.num_perm).")
]
CorpusDocuments = Annotated[
    int | None, for_judgement(metavar="N", help="Documents in the index (dedup.corpus_documents).")
]
TextField = Annotated[
    list[str] | None,
    for_input(
        metavar="PATH",
        help="Column or dotted path of the text (records.text_fields, by default text). Repeat it "
        "to join several texts.",
    ),
]
IdField = Annotated[
    str | None,
    for_input(
        metavar="PATH",
        help="Column or dotted path of the id (records.id_field, by default id). A document "
        "without an id is FILE:LINE.",
    ),
]


def load(config: Path | None, **flags: dict[str, Any]) -> Settings:
    """Load the settings; the flags that are given override them, those of each section by name."""
    from streamdedup.settings.load import load_settings

    given = {
        section: {name: value for name, value in values.items() if value is not None}
        for section, values in flags.items()
    }
    return load_settings(config, **{name: values for name, values in given.items() if values})


def positions(texts: Iterable[str]) -> list[Position]:
    """Return the positions that arguments name, each once; refuse a text that is not one."""
    from streamdedup.model import parse_position

    try:
        return list(dict.fromkeys(parse_position(text) for text in texts))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
