"""*Blocking.* The command line: registers every command, and turns errors into exit codes."""

from __future__ import annotations

import errno
import sys
from typing import Annotated

import typer

import streamdedup
from streamdedup.cli import (
    backfill,
    config,
    corrections,
    dedup,
    demo,
    evaluate,
    index,
    run,
    topics,
    tune,
    warm,
)
from streamdedup.cli.terminal import replace_output
from streamdedup.errors import PoolUnusable, StreamdedupError

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("dedup")(dedup.dedup)
app.command("demo")(demo.demo)
app.command("backfill")(backfill.backfill)
app.command("tune")(tune.tune)
app.command("evaluate")(evaluate.evaluate)
app.command("warm")(warm.warm)
app.command("reinstate")(corrections.reinstate)
app.add_typer(config.app, name="config")
app.add_typer(topics.app, name="topics")
app.add_typer(index.app, name="index")
app.add_typer(corrections.dlq, name="dlq")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"streamdedup {streamdedup.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Find near-duplicate documents in streams, and name the document that each one repeats.

    `streamdedup dedup FILE` judges JSON Lines, CSV and Parquet files. `streamdedup run` starts the
    Kafka worker.
    """


def main() -> None:
    """Run the command line; an expected error prints one line and a documented exit code."""
    replace_output()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except (StreamdedupError, OSError) as error:
        if isinstance(error, OSError):
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            error = PoolUnusable(
                "too many open files; raise the limit, for example with ulimit -n 1024"
            )
        sys.stderr.write(f"streamdedup: {error}\n")
        sys.exit(error.exit_code)
