"""*Blocking.* Reads the documents that an evaluation is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from streamdedup.errors import InputError
from streamdedup.files.lines import LineReader
from streamdedup.formats.records import Decoder, Refusal
from streamdedup.model import Document, Position, Record
from streamdedup.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents to evaluate on, in order.

    Attributes:
        rejected: lines that are no documents.
        labels: for each document the name of the group that people put it into, if they did.
    """

    documents: list[Document]
    rejected: int = 0
    labels: list[str] | None = None

    def __len__(self) -> int:
        return len(self.documents)


def read_corpus(
    paths: Iterable[str],
    settings: Settings,
    limit: int | None = None,
    label_field: str | None = None,
) -> Corpus:
    """Read JSON Lines files into memory.

    Args:
        paths: files, plain or packed; ``-`` is standard input.
        settings: ``records`` and ``limits`` matter here.
        limit: read no more documents.
        label_field: dotted path of the group that people put a document into; a document without
            it is in a group of its own.

    Raises:
        InputError: a file cannot be read, or there is nothing in them.
    """
    decoder = Decoder(settings.records, settings.limits)
    # A label is read as an id is: a document without one has its position.
    labelling = settings.records.model_copy(update={"id_field": label_field})
    label_of = Decoder(labelling, settings.limits).decode
    documents: list[Document] = []
    labels: list[str] = []
    rejected = 0
    for record in _records(paths, settings.limits.value_bytes):
        if limit is not None and len(documents) >= limit:
            break
        try:
            document = decoder.decode(record)
            if label_field is not None:
                labels.append(label_of(record).id)
        except Refusal:
            rejected += 1
        else:
            documents.append(document)
    if not documents:
        raise InputError(f"there are no documents to evaluate on ({rejected} lines are rejected)")
    return Corpus(documents, rejected, None if label_field is None else labels)


def _records(paths: Iterable[str], most_bytes: int) -> Iterator[Record]:
    for path in paths:
        reader = LineReader(path, most_bytes)
        try:
            while (line := reader.read()) is not None:
                if line.content.strip():
                    yield Record(Position(reader.name, 0, line.number + 1), line.content)
        finally:
            reader.close()
