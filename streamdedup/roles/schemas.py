"""*Async.* The schemas that a worker or an edge needs: of its records, and of its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from streamdedup.formats.schemas import Schema
from streamdedup.kafka.messages import ClusterFacts
from streamdedup.model import Record, Rejection
from streamdedup.registry.opening import id_of_duplicates, open_registry, schemas_in_files
from streamdedup.settings.sections import Settings


class Schemas:
    """Asks the schema registry, if the settings have one.

    Args:
        settings: all settings.
        known: the schemas by prefix, to which this adds.

    Raises:
        SettingsError: a file cannot be read, or a package is missing.
    """

    def __init__(self, settings: Settings, known: dict[bytes, Schema]) -> None:
        self._settings = settings
        self._registry = open_registry(settings, known) if settings.uses_registry() else None
        known |= schemas_in_files(settings)

    async def reach(self, facts: ClusterFacts) -> ClusterFacts:
        """Check that the registry answers; return the facts with the schema of duplicate records.

        Raises:
            RegistryUnavailable: it does not answer.
            BrokerRefused: it refuses the login.
            SettingsError: the schema of duplicate records is not registered.
        """
        if self._registry is None:
            return facts
        await self._registry.reach()
        if self._settings.output.duplicates_format != "avro":
            return facts
        number = await id_of_duplicates(self._registry, self._settings)
        return replace(facts, duplicates_schema_id=number)

    async def provide(self, records: Sequence[Record]) -> dict[int, Rejection]:
        """Fetch the schemas of a batch; return the rejections of records without one, by row.

        Raises:
            RegistryUnavailable: the registry does not answer.
            BrokerRefused: it refuses the login.
        """
        if self._registry is None or self._settings.records.format != "registry":
            return {}
        return await self._registry.provide(records)

    async def close(self) -> None:
        """Close the connections to the registry."""
        if self._registry is not None:
            await self._registry.close()
