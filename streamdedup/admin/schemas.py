"""*Async.* Registers the schema of duplicate records."""

from __future__ import annotations

from streamdedup.errors import SettingsError
from streamdedup.formats.schemas import duplicates_schema
from streamdedup.registry.opening import open_registry
from streamdedup.settings.sections import Settings


async def register_duplicates(settings: Settings) -> int:
    """Register the schema of duplicate records, unless the registry has it; return its id.

    Raises:
        SettingsError: there is no registry, or it refuses the schema.
        RegistryUnavailable: the registry does not answer.
        BrokerRefused: it refuses the login.
    """
    if not settings.registry.urls:
        raise SettingsError("registry.urls is not set; name the schema registry there")
    registry = open_registry(settings, {})
    try:
        schema = duplicates_schema(settings.output.duplicates_format)
        return await registry.register(settings.duplicates_subject(), schema)
    finally:
        await registry.close()
