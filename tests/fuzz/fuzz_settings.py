"""*Blocking* (writes a settings file). Settings: sizes and durations, files and variables."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from streamdedup.errors import SettingsError
from streamdedup.settings.load import load_settings, walk
from streamdedup.settings.sections import ENVIRONMENT_PREFIX
from streamdedup.settings.units import (
    CENTURY,
    Section,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)
from tests.fuzz.cases import Block, Finding, each, expect, mutated, odd_integer, odd_text

_CASES = 256
_SECRET = "hunter2-very-secret"  # noqa: S105 - an invented password
_SIZE = re.compile(r"\d+([KMGTPE]iB)?")
_UNITS = (
    b"9Gi", b"512MiB", b"1.5 GB", b"1e+06", b"30s", b"1h30m", b"7d", b"500ms", b"1y2mm3w", b"0.1",
    b"-3", b"1e99", b"12us", b"+4h", b"  8 kib ", b"1d12h",
)  # fmt: skip
_UNIT_TOKENS = (
    b"e", b"E", b"+", b"-", b".", b"i", b"B", b"k", b"s", b"h", b"d", b"mm", b"y", b"ns", b" ",
    b"9" * 400,
    b"\xd9\xa3", b"\xc2\xb5s", b"inf", b"nan", b"\x00", b"_", b"e9", b"e-9", b"0x10", b"1e308",
)  # fmt: skip


@contextmanager
def units() -> Iterator[Block]:
    """A size or duration is written and read again as the same, or is a ValueError."""

    def check(text: str) -> None:
        with suppress(ValueError):
            size = parse_size(text)
            expect(_SIZE.fullmatch(format_size(size)) is not None, text, "not a size")
            expect(parse_size(format_size(size)) == size, text, "another size")
        with suppress(ValueError):
            duration = parse_duration(text)
            if dt.timedelta(0) <= duration <= CENTURY:  # no setting allows others
                again = _again(text, format_duration(duration))
                expect(again == duration, text, f"{again} is another duration")

    def block(random: Random) -> int:
        cases = [
            mutated(random, random.choice(_UNITS), _UNIT_TOKENS).decode("utf-8", "surrogateescape")
            for _ in range(_CASES)
        ]
        return each(cases, check)

    yield block


def _again(text: str, written: str) -> dt.timedelta:
    try:
        return parse_duration(written)
    except ValueError as error:
        raise Finding(text, f"{written!r} cannot be read again") from error


_NAMES = [name for name, _ in walk()]
_SETTINGS = [name for name, field in walk() if not isinstance(field.default, Section)]
_VALUES = (
    "true", "null", "''", "0", "-1", "1", "0.5", "1.0", ".inf", ".nan", "1e999", "9Gi", "7d", "1s",
    "[a, b]", "{a: b}", "[]", "{}", "~", "[[", "&a [*a]", "*a", "!!python/object:os.system {}",
    "!!binary x",
    "0x10", "0o7", "1_000", "2024-02-29", "2024-02-30", "yes", "|\n    text", "? a", "<<: {a: 1}",
    "json",
    "text", "fast", "classic", "plain", "news", "[nfkc, casefold]", "exact", "64", "32",
    "SASL_SSL", "SSL",
    "localhost:9092", "a:1", "[::1]:9092", "documents", "..", "\u00e9", "9" * 5000, "**********",
)  # fmt: skip
_TOKENS = (
    b":", b": ", b"\n", b"  ", b"- ", b"[", b"]", b"{", b"}", b"#", b"&a ", b"*a", b"!!", b"|",
    b"'", b'"',
    b"\t", b"\xff", b"\xc2\x85", b"\xe2\x80\xa8", b"\x00", b"%YAML 9", b"---", b"...", b"? ", b"<<",
    b"[" * 2000, b"{a: " * 500, b"\xef\xbb\xbf", b"!!timestamp", b"!!int", b"!!float", b"\\x",
    b"0b", b"1:60",
)  # fmt: skip


@contextmanager
def settings() -> Iterator[Block]:
    """A settings file and variables are settings, or one line that shows no secret."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "settings.yaml"

        def check(case: tuple[bytes, dict[str, str]]) -> None:
            content, variables = case
            path.write_bytes(content)
            os.environ.update(variables)
            try:
                load_settings(path)
            except SettingsError as error:
                message = str(error)
                expect(len(message) > 0 and "\n" not in message, case, f"no line: {message!r}")
                expect(_SECRET not in message, case, f"a secret is shown: {message}")
            finally:
                for name in variables:
                    del os.environ[name]

        yield lambda random: each([(_yaml(random), _variables(random)) for _ in range(16)], check)


def _yaml(random: Random) -> bytes:
    lines = [_line(random) for _ in range(int(random.random() * 4))]
    if random.random() < 0.3:
        lines.append(
            "kafka: {security: {protocol: SASL_SSL, sasl_username: u, sasl_password: "
            f"{_SECRET}, {random.choice(['ca_file: x', 'sasl_mechanism: y', 'z: 1', '[', ''])}}}}}"
        )
    content = "\n".join(lines).encode("utf-8", "surrogatepass")
    return mutated(random, content, _TOKENS) if random.random() < 0.5 else content


def _line(random: Random) -> str:
    """Return a setting with an odd value, in YAML's flow style."""
    parts = random.choice(_SETTINGS).split(".")
    value = _value(random)
    if len(parts) == 1:
        return f"{parts[0]}: {value}"
    opening = "".join(f"{{{part}: " for part in parts[1:])
    return f"{parts[0]}: {opening}{value}{'}' * (len(parts) - 1)}"


def _value(random: Random) -> str:
    kind = random.random()
    if kind < 0.7:
        return random.choice(_VALUES)
    if kind < 0.85:
        return str(odd_integer(random))
    return json.dumps(odd_text(random).encode("utf-8", "replace").decode())


def _variables(random: Random) -> dict[str, str]:
    if random.random() < 0.6:
        return {}
    names = random.sample(_NAMES, 1 + int(random.random() * 2))
    if random.random() < 0.1:
        names.append("kafka.security.sasl_passwd")
    values = [random.choice([_value(random), odd_text(random), '{"', '["a"', "{}"]) for _ in names]
    return {
        ENVIRONMENT_PREFIX + name.upper().replace(".", "__"): value.replace("\0", "").encode(
            "utf-8", "replace").decode()
        for name, value in zip(names, values, strict=True)
    }  # fmt: skip
