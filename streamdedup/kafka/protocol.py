"""*Async.* Requests that aiokafka lacks. Only data: other modules send them.

Metadata in versions 8 and 10: aiokafka's own request lets brokers create the topics that it asks
for. Its versions end before the answer says what a client may do with a topic (version 8), and
which id a topic has (version 10, Kafka 2.8).

DescribeTransactions: the answer has a time by the clock of a broker.

ApiVersions in version 3: the answer lists the features of a broker, which show its release.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from aiokafka.protocol.admin import ApiVersionRequest_v0
from aiokafka.protocol.api import Request, RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.metadata import MetadataRequest_v5
from aiokafka.protocol.types import (
    AbstractType,
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

_SUPPORTED_FEATURES = 0
"""Tag of the features that a broker supports."""
NO_ID = uuid.UUID(int=0)
"""Id of a topic that has none, or is not known."""
NO_OPERATIONS = -(2**31)
"""Value of ``authorized_operations`` if the broker did not fill the field in."""
OPERATIONS = {3: "Read", 4: "Write", 8: "Describe", 10: "DescribeConfigs"}
"""The operations of Kafka's access control that a worker needs, by bit number."""

_Field = tuple[str, Any]

_TEXT = CompactString("utf-8")
_TAGS: _Field = ("tags", TaggedFields)


class _Uuid(AbstractType[uuid.UUID]):
    """16 bytes; the nil UUID means that there is none."""

    @classmethod
    def encode(cls, value: uuid.UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> uuid.UUID:
        return uuid.UUID(bytes=data.read(16))


def _metadata(text: Any, array: Any, topic_id: Sequence[_Field], tags: Sequence[_Field]) -> Schema:
    """Return the answer's schema, whose versions differ in these types and fields."""
    brokers = array(("node_id", Int32), ("host", text), ("port", Int32), ("rack", text), *tags)
    partitions = array(
        ("error_code", Int16),
        ("partition", Int32),
        ("leader", Int32),
        ("leader_epoch", Int32),
        ("replicas", array(Int32)),
        ("isr", array(Int32)),
        ("offline_replicas", array(Int32)),
        *tags,
    )
    topics = array(
        ("error_code", Int16),
        ("topic", text),
        *topic_id,
        ("is_internal", Boolean),
        ("partitions", partitions),
        ("authorized_operations", Int32),
        *tags,
    )
    return Schema(
        ("throttle_time_ms", Int32),
        ("brokers", brokers),
        ("cluster_id", text),
        ("controller_id", Int32),
        ("topics", topics),
        ("cluster_authorized_operations", Int32),
        *tags,
    )


class _MetadataResponseV8(Response):
    API_KEY = 3
    API_VERSION = 8
    SCHEMA = _metadata(String("utf-8"), Array, [], [])


class _MetadataRequestV8(RequestStruct):
    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = _MetadataResponseV8
    SCHEMA = Schema(
        ("topics", Array(String("utf-8"))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class _MetadataResponseV10(Response):
    API_KEY = 3
    API_VERSION = 10
    SCHEMA = _metadata(_TEXT, CompactArray, [("topic_id", _Uuid)], [_TAGS])


class _MetadataRequestV10(RequestStruct):
    API_KEY = 3
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _MetadataResponseV10
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("name", _TEXT), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        _TAGS,
    )


class MetadataRequest(Request[MetadataRequest_v5 | _MetadataRequestV8 | _MetadataRequestV10]):
    """Asks for topics without creating them."""

    API_KEY = 3

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)

    def build(self, request_struct_class: type[Any]) -> Any:
        """Return the request in the highest version that broker and client both support."""
        if request_struct_class is _MetadataRequestV10:
            tags: dict[int, bytes] = {}
            topics = [(NO_ID, name, tags) for name in self._names]
            return _MetadataRequestV10(topics, False, False, True, tags)
        if request_struct_class is _MetadataRequestV8:
            return _MetadataRequestV8(self._names, False, False, True)
        return request_struct_class(self._names, False)


class _DescribeTransactionsResponseV0(Response):
    API_KEY = 65
    API_VERSION = 0
    _TOPICS = CompactArray(("topic", _TEXT), ("partitions", CompactArray(Int32)), _TAGS)
    _STATES = CompactArray(
        ("error_code", Int16),
        ("transactional_id", _TEXT),
        ("transaction_state", _TEXT),
        ("transaction_timeout_ms", Int32),
        ("transaction_start_time_ms", Int64),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("topics", _TOPICS),
        _TAGS,
    )
    SCHEMA = Schema(("throttle_time_ms", Int32), ("transaction_states", _STATES), _TAGS)


class _DescribeTransactionsRequestV0(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 65
    API_VERSION = 0
    RESPONSE_TYPE = _DescribeTransactionsResponseV0
    SCHEMA = Schema(("transactional_ids", CompactArray(_TEXT)), _TAGS)


class DescribeTransactionsRequest(Request[_DescribeTransactionsRequestV0]):
    """Asks the coordinator of a transactional id for its transaction; needs Kafka 3.0."""

    API_KEY = 65

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id

    def build(self, request_struct_class: type[Any]) -> Any:
        """Return the request."""
        return request_struct_class([self._transactional_id], {})


class _ApiVersionsResponseV3(Response):
    API_KEY = 18
    API_VERSION = 3
    _VERSIONS = CompactArray(
        ("api_key", Int16), ("min_version", Int16), ("max_version", Int16), _TAGS
    )
    SCHEMA = Schema(
        ("error_code", Int16), ("api_versions", _VERSIONS), ("throttle_time_ms", Int32), _TAGS
    )


class _ApiVersionsRequestV3(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 18
    API_VERSION = 3
    RESPONSE_TYPE = _ApiVersionsResponseV3
    SCHEMA = Schema(("client_software_name", _TEXT), ("client_software_version", _TEXT), _TAGS)

    def parse_response_header(self, read_buffer: BytesIO | bytes) -> ResponseHeader_v0:
        """Read a header without tags: clients ask before they know the versions of a broker."""
        return ResponseHeader_v0.decode(read_buffer)


class ApiVersionsRequest(Request[ApiVersionRequest_v0 | _ApiVersionsRequestV3]):
    """Asks a broker for its features; an answer before version 3 (Kafka 2.4) has none."""

    API_KEY = 18

    def build(self, request_struct_class: type[Any]) -> Any:
        """Return the request in the highest version that broker and client both support."""
        if request_struct_class is _ApiVersionsRequestV3:
            return _ApiVersionsRequestV3("streamdedup", "unknown", {})
        return request_struct_class()


_FEATURES = CompactArray(("name", _TEXT), ("min_version", Int16), ("max_version", Int16), _TAGS)


def highest_level(answer: Any, feature: str) -> int | None:
    """Return the highest level of a feature in an answer to :class:`ApiVersionsRequest`."""
    listed = getattr(answer, "tags", {}).get(_SUPPORTED_FEATURES)
    features = _FEATURES.decode(BytesIO(listed)) if listed else None
    return next((highest for name, _, highest, _ in features or () if name == feature), None)
