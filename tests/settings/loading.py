"""*Pure.* What the tests of the settings share: refusals, look-ups, and an invented login."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamdedup.errors import SettingsError
from streamdedup.settings.load import load_settings
from streamdedup.settings.sections import Settings

SECRET = "hunter2-very-secret"  # noqa: S105 - an invented password
LOGIN = {"protocol": "SASL_SSL", "sasl_username": "u"}


def look_up(settings: Settings, name: str) -> Any:
    """Return the value of a setting by its dotted name."""
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def refusal(path: Path | None = None, **overrides: Any) -> str:
    """Return the message of the error that loading raises; it is one line."""
    with pytest.raises(SettingsError) as caught:
        load_settings(path, **overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message
