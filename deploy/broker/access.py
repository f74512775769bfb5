"""*Blocking.* What the secured broker lets in: one user, and one TLS certificate with its CA."""

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
    """The secrets of one secured broker; `stranger_ca_pem` is of a CA that did not sign it."""

    ca_pem: str
    stranger_ca_pem: str
    chain_pem: str = field(repr=False)
    key_pem: str = field(repr=False)
    username: str = "streamdedup"
    password: str = field(default="correct-horse", repr=False)

    def write_authorities(self, folder: Path) -> tuple[Path, Path]:
        """Write the two CA certificates for clients into `folder`: the right one, the wrong one."""
        right, wrong = folder / "ca.pem", folder / "stranger-ca.pem"
        right.write_text(self.ca_pem)
        wrong.write_text(self.stranger_ca_pem)
        return right, wrong


def make_access() -> Access:
    """Make new certificates, valid for the loopback address and for localhost."""
    authority = trustme.CA()
    certificate = authority.issue_cert(LOOPBACK, "localhost")
    chain = "".join(blob.bytes().decode() for blob in certificate.cert_chain_pems)
    return Access(
        ca_pem=authority.cert_pem.bytes().decode(),
        stranger_ca_pem=trustme.CA().cert_pem.bytes().decode(),
        chain_pem=chain,
        key_pem=_as_pkcs8(certificate.private_key_pem.bytes()),
    )


def _as_pkcs8(pem: bytes) -> str:
    # Kafka's PEM reader takes PKCS #8 only, and trustme writes the older form.
    key = load_pem_private_key(pem, password=None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
