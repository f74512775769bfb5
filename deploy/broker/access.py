"""*Blocking.* Credentials of the secured broker: two users, and a TLS certificate with its CA."""

import datetime as dt
from dataclasses import dataclass, field
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from deploy.broker.address import LOOPBACK


@dataclass(frozen=True)
class Access:
    """The credentials of one secured broker.

    Attributes:
        ca_pem: the certificate of the CA that signed the broker's certificate.
        authority: this CA, to issue certificates of clients.
        other_ca_pem: the certificate of another CA, for failing clients.
        chain_pem: the broker's certificate chain.
        key_pem: the broker's private key, in PKCS #8.
        expired_chain_pem: a certificate chain for the broker that has expired.
        expired_key_pem: its private key, in PKCS #8.
        username: the super user.
        password: the super user's password.
        limited_username: a user without any permission.
        limited_password: that user's password.
    """

    ca_pem: str
    authority: trustme.CA = field(repr=False)
    other_ca_pem: str
    chain_pem: str = field(repr=False)
    key_pem: str = field(repr=False)
    expired_chain_pem: str = field(repr=False)
    expired_key_pem: str = field(repr=False)
    username: str = "streamdedup"
    password: str = field(default="correct-horse", repr=False)
    limited_username: str = "limited"
    limited_password: str = field(default="battery-staple", repr=False)

    def write_authorities(self, folder: Path) -> tuple[Path, Path]:
        """Write `ca_pem` and `other_ca_pem` to files in `folder`; return their paths."""
        ca_path, other_ca_path = folder / "ca.pem", folder / "other-ca.pem"
        ca_path.write_text(self.ca_pem)
        other_ca_path.write_text(self.other_ca_pem)
        return ca_path, other_ca_path


def make_access() -> Access:
    """Create new certificates for the loopback address and localhost."""
    authority = trustme.CA()
    certificate = authority.issue_cert(LOOPBACK, "localhost")
    now = dt.datetime.now(dt.UTC)
    expired = authority.issue_cert(
        LOOPBACK, not_before=now - dt.timedelta(days=2), not_after=now - dt.timedelta(days=1)
    )
    return Access(
        ca_pem=authority.cert_pem.bytes().decode(),
        authority=authority,
        other_ca_pem=trustme.CA().cert_pem.bytes().decode(),
        chain_pem=_chain(certificate),
        key_pem=_as_pkcs8(certificate.private_key_pem.bytes()),
        expired_chain_pem=_chain(expired),
        expired_key_pem=_as_pkcs8(expired.private_key_pem.bytes()),
    )


def _chain(certificate: trustme.LeafCert) -> str:
    return "".join(blob.bytes().decode() for blob in certificate.cert_chain_pems)


def _as_pkcs8(pem: bytes) -> str:
    # Kafka reads PKCS #8 only, and trustme writes the older format.
    key = load_pem_private_key(pem, password=None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
