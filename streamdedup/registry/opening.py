"""*Async.* Where the schemas of records come from, by the settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamdedup.errors import SettingsError
from streamdedup.extras import install
from streamdedup.formats.schemas import Schema, duplicates_schema
from streamdedup.model import Record
from streamdedup.settings.sections import Settings

if TYPE_CHECKING:
    from streamdedup.registry.client import Registry


def schemas_in_files(settings: Settings) -> dict[bytes, Schema]:
    """Return the schemas of ``records.schema_files`` by prefix; none with other formats.

    Raises:
        SettingsError: a file cannot be read or holds another schema, or fastavro is missing.
    """
    if settings.records.format != "avro":
        return {}
    try:
        from streamdedup.formats.avro import single_object_prefix
    except ImportError as error:
        raise _missing("records.format avro") from error
    schemas = {}
    for path in settings.records.schema_files:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"records.schema_files: cannot read {path}: {error}") from error
        try:
            schemas[single_object_prefix(text)] = Schema("AVRO", text)
        except Exception as error:
            # fastavro raises errors of many kinds.
            raise SettingsError(
                f"records.schema_files: {path} is not an Avro schema: {type(error).__name__}: "
                f"{error}"
            ) from error
    return schemas


def open_registry(settings: Settings, known: dict[bytes, Schema]) -> Registry:
    """Return the registry of the settings, which adds to the known schemas by prefix.

    Raises:
        SettingsError: a file cannot be read, or the extra ``registry`` is not installed.
    """
    try:
        import fastavro  # noqa: F401 - a process of the pool could only end without it
        import google.protobuf  # noqa: F401
        import grpc_tools.protoc  # type: ignore[import-untyped] # noqa: F401

        from streamdedup.registry.client import Registry
    except ImportError as error:
        raise _missing("the section registry") from error
    return Registry(settings.registry, known)


async def id_of_duplicates(registry: Registry, settings: Settings) -> int:
    """Return the registry's id of the Avro schema of duplicate records.

    Raises what :meth:`Registry.reach` raises, and SettingsError if it is not registered.
    """
    subject = settings.duplicates_subject()
    number = await registry.id_of(subject, duplicates_schema("avro"))
    if number is None:
        raise SettingsError(
            f"the registry does not have the schema of duplicate records as {subject}; run "
            "'streamdedup topics schema --register'"
        )
    return number


async def schemas_of(records: Sequence[Record], settings: Settings) -> dict[bytes, Schema]:
    """Return the schemas of some records, by prefix; none if values do not name theirs.

    Raises what :meth:`Registry.reach` raises.
    """
    known = schemas_in_files(settings)
    if settings.records.format == "registry":
        registry = open_registry(settings, known)
        try:
            await registry.provide(records)
        finally:
            await registry.close()
    return known


def _missing(what: str) -> SettingsError:
    return SettingsError(f"{what} needs packages that are not installed; run {install('registry')}")
