"""*Pure.* Errors of obtaining and running a broker."""


class BrokerError(Exception):
    """A broker cannot be used; the base class of the others."""


class BrokerUnobtainable(BrokerError):
    """This machine cannot run a broker; the message says what to install or to set."""


class BrokerFailed(BrokerError):
    """A broker did not start, ended, or could not be stopped."""
