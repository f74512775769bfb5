"""Where a partition of the source may continue: the decision and its messages."""

from __future__ import annotations

import pytest

from streamdedup.errors import TopicError
from streamdedup.kafka.source_offsets import SourceOffsets, check_begin
from streamdedup.settings.kafka import KafkaSettings

KAFKA = KafkaSettings(group_id="g", bootstrap_servers=("one:1", "two:2"))
SKIPPING = KAFKA.model_copy(update={"skip_unjudged": True})
COMMAND = "'kafka-consumer-groups.sh --bootstrap-server one:1 --group g --topic t"


def offsets(begin: int, judged: int, first: int, end: int, partition: int = 0) -> SourceOffsets:
    """Return offsets of a partition of topic t."""
    return SourceOffsets("t", partition, begin, judged, first, end)


@pytest.mark.parametrize(
    "accepted",
    [
        pytest.param(offsets(20, 20, 0, 20), id="nothing new"),
        pytest.param(offsets(20, 20, 20, 20), id="all judged records deleted"),
        pytest.param(offsets(20, 20, 0, 50), id="new records"),
        pytest.param(offsets(30, 0, 0, 50), id="nothing known, as in a new group"),
        pytest.param(offsets(5, 20, 0, 50), id="set back"),
        pytest.param(offsets(30, 20, 30, 50), id="forward over deleted records"),
        pytest.param(offsets(0, 0, 0, 0), id="empty"),
    ],
)
def test_a_start_that_skips_nothing(accepted: SourceOffsets) -> None:
    """It is accepted, and skips nothing."""
    assert accepted.skipped_from() is None
    assert check_begin([accepted], KAFKA) == []


@pytest.mark.parametrize(
    ("skipping", "first"),
    [
        pytest.param(offsets(21, 20, 0, 50), 20, id="one record"),
        pytest.param(offsets(50, 20, 0, 50), 20, id="all records"),
        pytest.param(offsets(30, 20, 25, 50), 25, id="some of them are deleted"),
        pytest.param(offsets(30, 20, 29, 50), 29, id="all but one are deleted"),
    ],
)
def test_a_start_that_skips_records(skipping: SourceOffsets, first: int) -> None:
    """It is refused with the command that sets the offset back, unless the settings allow it."""
    assert check_begin([offsets(0, 0, 0, 9, 1), skipping], SKIPPING) == [skipping]
    with pytest.raises(TopicError) as refused:
        check_begin([offsets(0, 0, 0, 9, 1), skipping], KAFKA)
    message = str(refused.value)
    assert f"(partition 0: committed {skipping.begin}, judged up to {first})" in message
    assert f"{COMMAND}:0 --reset-offsets --to-offset {first} --execute'; to skip" in message


def test_many_partitions_that_skip_records() -> None:
    """The message names five of them, and gives the command for the first."""
    skips = [offsets(9, 5, 0, 9, partition) for partition in range(7)]
    with pytest.raises(TopicError) as refused:
        check_begin(skips, KAFKA)
    message = str(refused.value)
    assert "partition 4: committed 9, judged up to 5; and 2 more)" in message
    assert "partition 5" not in message
    assert "--to-offset 5 --execute', and likewise for the others; to skip" in message
    with pytest.raises(TopicError) as refused:
        check_begin(skips[:5], KAFKA)
    assert "partition 4: committed 9, judged up to 5)" in str(refused.value)


@pytest.mark.parametrize("kafka", [KAFKA, SKIPPING])
def test_offsets_outside_of_the_topic(kafka: KafkaSettings) -> None:
    """They are refused whatever the settings."""
    with pytest.raises(TopicError) as refused:
        check_begin([offsets(20, 20, 21, 50, 3)], kafka)
    message = str(refused.value)
    assert "t partition 3: the group continues at offset 20, the topic begins at 21" in message
    assert message.endswith(f"{COMMAND}:3 --reset-offsets --to-earliest --execute'")
    with pytest.raises(TopicError, match=r"at offset 51, the topic ends at 50: .* recreated"):
        check_begin([offsets(51, 20, 0, 50)], kafka)
