"""*Async.* Claims: only one changelog may judge a source topic into a clean topic.

The transactional id fences workers of one changelog. Workers of different changelogs would write
each record twice. So each claims the pair of topics: in the group ``topics.claims`` it commits an
offset of its changelog, with the name of the source topic as metadata. It commits before it reads
the claims of others, so of workers that start together at most one continues.

Brokers delete a claim with its changelog topic, and some days after it was last renewed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from streamdedup.errors import TopicError
from streamdedup.failpoints import reach
from streamdedup.kafka.cluster import admin_client
from streamdedup.kafka.connection import POLL_S
from streamdedup.kafka.offsets import check_answer
from streamdedup.settings.sections import Settings


async def claim(settings: Settings) -> None:
    """Claim the source and the clean topic for the changelog, or renew the claim.

    Raises what :func:`check_claims` raises.
    """
    async with admin_client(settings.kafka) as admin:
        await _check(admin, settings)
        await _commit(admin, settings, settings.topics.source)
        reach("claim")
        try:
            await _check(admin, settings)
        except TopicError:
            # Another one has claimed at the same moment, and may have been accepted.
            await _commit(admin, settings, "")
            raise


async def check_claims(settings: Settings) -> None:
    """Check that no other changelog has claimed the source and the clean topic.

    Raises:
        TopicError: one has.
        BrokerRefused: this client may not use the group of the claims.
        BrokerUnavailable: its coordinator does not answer.
    """
    async with admin_client(settings.kafka) as admin:
        await _check(admin, settings)


async def _commit(admin: AIOKafkaAdminClient, settings: Settings, source: str) -> None:
    no_member = (OffsetCommitRequest.DEFAULT_GENERATION_ID, "")
    retention, claims = OffsetCommitRequest.DEFAULT_RETENTION_TIME, settings.topics.claims
    claimed = [(settings.topics.changelog, [(0, 0, source)])]
    await _ask(admin, settings, OffsetCommitRequest(claims, *no_member, retention, claimed))


async def _check(admin: AIOKafkaAdminClient, settings: Settings) -> None:
    topics = settings.topics
    claims = await _ask(admin, settings, OffsetFetchRequest(topics.claims, None))
    others = [
        changelog
        for changelog, partitions in claims
        for _, _, source, _ in partitions
        if source == topics.source and changelog != topics.changelog
    ]
    if others:
        raise TopicError(
            f"a worker with topics.changelog {others[0]} judges {topics.source} into "
            f"{topics.clean}: two would write each record twice; use its changelog, or another "
            "clean topic; if that worker was given up, end its claim with "
            "'kafka-consumer-groups.sh --bootstrap-server "
            f"{settings.kafka.bootstrap_servers[0]} --delete --group {topics.claims}'"
        )


async def _ask(admin: AIOKafkaAdminClient, settings: Settings, request: Any) -> Any:
    """Send a request to the coordinator of the claims until it answers; return the topics.

    A cluster creates its coordinators on the first request, which takes a moment.
    """
    group = settings.topics.claims
    async with asyncio.timeout(settings.kafka.request_timeout.total_seconds()):
        while True:
            try:
                node = await admin.find_coordinator(group)
                answer = await admin._send_request(request, node)
                check_answer(answer, group)
            except errors.KafkaError as error:
                if not error.retriable:
                    raise
            else:
                return answer.topics
            await asyncio.sleep(POLL_S)
