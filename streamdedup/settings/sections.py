"""*Blocking* (reads the environment, counts processors). All settings, and the smaller sections.

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
from streamdedup.settings.registry import RegistrySettings
from streamdedup.settings.section import (
    CENTURY,
    DAY,
    HOUR,
    MILLISECOND,
    Section,
    read_blanks,
)
from streamdedup.settings.units import Duration, FilledPath, NameList, PathList, Size

ENVIRONMENT_PREFIX = "STREAMDEDUP_"


class RecordSettings(Section):
    """How a record becomes a document."""

    format: Literal["json", "text", "messagepack", "registry", "avro"] = "json"
    """json: the value is a JSON object. text: the value is the text itself, in UTF-8. messagepack:
    the value is a MessagePack map. registry: the value is Avro, Protobuf or JSON, and names its
    schema in a schema registry. avro: Avro's single-object encoding, with schemas in files."""
    schema_files: PathList = ()
    """With format avro: files with the schemas (.avsc) that records are written with."""
    text_fields: NameList = ("text",)
    """Dotted paths of the text. Several texts are joined with a line break."""
    id_field: str | None = "id"
    """Dotted path of the document's id. If it is missing, the id is the record's key, or without a
    key its position."""
    event_time_field: str | None = None
    """Dotted path of the event time: ISO 8601, or a number since the epoch: seconds,
    milliseconds, microseconds or nanoseconds, by its size. If it is not set or missing, the event
    time is the record's timestamp."""
    namespace_field: str | None = None
    """Dotted path of the namespace. Documents of different namespaces never match."""

    @model_validator(mode="after")
    def _check_schemas(self) -> RecordSettings:
        if (self.format == "avro") != bool(self.schema_files):
            raise ValueError("format avro and schema_files need each other")
        return self


class IndexSettings(Section):
    """The band index on disk."""

    directory: FilledPath = Path("streamdedup-index")
    """Directory of the index, on a local file system, never on a network file system."""
    shards: int = Field(default=2, ge=1, le=64)
    """Files that share the bands of each segment. A change applies to new segments."""
    bucket_size: int = Field(default=64, ge=1, le=4096)
    """Documents per bucket. The newest stay."""
    window: Duration | None = Field(default=None, ge=MILLISECOND, le=CENTURY)
    """How far the event times of two copies may be apart. null: no limit by time."""
    window_documents: int = Field(default=10_000_000, ge=1, le=1_000_000_000)
    """How many of the newest kept documents can make others duplicates. Limits disk and memory."""
    clock: Literal["record", "event"] = "record"
    """record: an event time that is too far from the record's timestamp is replaced by it. event:
    event times are believed, e.g. to load an archive through a topic. Files have no timestamps, so
    that event times are always believed."""
    allowed_lateness: Duration | None = Field(default=None, ge=dt.timedelta(0), le=CENTURY)
    """How far an event time may be before the record's timestamp, and how long the index holds a
    document after the window for copies that come late. null: as long as index.window."""
    allowed_ahead: Duration | None = Field(default=None, ge=dt.timedelta(0), le=CENTURY)
    """How far an event time may be after the record's timestamp, and that after the wall clock.
    null: as long as index.window."""
    delta_documents: int = Field(default=65_536, ge=16, le=1_048_576)
    """Documents held in memory before they become a segment. Two such deltas are in use. A restart
    replays at most these."""
    disk_budget: Size | None = Field(default=None, ge=1024**2)
    """Most bytes that the index may take. Near this limit the worker is not ready; at it the worker
    stops. null: the free space of the disk."""
    sync: bool = True
    """Force each commit to disk. If false, a crash of the machine (not of the worker) may cause a
    rebuild from the changelog."""

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
    """split: kept documents go to the clean topic, duplicates to the duplicates topic. annotate:
    both go to the clean topic, with the verdict in headers."""
    headers: HeaderForm = "compact"
    """Headers added to a record on the clean topic. compact: one with the partition and offset of
    the source record; a duplicate has two more. full: names and values of the whole verdict, some
    200 bytes. none: no header; a reader cannot trace a record to its source record."""
    max_matches: int = Field(default=5, ge=1, le=100)
    """Matches listed in a duplicate record."""
    include_value: bool = False
    """Whether a duplicate record contains the original value."""
    duplicates_format: Literal["json", "avro"] = "json"
    """Encoding of duplicate records. avro: with a schema in the schema registry, which
    `streamdedup topics schema --register` puts there."""

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

    Records over a limit of size go to the dead-letter topic, except texts that are cut. The limits
    of dead letters apply to the worker only.
    """

    value_bytes: Size = Field(default=4 * 1024**2, ge=1, le=1024**3)
    """Largest record value that is decoded."""
    text_bytes: Size = Field(default=1024**2, ge=1, le=1024**3)
    """Largest text, in UTF-8."""
    long_text: Literal["reject", "cut"] = "reject"
    """reject: a larger text is rejected. cut: a larger text is judged by its first text_bytes."""
    id_bytes: Size = Field(default=512, ge=1, le=65_536)
    """Longest document id, in UTF-8."""
    dead_letter_run: int = Field(default=200, ge=0)
    """How many records in a row may become dead letters before the worker stops, without committing
    the batch. 0: no limit."""
    dead_letter_ratio: float = Field(default=0.5, ge=0, le=1)
    """Share of dead letters among the last 1,000 records at which the worker stops, without
    committing the batch. 0: no limit."""


class BatchSettings(Section):
    """How many records are handled at once. Verdicts do not depend on it."""

    documents: int = Field(default=5000, ge=1, le=100_000)
    """Most records per batch, and so per transaction."""
    bytes: Size = Field(default=16 * 1024**2, ge=1, le=1024**3)
    """Most bytes of records per batch; a larger record is a batch by itself. Limits memory."""
    linger: Duration = Field(default=dt.timedelta(milliseconds=200), ge=MILLISECOND, le=HOUR)
    """How long a poll waits for the first record."""
    changelog_entry_bytes: Size = Field(default=900_000, ge=1, le=1024**3)
    """Largest changelog record. It must be smaller than the topic's max.message.bytes."""


class StandbySettings(Section):
    """Several workers with the same settings, of which one judges documents."""

    enabled: bool = False
    """Whether this worker is one of several, each with an index directory of its own. The brokers
    elect one that judges documents; the others apply the changelog as it grows, and take over."""


class PoolSettings(Section):
    """The processes that decode and sketch."""

    workers: int = Field(default=0, ge=0, le=256)
    """Number of processes. 0: one less than the number of processors, at least one."""

    def size(self) -> int:
        """Return the number of processes to start."""
        return self.workers or max(1, len(os.sched_getaffinity(0)) - 1)


class StatusSettings(Section):
    """The HTTP port with /metrics, /livez, /readyz and /page."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on. Use 0.0.0.0 inside a container."""
    port: int = Field(default=9464, ge=0, le=65535)
    """Port. 0: the system chooses a port, which is logged."""
    page: bool = True
    """Whether /page shows the state of the worker and the latest duplicates."""
    show_text: bool = False
    """Whether the page shows the texts of duplicates and originals to everyone who can reach the
    port. The texts of recent records are then held in memory. Judging pairs needs them."""


class QualitySettings(Section):
    """How the worker and the edges check their verdicts while they run; see docs/quality.md."""

    shadow_sample: int = Field(default=1000, ge=0, le=10**9)
    """On average one document in this many, in blocks of 64 offsets, is also compared exactly with
    recent kept documents. Uses at most 2 % of one processor. 0: none is."""


class LogSettings(Section):
    """Logging."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is written. Libraries write at least info, the Kafka client at least
    warning: their debug messages contain passwords and documents."""
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
    """single: one worker does everything. split: edges read, sketch and write, any number of them;
    one judge decides. See docs/scaling.md."""
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
    """How long a worker that is asked to stop may take to finish its current batches."""

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

    def uses_registry(self) -> bool:
        """Return whether records are read or written with schemas of the registry."""
        return self.records.format == "registry" or self.output.duplicates_format == "avro"

    def source_subject(self) -> str:
        """Return the registry's subject of the source, by Confluent's TopicNameStrategy."""
        return f"{self.topics.source}-value"

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
