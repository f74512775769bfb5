"""*Pure.* Sizes of records, as the brokers count them against ``max.message.bytes``.

The brokers count a batch of records after its compression. A record that fits into a batch with
others fits uncompressed, so only larger ones are compressed here to learn their size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from streamdedup.kafka.decoding import escaped
from streamdedup.kafka.messages import TopicFacts
from streamdedup.model import Record
from streamdedup.settings.sections import Settings

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

RECORD_OVERHEAD = 4096
"""Most bytes that our headers and Kafka's framing add to a record, without ids and matches."""
_MATCH_OVERHEAD = 1024
"""Most bytes of a match without its id."""
_JSON_BYTES_PER_BYTE = 6
"""Most bytes that one byte of an id takes in JSON: ``\\u0000``."""
_CODECS: dict[Compression, int] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_AS_SENT = "producer"
"""Value of a topic's ``compression.type`` with which a broker stores batches as they come."""
_ROOM_FACTOR = 2
"""Room of a new output topic, in records of the source: another codec may take more bytes."""


@dataclass(frozen=True, slots=True)
class Additions:
    """Most bytes that messages to each output topic have beyond those of their record."""

    clean: int
    duplicates: int
    dead_letter: int

    @classmethod
    def from_settings(cls, settings: Settings) -> Additions:
        """Return the additions under these settings."""
        id_bytes = _JSON_BYTES_PER_BYTE * settings.limits.id_bytes
        matches = settings.output.max_matches * (_MATCH_OVERHEAD + id_bytes)
        duplicates = RECORD_OVERHEAD + 2 * id_bytes + matches
        annotates = settings.output.route == "annotate"
        clean = duplicates if annotates else RECORD_OVERHEAD + id_bytes
        return cls(clean, duplicates, RECORD_OVERHEAD)


def roomy_message_bytes(settings: Settings, source_bytes: int) -> int:
    """Return the ``max.message.bytes`` of output topics for a source topic with this one."""
    additions = Additions.from_settings(settings)
    return _ROOM_FACTOR * source_bytes + max(additions.clean, additions.duplicates)


def fits(
    topic: TopicFacts, record: Record, compression: Compression, added: int = RECORD_OVERHEAD
) -> bool:
    """Return whether a topic accepts a record with so many more bytes."""
    return taken(topic, record, compression, added) <= topic.max_message_bytes - added


def taken(
    topic: TopicFacts, record: Record, compression: Compression, added: int = RECORD_OVERHEAD
) -> int:
    """Return how many bytes of a topic's ``max.message.bytes`` a record takes at most.

    ``compression`` is the producer's. A topic may compress the batches itself: unless it has the
    producer's codec, the record must fit uncompressed. If there is room for the uncompressed record
    and the bytes that will be added, it is not compressed, which would take time.
    """
    # An upper bound, without its framing.
    uncompressed = len(record.value or b"") + len(record.key or b"")
    uncompressed += sum(len(name) * 4 + len(value or b"") + 10 for name, value in record.headers)
    if uncompressed <= topic.max_message_bytes - added:
        return uncompressed
    if topic.compression not in (_AS_SENT, compression):
        return uncompressed
    # A batch with only this record, as the producer sends it.
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=_CODECS[compression],
        is_transactional=1,
        producer_id=0,
        producer_epoch=0,
        base_sequence=0,
        batch_size=0,
    )
    headers = [(escaped(name), value) for name, value in record.headers]
    builder.append(0, 0, key=record.key, value=record.value, headers=headers)
    return min(uncompressed, len(builder.build()))
