"""*Blocking* (may run protoc). Parses values with the schemas that they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from streamdedup.formats.objects import Refusal, parse_json
from streamdedup.formats.schemas import FRAME_HEADER, Schema, describe_prefix, prefix_of

_Parse: TypeAlias = Callable[[bytes, bytes], dict[str, Any]]
"""Takes a value without its prefix, and the rest of its frame."""


class SchemaError(Exception):
    """A schema that cannot be used."""


class SchemaParser:
    """Parses values, each with the schema that it names; the schemas, by prefix, may grow."""

    def __init__(self, schemas: Mapping[bytes, Schema]) -> None:
        self._schemas = schemas
        self._ready: dict[bytes, _Parse] = {}

    def parse(self, value: bytes, frame: bytes) -> dict[str, Any]:
        """Parse a value, or raise a Refusal; the frame is empty if the value has its prefix."""
        prefix = prefix_of(value, frame)
        parse = self._ready.get(prefix)
        if parse is None:
            parse = self._ready[prefix] = self._prepare(prefix)
        if frame:
            return parse(value, frame[len(prefix) :])
        return parse(value[len(prefix) :], b"")

    def _prepare(self, prefix: bytes) -> _Parse:
        if not prefix:
            raise Refusal(
                "NoSchema",
                "the value does not begin with the id of a schema, and no header "
                f"{FRAME_HEADER} has one",
            )
        schema = self._schemas.get(prefix)
        if schema is None:
            raise Refusal("UnknownSchema", f"the schema with {describe_prefix(prefix)} is unknown")
        try:
            return compile_schema(schema)
        except SchemaError as error:
            message = f"the schema with {describe_prefix(prefix)} {error}"

            def refuse(_: bytes, __: bytes) -> dict[str, Any]:
                raise Refusal("UnusableSchema", message)

            return refuse


def compile_schema(schema: Schema) -> _Parse:
    """Return the parser of a schema's values; SchemaError if it cannot be used."""
    try:
        # Imports only the libraries that it needs.
        if schema.kind == "JSON":
            return lambda value, _: parse_json(value)
        if schema.kind == "AVRO":
            from streamdedup.formats.avro import avro_parser

            parse = avro_parser(schema)
            return lambda value, _: parse(value)
        from streamdedup.formats.protobuf import protobuf_parser

        return protobuf_parser(schema)
    except ImportError:
        raise
    except Exception as error:
        # The libraries raise errors of many kinds.
        text = " ".join(str(error).split())
        raise SchemaError(f"cannot be used: {type(error).__name__}: {text}") from error
