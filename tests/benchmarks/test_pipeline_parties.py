"""The stages of the worker are read from its metrics page."""

from __future__ import annotations

import pytest

from benchmarks.pipeline_parties import Samples, stages
from streamdedup.observe.metrics import Metrics


def _samples(metrics: Metrics) -> Samples:
    return Samples(metrics.render()[0].decode())


def test_stages_are_the_difference_between_two_looks() -> None:
    """What was before the first look does not count."""
    metrics = Metrics()
    metrics.observe_stage("probe", 5.0)
    first = _samples(metrics)
    metrics.observe_stage("probe", 0.25)
    metrics.observe_stage("probe", 0.50)
    metrics.observe_stage("index", 0.10)
    found = stages(first, _samples(metrics), 1000)
    assert found["probe"] == pytest.approx(750)
    assert found["index"] == pytest.approx(100)
    assert found["resolve"] == 0


def test_samples_of_all_labels_are_added() -> None:
    """Neither another metric nor its labels matter."""
    metrics = Metrics()
    metrics.count_transaction("committed")
    metrics.count_transaction("unknown")
    metrics.set_gauge("ready", 1)
    found = _samples(metrics)
    assert found.sum("transactions_total") == 2
    assert found.by_label("transactions_total")["committed"] == 1
    assert found.sum("ready") == 1
    assert found.sum("documents_total") == 0
