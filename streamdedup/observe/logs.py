"""*Blocking* (writes to stderr). Logging: one event per line, from this project and its libraries.

Rule 1: no document text, key, header or password is logged; positions and ids identify a document.
For the same reason tracebacks are printed without local variables, and the debug level is only for
this project: the Kafka client would print every request, with its contents.
Rule 2: a repeated warning is written once in ten seconds, with the number of suppressed ones.
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
"""Interval in which a repeated warning is written once."""
_MAX_REMEMBERED = 1000
"""Different warnings that are remembered; beyond that the oldest is forgotten."""
_NUMBER = re.compile(r"\d+")

Processor = Callable[[Any, str, MutableMapping[str, Any]], Any]


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send the log of this process, of structlog and the standard library, to a stream or stderr.

    It may be called again; the last call replaces earlier ones.
    """
    stream = stream if stream is not None else sys.stderr
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    # Of every event, from structlog or the standard library.
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
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
    if level > logging.DEBUG:
        handler.addFilter(_shorten_client_errors)
    handler.addFilter(RepeatFilter())
    renderers: list[Processor] = [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(default=str),
    ]
    if settings.format == "human" or is_on_terminal(settings, stream):
        # The default formatter prints local variables, which may hold document texts.
        plain = structlog.dev.plain_traceback
        colors = stream.isatty()
        renderers = [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common, processors=[_add_suppressed, remove_meta, *renderers]
        )
    )
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(level, logging.INFO))
    logging.getLogger(__name__.partition(".")[0]).setLevel(level)
    # Below this level the client logs every heartbeat, and requests with their contents.
    logging.getLogger("aiokafka").setLevel(max(level, logging.WARNING))


def is_on_terminal(settings: LogSettings, stream: TextIO | None = None) -> bool:
    """Return whether a person reads the log of this process, or of a stream, in a terminal."""
    return settings.format != "json" and (stream or sys.stderr).isatty()


class RepeatFilter(logging.Filter):
    """Passes a repeated warning or error once per interval.

    ``record.suppressed`` is set to the number of records suppressed before it. Two records are
    equal if their logger, level, message and fields are equal apart from numbers (offsets, ports,
    attempts). Records below WARNING, and critical ones, always pass. The clock counts seconds.
    """

    def __init__(
        self, interval_s: float = REPEAT_INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        # Written records: the time, and the number suppressed since; oldest first.
        self._written: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide whether a record is written; any thread may call this."""
        if not logging.WARNING <= record.levelno < logging.CRITICAL:
            return True
        with self._lock:
            key, now = _repetition_key(record), self._clock()
            written_at, suppressed = self._written.get(key, (-self._interval_s, 0))
            if now - written_at < self._interval_s:
                self._written[key] = (written_at, suppressed + 1)
                return False
            self._written.pop(key, None)
            self._written[key] = (now, 0)
            if len(self._written) > _MAX_REMEMBERED:
                del self._written[next(iter(self._written))]
        record.suppressed = suppressed
        return True


class _Handler(logging.StreamHandler[TextIO]):
    """The handler of this module; its class lets a second ``configure`` find it."""


def _shorten_client_errors(record: logging.LogRecord) -> bool:
    """Name the error of a record of the Kafka client instead of printing its traceback.

    The client's tasks log errors that their callers get too.
    """
    if record.name.partition(".")[0] == "aiokafka" and record.exc_info:
        error = record.exc_info[1]
        record.msg, record.args = f"{record.getMessage()}: {error!r}", ()
        record.exc_info = record.exc_text = None
    return True


def _repetition_key(record: logging.LogRecord) -> str:
    """Return a text that is equal for two records if one repeats the other."""
    if isinstance(record.msg, dict):
        content = [f"{name}={value}" for name, value in record.msg.items() if name != "timestamp"]
    else:
        content = [record.getMessage()]
    return _NUMBER.sub("#", " ".join([record.name, record.levelname, *content]))


def _add_suppressed(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the number of repetitions that were suppressed before this event."""
    suppressed = getattr(event["_record"], "suppressed", 0)
    if suppressed:
        event["suppressed"] = suppressed
    return event
