"""*Blocking.* Reads the documents to evaluate on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from streamdedup.engine.arrow import ArrowRows
from streamdedup.errors import InputError
from streamdedup.files.lines import LineReader
from streamdedup.files.paths import expanded, for_files
from streamdedup.files.sources import examine, read_rows
from streamdedup.formats.objects import Refusal
from streamdedup.formats.records import Decoder
from streamdedup.model import Document, Position, Record, Rejection
from streamdedup.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents to evaluate on, in the order of the stream."""

    documents: list[Document]
    rejected: int = 0  # lines that are not documents
    labels: list[str] | None = None  # of each document, if the corpus is labelled

    def __len__(self) -> int:
        return len(self.documents)


def read_corpus(
    paths: Iterable[str],
    settings: Settings,
    limit: int | None = None,
    label_field: str | None = None,
) -> Corpus:
    """Read files into memory: JSON Lines, CSV, Parquet or Arrow.

    Args:
        paths: files, directories and patterns of file names; ``-`` is standard input.
        settings: the sections ``records`` and ``limits`` are used.
        limit: number of documents to read at most.
        label_field: column or dotted path of a document's label; a document without it has a label
            of its own.

    Raises:
        InputError: a file cannot be read, or the files hold no document.
    """
    paths, settings = expanded(paths), for_files(settings)
    # A label is decoded like an id: a document without one gets its position.
    labelling = None
    if label_field is not None:
        records = settings.records.model_copy(update={"id_field": label_field})
        labelling = settings.model_copy(update={"records": records})
    documents: list[Document] = []
    labels: list[str] = []
    rejected, first = 0, ""
    for document, label in _decoded(paths, settings, labelling):
        if isinstance(document, Rejection):
            rejected += 1
            first = first or f", the first with {document.reason}: {document.message}"
            continue
        documents.append(document)
        labels.append(label)
        if len(documents) == limit:
            break
    if not documents:
        raise InputError(
            f"the input holds no document to evaluate on: {rejected} lines were rejected{first}; "
            "check the input, --text-field and records.format"
        )
    return Corpus(documents, rejected, None if label_field is None else labels)


_Labelled = Iterator[tuple[Document | Rejection, str]]
"""Documents and their labels; a rejection for what is not a document."""


def _decoded(paths: tuple[str, ...], settings: Settings, labelling: Settings | None) -> _Labelled:
    sources = examine(paths, settings)
    if sources.fields is None:
        yield from _of_lines(paths, settings, labelling)
        return
    labels = examine(paths, labelling) if labelling is not None else None
    decoder = Decoder(settings.records, settings.limits)
    for path, kind in zip(paths, sources.kinds, strict=True):
        number = 0
        for rows in read_rows(path, kind, settings, sources, labels):
            yield from _of_rows(rows, decoder, f"{path}:0:", number)
            number += len(rows[0].fields)


def _of_rows(
    rows: tuple[ArrowRows, ArrowRows | None], decoder: Decoder, source: str, number: int
) -> _Labelled:
    """Yield the documents of some rows, which come once more with the labels as ids.

    A document without an id gets ``source`` and the number of its row; the first has ``number``.
    """
    fields, labels = rows[0].fields, rows[1].fields if rows[1] is not None else rows[0].fields
    columns = (fields.texts.tolist(), fields.ids.tolist(), labels.ids.tolist())
    namespaces = fields.namespaces.tolist() or [b""] * len(fields)
    times_ms = fields.event_times_ms.tolist()
    for row, values in enumerate(zip(*columns, namespaces, times_ms, strict=True)):
        text, id_, label, namespace, time_ms = values
        document: Document | Rejection
        try:
            document = decoder.decode_fields(text, id_, namespace, time_ms)
        except Refusal as refusal:
            document = refusal.rejection
        document = rows[0].refused.get(row, document)
        if isinstance(document, Rejection):
            yield document, ""
        else:
            default = f"{source}{number + row + 1}"
            named = document if id_ else replace(document, id=default)
            yield named, label.decode("utf-8", "backslashreplace") or default


def _of_lines(paths: Iterable[str], settings: Settings, labelling: Settings | None) -> _Labelled:
    decoder = Decoder(settings.records, settings.limits)
    labels = None if labelling is None else Decoder(labelling.records, settings.limits)
    is_json = settings.records.format == "json"
    for record in _records(paths, settings.limits.value_bytes, is_json=is_json):
        try:
            document = decoder.decode(record)
            yield document, "" if labels is None else labels.decode(record).id
        except Refusal as refusal:
            yield refusal.rejection, ""


def _records(paths: Iterable[str], most_bytes: int, *, is_json: bool) -> Iterator[Record]:
    for path in paths:
        with closing(LineReader(path, most_bytes, is_json=is_json)) as reader:
            while (line := reader.read()) is not None:
                if line.content.strip():
                    yield Record(Position(reader.name, 0, line.number + 1), line.content)
