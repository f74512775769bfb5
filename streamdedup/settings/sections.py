"""*Pure.* The typed settings: frozen, and validated where they are declared.

Every option is documented where it is declared; docs/settings.md is generated from it. Limits that
depend on each other are checked here, in the section that holds them both.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from streamdedup.settings.secrets import MASK, read_secret
from streamdedup.settings.units import Duration, NameList, Number, Size
from streamdedup.sketch.bands import DEFAULT_BACKGROUND, DEFAULT_CORPUS, Banding, choose_bands
from streamdedup.sketch.normalize import PROFILES, STEPS, Profile, resolve
from streamdedup.sketch.parameters import SketchParameters

ENVIRONMENT_PREFIX = "STREAMDEDUP_"


def _as_profile(value: Any) -> Any:
    """Check a profile's name or its list of steps, as YAML, variables and flags write them."""
    if isinstance(value, str) and ("," in value or value.startswith("[")):
        value = [part.strip().strip('"') for part in value.strip("[] ").split(",")]
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError("write the name of a profile, or a list of the names of steps")
    resolve(value)
    return value


_PROFILE_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"enum": sorted(PROFILES)},
        {"type": "array", "items": {"enum": list(STEPS)}, "minItems": 1, "uniqueItems": True},
    ]
}
ProfileName = Annotated[str | tuple[str, ...], NoDecode, BeforeValidator(_as_profile)]
TopicName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+$", min_length=1, max_length=249)
]
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/,@]+):\d{1,5}")

_MILLISECOND = dt.timedelta(milliseconds=1)
_SECOND = dt.timedelta(seconds=1)
_HOUR = dt.timedelta(hours=1)
_DAY = dt.timedelta(days=1)
_CENTURY = dt.timedelta(days=36_500)


def _read_blanks(cls: type[BaseModel], values: Any) -> Any:
    """Read an empty text as "not set" where that is possible, and an empty section as its defaults.

    A variable cannot say null, and a section of which every line is commented out is null in YAML.
    """
    if not isinstance(values, dict):
        return values
    read = dict(values)
    for name, value in values.items():
        field = cls.model_fields.get(str(name))
        if field is None:
            continue
        if value is None and isinstance(field.default, Section):
            del read[name]
        elif value == "" and type(None) in get_args(field.annotation):
            read[name] = None
    return read


class Section(BaseModel):
    """A group of settings; unknown keys are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    _blanks = model_validator(mode="before")(_read_blanks)


class SecuritySettings(Section):
    """How the worker proves itself to the brokers, and they to it."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Kafka's security.protocol."""
    ca_file: Path | None = None
    """PEM file of the authorities that signed the brokers' certificates; default: the system's."""
    certificate_file: Path | None = None
    """PEM file of our own certificate, for mutual TLS."""
    key_file: Path | None = None
    """PEM file of the private key that belongs to it."""
    key_password_file: Path | None = None
    """File that holds the key's password."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    """Kafka's sasl.mechanism."""
    sasl_username: str = ""
    """User name of the login."""
    sasl_password: SecretStr | None = None
    """Password of the login; prefer sasl_password_file."""
    sasl_password_file: Path | None = None
    """File that holds the password; a trailing line end is not part of it."""

    @field_validator("sasl_password")
    @classmethod
    def _refuse_mask(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and value.get_secret_value() == MASK:
            raise ValueError("this is the mask of a printed secret; put the password in its place")
        return value

    @model_validator(mode="after")
    def _check_login(self) -> SecuritySettings:
        password = bool(self.sasl_password) or self.sasl_password_file is not None
        if self.sasl_password and self.sasl_password_file:
            raise ValueError("give sasl_password or sasl_password_file, not both")
        if self.protocol.startswith("SASL"):
            if not (self.sasl_username and password):
                raise ValueError(f"{self.protocol} needs sasl_username and sasl_password_file")
        elif self.sasl_username or password:
            raise ValueError(
                f"a login is given, but protocol {self.protocol} has none: use SASL_SSL"
            )
        return self

    @model_validator(mode="after")
    def _check_certificates(self) -> SecuritySettings:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together")
        if self.key_password_file is not None and self.key_file is None:
            raise ValueError("key_password_file needs key_file")
        if not self.protocol.endswith("SSL") and (self.ca_file or self.certificate_file):
            raise ValueError(
                f"certificates are given, but protocol {self.protocol} does not encrypt: use SSL "
                "or SASL_SSL"
            )
        return self

    def password(self) -> str | None:
        """Return the SASL password, read from its file if it has one."""
        if self.sasl_password_file is not None:
            return read_secret(self.sasl_password_file)
        return self.sasl_password.get_secret_value() if self.sasl_password else None


class KafkaSettings(Section):
    """The brokers, and who we are to them."""

    bootstrap_servers: NameList = ("127.0.0.1:9092",)
    """host:port of some brokers."""
    group_id: str = Field(default="streamdedup", min_length=1, max_length=200)
    """Consumer group under which the offsets are committed, for every lag tool to see."""
    ordinal: int = Field(default=0, ge=0)
    """Number of this worker. Its transactional id is GROUP_ID-ORDINAL: a second worker with the
    same one takes over, and the first is fenced off by the broker."""
    start: Literal["earliest", "latest"] = "earliest"
    """Where to begin in a partition that has no committed offset and existed at the first start.
    Partitions added later are read from their beginning."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "zstd"
    """Compression of what we produce."""
    request_timeout: Duration = Field(default=dt.timedelta(seconds=30), ge=_SECOND, le=_HOUR)
    """How long one request to a broker may take."""
    transaction_timeout: Duration = Field(default=dt.timedelta(seconds=60), ge=_SECOND, le=_DAY)
    """After this long the broker aborts a transaction that a dead worker left open. Brokers refuse
    more than their transaction.max.timeout.ms, 15 minutes unless changed."""
    metadata_refresh: Duration = Field(default=dt.timedelta(seconds=30), ge=_SECOND, le=_DAY)
    """How often new partitions of the source topic are looked for."""
    security: SecuritySettings = SecuritySettings()
    """TLS and login."""

    @field_validator("bootstrap_servers")
    @classmethod
    def _check_servers(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        for server in servers:
            if not _SERVER.fullmatch(server):
                raise ValueError(f"{server!r} is not of the form host:port")
        return servers

    @property
    def transactional_id(self) -> str:
        """The transactional id of this worker."""
        return f"{self.group_id}-{self.ordinal}"


class TopicSettings(Section):
    """The topics."""

    source: TopicName = "documents"
    """Where the documents come from."""
    clean: TopicName = "documents-clean"
    """Where kept documents go, bytes untouched."""
    duplicates: TopicName = "documents-duplicates"
    """Where duplicate records go."""
    dead_letter: TopicName = "documents-dead-letter"
    """Where records go that cannot be judged."""
    changelog: TopicName = "documents-changelog"
    """The index's own log, one partition: the truth of which LMDB is the local copy."""

    @model_validator(mode="after")
    def _check(self) -> TopicSettings:
        names = [self.source, self.clean, self.duplicates, self.dead_letter, self.changelog]
        if len(set(names)) < len(names):
            raise ValueError("the five topics must have five different names")
        return self


class RecordSettings(Section):
    """How a record becomes a document."""

    format: Literal["json", "text"] = "json"
    """json: the value is a JSON object; text: the value is the text itself, in UTF-8."""
    text_fields: NameList = ("text",)
    """Dotted paths of the text; several are joined with a line end."""
    id_field: str | None = "id"
    """Dotted path of the document's id. Where it is missing the record's key is the id, else its
    position."""
    event_time_field: str | None = None
    """Dotted path of the event time: ISO 8601, or a number of seconds or milliseconds since the
    epoch. Where it is not set or missing the record's timestamp counts."""
    namespace_field: str | None = None
    """Dotted path of the namespace; documents of different namespaces never match."""


class DedupSettings(Section):
    """What makes a duplicate.

    The index is bound to these for its life; only ``empty_text`` may change, ``verify`` from
    ``exact`` to ``estimate``, and ``threshold`` where ``bands`` and ``rows`` are given.
    """

    threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    """A document is a duplicate if a kept one has at least this estimated Jaccard similarity."""
    recall: float = Field(default=0.99, gt=0.0, lt=1.0)
    """Share of the pairs exactly at the threshold that must meet in a bucket; sets the bands."""
    corpus_documents: int = Field(default=DEFAULT_CORPUS, ge=1, le=10**12)
    """Documents in the index that the number of rows is chosen for."""
    background: float = Field(default=DEFAULT_BACKGROUND, ge=0.0, lt=1.0)
    """Similarity of unrelated documents that the number of rows is chosen for; `streamdedup
    evaluate` measures it."""
    bands: int | None = Field(default=None, ge=1, le=1000)
    """Number of bands; default: from threshold, recall and num_perm."""
    rows: int | None = Field(default=None, ge=1, le=1000)
    """Rows per band; goes with bands."""
    variant: Literal["fast", "classic"] = "fast"
    """fast: Fast Similarity Sketching, whose time hardly grows with num_perm and whose error is
    smaller on short texts; classic: MinHash with one hash function per value."""
    num_perm: int = Field(default=256, ge=1, le=9000)
    """MinHash values per signature; more of them cost time and disk, and make estimates finer."""
    value_bits: Annotated[Literal[32, 64], Number] = 32
    """Bits of a MinHash value before it is stored; 64 goes with classic."""
    signature_bits: Annotated[Literal[1, 2, 4, 8], Number] = 4
    """Bits of each value that are stored, to verify candidates by: num_perm x signature_bits / 8
    bytes per document. The estimate's standard error is at most sqrt(p (1 - p) / num_perm) /
    (1 - q), with q = 2^-signature_bits and p = J + (1 - J) q."""
    shingle_unit: Literal["character", "word"] = "character"
    """What shingles are runs of: characters (code points), which suits every script, or words."""
    shingle_size: int = Field(default=5, ge=1, le=64)
    """Characters or words per shingle; a text with fewer is one shingle."""
    shingle_bag: bool = False
    """Whether a shingle that a text repeats counts each time, rather than once."""
    profile: ProfileName = Field(default="plain", json_schema_extra=_PROFILE_SCHEMA)
    """How text is normalised before it is compared: see docs/profiles.md for the profiles, and for
    the steps that a list may be composed of."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Seed of all hashing."""
    verify: Literal["estimate", "exact"] = "estimate"
    """estimate: the signatures decide; exact: where their estimate is within two standard errors
    of the threshold the texts themselves do, which the index and the changelog then hold,
    compressed. Needs an index and a changelog that began with exact."""
    empty_text: Literal["keep", "reject"] = "keep"
    """What happens to a document without text after normalisation: kept without being indexed, or
    sent to the dead-letter topic."""

    @model_validator(mode="after")
    def _check(self) -> DedupSettings:
        if (self.bands is None) != (self.rows is None):
            raise ValueError("bands and rows belong together")
        if self.variant == "fast" and self.value_bits != 32:  # noqa: PLR2004 - as the option says
            raise ValueError("the values of variant fast have 32 bits; 64 goes with classic")
        self.banding()
        return self

    def banding(self) -> Banding:
        """Return the bands and rows: the explicit ones, or those that the recall asks for."""
        if self.bands is None or self.rows is None:
            return choose_bands(
                self.threshold,
                self.recall,
                self.num_perm,
                self.corpus_documents,
                self.background,
            )
        if self.bands * self.rows > self.num_perm:
            raise ValueError(
                f"{self.bands} bands of {self.rows} rows need {self.bands * self.rows} MinHash "
                f"values, num_perm is {self.num_perm}"
            )
        return Banding(self.bands, self.rows)

    @property
    def keeps_texts(self) -> bool:
        """Whether the index and the changelog hold the texts."""
        return self.verify == "exact"

    def normalisation(self) -> Profile:
        """Return the profile: the named one, or the one that is composed of the listed steps."""
        return resolve(self.profile)

    def sketch_parameters(self) -> SketchParameters:
        """Return everything that the bits of a sketch depend on."""
        banding = self.banding()
        profile = self.normalisation()
        return SketchParameters(
            profile=str(profile),
            profile_version=profile.version,
            shingle_unit=self.shingle_unit,
            shingle_size=self.shingle_size,
            shingle_bag=self.shingle_bag,
            variant=self.variant,
            num_perm=self.num_perm,
            value_bits=self.value_bits,
            signature_bits=self.signature_bits,
            bands=banding.bands,
            rows=banding.rows,
            seed=self.seed,
        )


class IndexSettings(Section):
    """The band index on disk."""

    directory: Path = Path("streamdedup-index")
    """Where it lives; a local file system, never a network one."""
    shards: int = Field(default=2, ge=1, le=64)
    """Files that share the bands of each segment. New segments take to a change."""
    bucket_size: int = Field(default=64, ge=1, le=4096)
    """Documents per bucket; the newest stay."""
    window: Duration | None = Field(default=None, ge=_MILLISECOND, le=_CENTURY)
    """How long a kept document makes others duplicates, by event time; null: no limit by time."""
    window_documents: int = Field(default=10_000_000, ge=1, le=50_000_000)
    """How many of the newest kept documents can make others duplicates. Bounds disk and memory."""
    allowed_lateness: Duration = Field(default=_DAY, ge=dt.timedelta(0), le=_CENTURY)
    """How far behind the clock of the stream an event time is believed; an earlier one counts as
    this. The clock is the running median of the event times of kept documents."""
    allowed_ahead: Duration = Field(default=_DAY, ge=dt.timedelta(0), le=_CENTURY)
    """How far ahead of that clock an event time is believed; a later one counts as this."""
    delta_documents: int = Field(default=65_536, ge=16, le=1_048_576)
    """Documents held in memory before they become a segment; two such deltas are in use. A restart
    replays at most these."""
    disk_budget: Size | None = Field(default=None, ge=1024**2)
    """Most bytes that the index may take; near it the worker is not ready, at it it stops. null:
    what the disk has."""
    sync: bool = True
    """Force each commit to disk. Off, a crash of the machine (not of the worker) may cost a
    rebuild from the changelog."""


class OutputSettings(Section):
    """What the worker writes."""

    route: Literal["split", "annotate"] = "split"
    """split: kept documents to the clean topic, duplicates to the dupes topic; annotate: both to
    the clean topic, with the verdict in headers."""
    max_matches: int = Field(default=5, ge=1, le=100)
    """Matches listed in a duplicate record."""
    include_value: bool = False
    """Whether a duplicate record carries the original value."""


class LimitSettings(Section):
    """What is too large. Records over a limit go to the dead-letter topic, except cut texts."""

    value_bytes: Size = Field(default=4 * 1024**2, ge=1, le=1024**3)
    """Largest record value that is decoded."""
    text_bytes: Size = Field(default=1024**2, ge=1, le=1024**3)
    """Largest text, in UTF-8."""
    long_text: Literal["reject", "cut"] = "reject"
    """Whether a larger text is rejected, or judged by as much of its beginning."""
    id_bytes: Size = Field(default=512, ge=1, le=65_536)
    """Longest document id, in UTF-8."""


class BatchSettings(Section):
    """How many records are handled at once; verdicts do not depend on it."""

    documents: int = Field(default=1000, ge=1, le=100_000)
    """Most records per batch, and so per transaction."""
    linger: Duration = Field(default=dt.timedelta(milliseconds=200), ge=_MILLISECOND, le=_HOUR)
    """How long a poll waits for the first record."""
    changelog_entry_bytes: Size = Field(default=900_000, ge=1, le=1024**3)
    """Largest changelog record; must stay below the topic's max.message.bytes."""


class PoolSettings(Section):
    """The processes that decode and sketch."""

    workers: int = Field(default=0, ge=0, le=256)
    """Processes; 0 means one less than the processors, at least one."""

    def size(self) -> int:
        """Return the number of processes to start."""
        return self.workers or max(1, len(os.sched_getaffinity(0)) - 1)


class StatusSettings(Section):
    """The HTTP port with /metrics, /livez and /readyz, and the page for people."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on; 0.0.0.0 inside a container."""
    port: int = Field(default=9464, ge=0, le=65535)
    """Port; 0 lets the system choose one, which is logged."""
    page: bool = True
    """Whether /page shows what the worker does and the latest duplicates."""
    show_text: bool = False
    """Whether the page shows the texts of duplicates and originals, to everybody who reaches the
    port. The texts of recent records are then held in memory."""


class LogSettings(Section):
    """Logging."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is written."""
    format: Literal["auto", "json", "human"] = "auto"
    """auto: human on a terminal, else JSON."""


class Settings(BaseSettings):
    """All settings of streamdedup.

    Made directly, as ``Settings(dedup={"threshold": 0.9})``, it too reads the environment for
    what is not given; only :func:`load_settings` refuses misspelt variables.

    Raises:
        pydantic.ValidationError: a value is wrong; :func:`load_settings` turns it into one line.
    """

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="__",
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    _blanks = model_validator(mode="before")(_read_blanks)

    kafka: KafkaSettings = KafkaSettings()
    """The brokers."""
    topics: TopicSettings = TopicSettings()
    """The topics."""
    records: RecordSettings = RecordSettings()
    """How a record becomes a document."""
    dedup: DedupSettings = DedupSettings()
    """What makes a duplicate."""
    index: IndexSettings = IndexSettings()
    """The band index on disk."""
    output: OutputSettings = OutputSettings()
    """What the worker writes."""
    limits: LimitSettings = LimitSettings()
    """What is too large."""
    batch: BatchSettings = BatchSettings()
    """How many records are handled at once."""
    pool: PoolSettings = PoolSettings()
    """The processes that decode and sketch."""
    status: StatusSettings = StatusSettings()
    """The HTTP port."""
    log: LogSettings = LogSettings()
    """Logging."""
    drain_budget: Duration = Field(default=dt.timedelta(seconds=30), ge=_MILLISECOND, le=_DAY)
    """How long a worker that is told to stop may finish what it has begun."""

    @model_validator(mode="after")
    def _check(self) -> Settings:
        if self.text_room() < 0:
            raise ValueError(
                f"batch.changelog_entry_bytes is {self.batch.changelog_entry_bytes}, but one "
                f"document of these settings may take {self._document_bytes()}"
            )
        return self

    def text_room(self) -> int:
        """Return the bytes of a stored text that a changelog entry has room for."""
        return self.batch.changelog_entry_bytes - self._document_bytes()

    def _document_bytes(self) -> int:
        """Return what a document without its text may take in a changelog entry."""
        # One signature, its band keys and its id; the names around them take less than 1 KiB.
        keys = 8 * (self.dedup.banding().bands + 1)
        signature = self.dedup.sketch_parameters().signature_bytes
        return signature + keys + self.limits.id_bytes + 1024
