"""*Blocking.* Reads the documents to evaluate on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from streamdedup.errors import InputError
from streamdedup.files.lines import LineReader
from streamdedup.formats.objects import Refusal
from streamdedup.formats.records import Decoder
from streamdedup.model import Document, Position, Record
from streamdedup.settings.sections import Settings


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents to evaluate on, in the order of the stream.

    Attributes:
        documents: the documents.
        rejected: number of lines that are not documents.
        labels: the label of each document, if the corpus is labelled.
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
        paths: files, plain or compressed; ``-`` is standard input.
        settings: the sections ``records`` and ``limits`` are used.
        limit: number of documents to read at most.
        label_field: dotted path of a document's label; a document without it has a label of its
            own.

    Raises:
        InputError: a file cannot be read, or the files hold no document.
    """
    decoder = Decoder(settings.records, settings.limits)
    # A label is decoded like an id: a document without one gets its position.
    labelling = settings.records.model_copy(update={"id_field": label_field})
    decode_label = Decoder(labelling, settings.limits).decode
    documents: list[Document] = []
    labels: list[str] = []
    rejected = 0
    for record in _records(paths, settings.limits.value_bytes):
        if limit is not None and len(documents) >= limit:
            break
        try:
            document = decoder.decode(record)
            if label_field is not None:
                labels.append(decode_label(record).id)
        except Refusal:
            rejected += 1
        else:
            documents.append(document)
    if not documents:
        raise InputError(
            f"the input holds no document to evaluate on ({rejected} lines were rejected)"
        )
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
