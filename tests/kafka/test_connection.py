"""Translated errors: each error of the client names who must act."""

from __future__ import annotations

import ssl

import pytest
from aiokafka import errors

from streamdedup.errors import (
    BrokerRefused,
    BrokerUnavailable,
    ClockWrong,
    Fenced,
    SettingsError,
    StreamdedupError,
)
from streamdedup.kafka.connection import REFUSALS, translated


@pytest.mark.parametrize(
    ("error", "expected", "fragment"),
    [
        (errors.ProducerFenced(), Fenced, "topics.changelog has taken over"),
        (errors.InvalidProducerEpoch(), Fenced, "kafka.transaction_timeout"),
        *((refusal("why"), BrokerRefused, "the broker refuses") for refusal in REFUSALS),
        (errors.InvalidTransactionTimeout(), SettingsError, "transaction.max.timeout.ms"),
        (errors.InvalidTimestampError(), ClockWrong, "the clock of this machine"),
        (ssl.SSLError("bad certificate"), BrokerRefused, "TLS failed"),
        (errors.RequestTimedOutError(), BrokerUnavailable, "RequestTimedOutError"),
        (ConnectionRefusedError("refused\n twice"), BrokerUnavailable, "refused twice"),
        (TimeoutError(), BrokerUnavailable, "an action: TimeoutError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_error_names_who_must_act(
    error: Exception, expected: type[StreamdedupError], fragment: str
) -> None:
    """The message is one line."""
    with pytest.raises(expected) as caught, translated("an action"):
        raise error
    assert type(caught.value) is expected
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_errors_pass() -> None:
    """Errors of this project, and bugs, are not translated."""
    with pytest.raises(ZeroDivisionError), translated("an action"):
        raise ZeroDivisionError
    with pytest.raises(SettingsError, match=r"^as it is$"), translated("an action"):
        raise SettingsError("as it is")
