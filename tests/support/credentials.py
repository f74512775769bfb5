"""*Blocking.* Settings of the secured listeners, and certificates of clients."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from deploy.broker.broker import Broker
from tests.support.identity_provider import IdentityProvider

Settings = dict[str, dict[str, Any]]


def security(bootstrap: str, **settings: str) -> Settings:
    """Return the settings of a secured listener."""
    return {"kafka": {"bootstrap_servers": bootstrap, "security": settings}}


def login(broker: Broker, password: str) -> Settings:
    """Return the settings of a login with PLAIN, as the super user."""
    return security(
        broker.secured.sasl_bootstrap,
        protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username=broker.secured.username,
        sasl_password=password,
    )


def limited(broker: Broker) -> Settings:
    """Return the settings of the user without permissions."""
    return security(
        broker.secured.sasl_bootstrap,
        protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username=broker.secured.limited_username,
        sasl_password=broker.secured.limited_password,
    )


def tls(broker: Broker, authority: Path) -> Settings:
    """Return the settings of an encrypted connection."""
    return security(broker.secured.ssl_bootstrap, protocol="SSL", ca_file=str(authority))


def mutual(broker: Broker, folder: Path) -> Settings:
    """Return the settings of mutual TLS, with the files of :func:`write_certificate`."""
    return security(
        broker.secured.mutual_bootstrap,
        protocol="SSL",
        ca_file=str(broker.secured.ca_pem_path),
        certificate_file=str(folder / "tls.crt"),
        key_file=str(folder / "tls.key"),
        key_password_file=str(folder / "key-password"),
    )


def scram(broker: Broker, mechanism: str, user: str, password_file: Path) -> Settings:
    """Return the settings of a login with SCRAM over TLS."""
    return security(
        broker.secured.sasl_ssl_bootstrap,
        protocol="SASL_SSL",
        ca_file=str(broker.secured.ca_pem_path),
        sasl_mechanism=mechanism,
        sasl_username=user,
        sasl_password_file=str(password_file),
    )


def bearer(broker: Broker, provider: IdentityProvider, secret_file: Path) -> Settings:
    """Return the settings of a login with a token over TLS."""
    return security(
        broker.secured.sasl_ssl_bootstrap,
        protocol="SASL_SSL",
        ca_file=str(broker.secured.ca_pem_path),
        sasl_mechanism="OAUTHBEARER",
        sasl_username=provider.client_id,
        sasl_password_file=str(secret_file),
        token_url=provider.url,
        token_scope="kafka",  # noqa: S106 - not a password
    )


def write_certificate(
    broker: Broker,
    folder: Path,
    *,
    lifetime: dt.timedelta = dt.timedelta(days=1),
    password: str = "the key's password",  # noqa: S107 - of a key that lives as long as a test
    authority: trustme.CA | None = None,
) -> None:
    """Write a client's certificate, its encrypted key, and the key's password into a folder.

    The certificate's user is the super user.
    """
    certificate = (authority or broker.secured.authority).issue_cert(
        "client.test",
        common_name=broker.secured.username,
        not_before=dt.datetime.now(dt.UTC) - dt.timedelta(days=2),
        not_after=dt.datetime.now(dt.UTC) + lifetime,
    )
    key = load_pem_private_key(certificate.private_key_pem.bytes(), password=None)
    encrypted = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode())
    )
    folder.mkdir(exist_ok=True)
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    (folder / "key-password").write_text(password)
    (folder / "tls.key").write_bytes(encrypted)
    (folder / "tls.crt").write_bytes(chain)
