"""*Pure.* The tables of the pipeline's benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.measured import Resident
from benchmarks.pipeline_avro import AVRO, JSON
from benchmarks.pipeline_drain import Drain
from benchmarks.pipeline_latency import Latency
from benchmarks.pipeline_parties import BEST_COPY, COPY, WORKER

_MB = 1e6
_RECALLS = ("exact_recall", "near_recall")

DRAIN_HEADER = (
    f"{'':12} {'docs/s':>9} {'start s':>8} {'CPU us/doc: main':>17} {'(its loop)':>10} "
    f"{'children':>9} {'broker':>7} {'peak MB main':>13} {'children':>9} {'other load':>11}"
)


def drain_line(drain: Drain) -> str:
    """Return the row of one drain."""
    broker = "-" if drain.broker_us is None else f"{drain.broker_us:.1f}"
    return (
        f"{drain.party:12} {drain.documents_per_s:9,.0f} {drain.start_s:8.1f} "
        f"{drain.main_us:17.1f} {drain.loop_us:10.1f} {drain.children_us:9.1f} {broker:>7} "
        f"{drain.resident.main_peak / _MB:13,.0f} {drain.resident.children_peak / _MB:9,.0f} "
        f"{drain.other_load:11.2f}"
    )


def speeds(drains: Sequence[Drain]) -> dict[str, float]:
    """Return the median of documents per second, by party."""
    parties = dict.fromkeys(drain.party for drain in drains)
    return {name: _median(drains, name, "documents_per_s") for name in parties}


def summary(drains: Sequence[Drain]) -> dict[str, Any]:
    """Return the medians of a case, and the speed of the worker relative to the copies."""
    by_party = speeds(drains)
    figures: dict[str, Any] = {
        name: {
            "documents_per_s": speed,
            **{
                figure: _median(drains, name, figure)
                for figure in ("start_s", "main_us", "loop_us", "children_us", "other_load")
            },
        }
        for name, speed in by_party.items()
    }
    figures["worker / copy"] = by_party[WORKER.name] / by_party[COPY.name]
    figures["worker / best copy"] = by_party[WORKER.name] / by_party[BEST_COPY.name]
    return figures


def summary_lines(drains: Sequence[Drain]) -> Iterator[str]:
    """Yield the medians, the ratios and the checks of a case."""
    figures = summary(drains)
    own = [drain for drain in drains if drain.party == WORKER.name]
    medians = ", ".join(f"{name} {speed:,.0f}" for name, speed in speeds(drains).items())
    yield f"medians of docs/s: {medians}"
    yield (
        f"streamdedup / copy {figures['worker / copy']:.3f}, "
        f"streamdedup / best copy {figures['worker / best copy']:.3f}"
    )
    costs = {
        name: statistics.median(
            one.all_us + (one.broker_us or 0.0) for one in drains if one.party == name
        )
        for name in speeds(drains)
    }
    yield "medians of CPU us/doc, with the broker: " + ", ".join(
        f"{name} {cost:.0f}" for name, cost in costs.items()
    )
    checks = [drain.check for drain in own if drain.check is not None]
    yield (
        f"each source record is exactly once in the outputs; recall of planted exact copies "
        f"{min(check.exact_recall for check in checks):.4f}, of near copies "
        f"{min(check.near_recall for check in checks):.4f}; "
        f"{max(check.false_drops for check in checks):,} documents dropped wrongly"
    )


def stage_lines(drains: Mapping[str, Sequence[Drain]]) -> Iterator[str]:
    """Yield the table of the worker's stages, a column for each case."""
    own = {
        name: [drain for drain in some if drain.party == WORKER.name]
        for name, some in drains.items()
    }
    yield "time of a batch in each stage of the worker, in us per document (stages overlap)"
    yield f"{'':24}" + "".join(f"{name:>18}" for name in own)
    stages = dict.fromkeys(stage for some in own.values() for stage in some[0].stages_us)
    for stage in stages:
        medians = [statistics.median(one.stages_us[stage] for one in some) for some in own.values()]
        yield f"{stage:24}" + "".join(f"{median:18.1f}" for median in medians)
    for label, figure in (
        ("wall time", lambda one: 1e6 / one.documents_per_s),
        ("CPU, event loop's thread", lambda one: one.loop_us),
        ("CPU, other threads", lambda one: one.main_us - one.loop_us),
        ("CPU, pool", lambda one: one.children_us),
        ("documents a transaction", lambda one: one.records_per_transaction or 0.0),
    ):
        medians = [statistics.median(map(figure, some)) for some in own.values()]
        yield f"{label:24}" + "".join(f"{median:18,.1f}" for median in medians)


def avro_lines(drains: Sequence[Drain]) -> Iterator[str]:
    """Yield what Avro costs, in relation to JSON."""
    costs, rates = (
        [_median(drains, party.name, figure) for party in (JSON, AVRO)]
        for figure in ("all_us", "documents_per_s")
    )
    checks = [drain.check for drain in drains if drain.check is not None]
    yield (
        f"CPU us/doc: json {costs[0]:.1f}, avro {costs[1]:.1f}, avro / json "
        f"{costs[1] / costs[0]:.3f}; docs/s: avro / json {rates[1] / rates[0]:.3f}"
    )
    exact, near = (min(getattr(check, name) for check in checks) for name in _RECALLS)
    yield f"recall of planted exact copies {exact:.4f}, of near copies {near:.4f}"


def latency_lines(found: Sequence[Latency]) -> Iterator[str]:
    """Yield the table of latencies."""
    yield "milliseconds from the due time of a document to the receipt of its verdict"
    yield f"{'documents/s':>12} {'documents':>10} {'p50':>8} {'p95':>8} {'p99':>8} {'max':>8}"
    for one in found:
        yield (
            f"{one.rate:12,.0f} {one.documents:10,} {one.p50:8.1f} {one.p95:8.1f} "
            f"{one.p99:8.1f} {one.max:8.1f}"
        )


MEMORY_HEADER = (
    f"{'documents':>12} {'RSS MB main':>12} {'anonymous':>10} {'pool':>8} "
    f"{'peak main':>10} {'pool':>8}"
)


def memory_line(documents: int, resident: Resident) -> str:
    """Return the row of the resident memory after a number of documents."""
    main, pool, main_peak, pool_peak, anonymous = (size / _MB for size in resident)
    return (
        f"{documents:12,} {main:12,.0f} {anonymous:10,.0f} {pool:8,.0f} "
        f"{main_peak:10,.0f} {pool_peak:8,.0f}"
    )


def _median(drains: Sequence[Drain], party: str, figure: str) -> float:
    return statistics.median(
        float(getattr(drain, figure)) for drain in drains if drain.party == party
    )
