"""Tokens: when a new one is fetched, and those that AWS's signer makes without a network."""

from __future__ import annotations

import base64
import sys
import time
from urllib.parse import parse_qs, urlsplit

import pytest

from streamdedup.errors import SettingsError
from streamdedup.kafka.authentication import TokenProvider, TokenRefused, token_provider
from streamdedup.settings.kafka import SecuritySettings

SECRET = "a-secret-key-of-AWS"  # noqa: S105 - of no account


def msk(region: str) -> SecuritySettings:
    """Return the settings of a login to MSK with IAM."""
    return SecuritySettings(protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", msk_region=region)


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let AWS's packages find no credentials, and contact no host."""
    token_provider.cache_clear()
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(f"AWS_{name}", "/nonexistent")
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)


@pytest.mark.parametrize(("lifetime_s", "fetches"), [(3600.0, 1), (0.0, 3), (-1.0, 3)])
async def test_a_token_is_used_for_most_of_its_lifetime(lifetime_s: float, fetches: int) -> None:
    """A valid token is used again; without a lifetime each connection gets a new one."""
    asked = 0

    async def fetch() -> tuple[str, float]:
        nonlocal asked
        asked += 1
        return f"token{asked}", lifetime_s

    provider = TokenProvider(fetch)
    assert [await provider.token() for _ in range(3)][-1] == f"token{fetches}"
    assert asked == fetches


async def test_a_token_is_replaced_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """After four fifths of the lifetime the next connection gets a new one."""
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)

    async def fetch() -> tuple[str, float]:
        return f"at{now_s:.0f}", 100.0

    provider = TokenProvider(fetch)
    assert await provider.token() == "at1000"
    now_s = 1079.0
    assert await provider.token() == "at1000"
    now_s = 1081.0
    assert await provider.token() == "at1081"
    assert "at1081" not in repr(provider._token)  # noqa: SLF001 - what a log might show


async def test_a_token_for_msk_is_signed_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is a presigned URL of the region; the secret key is not in it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    provider = token_provider(msk("eu-west-1"))
    token = await provider.token()
    url = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    query = parse_qs(urlsplit(url).query)
    assert urlsplit(url).hostname == "kafka.eu-west-1.amazonaws.com"
    assert query["Action"] == ["kafka-cluster:Connect"]
    assert query["X-Amz-Credential"][0].startswith("AKIDEXAMPLE/")
    assert query["X-Amz-Signature"]
    assert SECRET not in url
    assert await provider.token() == token


async def test_missing_aws_credentials_are_one_line() -> None:
    """The line says what to check."""
    with pytest.raises(TokenRefused, match=r"eu-west-1.*check the credentials") as caught:
        await token_provider(msk("eu-west-1")).token()
    assert "\n" not in str(caught.value)


def test_a_missing_signer_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the command that installs it."""
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(SettingsError, match=r"pip install 'aws-msk-iam-sasl-signer-python[<>=]"):
        token_provider(msk("eu-west-1"))
