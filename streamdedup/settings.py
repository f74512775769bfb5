"""*Blocking* (reads files when loaded). Settings: typed, frozen, refused when they make no sense.

Precedence: defaults < YAML file < environment (``STREAMDEDUP_KAFKA__GROUP_ID``) < flags.
Every option is documented where it is declared; ``streamdedup config schema`` prints them all.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import durationpy
import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from streamdedup.errors import SettingsError
from streamdedup.sketch.bands import Banding, choose_bands
from streamdedup.sketch.normalize import PROFILES
from streamdedup.sketch.sketcher import SketchParameters

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([kmgtp]?)(i?)b?\s*$", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def parse_size(value: Any) -> Any:
    """Read a size in bytes as people and Helm write it: ``9Gi``, ``512MiB``, ``1.5 GB``, ``1e+06``.

    Raises:
        ValueError: the text is no size.
    """
    if isinstance(value, bool) or not isinstance(value, str | float | int):
        raise ValueError("a size is a number of bytes, or a text such as 512MiB")
    found = _SIZE.match(str(value))
    if found is None:
        raise ValueError(f"{value!r} is no size; write for example 512MiB, 9Gi or 1000000")
    number, unit, binary = found.groups()
    size = float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()]
    if size != int(size):
        raise ValueError(f"{value!r} is not a whole number of bytes")
    return int(size)


def parse_duration(value: Any) -> Any:
    """Read a duration as people write it: ``30s``, ``1h30m``, ``7d``; a bare number is seconds.

    Raises:
        ValueError: the text is no duration.
    """
    if isinstance(value, dt.timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return dt.timedelta(seconds=value)
    try:
        return durationpy.from_str(str(value).replace(" ", ""))
    except (durationpy.DurationError, ValueError):
        raise ValueError(
            f"{value!r} is no duration; write for example 500ms, 30s or 1h30m"
        ) from None


def format_duration(value: dt.timedelta) -> str:
    """Write a duration as :func:`parse_duration` reads it."""
    return str(durationpy.to_str(value, extended=True)) or "0s"


Size = Annotated[int, BeforeValidator(parse_size), WithJsonSchema({"type": ["string", "number"]})]
Duration = Annotated[
    dt.timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": ["string", "number"]}),
]


def _as_list(value: Any) -> Any:
    """Let ``a,b`` stand for ``[a, b]``, as environment variables and flags write lists."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


NameList = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class Section(BaseModel):
    """A group of settings; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


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

    @model_validator(mode="after")
    def _check(self) -> SecuritySettings:
        if self.sasl_password is not None and self.sasl_password_file is not None:
            raise ValueError("give sasl_password or sasl_password_file, not both")
        sasl = self.protocol.startswith("SASL")
        if sasl and not (self.sasl_username and (self.sasl_password or self.sasl_password_file)):
            raise ValueError(f"{self.protocol} needs sasl_username and sasl_password_file")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together")
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
    group_id: str = Field("streamdedup", min_length=1)
    """Consumer group under which the offsets are committed, for every lag tool to see."""
    ordinal: int = Field(0, ge=0)
    """Number of this worker. Its transactional id is GROUP_ID-ORDINAL: a second worker with the
    same one takes over, and the first is fenced off by the broker."""
    start: Literal["earliest", "latest"] = "earliest"
    """Where to begin in a partition that has no committed offset and existed at the first start.
    Partitions added later are read from their beginning."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "zstd"
    """Compression of what we produce."""
    request_timeout: Duration = dt.timedelta(seconds=30)
    """How long one request to a broker may take."""
    transaction_timeout: Duration = dt.timedelta(seconds=60)
    """After this long the broker aborts a transaction that a dead worker left open."""
    metadata_refresh: Duration = dt.timedelta(seconds=30)
    """How often new partitions of the source topic are looked for."""
    security: SecuritySettings = SecuritySettings()
    """TLS and login."""

    @property
    def transactional_id(self) -> str:
        """The transactional id of this worker."""
        return f"{self.group_id}-{self.ordinal}"


class TopicSettings(Section):
    """The topics."""

    source: str = Field("documents", min_length=1)
    """Where the documents come from."""
    clean: str = Field("documents-clean", min_length=1)
    """Where kept documents go, bytes untouched."""
    duplicates: str = Field("documents-duplicates", min_length=1)
    """Where duplicate records go."""
    dead_letter: str = Field("documents-dead-letter", min_length=1)
    """Where records go that cannot be judged."""
    changelog: str = Field("documents-changelog", min_length=1)
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

    @model_validator(mode="after")
    def _check(self) -> RecordSettings:
        if not self.text_fields or not all(self.text_fields):
            raise ValueError("text_fields needs at least one field name")
        return self


class DedupSettings(Section):
    """What makes a duplicate. All but ``threshold`` are bound to the index for its life."""

    threshold: float = Field(0.8, gt=0.0, le=1.0)
    """A document is a duplicate if a kept one has at least this estimated Jaccard similarity."""
    recall: float = Field(0.99, gt=0.0, lt=1.0)
    """Share of the pairs exactly at the threshold that must meet in a bucket; sets the bands."""
    bands: int | None = Field(None, ge=1, le=1000)
    """Number of bands; default: from threshold, recall and num_perm."""
    rows: int | None = Field(None, ge=1, le=1000)
    """Rows per band; goes with bands."""
    num_perm: int = Field(256, ge=1, le=9000)
    """MinHash values per signature; the estimate's standard error is sqrt(J (1 - J) / num_perm)."""
    shingle_size: int = Field(5, ge=1, le=64)
    """Characters (code points) per shingle."""
    profile: str = "plain"
    """How text is normalised before it is compared: see docs/format.md."""
    seed: int = Field(1, ge=0, lt=2**63)
    """Seed of all hashing."""
    empty_text: Literal["keep", "reject"] = "keep"
    """What happens to a document without text after normalisation: kept without being indexed, or
    sent to the dead-letter topic."""

    @model_validator(mode="after")
    def _check(self) -> DedupSettings:
        if self.profile not in PROFILES:
            known = ", ".join(sorted(PROFILES))
            raise ValueError(f"unknown profile {self.profile!r}; there are: {known}")
        if (self.bands is None) != (self.rows is None):
            raise ValueError("bands and rows belong together")
        self.banding()
        return self

    def banding(self) -> Banding:
        """Return the bands and rows: the explicit ones, or those that the recall asks for."""
        if self.bands is None or self.rows is None:
            return choose_bands(self.threshold, self.recall, self.num_perm)
        if self.bands * self.rows > self.num_perm:
            raise ValueError(
                f"{self.bands} bands of {self.rows} rows need {self.bands * self.rows} MinHash "
                f"values, num_perm is {self.num_perm}"
            )
        return Banding(self.bands, self.rows)


    def sketch_parameters(self) -> SketchParameters:
        """Return everything that the bits of a sketch depend on."""
        banding = self.banding()
        return SketchParameters(
            profile=self.profile,
            profile_version=PROFILES[self.profile].version,
            shingle_size=self.shingle_size,
            num_perm=self.num_perm,
            bands=banding.bands,
            rows=banding.rows,
            seed=self.seed,
        )


class IndexSettings(Section):
    """The band index on disk."""

    directory: Path = Path("streamdedup-index")
    """Where it lives; a local file system, never a network one."""
    shards: int = Field(2, ge=1, le=64)
    """LMDB environments that share the bands. Changing it needs a rebuild."""
    bucket_size: int = Field(64, ge=1, le=4096)
    """Documents per bucket; the newest stay."""
    window_documents: int = Field(10_000_000, ge=1)
    """How many of the newest kept documents can make others duplicates. Bounds the disk."""
    map_size: Size = 64 * 1024**3
    """Most bytes that each environment may take; reserved as addresses, not as disk."""
    sync: bool = True
    """Force each commit to disk. Off, a crash of the machine (not of the worker) may cost a
    rebuild from the changelog."""


class OutputSettings(Section):
    """What the worker writes."""

    route: Literal["split", "annotate"] = "split"
    """split: kept documents to the clean topic, duplicates to the dupes topic; annotate: both to
    the clean topic, with the verdict in headers."""
    max_matches: int = Field(5, ge=1, le=100)
    """Matches listed in a duplicate record."""
    include_value: bool = False
    """Whether a duplicate record carries the original value."""


class LimitSettings(Section):
    """What is too large. Records over a limit go to the dead-letter topic."""

    value_bytes: Size = 4 * 1024**2
    """Largest record value that is decoded."""
    text_bytes: Size = 1024**2
    """Largest text, in UTF-8."""
    id_bytes: Size = 512
    """Longest document id, in UTF-8."""


class BatchSettings(Section):
    """How many records are handled at once; verdicts do not depend on it."""

    documents: int = Field(1000, ge=1, le=100_000)
    """Most records per batch, and so per transaction."""
    linger: Duration = dt.timedelta(milliseconds=200)
    """How long a poll waits for the first record."""
    changelog_entry_bytes: Size = 900_000
    """Largest changelog record; must stay below the topic's max.message.bytes."""


class PoolSettings(Section):
    """The processes that decode and sketch."""

    workers: int = Field(0, ge=0, le=256)
    """Processes; 0 means one less than the processors, at least one."""

    def size(self) -> int:
        """Return the number of processes to start."""
        return self.workers or max(1, len(os.sched_getaffinity(0)) - 1)


class StatusSettings(Section):
    """The HTTP port with /metrics, /livez and /readyz."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 inside a container."""
    port: int = Field(9464, ge=0, le=65535)
    """Port; 0 lets the system choose one, which is logged."""


class LogSettings(Section):
    """Logging."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is written."""
    format: Literal["auto", "json", "human"] = "auto"
    """auto: human on a terminal, else JSON."""


class Settings(BaseSettings):
    """All settings of streamdedup.

    Raises:
        pydantic.ValidationError: a value is wrong; :func:`load_settings` turns it into one line.
    """

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix="STREAMDEDUP_",
        env_nested_delimiter="__",
        use_attribute_docstrings=True,
    )

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
    drain_budget: Duration = dt.timedelta(seconds=30)
    """How long a worker that is told to stop may finish what it has begun."""


def read_secret(path: Path) -> str:
    """Read a secret from its file.

    Raises:
        SettingsError: the file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise SettingsError(f"cannot read the secret in {path}: {error.strerror}") from error


def load_settings(path: Path | None = None, **overrides: Any) -> Settings:
    """Load the settings: defaults < file < environment < overrides.

    Args:
        path: YAML file, or None.
        overrides: nested settings that win over all else, as ``dedup={"threshold": 0.9}``.

    Raises:
        SettingsError: a file cannot be read, or a setting is unknown or wrong.
    """
    file_values = _read_yaml(path) if path is not None else {}
    _refuse_unknown_environment()

    class _FileSettings(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            **_: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, file_values)

    try:
        merged = _FileSettings(**overrides)
        return Settings.model_construct(**dict(merged))
    except ValidationError as error:
        raise SettingsError(_first_problem(error)) from error


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = " ".join(str(error).split())
        raise SettingsError(f"{path} is no YAML: {problem}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"{path} must hold a mapping of settings")
    return values


def _refuse_unknown_environment() -> None:
    """Refuse a misspelt variable, which pydantic-settings would pass over in silence."""
    for name in os.environ:
        if not name.startswith("STREAMDEDUP_") or name.startswith("STREAMDEDUP_TEST_"):
            continue
        section = name.removeprefix("STREAMDEDUP_").split("__")[0].lower()
        if section not in Settings.model_fields:
            raise SettingsError(f"environment variable {name}: there is no setting {section!r}")


def _first_problem(error: ValidationError) -> str:
    problems = error.errors(include_url=False)
    first = problems[0]
    where = ".".join(str(part) for part in first["loc"]) or "settings"
    what = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        what = "unknown setting"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{where}: {what}{more}"
