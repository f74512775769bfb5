"""*Blocking.* Damaged files of an index, and damaged exports of one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from streamdedup.batches import Candidates
from streamdedup.errors import StreamdedupError
from streamdedup.index.archive import export_index, import_index
from streamdedup.index.check import check
from tests.fuzz.cases import Block, Finding, expect
from tests.index.damage import build_sound_index, update
from tests.support.builders import open_index, small_settings

_TOUCHED_PAGE = 4096


@contextmanager
def damaged() -> Iterator[Block]:
    """A damaged index gives the answers of the sound one, or an error, or its damage is found."""
    with TemporaryDirectory() as folder:
        sound = build_sound_index(Path(folder) / "sound")
        files = sorted(path for path in sound.rglob("*.mdb"))
        contents = {path.relative_to(sound): path.read_bytes() for path in files}
        copy = Path(folder) / "copy"
        expected = _answers(_fresh(sound, copy))

        def block(random: Random) -> int:
            _fresh(sound, copy)
            name, change = _damage(random, contents, copy)
            try:
                found = _answers(copy)
            except StreamdedupError as error:
                expect("\n" not in str(error), (name, change), "more than a line")
                return 1
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                raise Finding((name, change), problem) from error
            # Look-ups do not compare the checksums of postings: the checker, like the scrub, does.
            if found != expected:
                problems = check(copy).problems
                expect(bool(problems), (name, change), "other answers, and no damage is found")
            return 1

        yield block


def _fresh(sound: Path, copy: Path) -> Path:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(sound, copy)
    return copy


def _damage(random: Random, contents: dict[Path, bytes], copy: Path) -> tuple[Path, str]:
    """Damage one file in one of several ways; return which one, and how."""
    name = random.choice(list(contents))
    content = bytearray(contents[name])
    # Half of all places are in the manifest's and each file's first pages, with all the structure.
    limit = min(len(content), 3 * _TOUCHED_PAGE) if random.random() < 0.5 else len(content)
    place = random.randrange(limit)
    kind = random.randrange(5)
    if kind == 0:
        content[place] ^= 1 << random.randrange(8)
        how = f"bit flipped at {place}"
    elif kind == 1:
        content[place : place + 8] = random.randbytes(len(content[place : place + 8]))
        how = f"eight random bytes at {place}"
    elif kind == 2:
        end = random.choice([place, place // _TOUCHED_PAGE * _TOUCHED_PAGE])
        del content[end:]
        how = f"cut to {end} bytes"
    elif kind == 3:
        page = place // _TOUCHED_PAGE * _TOUCHED_PAGE
        other = random.randrange(len(content)) // _TOUCHED_PAGE * _TOUCHED_PAGE
        size = min(_TOUCHED_PAGE, len(content) - max(page, other))
        content[page : page + size] = content[other : other + size]
        how = f"page at {page} replaced by that at {other}"
    else:
        end = min(len(content), place + random.choice([16, 512, _TOUCHED_PAGE]))
        content[place:end] = bytes(end - place)
        how = f"zeros from {place} to {end}"
    (copy / name).write_bytes(content)
    return name, how


def _answers(directory: Path) -> list[Any]:
    """Open the index, and return everything that a look-up of all its documents gives."""
    settings = small_settings(directory, delta_documents=16, window_documents=200)
    with open_index(settings) as index:
        state = [index.applied, index.next_number, index.clock.state(), index.oldest_number]
        found = [index.probe(update(first, 20).documents) for first in range(0, 160, 20)]
        state += [index.numbers_of(f"id-{number}") for number in (3, 77, 141)]
    return state + [_plain(candidates) for candidates in found]


def _plain(found: Candidates) -> tuple[Any, ...]:
    documents = found.documents
    return (
        found.hit_rows.tolist(),
        found.hit_columns.tolist(),
        found.hit_numbers.tolist(),
        sorted(found.erased),
        found.numbers.tolist(),
        found.effective_times_ms.tolist(),
        list(documents.ids),
        list(documents.positions),
        documents.sketches.signatures.tolist(),
        sorted(found.already_kept),
        found.already_judged.tolist(),
    )


@contextmanager
def exports() -> Iterator[Block]:
    """A damaged export is refused by an error of ours, or gives the whole index."""
    with TemporaryDirectory() as folder:
        sound = build_sound_index(Path(folder) / "sound")
        packed = []
        for suffix in ("tar", "tar.gz", "tar.zst"):
            file = Path(folder) / f"export.{suffix}"
            export_index(sound, file)
            packed.append(file.read_bytes())
        source, copy = Path(folder) / "damaged", Path(folder) / "copy"
        source.write_bytes(packed[0])
        import_index(source, copy)
        expected = _answers(copy)

        def block(random: Random) -> int:
            shutil.rmtree(copy, ignore_errors=True)
            content = bytearray(random.choice(packed))
            limit = 2048 if random.random() < 0.6 else len(content)
            how = []
            for _ in range(random.choice([1, 1, 2])):
                place = random.randrange(min(limit, len(content)))
                if random.random() < 0.2 and len(content) > place > 0:
                    del content[place:]
                    how.append(f"cut to {place}")
                else:
                    content[place] ^= random.randrange(1, 256)
                    how.append(f"byte {place} changed to {content[place]}")
            source.write_bytes(content)
            case = (bytes(content[:4]), how)
            try:
                import_index(source, copy)
            except StreamdedupError as error:
                expect("\n" not in str(error), case, f"more than a line: {error}")
                expect(not (copy / "manifest").exists(), case, "a refused import left an index")
                return 1
            except Exception as error:
                raise Finding(case, f"{type(error).__name__}: {error}") from error
            expect(_answers(copy) == expected, case, "another index")
            return 1

        yield block
