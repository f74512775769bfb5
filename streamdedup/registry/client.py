"""*Async.* A schema registry with Confluent's API: schemas of values, and of duplicate records.

The HTTP client is Confluent's (ADR 21). Its retries are off: a role begins a new session, which
waits for the registry, as it does for the brokers.
"""

from __future__ import annotations

import asyncio
import ssl
import time
import uuid
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from confluent_kafka import schema_registry as confluent
from confluent_kafka.schema_registry.error import SchemaRegistryError

from streamdedup.columns import RecordColumns
from streamdedup.errors import BrokerRefused, RegistryUnavailable, SettingsError, StreamdedupError
from streamdedup.formats.schemas import GUID_BYTES, Schema, describe_prefix, prefixes
from streamdedup.model import Record, Rejection
from streamdedup.settings.secrets import read_secret
from streamdedup.settings.sections import RegistrySettings

T = TypeVar("T")

_ABSENT_S = 60.0
"""How long an unknown schema stays unknown: replicas of a registry may lag."""
_AT_ONCE = 8
"""Most requests at the same time."""
_OF_REGISTRY = frozenset({b"\0", b"\1"})
"""First bytes of the prefixes that a registry knows."""
_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND, _SCHEMA_NOT_FOUND = 40401, 40402, 40403
_MISSING = frozenset({_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND, _SCHEMA_NOT_FOUND})
_NOT_AUTHENTICATED, _FORBIDDEN = 401, 403
_LATER = frozenset({408, 429})
_SERVER_ERRORS = 500


class _MissingError(Exception):
    """The registry does not know a schema, a subject or a version."""


class Registry:
    """Fetches each schema once, and adds it to the known schemas by prefix.

    Raises:
        SettingsError: a file cannot be read.
    """

    def __init__(self, settings: RegistrySettings, known: dict[bytes, Schema]) -> None:
        self._settings = settings
        self._known = known
        self._absent: dict[bytes, float] = {}
        self._client = _client(settings)
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._answers = False

    async def reach(self) -> None:
        """Ask for something small, unless the last request has had an answer.

        Raises:
            RegistryUnavailable: the registry does not answer.
            BrokerRefused: it refuses the login.
            SettingsError: it is not a registry.
        """
        if not self._answers:
            await self._ask_for_kinds()

    async def provide(self, records: Sequence[Record]) -> dict[int, Rejection]:
        """Fetch the schemas of a batch that are not known yet; raise what :meth:`reach` raises.

        Returns:
            The rejections of the records whose schema the registry does not have, by row.
        """
        columns = RecordColumns.of(records)
        named = prefixes(columns.values, columns.headers)
        now = time.monotonic()
        self._absent = {prefix: end for prefix, end in self._absent.items() if end > now}
        wanted = {prefix for prefix in named if prefix[:1] in _OF_REGISTRY}
        wanted -= self._known.keys() | self._absent.keys()
        await asyncio.gather(*(self._fetch(prefix) for prefix in wanted))
        if self._absent.keys().isdisjoint(named):
            return {}
        return {
            row: Rejection(
                "decode",
                "UnknownSchema",
                f"the registry has no schema with {describe_prefix(prefix)}, or none that it "
                "refers to",
            )
            for row, prefix in enumerate(named)
            if prefix in self._absent
        }

    async def latest(self, subject: str) -> Schema | None:
        """Return the latest schema of a subject; None if it has none."""
        request = self._client.get_latest_version(subject)
        try:
            found = await self._ask(request, f"the latest schema of {subject}")
            return await self._with_references(found.schema)
        except _MissingError:
            return None

    async def id_of(self, subject: str, schema: Schema) -> int | None:
        """Return the id of a registered schema; None if the subject does not have it."""
        request = self._client.lookup_schema(subject, _request(schema))
        try:
            found = await self._ask(request, f"the schema of {subject}")
        except _MissingError:
            return None
        return found.schema_id

    async def register(self, subject: str, schema: Schema) -> int:
        """Register a schema, unless the subject has it; return its id.

        Raises:
            SettingsError: the registry refuses it, e.g. since it is incompatible with the latest.
        """
        request = self._client.register_schema(subject, _request(schema))
        registered = await self._ask(request, f"a new schema of {subject}")
        return int(registered)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _fetch(self, prefix: bytes) -> None:
        """Fetch a schema and what it refers to, or note that there is none."""
        try:
            async with self._places:
                found = await self._with_references(await self._schema(prefix))
        except (_MissingError, SettingsError) as error:
            if isinstance(error, SettingsError):
                # Any bytes may stand for an id. Registries refuse ids that cannot be, and GUIDs if
                # they have none, each in its own way; another server fails here too.
                await self._ask_for_kinds()
            self._absent[prefix] = time.monotonic() + _ABSENT_S
        else:
            self._known[prefix] = found

    async def _ask_for_kinds(self) -> None:
        await self._ask(self._client.get_schema_types(), "the kinds of schemas")

    async def _schema(self, prefix: bytes) -> Any:
        what = f"the schema with {describe_prefix(prefix)}"
        if len(prefix) == GUID_BYTES:
            guid = str(uuid.UUID(bytes=prefix[1:]))
            found = await self._ask(self._client.get_schema_by_guid(guid), what)
        else:
            number = int.from_bytes(prefix[1:], "big")
            found = await self._ask(self._client.get_schema(number), what)
        if found.schema_str is None:
            # A proxy's answer, for example. Kept as a schema, it would refuse every record.
            raise RegistryUnavailable(
                f"the registry {', '.join(self._settings.urls)} answers without a schema: {what}"
            )
        return found

    async def _with_references(self, schema: Any) -> Schema:
        """Return a schema with what it refers to, each after what it refers to itself."""
        ordered: dict[str, str] = {}

        async def visit(referring: Any) -> None:
            for each in referring.references or ():
                if each.name in ordered:
                    continue
                ordered[each.name] = ""
                request = self._client.get_version(each.subject, each.version, deleted=True)
                found = await self._ask(request, f"version {each.version} of {each.subject}")
                await visit(found.schema)
                del ordered[each.name]
                ordered[each.name] = found.schema.schema_str or ""

        await visit(schema)
        return Schema(schema.schema_type, schema.schema_str, tuple(ordered.items()))

    async def _ask(self, request: Awaitable[T], what: str) -> T:
        """Await a request for something, ``what`` in words, and translate its errors."""
        self._answers = False
        action = f"cannot get {what} from the registry {', '.join(self._settings.urls)}"
        try:
            async with asyncio.timeout(self._settings.timeout.total_seconds()):
                answer = await request
        except SchemaRegistryError as error:
            raise _translated(error, action) from error
        except StreamdedupError:
            raise
        except Exception as error:
            # The HTTP client raises errors of many kinds.
            if (refusal := _tls_refusal(error)) is not None:
                raise BrokerRefused(f"{action}: TLS failed: {refusal}") from error
            text = " ".join(str(error).split())
            raise RegistryUnavailable(f"{action}: {type(error).__name__}: {text}") from error
        self._answers = True
        return answer


def _translated(error: SchemaRegistryError, action: str) -> Exception:
    """Return this project's error for an answer that is not a success."""
    status, text = error.http_status_code, " ".join(str(error).split())
    if error.error_code in _MISSING:
        return _MissingError(text)
    if status in {_NOT_AUTHENTICATED, _FORBIDDEN}:
        return BrokerRefused(
            f"{action}: the registry refuses the login: {text}; fix it in the section registry, or "
            "on the registry"
        )
    if status in _LATER or status >= _SERVER_ERRORS:
        return RegistryUnavailable(f"{action}: {text}")
    return SettingsError(f"{action}: {text}; check registry.urls, which may need a path")


def _tls_refusal(error: BaseException | None) -> str | None:
    """Return why TLS does not come about; None if something else has failed."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"{error.verify_message}; fix registry.ca_file, or the registry's certificate"
        if isinstance(error, ssl.SSLError) and "_ALERT_" in str(error):
            return f"{error.reason}; check registry.certificate_file"
        error = error.__cause__ or error.__context__
    return None


def _request(schema: Schema) -> Any:
    return confluent.Schema(schema.text, schema.kind)


def _client(settings: RegistrySettings) -> confluent.AsyncSchemaRegistryClient:
    options: dict[str, Any] = {
        "url": ",".join(settings.urls),
        "timeout": settings.timeout.total_seconds(),
        "max.retries": 0,
        "basic.auth.user.info": settings.login(),
        "ssl.ca.location": settings.ca_file and str(settings.ca_file),
        "ssl.certificate.location": settings.certificate_file and str(settings.certificate_file),
        "ssl.key.location": settings.key_file and str(settings.key_file),
    }
    token_file = settings.token_file
    if token_file is not None:

        async def fields(_: dict[str, Any]) -> dict[str, str]:
            token = await asyncio.to_thread(read_secret, token_file)
            return {"bearer.auth.token": token, "bearer.auth.logical.cluster": ""}

        options |= {
            "bearer.auth.credentials.source": "CUSTOM",
            "bearer.auth.custom.provider.function": fields,
            "bearer.auth.custom.provider.config": {},
        }
    try:
        return confluent.AsyncSchemaRegistryClient(
            {name: value for name, value in options.items() if value is not None}
        )
    except OSError as error:
        raise SettingsError(f"cannot use a certificate of the section registry: {error}") from error
