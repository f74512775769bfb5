"""Logging: one form for all, no texts, and no floods."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from streamdedup.observe import logs
from streamdedup.observe.logs import RepeatFilter
from streamdedup.settings.sections import LogSettings
from tests.support.clock import Clock

TEXT = "the text of a document"


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Put the process's logging back after each test."""
    root, client = logging.getLogger(), logging.getLogger("aiokafka")
    handlers, levels = list(root.handlers), (root.level, client.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    client.setLevel(levels[1])
    structlog.reset_defaults()


def configured(stream: io.StringIO | None = None, **settings: Any) -> io.StringIO:
    """Configure logging, and return the stream that it writes to."""
    stream = stream if stream is not None else io.StringIO()
    logs.configure(LogSettings(**settings), stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """Return the lines that were written, read as JSON."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def fail_beside_a_text(logger: Any) -> None:
    """Log an exception in a frame that holds the text of a document."""
    text = TEXT
    try:
        int(f"{len(text)}!")
    except ValueError:
        logger.exception("failed")


def test_away_from_a_terminal_each_line_is_json() -> None:
    """An event is one JSON object with stable keys."""
    stream = configured()
    structlog.get_logger("streamdedup.roles.worker").info("running", partitions=3)
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "running",
        "level": "info",
        "logger": "streamdedup.roles.worker",
        "partitions": 3,
    }


@pytest.mark.parametrize(
    ("stream", "chosen", "human"),
    [
        pytest.param(io.StringIO(), "auto", False, id="a pipe"),
        pytest.param(Terminal(), "auto", True, id="a terminal"),
        pytest.param(io.StringIO(), "human", True, id="a pipe for people"),
        pytest.param(Terminal(), "json", False, id="a terminal for machines"),
    ],
)
def test_the_format_follows_the_setting_and_the_stream(
    stream: io.StringIO, chosen: str, human: bool
) -> None:
    """Auto is for people on a terminal and JSON elsewhere; the others are as they say."""
    configured(stream, format=chosen)
    structlog.get_logger("x").info("hello")
    assert stream.getvalue().startswith("{") is not human


def test_stderr_is_where_the_log_goes(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output stays free for data."""
    logs.configure(LogSettings())
    structlog.get_logger("x").info("hello")
    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err)["event"] == "hello"


def test_the_standard_library_is_written_in_the_same_form() -> None:
    """Libraries' messages become lines with the same keys."""
    stream = configured()
    logging.getLogger("aiohttp.server").error("Error %s", "here")
    (line,) = lines(stream)
    assert line["event"] == "Error here"
    assert (line["level"], line["logger"]) == ("error", "aiohttp.server")
    assert "timestamp" in line


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
@pytest.mark.parametrize("library", [False, True], ids=["ours", "a library's"])
def test_less_severe_events_are_left_out(level: str, written: list[str], library: bool) -> None:
    """The level counts for our events and those of libraries."""
    stream = configured(level=level)
    logger = logging.getLogger("x") if library else structlog.get_logger("x")
    for name in ("debug", "info", "warning", "error"):
        getattr(logger, name)(f"a {name}")
    assert [line["level"] for line in lines(stream)] == written


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_the_kafka_client_only_warns_unless_debugging(level: str, written: list[str]) -> None:
    """The client's chatter is left out, and its warnings too where only errors are wanted."""
    stream = configured(level=level)
    logger = logging.getLogger("aiokafka.consumer.fetcher")
    for name in ("debug", "info", "warning", "error"):
        getattr(logger, name)(f"a {name}")
    assert [line["level"] for line in lines(stream)] == written


@pytest.mark.parametrize("human", [False, True], ids=["json", "human"])
@pytest.mark.parametrize("library", [False, True], ids=["ours", "a library's"])
def test_a_traceback_shows_no_local_variables(human: bool, library: bool) -> None:
    """A traceback names the lines of code, and no text of a document."""
    stream = configured(Terminal() if human else None)
    fail_beside_a_text(logging.getLogger("x") if library else structlog.get_logger("x"))
    written = stream.getvalue()
    assert "ValueError: invalid literal" in written
    assert "fail_beside_a_text" in written
    assert TEXT not in written


def test_json_takes_any_value_and_one_line() -> None:
    """Paths, errors, line ends and lone surrogates neither break the line nor the log."""
    stream = configured()
    structlog.get_logger("x").info("odd", error=OSError("a\nb"), id="\ud800", path=io.StringIO)
    (line,) = lines(stream)
    assert line["error"] == "a\nb"
    assert stream.getvalue().isascii()


def test_bound_context_is_on_every_line() -> None:
    """Context variables reach our events and those of libraries."""
    stream = configured()
    with structlog.contextvars.bound_contextvars(session=4):
        structlog.get_logger("x").info("a")
        logging.getLogger("y").warning("b")
    structlog.get_logger("x").info("c")
    assert [line.get("session") for line in lines(stream)] == [4, 4, None]


def test_the_last_configuration_wins_and_lines_come_once() -> None:
    """Configuring again replaces the first handler, and no other one."""
    other = logging.NullHandler()
    logging.getLogger().addHandler(other)
    first, second = configured(), configured(level="warning")
    structlog.get_logger("x").info("a")
    structlog.get_logger("x").warning("b")
    assert first.getvalue() == ""
    assert [line["event"] for line in lines(second)] == ["b"]
    assert other in logging.getLogger().handlers


def test_a_repeated_warning_is_written_once() -> None:
    """Warnings that differ in numbers alone are one; ours and libraries' alike."""
    stream = configured()
    for attempt in range(5):
        structlog.get_logger("x").warning("no broker", attempt=attempt, server=f"a:{attempt}")
        logging.getLogger("aiokafka").error("Unable to connect to node %d", attempt)
    assert [line["event"] for line in lines(stream)] == ["no broker", "Unable to connect to node 0"]


def record(
    message: str | dict[str, Any] = "m", level: int = logging.WARNING, name: str = "x"
) -> logging.LogRecord:
    """Return a record of the standard library's, or of ours where the message is a mapping."""
    return logging.LogRecord(name, level, "file", 1, message, None, None)


def test_after_the_interval_a_warning_says_how_many_were_left_out() -> None:
    """The first after the interval is written with the count; the next begins anew."""
    clock = Clock()
    repeats = RepeatFilter(10.0, clock)
    written = []
    for clock.time in (0.0, 1.0, 9.9, 10.0, 11.0, 30.0, 50.0):
        one = record()
        if repeats.filter(one):
            written.append((clock.time, getattr(one, "suppressed", None)))
    assert written == [(0.0, 0), (10.0, 2), (30.0, 1), (50.0, 0)]


def test_the_count_of_repetitions_is_on_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that is written after repetitions were left out carries their number."""
    clock = Clock()
    monkeypatch.setattr(logs, "RepeatFilter", lambda: RepeatFilter(10.0, clock))
    stream = configured()
    for clock.time in (0.0, 1.0, 2.0, 20.0, 40.0):
        structlog.get_logger("x").warning("no broker")
    assert [line.get("suppressed") for line in lines(stream)] == [None, 2, None]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(record("a"), record("b"), id="messages"),
        pytest.param(record(name="a"), record(name="b"), id="loggers"),
        pytest.param(record(), record(level=logging.ERROR), id="levels"),
        pytest.param(
            record({"event": "a", "reason": "b"}),
            record({"event": "a", "reason": "c"}),
            id="fields",
        ),
    ],
)
def test_different_warnings_do_not_hide_each_other(
    first: logging.LogRecord, second: logging.LogRecord
) -> None:
    """What differs in more than numbers is told apart."""
    repeats = RepeatFilter(10.0, Clock())
    assert repeats.filter(first)
    assert repeats.filter(second)


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.CRITICAL])
def test_only_warnings_and_errors_are_held_back(level: int) -> None:
    """Information passes each time, and so does what is critical."""
    repeats = RepeatFilter(10.0, Clock())
    assert all(repeats.filter(record(level=level)) for _ in range(3))


def test_the_memory_of_warnings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endlessly many different warnings push the oldest out, and nothing grows."""
    monkeypatch.setattr(logs, "_MAX_REMEMBERED", 3)
    clock = Clock()
    repeats = RepeatFilter(10.0, clock)
    for letter in "abc":
        assert repeats.filter(record(letter))
    clock.time = 20.0
    for letter in "ad":
        assert repeats.filter(record(letter))
    assert not repeats.filter(record("a"))  # written again of late, so b was the oldest
    clock.time = 25.0
    assert repeats.filter(record("b"))
