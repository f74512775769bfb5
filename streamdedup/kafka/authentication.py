"""*Async.* Logins with tokens (SASL OAUTHBEARER) and with Kerberos (SASL GSSAPI).

Tokens come from an OIDC provider, or are signed for AWS MSK.

Rule 1: no token and no client secret is logged, or part of an error.
Rule 2: a token is replaced when four fifths of its lifetime are over. Each request for a token
reads the client secret from its file again.

aiokafka speaks GSSAPI through the optional package gssapi. The credentials are those of the
system's Kerberos library: a ticket cache, or the keytab of ``KRB5_CLIENT_KTNAME``, from which the
library gets and renews tickets by itself.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import math
import re
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
from aiokafka import conn, errors
from aiokafka.abc import AbstractTokenProvider

from streamdedup.errors import SettingsError
from streamdedup.extras import install
from streamdedup.settings.kafka import SecuritySettings

_USED_SHARE = 0.8
"""Share of a token's lifetime after which the next connection gets a new one."""
_TIMEOUT_S = 10.0
"""Longest time that a token endpoint may take to answer."""
_MOST_BYTES = 64 * 1024
"""Bytes of an answer; a token of many claims has some thousands."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""A bearer token (RFC 6750, section 2.1)."""
_ERROR_CODE = re.compile(r"[a-z_]{1,40}")
"""An error code of a token endpoint (RFC 6749, section 5.2), without its description."""
_CLIENT_ERRORS = range(400, 500)
_TRANSIENT = (408, 429)
"""Client errors that a later request may not get: timeout, too many requests."""
_KERBEROS_TRANSIENT = (-1765328228, -1765328164)
"""Kerberos errors that a retry may fix: KRB5_KDC_UNREACH and KRB5_REALM_CANT_RESOLVE."""
_MINOR_BITS = 0xFFFFFFFF
"""A minor status has 32 bits, and is given without a sign."""


class TokenRefused(errors.KafkaError):  # type: ignore[misc]
    """No token can be had until the operator acts."""

    def __str__(self) -> str:
        return str(self.args[0])


class TokenUnavailable(errors.KafkaError):  # type: ignore[misc]
    """The token endpoint does not answer; retry later."""

    def __str__(self) -> str:
        return str(self.args[0])


class _Token(NamedTuple):
    """A token, and when it should be replaced, in seconds of the monotonic clock."""

    text: str
    replace_at: float

    def __repr__(self) -> str:
        return "<token>"


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Gives aiokafka a token for each connection; ``fetch`` returns one and its lifetime in s."""

    def __init__(self, fetch: Callable[[], Awaitable[tuple[str, float]]]) -> None:
        self._fetch = fetch
        self._token = _Token("", 0.0)

    async def token(self) -> str:
        """Return a token that is valid for a while.

        Raises:
            TokenRefused: only the operator can fix the cause.
            TokenUnavailable: a retry may succeed.
        """
        if time.monotonic() >= self._token.replace_at:
            asked_at = time.monotonic()
            text, lifetime_s = await self._fetch()
            if not _TOKEN.fullmatch(text):
                raise TokenRefused("the token has characters that no bearer token may have")
            self._token = _Token(text, asked_at + _USED_SHARE * lifetime_s)
        return self._token.text


@functools.lru_cache(maxsize=1)
def token_provider(security: SecuritySettings) -> TokenProvider:
    """Return the provider of the tokens that the settings describe; all clients share it.

    Raises:
        SettingsError: a package is missing.
    """
    conn.OAuthAuthenticator = _TokenAuthenticator
    if security.msk_region is not None:
        try:
            from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
        except ImportError as error:
            raise SettingsError(
                "kafka.security.msk_region needs a package that is not installed; run "
                f"{install('msk')}"
            ) from error
        return TokenProvider(functools.partial(_sign, MSKAuthTokenProvider, security.msk_region))
    return TokenProvider(functools.partial(_request, security, security.token_url or ""))


class _TokenAuthenticator(conn.OAuthAuthenticator):  # type: ignore[misc]
    """Lets the broker refuse a token.

    The broker first answers with the cause, and then waits for a message of one byte before it ends
    the login (RFC 7628, section 3.2.3). aiokafka takes the cause for a success.
    """

    async def step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        """Return the next message to the broker; None at the end."""
        if payload:
            return b"\x01", True
        step: tuple[bytes, bool] | None = await super().step(payload)
        return step


async def _request(security: SecuritySettings, url: str) -> tuple[str, float]:
    """Request a token with the grant client_credentials (RFC 6749, section 4.4)."""
    form = {"grant_type": "client_credentials"}
    if security.token_scope:
        form["scope"] = security.token_scope
    try:
        secret = security.password() or ""
        context = ssl.create_default_context(cafile=security.token_ca_file)
    except (OSError, SettingsError) as error:
        raise TokenRefused(f"cannot request a token: {error}") from error
    login = f"{quote(security.sasl_username, '')}:{quote(secret, '')}"
    headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(
                url, data=form, headers=headers, allow_redirects=False, ssl=context
            ) as answer,
        ):
            status, body = answer.status, b""
            async for part in answer.content.iter_chunked(_MOST_BYTES):
                body += part
                if len(body) > _MOST_BYTES:
                    break
    except aiohttp.ClientSSLError as error:
        raise TokenRefused(
            f"the token endpoint {url} has no certificate that this worker trusts; set "
            "kafka.security.token_ca_file"
        ) from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise TokenUnavailable(
            f"the token endpoint {url} does not answer: {type(error).__name__}"
        ) from error
    return _read_answer(url, status, body)


def _read_answer(url: str, status: int, body: bytes) -> tuple[str, float]:
    """Return the token of an answer, and its lifetime in seconds; 0 if it is unknown."""
    try:
        facts: Any = json.loads(body)
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        facts = {}
    if status == 200:  # noqa: PLR2004 - HTTP's OK
        token, lifetime_s = facts.get("access_token"), 0.0
        # RFC 6749 only recommends to tell the lifetime, and some providers write a string.
        with contextlib.suppress(ValueError):
            lifetime_s = float(str(facts.get("expires_in")))
        if isinstance(token, str) and token:
            return token, lifetime_s if math.isfinite(lifetime_s) else 0.0
        raise TokenRefused(
            f"the answer of {url} holds no token; set kafka.security.token_url to the provider's "
            "token endpoint"
        )
    code = facts.get("error")
    reason = f" {code}" if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else ""
    message = f"the token endpoint {url} answers {status}{reason}"
    if status >= _CLIENT_ERRORS.stop or status in _TRANSIENT:
        raise TokenUnavailable(message)
    raise TokenRefused(
        f"{message}; fix kafka.security.sasl_username and sasl_password_file, which are the client "
        "id and secret, token_scope or token_url"
    )


async def _sign(signer: Any, region: str) -> tuple[str, float]:
    """Sign a token with the AWS credentials of this process."""
    try:
        token, expiry_ms = await asyncio.to_thread(signer.generate_auth_token, region)
    except Exception as error:
        # Errors of botocore have no common class; their messages may quote answers.
        raise TokenRefused(
            f"AWS credentials cannot sign a token for MSK in {region}: {type(error).__name__}; "
            "check the credentials of this process, e.g. its role or AWS_PROFILE"
        ) from error
    return token, expiry_ms / 1000 - time.time()


def use_kerberos() -> None:
    """Let aiokafka's clients translate the errors of Kerberos.

    Raises:
        SettingsError: the package gssapi is missing.
    """
    if conn.gssapi is None:
        raise SettingsError(
            "kafka.security.sasl_mechanism GSSAPI needs a package that is not installed; run "
            f"{install('kerberos')}"
        )
    conn.SaslGSSAPIAuthenticator = _KerberosAuthenticator


class _KerberosAuthenticator(conn.SaslGSSAPIAuthenticator):  # type: ignore[misc]
    """Translates the errors of the Kerberos library, which no client of aiokafka expects."""

    def _step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        from gssapi.exceptions import GSSError

        try:
            step: tuple[bytes, bool] | None = super()._step(payload)
        except GSSError as error:
            reason = " ".join(str(error).split())
            code = error.min_code & _MINOR_BITS
            if code in [transient & _MINOR_BITS for transient in _KERBEROS_TRANSIENT]:
                raise TokenUnavailable(f"Kerberos does not answer: {reason}") from error
            raise TokenRefused(
                f"Kerberos gives no ticket for {self._principal}: {reason}; check the keytab of "
                "KRB5_CLIENT_KTNAME or the tickets of klist, the brokers' principals, and "
                "kafka.security.kerberos_service_name"
            ) from error
        return step
