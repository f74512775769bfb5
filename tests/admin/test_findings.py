"""How findings are collected, who must act on them, and the exit code that follows."""

from __future__ import annotations

import pytest

from streamdedup.admin.findings import (
    ADMINISTRATOR,
    OPERATOR,
    Finding,
    Findings,
    Severity,
    exit_code,
)
from streamdedup.errors import (
    BrokerRefused,
    BrokerUnavailable,
    IndexMismatch,
    SettingsError,
    StreamdedupError,
    TopicError,
)


@pytest.mark.parametrize(
    ("error", "who"),
    [
        (TopicError("missing"), ADMINISTRATOR),
        (BrokerRefused("no access"), ADMINISTRATOR),
        (BrokerUnavailable("no answer"), ADMINISTRATOR),
        (SettingsError("a typing error"), OPERATOR),
        (IndexMismatch("another seed"), OPERATOR),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_names_who_can_fix_it(error: StreamdedupError, who: str) -> None:
    """The finding has the message and the exit code of the error."""
    findings = Findings()
    findings.fail("check", error)
    [finding] = findings.collected
    assert (finding.level, finding.message, finding.who) == (Severity.ERROR, str(error), who)
    assert finding.exit_code == error.exit_code


def test_a_guarded_check_reports_its_error_and_continues() -> None:
    """Other exceptions are bugs, and pass through."""
    findings = Findings()
    with findings.guarded("topics"):
        raise TopicError("missing topics")
    findings.ok("disk room", "enough")
    assert [one.check for one in findings.collected] == ["topics", "disk room"]
    with pytest.raises(ZeroDivisionError), findings.guarded("bug"):
        _ = 1 / 0


def test_the_exit_code_is_that_of_the_first_error() -> None:
    """Warnings and skipped checks do not count."""
    findings = Findings()
    findings.warn("file system", "overlay", OPERATOR)
    findings.skip("offsets", "no broker")
    assert findings.collected == [
        Finding("file system", Severity.WARNING, "overlay", OPERATOR),
        Finding("offsets", Severity.SKIPPED, "no broker"),
    ]
    assert exit_code(findings.collected) == 0
    findings.fail("topics", TopicError("missing"))
    findings.fail("index", IndexMismatch("another seed"))
    assert exit_code(findings.collected) == TopicError.exit_code
