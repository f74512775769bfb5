"""*Blocking* (writes to stderr). Logging: one event per line, ours and the libraries' alike.

Rule 1: no document text, key or header is ever logged; positions and ids say which one it was.
Tracebacks are printed without local variables for the same reason.
Rule 2: a warning that repeats is written once in ten seconds, with the number of those left out.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from typing import Any, TextIO

import structlog

from streamdedup.settings.sections import LogSettings

REPEAT_INTERVAL_S = 10.0
"""A repeated warning is written once in this time."""
_MOST_REMEMBERED = 1000
"""Different warnings that are told apart; with more, the oldest may be written again."""
_NUMBER = re.compile(r"\d+")

Processor = Callable[[Any, str, MutableMapping[str, Any]], Any]


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send the log of this process, structlog's and the standard library's, to one stream.

    May be called again; the last call wins.

    Args:
        settings: level and format.
        stream: where to write; default: stderr.
    """
    stream = stream if stream is not None else sys.stderr
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    human = settings.format == "human" or (settings.format == "auto" and stream.isatty())
    common = _common_processors()
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *common,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = _Handler(stream)
    handler.addFilter(RepeatFilter())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[
                _add_suppressed,
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(human=human, colors=stream.isatty()),
            ],
        )
    )
    _install(handler, level)


class RepeatFilter(logging.Filter):
    """Lets a warning pass once in an interval; ``record.suppressed`` counts those left out before.

    Two warnings are the same if they agree in logger, level, message and fields, all numbers
    (offsets, ports, attempts) aside. What is less severe passes, as does what is critical.

    Args:
        interval_s: how long a warning is not repeated.
        clock: a clock that never goes back, in seconds.
    """

    def __init__(
        self,
        interval_s: float = REPEAT_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        # What was written: when, and how many have been left out since; the oldest first.
        self._written: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide whether a record is written; any thread may ask."""
        if not logging.WARNING <= record.levelno < logging.CRITICAL:
            return True
        with self._lock:
            return self._first_for_long(record)

    def _first_for_long(self, record: logging.LogRecord) -> bool:
        key, now = _sameness(record), self._clock()
        written_at, suppressed = self._written.get(key, (-self._interval_s, 0))
        if now - written_at < self._interval_s:
            self._written[key] = (written_at, suppressed + 1)
            return False
        self._written.pop(key, None)
        self._written[key] = (now, 0)
        if len(self._written) > _MOST_REMEMBERED:
            del self._written[next(iter(self._written))]
        record.suppressed = suppressed
        return True


class _Handler(logging.StreamHandler[TextIO]):
    """Marks the handler as ours, so that a second ``configure`` finds it."""


def _common_processors() -> list[Processor]:
    """Return what is added to every event, wherever it comes from."""
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _renderers(*, human: bool, colors: bool) -> list[Processor]:
    if human:
        # The default formatter of exceptions prints local variables: document texts.
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
    return [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(default=str),
    ]


def _install(handler: logging.Handler, level: int) -> None:
    root = logging.getLogger()
    for old in [one for one in root.handlers if isinstance(one, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    # The client tells of every rebalance, request and heartbeat below this level.
    client_level = level if level <= logging.DEBUG else max(level, logging.WARNING)
    logging.getLogger("aiokafka").setLevel(client_level)


def _sameness(record: logging.LogRecord) -> str:
    """Return what two records have in common if one repeats the other."""
    if isinstance(record.msg, dict):
        said = [f"{name}={record.msg[name]}" for name in record.msg if name != "timestamp"]
    else:
        said = [record.getMessage()]
    return _NUMBER.sub("#", " ".join([record.name, record.levelname, *said]))


def _add_suppressed(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Say how many repetitions were left out since the last one that was written."""
    suppressed = getattr(event["_record"], "suppressed", 0)
    if suppressed:
        event["suppressed"] = suppressed
    return event
