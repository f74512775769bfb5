"""Signals: a command stops at once, but never during a commit."""

from __future__ import annotations

import signal

import pytest
import typer

from streamdedup.cli.terminal import Interrupted, Interrupts, interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_commit(number: signal.Signals) -> None:
    """A shielded block completes; then the signal ends the run."""
    before = signal.getsignal(number)
    done = []

    def commit() -> None:
        with Interrupts() as interrupts:
            with interrupts.shield():
                signal.raise_signal(number)
                done.append("commit")
            done.append("never")

    with pytest.raises(Interrupted) as raised:
        commit()
    assert done == ["commit"]
    assert raised.value.exit_code == 128 + number
    assert signal.getsignal(number) == before


def test_a_second_signal_ends_the_process() -> None:
    """Signal handlers are reset, because cleaning up may hang."""

    def stop() -> None:
        with Interrupts():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL

    with pytest.raises(Interrupted):
        stop()


def test_a_failed_commit_is_not_hidden_by_a_signal() -> None:
    """The error of the commit is raised, not the interruption."""

    def fail() -> None:
        with Interrupts() as interrupts, interrupts.shield():
            signal.raise_signal(signal.SIGINT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_an_interrupted_block_is_one_line_and_an_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The line goes to standard error; the code is 128 + the signal."""
    with pytest.raises(typer.Exit) as ended, interruptible("counting was interrupted"):
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.exit_code == 143
    assert capsys.readouterr().err == "streamdedup: counting was interrupted\n"
