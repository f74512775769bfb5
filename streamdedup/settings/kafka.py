"""*Blocking* (reads the password from its file). Settings of the brokers and the topics."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from streamdedup.settings.secrets import Password, reveal
from streamdedup.settings.units import DAY, HOUR, SECOND, Duration, NameList, Section

TopicName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+$", min_length=1, max_length=249)
]
TokenUrl = Annotated[
    str,
    StringConstraints(
        # Without TLS the client secret is readable on the way; a URL may hold no other secret.
        pattern=r"^(https://[^\s/@?#]+|http://(127\.0\.0\.1|localhost)(:\d{1,5})?)(/[^\s@?#]*)?$"
    ),
]
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/,@]+):\d{1,5}")


class SecuritySettings(Section):
    """Authentication and encryption between the worker and the brokers."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Kafka's security.protocol."""
    ca_file: Path | None = None
    """PEM file of the brokers' certificate authorities. Default: those of the system."""
    certificate_file: Path | None = None
    """PEM file of the worker's own certificate, for mutual TLS."""
    key_file: Path | None = None
    """PEM file of its private key."""
    key_password_file: Path | None = None
    """File with the password of the private key."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] = (
        "SCRAM-SHA-512"
    )
    """Kafka's sasl.mechanism. OAUTHBEARER needs token_url or msk_region; GSSAPI (Kerberos) the
    extra `kerberos`."""
    sasl_username: str = ""
    """User name. With token_url: the client id."""
    sasl_password: Password | None = None
    """Password. Prefer sasl_password_file."""
    sasl_password_file: Path | None = None
    """File with the password; with token_url the client secret. A line break at its end is
    ignored."""
    token_url: TokenUrl | None = None
    """Token endpoint of an OIDC provider, for OAUTHBEARER with the grant client_credentials."""
    token_scope: str = ""
    """Scope of the tokens, if the provider needs one."""
    token_ca_file: Path | None = None
    """PEM file of the token endpoint's certificate authorities. Default: those of the system."""
    msk_region: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]+$")] | None = None
    """AWS region of an MSK cluster, for OAUTHBEARER with AWS credentials (IAM). Needs the extra
    `msk`."""
    kerberos_service_name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+$")] = "kafka"
    """First part of the brokers' Kerberos principals; see docs/authentication.md."""

    @model_validator(mode="after")
    def _check_login(self) -> SecuritySettings:
        password = self.sasl_password or self.sasl_password_file
        if self.sasl_password and self.sasl_password_file:
            raise ValueError("sasl_password and sasl_password_file are both set; remove one")
        if self.protocol.startswith("SASL") and self.sasl_mechanism == "GSSAPI":
            if self.sasl_username or password:
                raise ValueError(
                    "sasl_username and sasl_password have no effect with GSSAPI; remove them, and "
                    "give the worker a keytab with the variable KRB5_CLIENT_KTNAME"
                )
        elif self.protocol.startswith("SASL"):
            if self.msk_region is None and not (self.sasl_username and password):
                raise ValueError(f"{self.protocol} needs sasl_username and sasl_password_file")
        elif self.sasl_username or password:
            raise ValueError(
                f"a login is set, but protocol {self.protocol} sends none; set protocol: SASL_SSL"
            )
        return self

    @model_validator(mode="after")
    def _check_token(self) -> SecuritySettings:
        sources = [name for name in ("token_url", "msk_region") if getattr(self, name) is not None]
        if not (self.protocol.startswith("SASL") and self.sasl_mechanism == "OAUTHBEARER"):
            if sources or self.token_scope or self.token_ca_file:
                raise ValueError(
                    "settings of tokens are set, but the login sends none; set protocol: SASL_SSL "
                    "and sasl_mechanism: OAUTHBEARER"
                )
            return self
        if len(sources) != 1:
            raise ValueError("OAUTHBEARER needs one of token_url and msk_region")
        if self.msk_region is not None:
            logins = ("sasl_username", "sasl_password", "sasl_password_file")
            for name in (*logins, "token_ca_file", "token_scope"):
                if getattr(self, name):
                    raise ValueError(f"{name} has no effect with msk_region; remove it")
        return self

    @model_validator(mode="after")
    def _check_certificates(self) -> SecuritySettings:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("only one of certificate_file and key_file is set; set both")
        if self.key_password_file is not None and self.key_file is None:
            raise ValueError("key_password_file needs key_file")
        if not self.protocol.endswith("SSL") and (self.ca_file or self.certificate_file):
            raise ValueError(
                f"certificates are set, but protocol {self.protocol} does not encrypt; "
                "set protocol: SSL or SASL_SSL"
            )
        return self

    def password(self) -> str | None:
        """Return the login's password, from its file if set; a SettingsError if that fails."""
        return reveal(self.sasl_password, self.sasl_password_file)


class KafkaSettings(Section):
    """The brokers, and the worker's identity."""

    bootstrap_servers: NameList = ("127.0.0.1:9092",)
    """host:port of one or more brokers."""
    group_id: str = Field(default="streamdedup", min_length=1, max_length=200)
    """Consumer group of the committed offsets."""
    start: Literal["earliest", "latest"] = "earliest"
    """Where to start reading a new group. Added partitions are read from their beginning."""
    skip_unjudged: bool = False
    """Skip records without a verdict before the committed offsets. If false, such a start is
    refused. Set it back after one start."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "zstd"
    """Compression of produced records."""
    request_timeout: Duration = Field(default=dt.timedelta(seconds=30), ge=SECOND, le=HOUR)
    """Longest time of one request to a broker."""
    transaction_timeout: Duration = Field(default=dt.timedelta(seconds=60), ge=SECOND, le=DAY)
    """Time after which the broker aborts a dead worker's transaction; at most the brokers'
    transaction.max.timeout.ms."""
    session_timeout: Duration = Field(default=dt.timedelta(seconds=10), ge=SECOND, le=HOUR)
    """Time after which the brokers consider a silent standby or edge dead; by default they accept 6
    seconds to 30 minutes."""
    metadata_refresh: Duration = Field(default=dt.timedelta(seconds=30), ge=SECOND, le=DAY)
    """Interval between checks for new partitions of the source."""
    security: SecuritySettings = SecuritySettings()
    """TLS and login."""

    @field_validator("bootstrap_servers")
    @classmethod
    def _check_servers(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        for server in servers:
            if not _SERVER.fullmatch(server):
                raise ValueError(f"invalid server {server!r}; expected host:port")
        return servers


class TopicSettings(Section):
    """The topics."""

    source: TopicName = "documents"
    """The documents to judge."""
    clean: TopicName = "documents-clean"
    """Kept documents, with their original bytes."""
    duplicates: TopicName = "documents-duplicates"
    """Duplicate records."""
    dead_letter: TopicName = "documents-dead-letter"
    """Rejected records."""
    changelog: TopicName = "documents-changelog"
    """Index updates, in one partition, to rebuild a lost index. It belongs to one worker: its name
    is the transactional id."""
    sketches: TopicName = "documents-sketches"
    """With mode split: from edges to the judge, in one partition."""
    verdicts: TopicName = "documents-verdicts"
    """With mode split: from the judge to edges, with at least the source's partitions."""

    @model_validator(mode="after")
    def _check(self) -> TopicSettings:
        names = list(self.model_dump().values())
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is set twice; each topic needs a name of its own")
        return self

    def edge_id(self, partition: int) -> str:
        """Return the transactional id of the edge that writes the outputs of a source partition."""
        return f"{self.changelog}-edge-{partition}"

    def edge_ids(self, partitions: int) -> list[str]:
        """Return the transactional ids of the edges of so many partitions."""
        return [self.edge_id(partition) for partition in range(partitions)]

    @property
    def transactional_id(self) -> str:
        """The transactional id of the worker.

        It follows from the changelog alone, whatever the group: two writers of one changelog would
        give document numbers twice, and judge each record without the other's documents.
        """
        return self.changelog

    @property
    def election(self) -> str:
        """The group in which workers with the same changelog elect the one that judges."""
        return f"{self.changelog}-election"

    @property
    def claims(self) -> str:
        """The group that says which changelogs judge documents into the clean topic."""
        return f"{self.clean}-claims"
