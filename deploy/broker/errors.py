"""*Blocking.* What can go wrong with the tests' broker, named by who must act."""


class BrokerError(Exception):
    """Anything that keeps a test from the broker it asked for."""


class BrokerUnobtainable(BrokerError):  # noqa: N818 - a state, as its siblings
    """No broker is to be had on this machine; the message says what to install or to set."""


class BrokerFailed(BrokerError):  # noqa: N818 - a state, as its siblings
    """A broker was to be had, but it did not start, or it cannot do what was asked of it."""
