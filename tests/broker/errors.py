"""*Blocking.* What can go wrong with the tests' broker, named by who must act."""


class BrokerError(Exception):
    """Anything that keeps a test from the broker it asked for."""


class BrokerUnobtainable(BrokerError):
    """No broker is to be had on this machine; the message says what to install or to set."""


class BrokerFailed(BrokerError):
    """A broker was to be had, but it did not start, or it cannot do what was asked of it."""
