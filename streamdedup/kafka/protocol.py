"""*Pure.* The one Kafka request that aiokafka lacks: metadata without topic auto-creation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest_v5
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String


class _Topics_v8(Response):  # type: ignore[misc] # noqa: N801 - as aiokafka names versions
    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            Array(
                ("node_id", Int32),
                ("host", String("utf-8")),
                ("port", Int32),
                ("rack", String("utf-8")),
            ),
        ),
        ("cluster_id", String("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", String("utf-8")),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
        ("cluster_authorized_operations", Int32),
    )


class _AskForTopics_v8(RequestStruct):  # type: ignore[misc] # noqa: N801
    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = _Topics_v8
    SCHEMA = Schema(
        ("topics", Array(String("utf-8"))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class AskForTopics(Request[MetadataRequest_v5 | _AskForTopics_v8]):  # type: ignore[misc]
    """Kafka's Metadata request; from version 8 on its answer says what we may do with a topic."""

    API_KEY = 3

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)

    def build(self, request_struct_class: type[Any]) -> Any:
        """Return the request in the version that the broker and the client both support."""
        if request_struct_class is _AskForTopics_v8:
            return _AskForTopics_v8(self._names, False, False, True)
        return request_struct_class(self._names, False)
