"""*Blocking.* Asks the operator before a command changes something."""

from __future__ import annotations

import sys

import typer

from streamdedup.errors import SettingsError


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation, unless ``yes`` is set.

    Raises:
        SettingsError: not confirmed, or there is no terminal.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise SettingsError("cannot ask for confirmation: not a terminal; give --yes")
    if not typer.confirm(question, err=True):
        raise SettingsError("not confirmed; nothing was done")
