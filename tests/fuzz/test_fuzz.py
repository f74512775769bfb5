"""The fuzzer itself: it finds planted errors, repeats a block, and knows the modules it covers."""

from __future__ import annotations

import importlib
from random import Random

import pytest

from streamdedup.errors import IndexDamaged
from streamdedup.formats import changelog
from streamdedup.formats.records import Decoder
from streamdedup.model import Document
from tests.fuzz.cases import Finding, each, mutated, odd_text
from tests.fuzz.fuzz_formats import changelog_bytes
from tests.fuzz.fuzz_records import records
from tests.fuzz.registry import TARGETS, Target
from tests.support.paths import ROOT


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_targets_exist(target: Target) -> None:
    """Each target has its function, and the modules that it covers."""
    module, name = target.place.split(".")
    assert callable(getattr(importlib.import_module(f"tests.fuzz.{module}"), name))
    for covered in target.covers:
        assert (ROOT / "streamdedup" / f"{covered.replace('.', '/')}.py").exists()


def test_a_seed_repeats_its_cases() -> None:
    """The same seed gives the same damage and the same texts."""
    drawn = [
        (mutated(random, b"some bytes", (b"token",)), odd_text(random))
        for random in (Random("1:a:2"), Random("1:a:2"))
    ]
    assert drawn[0] == drawn[1]


def test_a_foreign_exception_is_a_finding() -> None:
    """The finding has the case and the exception."""
    with pytest.raises(Finding, match=r"ZeroDivisionError: .*\ncase: 0"):
        each([2, 1, 0], _divide)


def test_an_escaped_exception_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that does not translate an error is found in the first block."""
    decode = changelog.decode

    def escaping(data: bytes, fingerprint: str) -> object:
        try:
            return decode(data, fingerprint)
        except IndexDamaged as error:
            raise KeyError(fingerprint) from error

    with changelog_bytes() as block:
        block(Random(1))
        monkeypatch.setattr(changelog, "decode", escaping)
        with pytest.raises(Finding, match="KeyError"):
            block(Random(1))


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that ignores the limits is found in the first block."""
    monkeypatch.setattr(Decoder, "check", lambda _self, document: _too_long(document))
    with records() as block, pytest.raises(Finding, match="long"):
        block(Random(1))


def _divide(number: int) -> None:
    assert 1 // number >= 0


def _too_long(document: Document) -> Document:
    return Document(document.text + "x" * 2_000_000, document.id, document.event_time_ms)
