"""*Async.* Creates access control entries, a request that aiokafka lacks."""

from __future__ import annotations

from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int8, Int16, Int32, Schema, String

from deploy.broker.broker import Broker

TOPIC, TRANSACTIONAL_ID = 2, 5
"""Kafka's numbers of resource types."""

READ, WRITE, DESCRIBE, DESCRIBE_CONFIGS = 3, 4, 8, 10
"""Kafka's numbers of operations."""

_LITERAL, _ALLOW = 3, 3


class _CreateAclsResponse(Response):
    API_KEY = 30
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("results", Array(("error_code", Int16), ("error_message", String("utf-8")))),
    )


class _CreateAclsStruct(RequestStruct):
    API_KEY = 30
    API_VERSION = 1
    RESPONSE_TYPE = _CreateAclsResponse
    SCHEMA = Schema(
        (
            "creations",
            Array(
                ("resource_type", Int8),
                ("resource_name", String("utf-8")),
                ("pattern_type", Int8),
                ("principal", String("utf-8")),
                ("host", String("utf-8")),
                ("operation", Int8),
                ("permission_type", Int8),
            ),
        )
    )


class _CreateAcls(Request[_CreateAclsStruct]):
    API_KEY = 30

    def __init__(self, creations: list[tuple[Any, ...]]) -> None:
        self._creations = creations

    def build(self, request_struct_class: type[_CreateAclsStruct]) -> _CreateAclsStruct:
        return request_struct_class(self._creations)


async def allow(broker: Broker, resource_type: int, name: str, *operations: int) -> None:
    """Allow anonymous clients these operations on a resource, and thereby no others."""
    creations = [
        (resource_type, name, _LITERAL, "User:ANONYMOUS", "*", operation, _ALLOW)
        for operation in operations
    ]
    admin = AIOKafkaAdminClient(
        bootstrap_servers=broker.secured.sasl_bootstrap,
        security_protocol="SASL_PLAINTEXT",
        sasl_plain_username=broker.secured.username,
        sasl_plain_password=broker.secured.password,
    )
    await admin.start()
    try:
        answer = await admin._send_request(_CreateAcls(creations))  # noqa: SLF001
        assert [result[0] for result in answer.results] == [0] * len(creations), answer
    finally:
        await admin.close()
