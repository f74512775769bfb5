"""Secrets: read from files, required where needed, and never shown."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from streamdedup.errors import SettingsError
from streamdedup.settings.kafka import SecuritySettings
from streamdedup.settings.load import load_settings
from streamdedup.settings.secrets import MASK, read_secret, read_seed
from streamdedup.settings.sections import Settings
from tests.settings.loading import LOGIN, SECRET, refusal

TOKEN_URL = "https://idp.example.org/token"  # noqa: S105 - an address
BEARER = {**LOGIN, "sasl_mechanism": "OAUTHBEARER", "sasl_password": SECRET}


@pytest.mark.parametrize(
    ("security", "message"),
    [
        pytest.param({**LOGIN}, "needs sasl_username and sasl_password_file", id="no password"),
        pytest.param({**LOGIN, "sasl_password": ""}, "needs", id="empty password"),
        pytest.param(
            {"protocol": "SASL_SSL", "sasl_password": SECRET}, "needs sasl_username", id="no user"
        ),
        pytest.param(
            {**LOGIN, "sasl_password": SECRET, "sasl_password_file": "/f"},
            "are both set",
            id="both",
        ),
        pytest.param(
            {"sasl_username": "u", "sasl_password": SECRET}, "protocol PLAINTEXT", id="no SASL"
        ),
        pytest.param(
            {**LOGIN, "sasl_password": SECRET, "sasl_mechanism": "MAGIC"},
            "sasl_mechanism",
            id="magic",
        ),
        pytest.param({**LOGIN, "sasl_password": SECRET, "x": 1}, "unknown", id="unknown"),
        pytest.param({**LOGIN, "sasl_password": [SECRET]}, "sasl_password: ", id="a list"),
        pytest.param({**LOGIN, "sasl_password": MASK}, "the mask of a printed secret", id="mask"),
        pytest.param({"protocol": "SSL", "key_file": "/k"}, "set both", id="key alone"),
        pytest.param(
            {"protocol": "SSL", "certificate_file": "/c"}, "set both", id="certificate alone"
        ),
        pytest.param(
            {"protocol": "SSL", "key_password_file": "/k"}, "needs key_file", id="key's password"
        ),
        pytest.param({"ca_file": "/ca"}, "does not encrypt", id="certificates without TLS"),
        pytest.param({**BEARER}, "one of token_url and msk_region", id="no token"),
        pytest.param(
            {**BEARER, "token_url": TOKEN_URL, "msk_region": "eu-west-1"},
            "one of token_url and msk_region",
            id="two tokens",
        ),
        pytest.param(
            {**LOGIN, "sasl_password": SECRET, "token_url": TOKEN_URL},
            "sasl_mechanism: OAUTHBEARER",
            id="token without its mechanism",
        ),
        pytest.param(
            {"sasl_mechanism": "OAUTHBEARER", "token_url": TOKEN_URL},
            "protocol: SASL_SSL",
            id="token without SASL",
        ),
        pytest.param(
            {"protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "token_url": TOKEN_URL},
            "needs sasl_username and sasl_password_file",
            id="token without a client",
        ),
        pytest.param(
            {**BEARER, "msk_region": "eu-west-1"},
            "no effect with msk_region",
            id="MSK with a login",
        ),
        pytest.param({**BEARER, "msk_region": "eu west"}, "msk_region", id="no region"),
        pytest.param(
            {**LOGIN, "sasl_password": SECRET, "sasl_mechanism": "GSSAPI"},
            "no effect with GSSAPI",
            id="Kerberos with a password",
        ),
        pytest.param(
            {**BEARER, "token_url": "http://idp.example.org/token"}, "token_url", id="no TLS"
        ),
        pytest.param(
            {**BEARER, "token_url": f"https://u:{SECRET}@idp.example.org/"},
            "token_url",
            id="secret in a URL",
        ),
        pytest.param(
            {**BEARER, "token_url": f"https://idp.example.org/?key={SECRET}"},
            "token_url",
            id="secret in a query",
        ),
    ],
)
def test_a_contradictory_login_is_refused_without_showing_it(
    security: dict[str, Any], message: str
) -> None:
    """Missing and ineffective settings are refused; no message shows the secret."""
    with pytest.raises(SettingsError) as caught:
        load_settings(kafka={"security": security})
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    with pytest.raises(ValidationError) as direct:
        Settings(kafka={"security": security})  # type: ignore[arg-type]
    assert SECRET not in str(direct.value)
    with pytest.raises(ValidationError) as alone:
        SecuritySettings(**security)
    assert SECRET not in str(alone.value)


@pytest.mark.parametrize(
    "text",
    [
        f"kafka: {{security: {{sasl_password: *{SECRET}}}}}",
        f"kafka: {{security: {{sasl_password: !{SECRET} x}}}}",
        f"kafka:\n  sasl_password: {SECRET}: x",
        f"kafka: {{security: {{sasl_password: {SECRET}",
    ],
    ids=["alias", "tag", "colon", "end"],
)
def test_a_broken_file_does_not_show_its_lines(file: Path, text: str) -> None:
    """YAML's message may quote a line with a password; ours does not."""
    file.write_text(text)
    message = refusal(file)
    assert SECRET not in message
    assert "line" in message


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"abc", "abc"),
        (b"abc\n", "abc"),
        (b"abc\r\n", "abc"),
        (b" a b \n", " a b "),
        (b"\xc3\xa4", "ä"),
    ],
    ids=repr,
)
def test_a_password_comes_from_its_file(tmp_path: Path, content: bytes, secret: str) -> None:
    """A line break at the end is not part of a secret; spaces are."""
    (tmp_path / "password").write_bytes(content)
    security = {**LOGIN, "sasl_password_file": tmp_path / "password"}
    assert load_settings(kafka={"security": security}).kafka.security.password() == secret


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff"], ids=repr)
def test_a_secret_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """The message names a missing, empty or binary file."""
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match="password"):
        read_secret(path)


def test_a_password_is_masked_wherever_settings_are_shown() -> None:
    """The representation and the dump of the settings hide it; password() returns it."""
    settings = load_settings(kafka={"security": {**LOGIN, "sasl_password": SECRET}})
    assert SECRET not in f"{settings!r} {settings} {settings.model_dump_json()}"
    assert settings.kafka.security.password() == SECRET
    assert Settings().kafka.security.password() is None


SEED_SECRET = "correct horse battery staple, and 32 more"  # noqa: S105 - an invented secret


@pytest.fixture
def seed_file(tmp_path: Path) -> Path:
    """A file with the secret of a seed."""
    path = tmp_path / "seed"
    path.write_text(SEED_SECRET + "\n")
    return path


def test_the_seed_follows_from_the_secret(seed_file: Path) -> None:
    """Seed and hash never change for a secret: every index depends on them."""
    seed = read_seed(seed_file)
    assert (seed.value, seed.hash) == (
        2_920_871_730_192_338_323,
        "43a011ad7023a112192e7eca16df8914",
    )
    parameters = load_settings(dedup={"seed_file": seed_file}).dedup.sketch_parameters()
    assert (parameters.seed, parameters.seed_hash) == (seed.value, seed.hash)
    assert "seed" not in parameters.described()
    assert parameters.fingerprint() != Settings().dedup.sketch_parameters().fingerprint()


def test_the_seed_is_read_once(seed_file: Path) -> None:
    """Copies of the settings in other processes have the seed of the start."""
    settings = load_settings(dedup={"seed_file": seed_file})
    before = settings.dedup.sketch_parameters()
    seed_file.unlink()
    for copy in (pickle.loads(pickle.dumps(settings)), settings.model_copy()):  # noqa: S301
        assert copy.dedup.sketch_parameters() == before


def test_the_seed_is_shown_nowhere(seed_file: Path) -> None:
    """Settings, parameters and seed show neither the secret nor the seed."""
    settings = load_settings(dedup={"seed_file": seed_file})
    seed = read_seed(seed_file)
    parameters = settings.dedup.sketch_parameters()
    shown = f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()} {seed!r}"
    shown += f"{parameters!r} {parameters.described()}"
    assert SEED_SECRET not in shown
    assert str(seed.value) not in shown
    assert load_settings(dedup=settings.dedup.model_dump()) == settings


@pytest.mark.parametrize(
    ("content", "more", "message"),
    [
        pytest.param(None, {}, "cannot read the secret", id="missing"),
        pytest.param("", {}, "is empty", id="empty"),
        pytest.param("x" * 31, {}, "has 31 characters, a seed needs 32", id="short"),
        pytest.param("x" * 32, {"seed": 7}, "dedup: seed and seed_file are both set", id="both"),
    ],
)
def test_a_wrong_seed_is_refused(
    tmp_path: Path, content: str | None, more: dict[str, Any], message: str
) -> None:
    """The message names the file or the two settings, and not the secret."""
    path = tmp_path / "seed"
    if content is not None:
        path.write_text(content)
    text = refusal(dedup={"seed_file": path, **more})
    assert message in text
    assert "xxx" not in text
