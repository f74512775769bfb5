"""*Blocking* (runs protoc once per schema). Protobuf values, without generated classes."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import functools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from google.protobuf import json_format, struct_pb2, wrappers_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from streamdedup.formats.objects import Refusal
from streamdedup.formats.schemas import Schema

_MAIN = "schema.proto"
_PROTOC_S = 30.0
_WELL_KNOWN = tuple(
    FileDescriptorProto.FromString(
        import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR.serialized_pb
    )
    for name in (
        *("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context"),
        *("struct", "timestamp", "type", "wrappers"),
    )
)
"""Files that every compiler of Protobuf has."""
_WRAPPERS = frozenset(
    f"google.protobuf.{name}" for name in wrappers_pb2.DESCRIPTOR.message_types_by_name
)
_JSON_LIKE = frozenset(
    f"google.protobuf.{name}" for name in struct_pb2.DESCRIPTOR.message_types_by_name
)
_FIRST = b"\0"  # message indexes of the first message of a file
_LONGEST_VARINT, _CONTINUES = 10, 0x80


def protobuf_parser(schema: Schema) -> Callable[[bytes, bytes], dict[str, Any]]:
    """Return the parser of values that were written with a schema.

    The parser takes a value, and the rest of its frame. The message indexes, which say what message
    of the file the value is, begin one of them: the frame if it has more, else the value.

    Raises:
        ValueError, TypeError, DecodeError: the schema is not valid.
    """
    file = _file(schema)
    classes: dict[bytes, Any] = {}

    def parse(value: bytes, frame: bytes) -> dict[str, Any]:
        try:
            indexes, content = (frame, value) if frame else _split(value)
            message_class = classes.get(indexes)
            if message_class is None:
                message_class = classes[indexes] = GetMessageClass(_message(file, indexes))
            return _plain(message_class.FromString(content))
        except (DecodeError, IndexError) as error:
            message = f"the value does not fit its Protobuf schema: {error}"
            raise Refusal("InvalidProtobuf", message) from error

    return parse


def _file(schema: Schema) -> FileDescriptor:
    """Return the descriptor of the schema's file.

    Registries return a schema as text, or as a descriptor in base64: as it was registered.
    """
    texts, described = dict[str, str](), list[FileDescriptorProto]()
    for name, content in (*schema.references, (_MAIN, schema.text)):
        try:
            file = FileDescriptorProto.FromString(base64.b64decode(content, validate=True))
        except binascii.Error:
            texts[name] = content
        else:
            file.name = name
            described.append(file)
    known = {file.name: file for file in (*_WELL_KNOWN, *described)}
    known |= {file.name: file for file in (_compiled(texts, described) if texts else ())}
    pool, added = DescriptorPool(), set[str]()

    def add(name: str) -> None:
        if name not in added:
            added.add(name)
            for dependency in known[name].dependency:
                add(dependency)
            pool.AddSerializedFile(known[name].SerializeToString())

    add(_MAIN)
    return pool.FindFileByName(_MAIN)


def _compiled(
    texts: Mapping[str, str], described: Sequence[FileDescriptorProto]
) -> list[FileDescriptorProto]:
    """Compile files; return their descriptors, and those of what they import.

    protoc runs in a process of its own: it writes its messages to the standard error, and a schema
    may be hostile.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for name, text in texts.items():
            path = (root / name).resolve()
            if root not in path.parents:
                raise ValueError(f"the name {name!r} of a reference leads out of its folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        output, given = root / "output", root / "given"
        options = [f"-I{root}", "--include_imports", f"--descriptor_set_out={output}"]
        if described:
            given.write_bytes(FileDescriptorSet(file=described).SerializeToString())
            options.append(f"--descriptor_set_in={given}")
        result = subprocess.run(  # noqa: S603 - the arguments are our own
            [
                sys.executable,
                "-m",
                "grpc_tools.protoc",
                *options,
                *(str(root / name) for name in texts),
            ],
            capture_output=True,
            text=True,
            timeout=_PROTOC_S,
            check=False,
        )
        if result.returncode:
            raise ValueError(" ".join(result.stderr.split()) or "protoc failed")
        return list(FileDescriptorSet.FromString(output.read_bytes()).file)


def _split(value: bytes) -> tuple[bytes, bytes]:
    """Return the message indexes that begin a value, and the rest.

    Indexes are zigzag varints: their number, then each; a single zero is short for the first
    message.
    """
    if value[:1] == _FIRST:
        return _FIRST, value[1:]
    count, end = _varint(value, 0)
    for _ in range(count):
        _, end = _varint(value, end)
    return value[:end], value[end:]


def _message(file: FileDescriptor, indexes: bytes) -> Descriptor:
    """Return the message of a file that indexes name: one on the top level, then nested ones."""
    path, end = [], 0
    while end < len(indexes):
        index, end = _varint(indexes, end)
        path.append(index)
    first, *nested = path[1:] or [0]
    message = list(file.message_types_by_name.values())[first]
    for index in nested:
        message = message.nested_types[index]
    return message


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """Return a zigzag varint and its end; IndexError if it is negative, too large or cut off."""
    number = 0
    for place in range(_LONGEST_VARINT):
        byte = data[start + place]
        number |= (byte & 0x7F) << (7 * place)
        if byte < _CONTINUES:
            if number & 1:
                break
            return number >> 1, start + place + 1
    raise IndexError("the message indexes are invalid")


def _plain(message: Message) -> dict[str, Any]:
    """Return the fields of a message as an object.

    Fields of repeated values are left out: they are neither texts nor names. A number or a time
    without presence that is zero counts as missing, since Protobuf does not tell them apart.
    """
    fields: dict[str, Any] = dict.fromkeys(_empty_texts(message.DESCRIPTOR), "")
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            kind = field.message_type.fields_by_name["value"]
            fields[field.name] = {str(key): _scalar(kind, each) for key, each in value.items()}
        elif not field.is_repeated:
            fields[field.name] = _scalar(field, value)
    return fields


@functools.cache
def _empty_texts(message: Descriptor) -> tuple[str, ...]:
    """Return the texts without presence: an empty one is a text, but ListFields leaves it out."""
    return tuple(
        field.name
        for field in message.fields
        if field.type == field.TYPE_STRING and not (field.is_repeated or field.has_presence)
    )


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else value
    if field.message_type is None:
        return value
    name = field.message_type.full_name
    if name == "google.protobuf.Timestamp":
        return value.ToDatetime(tzinfo=dt.UTC)
    if name in _WRAPPERS:
        return value.value
    if name in _JSON_LIKE:
        return json_format.MessageToDict(value)
    return _plain(value)
