"""*Blocking.* The Python API of the embedded mode: a run over files, as a function."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from streamdedup.files.job import Job
from streamdedup.files.paths import InputFormat
from streamdedup.files.run import Hooks, RunTally, check_tally, run
from streamdedup.settings.sections import Settings

FilePath: TypeAlias = str | os.PathLike[str]


def dedup_files(
    inputs: FilePath | Iterable[FilePath],
    *,
    kept: FilePath | None = None,
    duplicates: FilePath | None = None,
    rejected: FilePath | None = None,
    index: FilePath | None = None,
    input_format: InputFormat = "json",
    settings: Settings | None = None,
    on_progress: Callable[[RunTally], object] | None = None,
) -> RunTally:
    """Find near-duplicates in files, as the command ``streamdedup dedup`` does.

    Call it in a block ``if __name__ == "__main__":``. Large inputs are sketched in processes that
    import the calling script; without the block, each of them would call this function again::

        from streamdedup import Settings, dedup_files

        if __name__ == "__main__":
            tally = dedup_files(
                ["monday.jsonl.gz", "tuesday.jsonl.gz"],
                kept="kept.jsonl",
                index="index",
                settings=Settings(records={"text_fields": ["body"]}),
                on_progress=lambda tally: print(tally.documents, "documents"),
            )
            print(tally.duplicates, "duplicates in", tally.seconds, "seconds")

    Args:
        inputs: a file, directory or pattern such as ``"data/*.parquet"``, or several of them, in
            this order; ``-`` is standard input. The files are JSON Lines, CSV, Parquet or Arrow.
        kept: file for the kept lines or rows, unchanged.
        duplicates: file for a record per duplicate, with the kept documents that it repeats.
        rejected: file for a record per line that is not a document, with the reason.
        index: directory of the index. With it, the next call with the same outputs continues an
            interrupted one, and judges new lines against the documents of earlier calls. Without
            it, the index is temporary, and the outputs are overwritten.
        input_format: what standard input consists of: ``json`` (lines), ``csv`` or ``tsv``.
        settings: all settings, by default ``Settings()``. ``load_settings()`` returns those of the
            command, from a YAML file and the environment.
        on_progress: called with the tally so far, after each batch is committed. An exception of
            it ends the run.

    Returns:
        The counts of kept, duplicate and rejected documents, of bytes and of seconds.

    Raises:
        ValueError: ``index`` is empty.
        RuntimeError: a process that sketches has made the call; no file was changed.
        SettingsError: ``index.window`` is set, and documents have no event time.
        InputError: an input or output cannot be used, or every line was rejected; the message says
            what to change. Lines before a failure are judged.
        StreamdedupError: the index cannot be used, or no process can be started.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "a process that sketches imports the script, and must not call dedup_files again; put "
            'the call into a block if __name__ == "__main__":'
        )
    if index == "":
        raise ValueError("index is empty; give a path, or leave it out for a temporary index")
    given = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    job = Job(
        tuple(os.fspath(path) for path in given),
        kept=_path(kept),
        duplicates=_path(duplicates),
        rejected=_path(rejected),
        index=None if index is None else Path(index),
        input_format=input_format,
    )
    hooks = Hooks() if on_progress is None else Hooks(on_batch=on_progress)
    tally = run(job, settings if settings is not None else Settings(), hooks)
    check_tally(tally)
    return tally


def _path(path: FilePath | None) -> str | None:
    return None if path is None else os.fspath(path)
