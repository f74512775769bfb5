"""*Blocking* (reads files). Secrets in files that settings name."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, SecretStr

from streamdedup.errors import SettingsError

MASK = "**********"
"""Replaces a secret in printed settings."""


def read_secret(path: Path) -> str:
    """Read a secret without the line breaks at its end; a SettingsError if there is none."""
    try:
        secret = path.read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise SettingsError(f"cannot read the secret in {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise SettingsError(f"the secret in {path} is not valid UTF-8") from None
    if not secret:
        raise SettingsError(f"the secret in {path} is empty")
    return secret


def _refuse_mask(value: SecretStr) -> SecretStr:
    if value.get_secret_value() == MASK:
        raise ValueError(
            f"the value is {MASK}, the mask of a printed secret; set the password itself"
        )
    return value


Password = Annotated[SecretStr, AfterValidator(_refuse_mask)]


def reveal(password: SecretStr | None, file: Path | None) -> str | None:
    """Return a password, from its file if there is one; a SettingsError if that fails."""
    if file is not None:
        return read_secret(file)
    return password.get_secret_value() if password else None


_SEED_CHARACTERS = 32
"""Shortest secret of a seed: 128 bits in hexadecimal digits."""
_SEED_MASK = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Seed:
    """A secret seed, more than 0 and less than 2^63, and 32 hexadecimal digits that identify it.

    The seed is shown nowhere. Neither it nor the secret follows from the hash.
    """

    value: int = field(repr=False)
    hash: str


def read_seed(path: Path) -> Seed:
    """Return the seed of the secret in a file.

    The seed and the hash are BLAKE2b of the secret, of 8 and 16 bytes, with the personalisations
    ``streamdedup seed`` and ``streamdedup hash``. Of the seed the lower 63 bits count.

    Raises:
        SettingsError: the file cannot be read, or the secret is too short.
    """
    secret = read_secret(path)
    if len(secret) < _SEED_CHARACTERS:
        raise SettingsError(
            f"the secret in {path} has {len(secret)} characters, a seed needs {_SEED_CHARACTERS}; "
            "create one with 'openssl rand -hex 32'"
        )
    seed = hashlib.blake2b(secret.encode(), digest_size=8, person=b"streamdedup seed").digest()
    name = hashlib.blake2b(secret.encode(), digest_size=16, person=b"streamdedup hash")
    return Seed(int.from_bytes(seed, "little") & _SEED_MASK or 1, name.hexdigest())
