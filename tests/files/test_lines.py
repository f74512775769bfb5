"""Readers and writers of lines: formats, damage, marks, and outputs that are cut."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
import xxhash
import zstandard

from streamdedup.errors import InputError
from streamdedup.files.lines import InputMark, Line, LineReader, OutputFile, input_size

TEXT = b"".join(b'{"text": "line %d"}\n' % number for number in range(500))
LINES = TEXT.splitlines()
HALF = TEXT.index(b"\n", len(TEXT) // 2) + 1
SKIPPABLE = struct.pack("<II", 0x184D2A53, 5) + b"other"
MOST = 1000


def zstd(data: bytes) -> bytes:
    """Compress into one Zstandard frame, as a stream of unknown length."""
    compressor = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return compressor.compress(data) + compressor.flush()


FORMATS = {
    "plain": TEXT,
    "gzip": gzip.compress(TEXT),
    "gzip of two members": gzip.compress(TEXT[:HALF]) + gzip.compress(TEXT[HALF:]),
    "gzip cut inside a line": gzip.compress(TEXT[:1001]) + gzip.compress(TEXT[1001:]),
    "gzip padded with zeros": gzip.compress(TEXT) + bytes(5000),
    "bzip2": bz2.compress(TEXT),
    "bzip2 of two streams": bz2.compress(TEXT[:HALF]) + bz2.compress(TEXT[HALF:]),
    "bzip2 of an empty stream and another": bz2.compress(b"") + bz2.compress(TEXT),
    "xz": lzma.compress(TEXT),
    "xz of two streams": lzma.compress(TEXT[:HALF]) + bytes(8) + lzma.compress(TEXT[HALF:]),
    "zstd": zstd(TEXT),
    "zstd of two frames": zstd(TEXT[:HALF]) + zstd(TEXT[HALF:]),
    "zstd after a skippable frame": SKIPPABLE + zstd(TEXT),
    "zstd of an empty frame and another": zstd(b"") + zstd(TEXT),
}


def written(path: Path, content: bytes) -> str:
    """Write a file; return its path as the reader expects it."""
    path.write_bytes(content)
    return str(path)


def read_all(reader: LineReader) -> list[Line]:
    """Read all remaining lines."""
    return list(iter(reader.read, None))


def read_from(path: str, mark: InputMark | None = None) -> tuple[list[bytes], InputMark]:
    """Read a file from a mark on; return the lines and the mark at the end."""
    with closing(LineReader(path, MOST)) as reader:
        reader.skip(mark or InputMark())
        return [line.content for line in read_all(reader)], reader.mark()


@pytest.mark.parametrize("content", FORMATS.values(), ids=FORMATS.keys())
def test_the_content_of_a_file_decides_its_format(tmp_path: Path, content: bytes) -> None:
    """The first bytes decide, not the file name; lines and mark are the same."""
    lines, mark = read_from(written(tmp_path / "documents.anything", content))
    assert lines == LINES
    assert mark == read_from(written(tmp_path / "plain", TEXT))[1]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [Line(0, b"", 0)]),
        (b"a", [Line(0, b"a", 1)]),
        (b"a\nb", [Line(0, b"a", 1), Line(1, b"b", 1)]),
        (b"a\n\n \nb\n", [Line(0, b"a", 1), Line(1, b"", 0), Line(2, b" ", 1), Line(3, b"b", 1)]),
        (b"a\r\nb\r\n", [Line(0, b"a\r", 2), Line(1, b"b\r", 2)]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", [Line(0, b"a", 1), Line(1, b"\xef\xbb\xbfb", 4)]),
        (b"\x1f\x00", [Line(0, b"\x1f\x00", 2)]),
        (b"BZh9 text", [Line(0, b"BZh9 text", 9)]),
        ("a\u2028b\x85\x0bc\n".encode(), [Line(0, "a\u2028b\x85\x0bc".encode(), 9)]),
    ],
    ids=[
        "empty",
        "one line end",
        "no line end",
        "no last line end",
        "blank lines",
        "windows",
        "byte order mark",
        "shorter than any magic",
        "text like a magic",
        "only line feeds end lines",
    ],
)
def test_line_feeds_separate_lines(tmp_path: Path, content: bytes, expected: list[Line]) -> None:
    """The bytes of a line are unchanged, except for a byte order mark at the start of the file."""
    with closing(LineReader(written(tmp_path / "file", content), MOST)) as reader:
        assert read_all(reader) == expected


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["bare", "byte order mark"])
@pytest.mark.parametrize("end", [b"", b"\n", b"\nnext\n"], ids=["end", "line end", "next line"])
@pytest.mark.parametrize("extra", [0, 1, 2, 3, 4, 5, 1_000_000])
def test_only_the_beginning_of_a_line_that_is_too_long_is_held(
    tmp_path: Path, bom: bytes, end: bytes, extra: int
) -> None:
    """A longer line has its whole size, and the next line is found."""
    path = written(tmp_path / "file", bom + b"x" * (MOST + extra) + end)
    with closing(LineReader(path, MOST)) as reader:
        first, *rest = read_all(reader)
        assert first.size == MOST + extra
        assert MOST <= len(first.content) <= MOST + 5
        assert (len(first.content) == MOST) == (extra == 0)
        assert [line.content for line in rest] == ([b"next"] if b"next" in end else [])
        assert reader.mark().length == len(bom) + MOST + extra + len(end)


@pytest.mark.parametrize(
    "damaged",
    [
        FORMATS["gzip"][:-1],
        FORMATS["gzip"][:-300],
        FORMATS["gzip"][:-8] + b"checksum",
        FORMATS["gzip"] + b"not a member",
        gzip.compress(TEXT[:5000])[:-8],
        FORMATS["bzip2"][:-1],
        FORMATS["bzip2"][:100] + b"damage" + FORMATS["bzip2"][106:],
        FORMATS["xz"][:-1],
        FORMATS["xz"][:100] + b"damage" + FORMATS["xz"][106:],
        FORMATS["zstd"][:-1],
        FORMATS["zstd"][:-300],
        FORMATS["zstd"][:-4] + b"hash",
        FORMATS["zstd"] + b"not a frame",
        FORMATS["zstd of two frames"][:-10],
    ],
    ids=[
        "gzip without its last byte",
        "gzip cut off",
        "gzip with a wrong checksum",
        "gzip with a tail",
        "gzip cut inside a line",
        "bzip2 without its last byte",
        "bzip2 with changed bytes",
        "xz without its last byte",
        "xz with changed bytes",
        "zstd without its last byte",
        "zstd cut off",
        "zstd with a wrong checksum",
        "zstd with a tail",
        "zstd of two frames, cut off",
    ],
)
def test_damage_is_reported_after_the_whole_lines_before_it(tmp_path: Path, damaged: bytes) -> None:
    """No cut line is returned, and the mark is after the last whole line."""
    path = written(tmp_path / "broken.gz", damaged)
    lines = []
    with closing(LineReader(path, MOST)) as reader:
        with pytest.raises(InputError, match=r"broken\.gz .*(damaged|cut off)"):
            lines.extend(read_all(reader))
        mark = reader.mark()
    assert mark.lines <= len(LINES)
    assert mark.length == sum(len(line) + 1 for line in LINES[: mark.lines])
    assert mark.ended


def zstd_frame(exponent: int) -> bytes:
    """Return a Zstandard frame with a window of ``2 ** exponent`` bytes, and one line in it."""
    descriptor = bytes([(exponent - 10) << 3])
    return b"\x28\xb5\x2f\xfd\0" + descriptor + ((5 << 3) | 1).to_bytes(3, "little") + b"line\n"


def xz_of_dictionary(size: int) -> bytes:
    """Return one line, compressed by xz with a dictionary of this size."""
    small = [{"id": lzma.FILTER_LZMA2, "dict_size": size, "mode": lzma.MODE_FAST, "nice_len": 4}]
    return lzma.compress(b"line\n", filters=small)


@pytest.mark.parametrize(
    "content",
    [zstd_frame(28), zstd_frame(31), xz_of_dictionary(256 * 1024**2)],
    ids=["zstd --long=28", "zstd --long=31", "xz with 256 MiB"],
)
def test_a_window_over_the_limit_is_refused_and_not_called_damage(
    tmp_path: Path, content: bytes
) -> None:
    """The memory for an input is limited; the message says how to read it all the same."""
    path = written(tmp_path / "file", content)
    message = (
        "over the limit of 128 MiB; decompress it first, for example with zstd -d --long=31 or xz"
    )
    with pytest.raises(InputError, match=message):
        read_from(path)


def test_the_largest_window_is_read(tmp_path: Path) -> None:
    """It is the limit of the zstd command itself."""
    assert read_from(written(tmp_path / "zstd", zstd_frame(27)))[0] == [b"line"]


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress], ids=["bzip2", "xz"])
def test_a_small_file_with_much_content_is_read_in_parts(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    """A few compressed bytes may stand for megabytes; the lines after them are found."""
    path = written(tmp_path / "file", pack(bytes(5_000_000) + b"\nnext\n"))
    with closing(LineReader(path, MOST)) as reader:
        assert [line.size for line in read_all(reader)] == [5_000_000, 4]


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16LE"),
        ("utf-16-be", "UTF-16BE"),
        ("utf-32", "UTF-32"),
    ],
)
def test_another_encoding_is_named(tmp_path: Path, encoding: str, name: str) -> None:
    """One error says what to do; the lines are not rejected one by one."""
    path = written(tmp_path / "file", '{"text": "a story"}\n'.encode(encoding))
    with closing(LineReader(path, MOST)) as reader:
        with pytest.raises(InputError, match=rf"is in {name}; convert it to UTF-8, .* -f {name} "):
            reader.read()
        assert reader.mark() == InputMark()


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_buffered_lines_and_single_ones_are_the_same(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    """Short lines, long ones and those over the limit, across the chunks of a file."""
    random = Random(1)
    sizes = [random.choice((0, 1, 30, 900, 5 * MOST, 300_000)) for _ in range(300)]
    content = b"\n".join(bytes([97 + size % 26]) * size for size in sizes)
    path = written(tmp_path / "file", pack(content))
    with closing(LineReader(path, MOST)) as reader:
        expected = [line.content for line in read_all(reader)]
        end = reader.mark()
    lines: list[bytes] = []
    with closing(LineReader(path, MOST)) as reader:
        assert reader.read_buffered(MOST, MOST) == []
        while (line := reader.read()) is not None:
            assert line.number == len(lines)
            lines.append(line.content)
            more = reader.read_buffered(most := random.randint(1, 9), MOST)
            assert len(more) <= most
            assert sum(map(len, more)) <= MOST
            lines += more
            assert reader.mark() == marked(content, len(lines))
        assert reader.mark() == end
    assert lines == expected


def marked(content: bytes, lines: int) -> InputMark:
    """Return the mark after so many lines."""
    start = b"".join(content.splitlines(keepends=True)[:lines])
    return InputMark(lines, len(start), xxhash.xxh3_128_digest(start), start.endswith(b"\n"))


@pytest.mark.parametrize("content", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize("count", [0, 1, 251, 500])
def test_reading_continues_after_a_mark(tmp_path: Path, content: bytes, count: int) -> None:
    """Judged lines are skipped, wherever compressed members or frames begin."""
    path = written(tmp_path / "file", content)
    with closing(LineReader(path, MOST)) as reader:
        for _ in range(count):
            reader.read()
        mark = reader.mark()
    lines, end = read_from(path, mark)
    assert lines == LINES[count:]
    assert end == read_from(path)[1]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (b"a\nb\n", b"a\nb\nc\n", [b"c"]),
        (b"a\nb\n", b"a\nb\n\nc\n", [b"", b"c"]),
        (b"a\nb", b"a\nb", []),
        (b"a\nb", b"a\nb\n", []),
        (b"a\nb", b"a\nb\nc", [b"c"]),
        (b"a\nb", b"a\nb\r\nc", [b"c"]),
        (b"", b"a\n", [b"a"]),
    ],
    ids=[
        "line added",
        "blank line added",
        "nothing added",
        "line end added",
        "line end and line added",
        "windows line end and line added",
        "empty before",
    ],
)
def test_the_new_lines_of_a_file_that_has_grown_are_read(
    tmp_path: Path, before: bytes, after: bytes, expected: list[bytes]
) -> None:
    """A missing line end may be added later; it is not a line."""
    _, mark = read_from(written(tmp_path / "file", before))
    assert read_from(written(tmp_path / "file", after), mark)[0] == expected


@pytest.mark.parametrize(
    "after",
    [b"", b"a\n", b"a\nX\n", b"X\nb\nc\n", b"b\na\n"],
    ids=["emptied", "shortened", "last line", "first line", "order"],
)
def test_a_file_that_has_changed_is_refused(tmp_path: Path, after: bytes) -> None:
    """Lines are skipped only if they are the same."""
    _, mark = read_from(written(tmp_path / "file", b"a\nb\n"))
    with pytest.raises(InputError, match=r"file has changed: .*the 2 lines.*use another index"):
        read_from(written(tmp_path / "file", after), mark)


def test_a_judged_line_that_has_grown_is_refused(tmp_path: Path) -> None:
    """The verdict on half a line cannot be revoked."""
    _, mark = read_from(written(tmp_path / "file", b"a\nhalf"))
    with pytest.raises(InputError, match="its last line was judged when it had no line end"):
        read_from(written(tmp_path / "file", b"a\nhalf a line\n"), mark)


def test_an_input_has_a_size_unless_it_is_a_pipe(tmp_path: Path) -> None:
    """Progress is shown as a percentage only if the total is known."""
    os.mkfifo(tmp_path / "pipe")
    assert input_size(written(tmp_path / "file", b"12345")) == 5
    assert input_size(str(tmp_path / "pipe")) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing", "No such file"), (".", "Is a directory")],
    ids=["missing", "directory"],
)
def test_an_input_that_is_not_a_file_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    """The message names the path and the reason."""
    with pytest.raises(InputError, match=reason):
        input_size(str(tmp_path / name))
    with pytest.raises(InputError, match=f"cannot read .*: {reason}"):
        LineReader(str(tmp_path / name), MOST)


@pytest.mark.parametrize("durable", [False, True], ids=["quick", "durable"])
def test_an_output_is_cut_once_and_then_grows(tmp_path: Path, durable: bool) -> None:
    """Bytes beyond the recorded length, left by a crash, are removed."""
    path = tmp_path / "out"
    path.write_bytes(b"one\ntwo\nhal")
    with closing(OutputFile(str(path), 8, durable=durable)) as output:
        output.append(b"three\n")
        output.append(b"")
        output.sync()
        assert output.length == 14
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_an_output_that_lost_bytes_is_refused_untouched(tmp_path: Path) -> None:
    """Committed lines are missing; only the operator can restore them."""
    path = tmp_path / "out"
    path.write_bytes(b"one\n")
    with pytest.raises(InputError, match="has 4 bytes, earlier runs wrote 8: restore the file"):
        OutputFile(str(path), 8, durable=True)
    assert path.read_bytes() == b"one\n"


def test_an_output_that_cannot_be_cut_only_grows(tmp_path: Path) -> None:
    """The recorded length does not matter for a pipe."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with closing(OutputFile(str(pipe), 8, durable=True)) as output:
        output.append(b"line\n")
        output.sync()
        assert os.read(reader, 100) == b"line\n"
    os.close(reader)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing/out", "No such file"), (".", "Is a directory")],
    ids=["folder is missing", "directory"],
)
def test_an_output_that_cannot_be_opened_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    """The message names the path and the reason."""
    with pytest.raises(InputError, match=f"cannot write .*: {reason}"):
        OutputFile(str(tmp_path / name), 0, durable=False)


def test_a_full_disk_is_an_error_of_the_output() -> None:
    """The error names the output."""
    with (
        closing(OutputFile("/dev/full", 0, durable=True)) as output,
        pytest.raises(InputError, match="cannot write /dev/full: No space left"),
    ):
        output.append(b"line\n")
