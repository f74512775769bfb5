"""*Blocking.* Writes the examples of this release's formats, which later releases read or refuse.

    python -m tests.compatibility.write

Run it when ``FORMAT`` of the index or ``VERSION`` of the changelog was raised. Examples that were
written once are never changed: this release must read them or refuse them with a remedy.
"""

from __future__ import annotations

import json
import random
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from streamdedup.dedup.resolve import Rule, resolve
from streamdedup.formats import changelog
from streamdedup.index.layout import FORMAT
from streamdedup.index.store import Index
from streamdedup.model import Document, Verdict
from streamdedup.settings.sections import Settings
from tests.support.builders import open_index, sketched, small_settings

FOLDER = Path(__file__).parent
MEMBERS = ("manifest/data.mdb", "segments")
"""What an index directory holds apart from its lock."""

_SEED = 20_261_122
_NO_LIMIT = 2**40


def settings_of(directory: Path) -> Settings:
    """Return the settings that every example was written with."""
    return small_settings(directory, threshold=0.6, verify="exact", delta_documents=16)


def documents() -> list[Document]:
    """Return generated documents; every third one is a copy of an earlier one with a new ending."""
    rng = random.Random(_SEED)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(3, 8))) for _ in range(300)]
    texts: list[str] = []
    for number in range(60):
        if number % 3 == 2:
            texts.append(f"{rng.choice(texts)} {rng.choice(words)}")
        else:
            texts.append(" ".join(rng.choices(words, k=rng.randint(8, 20))))
    return [Document(text, id=f"id-{number}") for number, text in enumerate(texts)]


def probes() -> list[Document]:
    """Return copies of the documents, and as many new ones."""
    rng = random.Random(_SEED + 1)
    copies = [Document(f"{one.text}!", id=f"copy-{one.id}") for one in documents()]
    letters = "klmnopqrst"
    new = [
        Document("".join(rng.choices(letters, k=60)), id=f"new-{number}") for number in range(20)
    ]
    return [*copies, *new]


def judge(
    index: Index, batch: Sequence[Document], settings: Settings, first: int
) -> tuple[list[Verdict], bytes]:
    """Judge documents and keep the new ones; return the verdicts and the changelog entry."""
    sketches = sketched(batch, settings, first)
    judgement = resolve(
        sketches,
        index.probe(sketches.documents),
        Rule.from_settings(settings),
        index.next_number,
        index.clock,
    )
    (entry,) = changelog.encode(judgement.update, settings.fingerprint, _NO_LIMIT)
    index.apply(judgement.update, index.applied + 1)
    return list(judgement.verdicts), entry


def plain(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """Return the outcome of each verdict, and the ids of its matches."""
    return [
        [str(verdict.outcome), verdict.id, *(match.id for match in verdict.matches)]
        for verdict in verdicts
    ]


def main() -> None:
    """Write the example of the index, and that of the changelog with the verdicts."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder, "index")
        settings = settings_of(directory)
        entries = []
        with open_index(settings) as index:
            every = documents()
            for first in range(0, len(every), 12):
                _, entry = judge(index, every[first : first + 12], settings, first)
                entries.append(entry)
        # Probes change the index, so they see a copy.
        copy = Path(folder, "copy")
        shutil.copytree(directory, copy)
        with open_index(settings_of(copy)) as index:
            verdicts, _ = judge(index, probes(), settings_of(copy), len(every))
        with tarfile.open(FOLDER / f"index-{FORMAT}.tar.xz", "w:xz") as archive:
            for member in MEMBERS:
                archive.add(directory / member, member, filter=_anonymous)
    example = {
        "entries": [entry.hex() for entry in entries],
        "fingerprint": settings.fingerprint,
        "verdicts": plain(verdicts),
    }
    path = FOLDER / f"changelog-{changelog.VERSION}.json"
    path.write_text(json.dumps(example, indent=1) + "\n")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
