"""*Blocking* (environment, files of secrets, processors). All settings, and the smaller sections.

Settings are frozen, and validated where they are declared. The docstring of each setting is its
documentation; docs/settings.md is generated from them. The section that holds two settings checks
bounds that depend on both.
"""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from streamdedup.settings.dedup import DedupSettings
from streamdedup.settings.kafka import KafkaSettings, TopicSettings
from streamdedup.settings.secrets import Password, reveal
from streamdedup.settings.units import (
    CENTURY,
    DAY,
    HOUR,
    MILLISECOND,
    SECOND,
    Duration,
    FilledPath,
    NameList,
    PathList,
    Section,
    Size,
    UrlList,
    read_blanks,
)

ENVIRONMENT_PREFIX = "STREAMDEDUP_"


class RecordSettings(Section):
    """How a record becomes a document."""

    format: Literal["json", "text", "messagepack", "registry", "avro"] = "json"
    """Encoding of the value. text: the text itself, in UTF-8. registry: Avro, Protobuf or JSON with
    a schema in a registry. avro: Avro's single-object encoding."""
    schema_files: PathList = ()
    """With format avro: files of the writers' schemas (.avsc)."""
    text_fields: NameList = ("text",)
    """Dotted paths of the text. Several texts are joined with a line break."""
    id_field: str | None = "id"
    """Dotted path of the document's id. Fallback: the record's key, then its position."""
    event_time_field: str | None = None
    """Dotted path of the event time (docs/format.md). Fallback: the record's timestamp."""
    namespace_field: str | None = None
    """Dotted path of the namespace. Documents of different namespaces never match."""

    @model_validator(mode="after")
    def _check_schemas(self) -> RecordSettings:
        if (self.format == "avro") != bool(self.schema_files):
            raise ValueError("format avro and schema_files need each other")
        return self


class RegistrySettings(Section):
    """The schema registry, for records.format registry and output.duplicates_format avro."""

    urls: UrlList = ()
    """URLs of one registry with Confluent's API; the first that answers is used. Needs the extra
    `registry`."""
    username: str = ""
    """User name, for HTTP basic authentication."""
    password: Password | None = None
    """Password. Prefer password_file."""
    password_file: Path | None = None
    """File with the password. A line break at its end is ignored."""
    token_file: Path | None = None
    """File with a bearer token, instead of a password. It is read for each request."""
    ca_file: Path | None = None
    """PEM file of the registry's certificate authorities. Default: those of the package
    certifi."""
    certificate_file: Path | None = None
    """PEM file of a client certificate, for mutual TLS."""
    key_file: Path | None = None
    """PEM file of its private key."""
    timeout: Duration = Field(default=dt.timedelta(seconds=10), ge=SECOND, le=HOUR)
    """Longest time of one request."""

    @model_validator(mode="after")
    def _check(self) -> RegistrySettings:
        if self.password and self.password_file:
            raise ValueError("password and password_file are both set; remove one")
        if bool(self.username) != bool(self.password or self.password_file):
            raise ValueError("a login needs username and password_file")
        if self.token_file is not None and self.username:
            raise ValueError("username and token_file are both set; remove one")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("only one of certificate_file and key_file is set; set both")
        others = self.model_fields_set - {"urls", "timeout"}
        if not self.urls and any(getattr(self, name) for name in others):
            raise ValueError("urls is not set, so that the other settings have no effect")
        return self

    def login(self) -> str | None:
        """Return ``username:password``, or None; a SettingsError if its file cannot be read."""
        if not self.username:
            return None
        return f"{self.username}:{reveal(self.password, self.password_file) or ''}"


class IndexSettings(Section):
    """The band index on disk."""

    directory: FilledPath = Path("streamdedup-index")
    """Directory of the index, on a local file system."""
    shards: int = Field(default=2, ge=1, le=64)
    """Files that share the bands of a new segment."""
    bucket_size: int = Field(default=64, ge=1, le=4096)
    """Documents per bucket. The newest stay."""
    window: Duration | None = Field(default=None, ge=MILLISECOND, le=CENTURY)
    """Largest distance between the event times of two duplicates. null: no limit by time."""
    window_documents: int = Field(default=10_000_000, ge=1, le=1_000_000_000)
    """Number of newest kept documents that can be matched. Limits disk and memory."""
    clock: Literal["record", "event"] = "record"
    """record: the record's timestamp replaces an event time that is too far from it. event: event
    times are believed, as always in files."""
    allowed_lateness: Duration | None = Field(default=None, ge=dt.timedelta(0), le=CENTURY)
    """Largest delay of an event time behind the record's timestamp. The index holds documents as
    long after the window. null: as index.window."""
    allowed_ahead: Duration | None = Field(default=None, ge=dt.timedelta(0), le=CENTURY)
    """Largest lead of an event time over the record's timestamp, and of the timestamp over the
    wall clock. null: as index.window."""
    delta_documents: int = Field(default=65_536, ge=16, le=1_048_576)
    """Documents in memory before they become a segment. A restart replays at most two such
    deltas."""
    disk_budget: Size | None = Field(default=None, ge=1024**2)
    """Largest size of the index, at which the worker stops. null: the free space of the disk."""
    sync: bool = True
    """Force each commit to disk. If false, a crash of the machine may cause a rebuild from the
    changelog."""

    def lateness(self) -> dt.timedelta | None:
        """Return the allowance for late event times; None for no limit."""
        return self.window if self.allowed_lateness is None else self.allowed_lateness

    def ahead(self) -> dt.timedelta | None:
        """Return the allowance for early event times; None for no limit."""
        return self.window if self.allowed_ahead is None else self.allowed_ahead

    def reach(self) -> dt.timedelta | None:
        """Return how long the index holds a document, by the clock of the stream."""
        lateness = self.lateness()
        return None if self.window is None or lateness is None else self.window + lateness


HeaderForm = Literal["compact", "full", "none"]
"""How many headers a record on the clean topic gets."""


class OutputSettings(Section):
    """What the worker writes."""

    route: Literal["split", "annotate"] = "split"
    """split: duplicates go to the duplicates topic. annotate: all documents go to the clean topic,
    with the verdict in headers."""
    headers: HeaderForm = "compact"
    """Headers added on the clean topic (docs/format.md). compact: the source position. full: the
    whole verdict, some 200 bytes. none: records cannot be traced to their source."""
    max_matches: int = Field(default=5, ge=1, le=100)
    """Matches listed in a duplicate record."""
    include_value: bool = False
    """Whether a duplicate record contains the original value."""
    duplicates_format: Literal["json", "avro"] = "json"
    """Encoding of duplicate records. avro: with a schema that `streamdedup topics schema
    --register` registers."""

    @model_validator(mode="after")
    def _check_headers(self) -> OutputSettings:
        if self.route == "annotate" and self.headers == "none":
            raise ValueError(
                "route annotate writes the verdict into headers, but headers is none; set "
                "headers: compact or full"
            )
        return self


class LimitSettings(Section):
    """Limits of size, and of dead letters.

    Records over a limit of size go to the dead-letter topic. The limits of dead letters do not
    apply to files.
    """

    value_bytes: Size = Field(default=4 * 1024**2, ge=1, le=1024**3)
    """Largest record value that is decoded."""
    text_bytes: Size = Field(default=1024**2, ge=1, le=1024**3)
    """Largest text, in UTF-8."""
    long_text: Literal["reject", "cut"] = "reject"
    """Larger texts. cut: they are judged by their first text_bytes."""
    id_bytes: Size = Field(default=512, ge=1, le=65_536)
    """Longest document id, in UTF-8."""
    dead_letter_run: int = Field(default=200, ge=0)
    """Number of dead letters in a row at which the worker stops, without committing the batch. 0:
    no limit."""
    dead_letter_ratio: float = Field(default=0.5, ge=0, le=1)
    """The same for the share of dead letters among the last 1,000 records."""


class BatchSettings(Section):
    """How many records are handled at once. Verdicts do not depend on it."""

    documents: int = Field(default=5000, ge=1, le=100_000)
    """Most records per batch and transaction."""
    bytes: Size = Field(default=16 * 1024**2, ge=1, le=1024**3)
    """Most bytes of records per batch."""
    linger: Duration = Field(default=dt.timedelta(milliseconds=200), ge=MILLISECOND, le=HOUR)
    """Time that a poll waits for the first record."""
    changelog_entry_bytes: Size = Field(default=900_000, ge=1, le=1024**3)
    """Largest changelog record, smaller than the topic's max.message.bytes."""


class StandbySettings(Section):
    """Several workers with the same settings; one judges documents."""

    enabled: bool = False
    """Whether this worker is one of several, each with its own index directory. The brokers elect
    the worker that judges."""


class PoolSettings(Section):
    """The processes that decode and sketch."""

    workers: int = Field(default=0, ge=0, le=256)
    """Number of processes. 0: one less than the processors, at least one."""

    def size(self) -> int:
        """Return the number of processes to start."""
        return self.workers or max(1, len(os.sched_getaffinity(0)) - 1)


class StatusSettings(Section):
    """The HTTP port with /metrics, /livez, /readyz and /page."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on; 0.0.0.0 in a container."""
    port: int = Field(default=9464, ge=0, le=65535)
    """Port. 0: any free port, which is logged."""
    page: bool = True
    """Whether /page shows the live dashboard."""
    show_text: bool = False
    """Whether the live dashboard shows texts, to everyone who can reach the port. Labelling pairs
    needs them."""


class QualitySettings(Section):
    """How verdicts are checked at run time; see docs/quality.md."""

    shadow_sample: int = Field(default=1000, ge=0, le=10**9)
    """On average one document in this number is also compared exactly with recent kept documents.
    0: no sample."""


class LogSettings(Section):
    """Logging."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level. Libraries never write debug messages, which contain passwords and
    documents."""
    format: Literal["auto", "json", "human"] = "auto"
    """auto: human on a terminal, else json."""


class Settings(BaseSettings):
    """All settings of streamdedup.

    ``Settings(dedup={"threshold": 0.9})`` reads settings that are not given from the environment.
    :func:`load_settings` also rejects misspelt variables.

    Raises:
        pydantic.ValidationError: a value is invalid; :func:`load_settings` turns it into one line.
    """

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="__",
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    _blanks = model_validator(mode="before")(read_blanks)

    mode: Literal["single", "split"] = "single"
    """single: one worker does everything. split: any number of edges and one judge. See
    docs/scaling.md."""
    kafka: KafkaSettings = KafkaSettings()
    """The brokers, and the worker's identity."""
    topics: TopicSettings = TopicSettings()
    """The topics."""
    records: RecordSettings = RecordSettings()
    """How a record becomes a document."""
    registry: RegistrySettings = RegistrySettings()
    """The schema registry."""
    dedup: DedupSettings = DedupSettings()
    """What makes a document a duplicate."""
    index: IndexSettings = IndexSettings()
    """The band index on disk."""
    output: OutputSettings = OutputSettings()
    """What the worker writes."""
    limits: LimitSettings = LimitSettings()
    """Limits of size, and of dead letters."""
    batch: BatchSettings = BatchSettings()
    """How many records are handled at once."""
    pool: PoolSettings = PoolSettings()
    """The processes that decode and sketch."""
    standby: StandbySettings = StandbySettings()
    """Several workers, of which one judges documents."""
    status: StatusSettings = StatusSettings()
    """The HTTP port."""
    quality: QualitySettings = QualitySettings()
    """How verdicts are checked."""
    log: LogSettings = LogSettings()
    """Logging."""
    drain_budget: Duration = Field(default=dt.timedelta(seconds=30), ge=MILLISECOND, le=DAY)
    """Longest time to finish current batches after a request to stop."""

    @model_validator(mode="after")
    def _check(self) -> Settings:
        if self.uses_registry() and not self.registry.urls:
            raise ValueError(
                "records.format registry and output.duplicates_format avro need registry.urls"
            )
        if self.text_room() < 0:
            raise ValueError(
                f"batch.changelog_entry_bytes is {self.batch.changelog_entry_bytes}, but one "
                f"document may take {self._document_bytes()}; raise batch.changelog_entry_bytes "
                "or lower limits.id_bytes"
            )
        return self

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the sketch parameters."""
        return self.dedup.sketch_parameters().fingerprint()

    def uses_registry(self) -> bool:
        """Return whether records are read or written with schemas of the registry."""
        return self.records.format == "registry" or self.output.duplicates_format == "avro"

    def duplicates_subject(self) -> str:
        """Return the registry's subject of duplicate records, by Confluent's TopicNameStrategy."""
        return f"{self.topics.duplicates}-value"

    def text_room(self) -> int:
        """Return how many bytes of a changelog entry are left for a stored text."""
        return self.batch.changelog_entry_bytes - self._document_bytes()

    def _document_bytes(self) -> int:
        """Return the most bytes that a document without its text takes in a changelog entry."""
        # One signature, its band keys and its id. Field names take less than 1 KiB.
        keys = 8 * (self.dedup.banding().bands + 1)
        signature = self.dedup.sketch_parameters().signature_bytes
        return signature + keys + self.limits.id_bytes + 1024
