"""*Blocking* (reads files). Secrets that settings name by file."""

from __future__ import annotations

from pathlib import Path

from streamdedup.errors import SettingsError

MASK = "**********"
"""What stands for a secret wherever settings are printed."""


def read_secret(path: Path) -> str:
    """Read a secret from its file; line ends after it are not part of it.

    Raises:
        SettingsError: the file cannot be read, or holds nothing.
    """
    try:
        secret = path.read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise SettingsError(f"cannot read the secret in {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise SettingsError(f"the secret in {path} is no UTF-8") from None
    if not secret:
        raise SettingsError(f"the secret in {path} is empty")
    return secret
