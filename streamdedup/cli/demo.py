"""*Blocking.* ``streamdedup demo``: the embedded mode on text that every installation has."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from streamdedup.cli.interrupts import Interrupted, Interrupts
from streamdedup.cli.marked import marked
from streamdedup.dedup.differences import differences
from streamdedup.errors import InputError
from streamdedup.files.docstrings import write_docstrings

if TYPE_CHECKING:
    from streamdedup.files.run import Tally
    from streamdedup.model import Record, Verdict
    from streamdedup.sketch.codec import SignatureCodec

__all__ = ["demo", "write_docstrings"]

_PAIRS = 4
_READABLE = range(100, 900)
"""Characters of the texts that are shown by preference."""
_NEARLY_EXACT = 0.98


def demo(
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the demo's files go; made anew each time.")
    ] = Path("demo-out"),
) -> None:
    """See it work on the documentation strings of the installed Python.

    Thousands of real texts, with real near-duplicates among them. No Kafka and no network needed.
    """
    console = Console(highlight=False)
    try:
        with Interrupts() as interrupts:
            _demo(console, _Files(folder), interrupts)
    except Interrupted as interrupted:
        sys.stderr.write("streamdedup: interrupted\n")
        raise typer.Exit(interrupted.exit_code) from None


class _Files:
    """The files of a demo, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.documents = folder / "docstrings.jsonl"
        self.kept = folder / "kept.jsonl"
        self.duplicates = folder / "duplicates.jsonl"
        self.rejected = folder / "rejected.jsonl"
        self.index = folder / "index"

    def make_anew(self) -> None:
        """Remove what an earlier demo left; a folder with anything else in it is refused."""
        ours = {self.documents, self.kept, self.duplicates, self.rejected, self.index}
        try:
            strangers = set(self.folder.iterdir()) - ours if self.folder.exists() else set()
            if strangers:
                raise InputError(f"{self.folder} holds other files; give --folder another name")
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self.index, ignore_errors=True)
            for path in ours - {self.index}:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"cannot write {self.folder}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class _Pair:
    """A duplicate and the kept document that it repeats."""

    original: tuple[str, str]
    duplicate: tuple[str, str]
    similarity: float


@dataclass
class _Findings:
    """Gathers the texts of kept documents, and the pairs that are no exact copies."""

    texts: dict[str, str] = field(default_factory=dict)
    pairs: list[_Pair] = field(default_factory=list)

    def note(self, record: Record, verdict: Verdict) -> None:
        """Take a verdict in."""
        text = " ".join(msgspec.json.decode(record.value or b"{}")["text"].split())
        original = verdict.original
        if original is None:
            self.texts[verdict.id] = text
            return
        known = self.texts[original.id]
        if known != text:
            pair = _Pair((original.id, known), (verdict.id, text), original.jaccard_estimate)
            self.pairs.append(pair)

    def chosen(self) -> list[_Pair]:
        """Return a few readable pairs, spread over the similarities."""
        readable = [
            pair
            for pair in self.pairs
            if len(pair.duplicate[1]) in _READABLE and pair.similarity < _NEARLY_EXACT
        ]
        ranked = sorted(readable or self.pairs, key=lambda pair: pair.similarity)
        if len(ranked) <= _PAIRS:
            return ranked
        step = (len(ranked) - 1) / (_PAIRS - 1)
        return [ranked[round(place * step)] for place in range(_PAIRS)]


def _demo(console: Console, files: _Files, interrupts: Interrupts) -> None:
    # Imported late, so that --help need not wait for numba.
    from streamdedup.cli.progress import ProgressBar  # noqa: PLC0415
    from streamdedup.files import run as embedded  # noqa: PLC0415
    from streamdedup.files.job import Job  # noqa: PLC0415
    from streamdedup.settings.load import load_settings  # noqa: PLC0415
    from streamdedup.sketch.codec import SignatureCodec  # noqa: PLC0415

    files.make_anew()
    with console.status("Reading the documentation strings of the standard library"):
        count = write_docstrings(files.documents)
    console.print(f"[bold]{count:,}[/] documentation strings in {files.documents}")
    findings, settings = _Findings(), load_settings()
    job = Job(
        inputs=(str(files.documents),),
        kept=str(files.kept),
        duplicates=str(files.duplicates),
        rejected=str(files.rejected),
        index=files.index,
    )
    with ProgressBar(console) as bar:
        hooks = embedded.Hooks(bar.update, findings.note, interrupts.shield)
        tally = embedded.run(job, settings, hooks)
    console.print(_summary(tally, files))
    threshold = settings.dedup.threshold
    console.print(
        f"{len(findings.pairs):,} of the duplicates are no exact copies. Some of them, from the "
        f"threshold of {threshold:g} up, with the words that differ "
        f"{'in colour' if console.is_terminal else 'in [brackets]'}:",
        markup=False,
    )
    codec = SignatureCodec.of(settings.dedup.sketch_parameters())
    for pair in findings.chosen():
        console.print(_side_by_side(pair, codec, marks=not console.is_terminal))
    _what_next(console, files)


def _summary(tally: Tally, files: _Files) -> Padding:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("verdict")
    table.add_column("documents", justify="right")
    table.add_column("share", justify="right")
    table.add_column("written to", overflow="fold")
    rows: list[tuple[str, int, Path]] = [
        ("kept", tally.kept, files.kept),
        ("duplicate", tally.duplicates, files.duplicates),
        ("rejected", tally.rejected, files.rejected),
    ]
    for name, count, path in rows:
        table.add_row(name, f"{count:,}", f"{count / max(1, tally.documents):.1%}", str(path))
    rate = (
        f"{tally.documents:,} documents judged in {tally.seconds:.1f} s, start-up included: "
        f"{tally.documents_per_second:,.0f} per second."
    )
    return Padding(Group(table, Text(), Text(rate)), (1, 0))


def _side_by_side(pair: _Pair, codec: SignatureCodec, *, marks: bool) -> Panel:
    similarity = pair.similarity
    error = codec.standard_error(similarity)
    sides = differences(pair.original[1], pair.duplicate[1])
    table = Table(box=None, expand=True, padding=(0, 1), show_header=True)
    for role, name in (("kept", pair.original[0]), ("duplicate", pair.duplicate[0])):
        header = Text.assemble((f"{role} ", "bold"), (name, "cyan"))
        table.add_column(header, ratio=1, overflow="fold")
    table.add_row(*(marked(side, marks=marks) for side in sides))
    title = f"similarity {similarity:.2f} ± {error:.2f}"
    return Panel(table, title=title, title_align="left")


def _what_next(console: Console, files: _Files) -> None:
    documents = shlex.quote(str(files.documents))
    outputs = " ".join(
        f"--{name} {shlex.quote(str(path))}"
        for name, path in (
            ("kept", files.kept),
            ("duplicates", files.duplicates),
            ("rejected", files.rejected),
            ("index", files.index),
        )
    )
    console.print("\n[bold]What to try next[/]")
    for what, command in (
        ("Look at the duplicates", f"head -n 3 {shlex.quote(str(files.duplicates))}"),
        (
            "The same job again: no line is judged twice",
            f"streamdedup dedup {documents} {outputs}",
        ),
        ("Another threshold", f"streamdedup dedup {documents} --threshold 0.6"),
        ("Your own files", "streamdedup dedup YOURS.jsonl --kept kept.jsonl"),
        ("The Kafka worker", "streamdedup run --help"),
    ):
        # Not wrapped, so that commands can be copied whole.
        console.print(Text.assemble(f"  {what}\n    ", (command, "cyan")), soft_wrap=True)
