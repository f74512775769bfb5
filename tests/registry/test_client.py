"""The schema registry: what is fetched, and what its failures mean. The registry is a real one."""

from __future__ import annotations

import asyncio
import json
import ssl
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trustme

from deploy.registry import Reference, SchemaRegistry
from streamdedup.errors import BrokerRefused, RegistryUnavailable, SettingsError
from streamdedup.formats.schemas import Schema, duplicates_schema
from streamdedup.model import Position, Record
from streamdedup.registry.client import Registry
from streamdedup.registry.opening import schemas_in_files, schemas_of
from streamdedup.settings.sections import RecordSettings, RegistrySettings, Settings
from tests.support.registry import Front, front, prefix

T = TypeVar("T")
POST = {"type": "record", "name": "Post", "fields": [{"name": "text", "type": "string"}]}


@pytest.fixture
def gate(registry: SchemaRegistry) -> Iterator[Front]:
    """Yield a gate before the registry."""
    with front(registry) as running:
        yield running


@pytest.fixture
def subject() -> str:
    """Return the name of a new subject."""
    return f"s{uuid.uuid4().hex[:10]}"


def records(*values: bytes | None) -> list[Record]:
    """Return records with these values."""
    return [Record(Position("t", 0, row), value) for row, value in enumerate(values)]


def call(
    settings: dict[str, Any],
    work: Callable[[Registry], Awaitable[T]],
    known: dict[bytes, Schema] | None = None,
) -> T:
    """Run requests with a client of their own."""

    async def run() -> T:
        client = Registry(RegistrySettings(**settings), {} if known is None else known)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(run())


def test_each_schema_is_fetched_once(registry: SchemaRegistry, gate: Front, subject: str) -> None:
    """Also a missing one: two batches with the same ids make two requests."""
    number = registry.register(subject, POST)
    batch = records(prefix(number) + b"a", None, prefix(2**30) + b"b", prefix(number) + b"c", b"{}")
    known: dict[bytes, Schema] = {}

    async def fetch(client: Registry) -> list[Any]:
        return [await client.provide(batch), await client.provide(batch)]

    first, second = call(registry.settings(urls=[gate.url]), fetch, known)
    asked = [f"/schemas/ids/{2**30}", f"/schemas/ids/{number}"]
    assert sorted(gate.requests) == sorted(asked)
    assert first == second
    assert {row: rejection.reason for row, rejection in first.items()} == {2: "UnknownSchema"}
    assert f"id {2**30}" in first[2].message
    assert known == {prefix(number): Schema("AVRO", json.dumps(POST))}


def test_references_come_in_the_order_of_their_definition(
    registry: SchemaRegistry, subject: str
) -> None:
    """A schema refers to two, one of which refers to a third."""

    def record(name: str, **fields: Any) -> dict[str, Any]:
        listed = [{"name": field, "type": kind} for field, kind in fields.items()]
        return {"type": "record", "name": name, "namespace": "x", "fields": listed}

    inner, middle, other = (f"{subject}-{part}" for part in ("inner", "middle", "other"))
    registry.register(inner, record("Inner", a="string"))
    registry.register(middle, record("Middle", b="x.Inner"), "AVRO", [Reference("x.Inner", inner)])
    registry.register(other, record("Other", c="string"))
    references = [Reference("x.Middle", middle), Reference("x.Other", other)]
    number = registry.register(
        subject, record("Top", d="x.Middle", e="x.Other"), "AVRO", references
    )
    known: dict[bytes, Schema] = {}
    call(registry.settings(), lambda client: client.provide(records(prefix(number))), known)
    names = [name for name, _ in known[prefix(number)].references]
    assert names == ["x.Inner", "x.Middle", "x.Other"]


@pytest.mark.parametrize(
    ("status", "cause"),
    [(429, "429"), (500, "500"), (503, "503"), (200, "without a schema")],
)
def test_a_registry_that_fails_is_asked_again(
    registry: SchemaRegistry, gate: Front, status: int, cause: str
) -> None:
    """The batch waits; no record is refused, and no schema is kept."""
    gate.status = status
    known: dict[bytes, Schema] = {}
    with pytest.raises(RegistryUnavailable, match=f"(?=.*{gate.url})(?=.*id 7).*{cause}"):
        call(
            registry.settings(urls=[gate.url]),
            lambda client: client.provide(records(prefix(7))),
            known,
        )
    assert not known


def test_a_registry_that_is_away(registry: SchemaRegistry, gate: Front) -> None:
    """It closes the connection; nothing listens; it does not answer in time."""
    gate.away = True
    settings = registry.settings(urls=[gate.url])
    with pytest.raises(RegistryUnavailable, match="cannot get the kinds of schemas"):
        call(settings, lambda client: client.reach())
    with pytest.raises(RegistryUnavailable, match=r"127\.0\.0\.1:1"):
        call(registry.settings(urls=["http://127.0.0.1:1"]), lambda client: client.reach())


def test_the_next_url_is_used_if_one_is_away(registry: SchemaRegistry, gate: Front) -> None:
    """Several addresses are one registry."""
    urls = ["http://127.0.0.1:1", gate.url]
    call(registry.settings(urls=urls), lambda client: client.reach())
    assert gate.requests == ["/schemas/types"]


def test_a_wrong_login_ends_a_worker(registry: SchemaRegistry) -> None:
    """The operator must act, whatever the records are."""
    with pytest.raises(BrokerRefused, match=r"refuses the login.*section registry"):
        call(registry.settings(username="mallory"), lambda client: client.reach())
    with pytest.raises(BrokerRefused, match="refuses the login"):
        call({"urls": [registry.url]}, lambda client: client.provide(records(prefix(7))))


def test_a_wrong_path_is_no_unknown_schema(registry: SchemaRegistry) -> None:
    """Else every record would become a dead letter."""
    url = registry.url.removesuffix("/v7")
    with pytest.raises(SettingsError, match=r"registry\.urls"):
        call(registry.settings(urls=[url]), lambda client: client.provide(records(prefix(7))))


def test_bytes_that_are_no_id_are_an_unknown_schema(registry: SchemaRegistry) -> None:
    """Ids that cannot be, GUIDs that a registry does not have, and the prefix of another format."""
    values = [b"\0" + b"\xff" * 4, b"\0" * 5, b"\1" * 17, b"\1" + bytes(16), b"\xc3\x01" + b"x" * 8]
    refused = call(registry.settings(), lambda client: client.provide(records(*values)))
    assert {row: rejection.reason for row, rejection in refused.items()} == dict.fromkeys(
        range(4), "UnknownSchema"
    )


def test_a_token_is_read_again(gate: Front, tmp_path: Path) -> None:
    """Another program renews it in its file."""
    file = tmp_path / "token"
    file.write_text("old\n")
    gate.token = new = uuid.uuid4().hex

    async def ask(client: Registry) -> None:
        with pytest.raises(BrokerRefused, match="refuses the login"):
            await client.reach()
        file.write_text(f"{new}\n")
        await client.reach()

    call({"urls": [gate.url], "token_file": file}, ask)


def test_tls_needs_a_trusted_certificate(registry: SchemaRegistry, tmp_path: Path) -> None:
    """With ca_file the connection is made; without it the operator is told."""
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    with front(registry, server) as gate:
        settings = registry.settings(urls=[gate.url])
        call(settings | {"ca_file": file}, lambda client: client.reach())
        with pytest.raises(BrokerRefused, match=r"TLS failed: .*registry\.ca_file"):
            call(settings, lambda client: client.reach())


def test_files_that_cannot_be_used(registry: SchemaRegistry, tmp_path: Path) -> None:
    """Certificates and secrets."""
    missing = tmp_path / "missing.pem"
    with pytest.raises(SettingsError, match="certificate of the section registry"):
        call(registry.settings(ca_file=missing), lambda client: client.reach())
    settings = {"urls": [registry.url], "username": "a", "password_file": missing}
    with pytest.raises(SettingsError, match="cannot read the secret"):
        call(settings, lambda client: client.reach())


def test_the_schema_of_duplicate_records(registry: SchemaRegistry, subject: str) -> None:
    """It is found after it was registered, and a registration is repeated without effect."""
    schema = duplicates_schema("avro")

    async def register(client: Registry) -> list[Any]:
        return [
            await client.id_of(subject, schema),
            await client.register(subject, schema),
            await client.register(subject, schema),
            await client.latest(subject),
        ]

    missing, number, again, latest = call(registry.settings(), register)
    assert missing is None
    assert number == again == call(registry.settings(), lambda one: one.id_of(subject, schema))
    assert latest.kind == "AVRO"
    assert json.loads(latest.text) == json.loads(schema.text)


def test_the_json_schema_of_duplicate_records(registry: SchemaRegistry, subject: str) -> None:
    """The registry accepts it as JSON Schema."""
    schema = duplicates_schema("json")
    call(registry.settings(), lambda client: client.register(subject, schema))
    assert registry.call("GET", f"/subjects/{subject}/versions/1")["schemaType"] == "JSON"


def test_an_incompatible_schema_is_refused(registry: SchemaRegistry, subject: str) -> None:
    """The registry's reason is in the message."""
    registry.register(subject, POST)
    registry.call("PUT", f"/config/{subject}", {"compatibility": "FULL"})
    with pytest.raises(SettingsError, match=r"a new schema of .*ncompatible"):
        call(registry.settings(), lambda one: one.register(subject, duplicates_schema("avro")))


def test_the_schemas_of_some_records(registry: SchemaRegistry, subject: str) -> None:
    """As a command needs them."""
    number = registry.register(subject, POST)
    settings = Settings(
        records=RecordSettings(format="registry"), registry=RegistrySettings(**registry.settings())
    )
    known = asyncio.run(schemas_of(records(prefix(number)), settings))
    assert list(known) == [prefix(number)]
    assert asyncio.run(schemas_of(records(b"{}"), Settings())) == {}


def test_schemas_in_files(tmp_path: Path) -> None:
    """Each is known by its fingerprint; a file that is none is named."""
    file = tmp_path / "post.avsc"
    file.write_text(json.dumps(POST))
    settings = Settings(records=RecordSettings(format="avro", schema_files=(file,)))
    ((found, schema),) = schemas_in_files(settings).items()
    assert found[:2] == b"\xc3\x01"
    assert schema.text == file.read_text()
    for content in (b"{", b'"post"', b"\xff"):
        file.write_bytes(content)
        with pytest.raises(SettingsError, match=f"records.schema_files: .*{file}"):
            schemas_in_files(settings)
