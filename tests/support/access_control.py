"""*Async.* What the administrator of a broker does: permissions and passwords.

aiokafka lacks these requests.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Schema,
    String,
    TaggedFields,
)

from deploy.broker.broker import Broker

RESOURCES = {"topic": 2, "group": 3, "cluster": 4, "transactional id": 5}
"""Kafka's numbers of resource types."""

OPERATIONS = {
    "Read": 3,
    "Write": 4,
    "Create": 5,
    "Delete": 6,
    "Alter": 7,
    "Describe": 8,
    "DescribeConfigs": 10,
}
"""Kafka's numbers of operations."""

MECHANISMS = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
"""Kafka's numbers of mechanisms, and their hash functions."""

_LITERAL, _ALLOW = 3, 3
_ITERATIONS = 4096


class Permission(NamedTuple):
    """An operation on a resource; for the cluster the name is ``kafka-cluster``."""

    resource: str
    name: str
    operation: str


class _CreateAclsResponse(Response):
    API_KEY = 30
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("results", Array(("error_code", Int16), ("error_message", String("utf-8")))),
    )


_ACL = (
    ("resource_type", Int8),
    ("resource_name", String("utf-8")),
    ("pattern_type", Int8),
    ("principal", String("utf-8")),
    ("host", String("utf-8")),
    ("operation", Int8),
    ("permission_type", Int8),
)


class _CreateAclsStruct(RequestStruct):
    API_KEY = 30
    API_VERSION = 1
    RESPONSE_TYPE = _CreateAclsResponse
    SCHEMA = Schema(("creations", Array(*_ACL)))


class _DeleteAclsResponse(Response):
    API_KEY = 31
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            Array(
                ("error_code", Int16),
                ("error_message", String("utf-8")),
                (
                    "matching",
                    Array(("error_code", Int16), ("error_message", String("utf-8")), *_ACL),
                ),
            ),
        ),
    )


class _DeleteAclsStruct(RequestStruct):
    API_KEY = 31
    API_VERSION = 1
    RESPONSE_TYPE = _DeleteAclsResponse
    SCHEMA = Schema(("filters", Array(*_ACL)))


class _AlterScramResponse(Response):
    API_KEY = 51
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            CompactArray(
                ("user", CompactString("utf-8")),
                ("error_code", Int16),
                ("error_message", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _AlterScramStruct(RequestStruct):
    API_KEY = 51
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _AlterScramResponse
    SCHEMA = Schema(
        (
            "deletions",
            CompactArray(
                ("name", CompactString("utf-8")), ("mechanism", Int8), ("tags", TaggedFields)
            ),
        ),
        (
            "upsertions",
            CompactArray(
                ("name", CompactString("utf-8")),
                ("mechanism", Int8),
                ("iterations", Int32),
                ("salt", CompactBytes),
                ("salted_password", CompactBytes),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _CreateAcls(Request[_CreateAclsStruct]):
    API_KEY = 30

    def __init__(self, creations: list[tuple[Any, ...]]) -> None:
        self._creations = creations

    def build(self, request_struct_class: type[_CreateAclsStruct]) -> _CreateAclsStruct:
        return request_struct_class(self._creations)


class _DeleteAcls(Request[_DeleteAclsStruct]):
    API_KEY = 31

    def __init__(self, filters: list[tuple[Any, ...]]) -> None:
        self._filters = filters

    def build(self, request_struct_class: type[_DeleteAclsStruct]) -> _DeleteAclsStruct:
        return request_struct_class(self._filters)


class _AlterScram(Request[_AlterScramStruct]):
    API_KEY = 51

    def __init__(self, upsertions: list[tuple[Any, ...]]) -> None:
        self._upsertions = upsertions

    def build(self, request_struct_class: type[_AlterScramStruct]) -> _AlterScramStruct:
        return request_struct_class([], self._upsertions, {})


def _entries(user: str, permissions: Iterable[Permission]) -> list[tuple[Any, ...]]:
    return [
        (RESOURCES[kind], name, _LITERAL, f"User:{user}", "*", OPERATIONS[operation], _ALLOW)
        for kind, name, operation in permissions
    ]


async def _ask(broker: Broker, request: Any) -> Any:
    """Send a request; clients of the plaintext listener may do everything."""
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        return await admin._send_request(request)  # noqa: SLF001
    finally:
        await admin.close()


async def allow(broker: Broker, user: str, permissions: Iterable[Permission]) -> None:
    """Give a user permissions."""
    answer = await _ask(broker, _CreateAcls(_entries(user, permissions)))
    assert {result[0] for result in answer.results} <= {0}, answer


async def revoke(broker: Broker, user: str, permissions: Iterable[Permission]) -> None:
    """Take permissions from a user."""
    answer = await _ask(broker, _DeleteAcls(_entries(user, permissions)))
    assert [(result[0], len(result[2])) for result in answer.results] == [
        (0, 1) for _ in permissions
    ], answer


async def set_scram_password(broker: Broker, user: str, mechanism: str, password: str) -> None:
    """Set or replace the password of a user, for one mechanism."""
    number, hash_name = MECHANISMS[mechanism]
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, _ITERATIONS)
    answer = await _ask(broker, _AlterScram([(user, number, _ITERATIONS, salt, salted, {})]))
    assert [result[1] for result in answer.results] == [0], answer
