"""*Async.* The schema registry: its checks, and the registration of the duplicates' schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamdedup.admin.findings import Findings
from streamdedup.errors import SettingsError
from streamdedup.formats.schemas import duplicates_schema
from streamdedup.formats.written import SchemaError, compile_schema
from streamdedup.registry.opening import id_of_duplicates, open_registry, schemas_in_files
from streamdedup.settings.sections import Settings

if TYPE_CHECKING:
    from streamdedup.registry.client import Registry


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


async def check_registry(settings: Settings, findings: Findings) -> None:
    """Check that the registry answers, and that the schemas that it has can be used."""
    check = "schema registry"
    with findings.guarded(check):
        schemas_in_files(settings)
        if not settings.uses_registry():
            return
        registry = open_registry(settings, {})
        try:
            await registry.reach()
            findings.ok(check, f"{', '.join(settings.registry.urls)} answers")
            if settings.records.format == "registry":
                await _check_source(registry, settings.source_subject(), findings)
            if settings.output.duplicates_format == "avro":
                number = await id_of_duplicates(registry, settings)
                subject = settings.duplicates_subject()
                findings.ok("schema of duplicate records", f"{subject} has it, with id {number}")
        finally:
            await registry.close()


async def _check_source(registry: Registry, subject: str, findings: Findings) -> None:
    check = "schema of records"
    latest = await registry.latest(subject)
    if latest is None:
        # Producers may name their subjects otherwise.
        findings.skip(check, f"the registry has no subject {subject}")
        return
    try:
        compile_schema(latest)
    except SchemaError as error:
        raise SettingsError(
            f"the latest schema of {subject} {error}; records with it become dead letters; "
            "correct the schema"
        ) from error
    findings.ok(check, f"the latest one of {subject} is {latest.kind}")
