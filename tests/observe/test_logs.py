"""Logging: one format for every logger, no document texts, no repeated warnings."""

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
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Restore the logging of the process after each test."""
    root = logging.getLogger()
    loggers = [root, logging.getLogger("aiokafka"), logging.getLogger("streamdedup")]
    handlers, levels = list(root.handlers), [logger.level for logger in loggers]
    yield
    root.handlers[:] = handlers
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    structlog.reset_defaults()


def configured(stream: io.StringIO | None = None, **settings: Any) -> io.StringIO:
    """Configure logging, and return the stream that it writes to."""
    stream = stream if stream is not None else io.StringIO()
    logs.configure(LogSettings(**settings), stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """Return the written lines, parsed as JSON."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def fail_beside_a_text(logger: Any) -> None:
    """Log an exception in a frame that holds the text of a document."""
    text = TEXT
    try:
        int(f"{len(text)}!")
    except ValueError:
        logger.exception("failed")


def test_each_line_is_json_without_a_terminal() -> None:
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
    """Auto is human on a terminal and JSON elsewhere; the other values are fixed."""
    configured(stream, format=chosen)
    structlog.get_logger("x").info("hello")
    assert stream.getvalue().startswith("{") is not human


def test_the_log_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output stays free for data."""
    logs.configure(LogSettings())
    structlog.get_logger("x").info("hello")
    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err)["event"] == "hello"


def test_the_standard_library_has_the_same_format() -> None:
    """Messages of libraries become lines with the same keys."""
    stream = configured()
    logging.getLogger("aiohttp.server").error("Error %s", "here")
    (line,) = lines(stream)
    assert line["event"] == "Error here"
    assert (line["level"], line["logger"]) == ("error", "aiohttp.server")
    assert "timestamp" in line


LEVELS = ["debug", "info", "warning", "error"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("name", "least"),
    [("streamdedup.x", "debug"), ("aiohttp.x", "info"), ("aiokafka.consumer.fetcher", "warning")],
)
def test_events_below_the_level_are_dropped(level: str, name: str, least: str) -> None:
    """Only our own events are written at level debug; the Kafka client only warns."""
    stream = configured(level=level)
    ours = name.startswith("streamdedup")
    logger = structlog.get_logger(name) if ours else logging.getLogger(name)
    for each in LEVELS:
        getattr(logger, each)(f"a {each}")
    first = max(LEVELS.index(level), LEVELS.index(least))
    assert [line["level"] for line in lines(stream)] == LEVELS[first:]


@pytest.mark.parametrize("human", [False, True], ids=["json", "human"])
@pytest.mark.parametrize("library", [False, True], ids=["ours", "a library's"])
def test_a_traceback_shows_no_local_variables(human: bool, library: bool) -> None:
    """A traceback shows lines of code, but no text of a document."""
    stream = configured(Terminal() if human else None)
    fail_beside_a_text(logging.getLogger("x") if library else structlog.get_logger("x"))
    written = stream.getvalue()
    assert "ValueError: invalid literal" in written
    assert "fail_beside_a_text" in written
    assert TEXT not in written


def test_any_value_fits_on_one_line_of_json() -> None:
    """Classes, errors, line breaks and lone surrogates are escaped."""
    stream = configured()
    structlog.get_logger("x").info("odd", error=OSError("a\nb"), id="\ud800", path=io.StringIO)
    (line,) = lines(stream)
    assert line["error"] == "a\nb"
    assert stream.getvalue().isascii()


def test_bound_context_is_on_every_line() -> None:
    """Context variables are added to our events and to those of libraries."""
    stream = configured()
    with structlog.contextvars.bound_contextvars(session=4):
        structlog.get_logger("x").info("a")
        logging.getLogger("y").warning("b")
    structlog.get_logger("x").info("c")
    assert [line.get("session") for line in lines(stream)] == [4, 4, None]


def test_the_last_configuration_replaces_the_first() -> None:
    """Configuring again replaces our handler, and leaves others in place."""
    other = logging.NullHandler()
    logging.getLogger().addHandler(other)
    first, second = configured(), configured(level="warning")
    structlog.get_logger("x").info("a")
    structlog.get_logger("x").warning("b")
    assert first.getvalue() == ""
    assert [line["event"] for line in lines(second)] == ["b"]
    assert other in logging.getLogger().handlers


def test_a_repeated_warning_is_written_once() -> None:
    """Warnings that differ only in numbers are equal, ours and those of libraries."""
    stream = configured()
    for attempt in range(5):
        structlog.get_logger("x").warning("no broker", attempt=attempt, server=f"a:{attempt}")
        logging.getLogger("aiokafka").error("Unable to connect to node %d", attempt)
    assert [line["event"] for line in lines(stream)] == ["no broker", "Unable to connect to node 0"]


def record(
    message: str | dict[str, Any] = "m", level: int = logging.WARNING, name: str = "x"
) -> logging.LogRecord:
    """Return a log record; a mapping as message makes it one of structlog."""
    return logging.LogRecord(name, level, "file", 1, message, None, None)


def test_after_the_interval_a_warning_has_the_number_of_suppressed_ones() -> None:
    """The first warning after the interval has the count, and resets it."""
    clock = Clock()
    repeats = RepeatFilter(10.0, clock)
    written = []
    for clock.time in (0.0, 1.0, 9.9, 10.0, 11.0, 30.0, 50.0):
        warning = record()
        if repeats.filter(warning):
            written.append((clock.time, getattr(warning, "suppressed", None)))
    assert written == [(0.0, 0), (10.0, 2), (30.0, 1), (50.0, 0)]


def test_the_number_of_suppressed_warnings_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line after suppressed repetitions has their number as a field."""
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
    """Warnings that differ in more than numbers are different."""
    repeats = RepeatFilter(10.0, Clock())
    assert repeats.filter(first)
    assert repeats.filter(second)


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.CRITICAL])
def test_only_warnings_and_errors_are_suppressed(level: int) -> None:
    """Information passes each time, and so do critical events."""
    repeats = RepeatFilter(10.0, Clock())
    assert all(repeats.filter(record(level=level)) for _ in range(3))


def test_the_memory_of_warnings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the oldest warning is forgotten."""
    monkeypatch.setattr(logs, "_MAX_REMEMBERED", 3)
    clock = Clock()
    repeats = RepeatFilter(10.0, clock)
    for letter in "abc":
        assert repeats.filter(record(letter))
    clock.time = 20.0
    for letter in "ad":
        assert repeats.filter(record(letter))
    assert not repeats.filter(record("a"))  # written again recently, so b was the oldest
    clock.time = 25.0
    assert repeats.filter(record("b"))


def test_an_error_of_the_kafka_client_is_one_line() -> None:
    """Its tasks log errors that the worker gets, too; only the debug level shows where."""
    for level, has_traceback in (("info", False), ("debug", True)):
        stream = configured(level=level)
        fail_beside_a_text(logging.getLogger("aiokafka.producer.sender"))
        (line,) = lines(stream)
        assert ("exception" in line) == has_traceback
        if not has_traceback:
            assert line["event"].startswith("failed: ValueError(")


@pytest.mark.parametrize(
    ("form", "stream", "expected"),
    [
        ("auto", Terminal(), True),
        ("human", Terminal(), True),
        ("json", Terminal(), False),
        ("auto", io.StringIO(), False),
        ("human", io.StringIO(), False),
    ],
)
def test_lines_for_a_person_need_a_terminal(
    form: Any, stream: io.StringIO, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file or a pipe has none, whatever the format, and JSON in a terminal is for programs."""
    assert logs.is_on_terminal(LogSettings(format=form), stream) == expected
    monkeypatch.setattr("sys.stderr", stream)
    assert logs.is_on_terminal(LogSettings(format=form)) == expected
