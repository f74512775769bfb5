"""*Blocking.* `python -m deploy.broker`: a real Kafka broker in the foreground."""

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Iterator

from deploy.broker.errors import BrokerError, BrokerFailed
from deploy.broker.jars import kafka_version
from deploy.broker.obtain import ORIGIN_VARIABLE, own_broker
from deploy.broker.process import LONG_LIVED

_PAUSE_SECONDS = 0.5

_DESCRIPTION = """\
Run one real Apache Kafka broker on 127.0.0.1 until it is interrupted, to try streamdedup.

It is a single KRaft node with a transaction coordinator. It runs in a container if a Docker engine
answers, else from Kafka's jars, which need Java 17 and Maven and are downloaded once. It prints one
line, `bootstrap: HOST:PORT`, when it serves requests. It creates no topics on first use. All data
is temporary, and is deleted when the broker stops.
"""

_EPILOG = f"""\
examples:
  python -m deploy.broker
  python -m deploy.broker --port 19092
  {ORIGIN_VARIABLE}=maven python -m deploy.broker     only the jars, never a container
  {ORIGIN_VARIABLE}=container python -m deploy.broker only a container

Ctrl-C or SIGTERM shuts it down; the exit status is then 0.
"""


class _StopRequested(BaseException):
    """A signal asked the process to end; a BaseException, so that no handler catches it."""


def main(arguments: list[str] | None = None) -> int:
    """Run the broker; return 0 after a requested stop, 1 if it could not run."""
    options = _parse(arguments)
    try:
        with _stop_on_signals():
            _serve(options.port)
    except _StopRequested:
        return 0
    except BrokerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.broker",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--port", type=_port, default=9092, help="loopback port to listen on (default: 9092)"
    )
    parser.add_argument("--version", action="version", version=f"Apache Kafka {kafka_version()}")
    return parser.parse_args(arguments)


def _port(text: str) -> int:
    port = int(text) if text.isdecimal() else 0
    if not 0 < port < 65_536:
        raise argparse.ArgumentTypeError(f"not a port (1 to 65535): {text}")
    return port


def _serve(port: int) -> None:
    with own_broker(port=port, options=LONG_LIVED) as broker:
        print(f"bootstrap: {broker.bootstrap}", flush=True)
        try:
            while broker.is_running():
                time.sleep(_PAUSE_SECONDS)
        except _StopRequested:
            broker.stop()
            raise
    raise BrokerFailed("the broker ended unexpectedly")


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[None]:
    def request_stop(_number: int, _frame: object) -> None:
        # A second Ctrl-C must not interrupt the clean-up.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise _StopRequested

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, request_stop)
    yield


if __name__ == "__main__":
    sys.exit(main())
