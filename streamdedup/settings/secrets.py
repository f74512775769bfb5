"""*Blocking* (reads files). Secrets in files that settings name."""

from __future__ import annotations

from pathlib import Path

from streamdedup.errors import SettingsError

MASK = "**********"
"""Replaces a secret in printed settings."""


def read_secret(path: Path) -> str:
    """Read a secret from its file; line breaks at its end are ignored.

    Raises:
        SettingsError: the file cannot be read, or is empty.
    """
    try:
        secret = path.read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise SettingsError(f"cannot read the secret in {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise SettingsError(f"the secret in {path} is not valid UTF-8") from None
    if not secret:
        raise SettingsError(f"the secret in {path} is empty")
    return secret
