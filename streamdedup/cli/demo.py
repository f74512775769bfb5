"""*Blocking.* ``streamdedup demo``: the embedded mode on the text of the installed Python."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamdedup.cli import options
from streamdedup.cli.terminal import interruptible
from streamdedup.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.padding import Padding
    from rich.panel import Panel

    from streamdedup.files.job import Job
    from streamdedup.files.run import RunTally
    from streamdedup.model import Record, Verdict
    from streamdedup.sketch.codec import SignatureCodec

_PAIRS = 4
"""Pairs that are shown."""
_READABLE = range(100, 900)
"""Characters of the texts that are preferred as examples."""
_NEARLY_EXACT = 0.98
"""Pairs from this similarity on are not preferred as examples."""

Folder = Annotated[
    Path,
    typer.Option(
        metavar="DIR", **options.FILLED, help="Folder of the demo's files; each run replaces them."
    ),
]


def demo(folder: Folder = Path("demo-out")) -> None:
    """Filter the documentation strings of the installed Python.

    They are thousands of real texts with real near-duplicates. The demo needs no Kafka and no
    network.
    """
    from rich.console import Console

    console = Console(highlight=False)
    documents, index = folder / "docstrings.jsonl", folder / "index"
    kept, duplicates, rejected = (
        folder / f"{name}.jsonl" for name in ("kept", "duplicates", "rejected")
    )
    with interruptible("interrupted") as interrupts:
        from streamdedup.cli import screen
        from streamdedup.files import run
        from streamdedup.files.docstrings import write_docstrings
        from streamdedup.files.job import Job
        from streamdedup.sketch.codec import SignatureCodec

        _clear(folder, documents, [kept, duplicates, rejected], index)
        with console.status("Reading the documentation strings of the standard library"):
            count = write_docstrings(documents)
        console.print(f"[bold]{count:,}[/] documentation strings in {documents}")
        pairs, settings = _Pairs(), options.load(None)
        job = Job((str(documents),), str(kept), str(duplicates), str(rejected), index)
        with screen.judging_progress(console) as update:
            tally = run.run(job, settings, run.Hooks(update, pairs.add, interrupts.shield))
        console.print(_summary(tally, job))
        console.print(
            f"{len(pairs.pairs):,} of the duplicates are not exact copies. Some of them, from the "
            f"threshold of {settings.dedup.threshold:g} up, with the words that differ "
            f"{'in colour' if console.is_terminal else 'in [brackets]'}:",
            markup=False,
        )
        codec = SignatureCodec.of(settings.dedup.sketch_parameters())
        for pair in pairs.examples():
            console.print(_side_by_side(pair, codec, brackets=not console.is_terminal))
        _print_next_steps(console, job)


def _clear(folder: Path, documents: Path, outputs: list[Path], index: Path) -> None:
    """Create the folder of a demo, or remove the files of an earlier one."""
    try:
        found = set(folder.iterdir()) if folder.exists() else set()
        # The outputs have common names: without its documents the folder is not a demo's.
        if found and (found - {documents, *outputs, index} or documents not in found):
            raise InputError(f"{folder} contains other files; choose another folder with --folder")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(index, ignore_errors=True)
        for path in (*outputs, documents):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class _Pair:
    """A duplicate and the kept document that it repeats: id and text of each."""

    original: tuple[str, str]
    duplicate: tuple[str, str]
    similarity: float


@dataclass
class _Pairs:
    """Collects the texts of kept documents, and the pairs that are not exact copies."""

    texts: dict[str, str] = field(default_factory=dict)
    pairs: list[_Pair] = field(default_factory=list)

    def add(self, record: Record, verdict: Verdict) -> None:
        text = " ".join(json.loads(record.value or b"{}")["text"].split())
        original = verdict.original
        if original is None:
            self.texts[verdict.id] = text
            return
        kept, similarity = self.texts[original.id], original.jaccard_estimate
        if kept != text:
            self.pairs.append(_Pair((original.id, kept), (verdict.id, text), similarity))

    def examples(self) -> list[_Pair]:
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
        return [ranked[round(number * step)] for number in range(_PAIRS)]


def _summary(tally: RunTally, job: Job) -> Padding:
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from streamdedup.cli import screen

    table = Table(show_edge=False, pad_edge=False)
    table.add_column("verdict")
    table.add_column("documents", justify="right")
    table.add_column("share", justify="right")
    table.add_column("written to", overflow="fold")
    for name, count, path in (
        ("kept", tally.kept, job.kept),
        ("duplicate", tally.duplicates, job.duplicates),
        ("rejected", tally.rejected, job.rejected),
    ):
        table.add_row(name, f"{count:,}", f"{count / max(1, tally.documents):.1%}", path)
    rate = (
        f"{tally.documents:,} documents judged in {tally.seconds:.1f} s, "
        f"{tally.documents_per_second:,.0f} per second, after {screen.start(tally)}."
    )
    return Padding(Group(table, Text(), Text(rate)), (1, 0))


def _side_by_side(pair: _Pair, codec: SignatureCodec, *, brackets: bool) -> Panel:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    from streamdedup.cli import screen
    from streamdedup.dedup.differences import differences

    table = Table(box=None, expand=True, padding=(0, 1), show_header=True)
    for role, (id_, _) in (("kept", pair.original), ("duplicate", pair.duplicate)):
        header = Text.assemble((f"{role} ", "bold"), (id_, "cyan"))
        table.add_column(header, ratio=1, overflow="fold")
    sides = differences(pair.original[1], pair.duplicate[1])
    table.add_row(*(screen.marked(side, brackets=brackets) for side in sides))
    error = codec.standard_error(pair.similarity)
    return Panel(table, title=f"similarity {pair.similarity:.2f} ± {error:.2f}", title_align="left")


def _print_next_steps(console: Console, job: Job) -> None:
    from rich.text import Text

    from streamdedup.cli import screen

    documents = shlex.quote(job.inputs[0])
    names = ("kept", "duplicates", "rejected", "index")
    outputs = {name: shlex.quote(str(getattr(job, name))) for name in names}
    flags = " ".join(f"--{name} {path}" for name, path in outputs.items())
    program = screen.program()
    console.print("\n[bold]Next steps[/]")
    for step, command in (
        ("Look at the duplicates", f"head -n 3 {outputs['duplicates']}"),
        ("Run the job again: no line is judged twice", f"{program} dedup {documents} {flags}"),
        ("Try another threshold", f"{program} dedup {documents} --threshold 0.6"),
        ("Filter your own file", f"{program} dedup YOURS.jsonl --kept kept.jsonl"),
        ("Start the Kafka worker", f"{program} run --help"),
    ):
        # Without line breaks a command can be copied as a whole.
        console.print(Text.assemble(f"  {step}\n    ", (command, "cyan")), soft_wrap=True)
