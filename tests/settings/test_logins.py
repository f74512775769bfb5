"""Logins at the brokers and at the registry: which settings belong together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamdedup.settings.load import load_settings
from streamdedup.settings.secrets import MASK
from tests.settings.loading import SECRET, refusal

URLS = ["http://127.0.0.1:8081"]


def test_the_password_of_the_registry_is_a_setting_or_in_a_file(tmp_path: Path) -> None:
    """Either gives the same login, and without a user name there is none."""
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    for one in ({"password": SECRET}, {"password_file": str(file)}):
        registry = load_settings(registry={"urls": URLS, "username": "u", **one}).registry
        assert registry.login() == f"u:{SECRET}"
    assert load_settings(registry={"urls": URLS}).registry.login() is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"password": SECRET, "password_file": "/secret"}, "are both set; remove one"),
        ({"password": MASK}, "the mask of a printed secret"),
        ({"password": None}, "a login needs username and password_file"),
    ],
    ids=["two passwords", "mask", "no password"],
)
def test_half_a_login_at_the_registry_is_refused(changes: dict[str, Any], words: str) -> None:
    """The message names the settings."""
    assert words in refusal(registry={"urls": URLS, "username": "u", **changes})


@pytest.mark.parametrize("half", [{"sasl_username": "u"}, {"sasl_password": SECRET}])
@pytest.mark.parametrize(
    ("login", "words"),
    [
        ({"protocol": "SSL"}, "a login is set, but protocol SSL sends none"),
        ({"protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "have no effect with GSSAPI"),
    ],
)
def test_a_login_without_effect_is_refused(
    login: dict[str, str], words: str, half: dict[str, str]
) -> None:
    """A user name alone is enough to be told so, and so is a password."""
    assert words in refusal(kafka={"security": {**login, **half}})
