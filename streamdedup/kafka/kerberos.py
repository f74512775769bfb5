"""*Async.* Logins with Kerberos (SASL GSSAPI): errors that say who must act.

aiokafka speaks GSSAPI through the optional package gssapi. The credentials are those of the
system's Kerberos library: a ticket cache, or the keytab of ``KRB5_CLIENT_KTNAME``, from which the
library gets and renews tickets by itself.
"""

from __future__ import annotations

from typing import Any

from aiokafka import conn

from streamdedup import extras
from streamdedup.errors import SettingsError
from streamdedup.kafka.tokens import TokenRefused, TokenUnavailable

_TRANSIENT = (-1765328228, -1765328164)
"""Kerberos errors that a retry may fix: KRB5_KDC_UNREACH and KRB5_REALM_CANT_RESOLVE."""
_MINOR_BITS = 0xFFFFFFFF
"""A minor status has 32 bits, and is given without a sign."""


def install() -> None:
    """Let aiokafka's clients translate the errors of Kerberos.

    Raises:
        SettingsError: the package gssapi is missing.
    """
    if conn.gssapi is None:
        raise SettingsError(
            "kafka.security.sasl_mechanism GSSAPI needs a package that is not installed; run "
            f"{extras.install('kerberos')}"
        )
    conn.SaslGSSAPIAuthenticator = _KerberosAuthenticator


class _KerberosAuthenticator(conn.SaslGSSAPIAuthenticator):  # type: ignore[misc]
    """Translates the errors of the Kerberos library, which no client of aiokafka expects."""

    def _step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        from gssapi.exceptions import GSSError

        try:
            step: tuple[bytes, bool] | None = super()._step(payload)
        except GSSError as error:
            raise _translated(error, self._principal) from error
        return step


def _translated(error: Any, principal: str) -> TokenRefused | TokenUnavailable:
    reason = " ".join(str(error).split())
    if error.min_code & _MINOR_BITS in [code & _MINOR_BITS for code in _TRANSIENT]:
        return TokenUnavailable(f"Kerberos does not answer: {reason}")
    return TokenRefused(
        f"Kerberos gives no ticket for {principal}: {reason}; check the keytab of "
        "KRB5_CLIENT_KTNAME or the tickets of klist, the brokers' principals, and "
        "kafka.security.kerberos_service_name"
    )
