"""*Pure.* The choice of bands, laid open: every option, what it costs, and why one is picked."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from streamdedup.sketch.bands import Banding, choose_bands, doubts, fitting_bands

SIMILARITIES = (0.3, 0.5, 0.6, 0.7)
"""Where the table shows the S-curve, besides the threshold."""
ID_BYTES = 36
"""Bytes of an id that the estimate of an index's size counts on: those of a UUID."""

_POSTING_BYTES = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """What the bands are chosen for.

    Attributes:
        threshold: Jaccard similarity that makes a duplicate.
        recall: share of the pairs at the threshold that must be found.
        num_perm: MinHash values to cut up.
        corpus: documents in the index.
        background: Jaccard similarity of unrelated documents.
        signature_bytes: bytes of one stored signature.
    """

    threshold: float
    recall: float
    num_perm: int
    corpus: int
    background: float
    signature_bytes: int


@dataclass(frozen=True, slots=True)
class Option:
    """One way to cut the signatures, and what comes of it.

    Attributes:
        recall: probability at the threshold that a pair is found.
        probabilities: the S-curve at :data:`SIMILARITIES`.
        random_candidates: unrelated documents that a lookup meets on average.
        bytes_per_document: estimated size of one document in the index.
    """

    banding: Banding
    recall: float
    probabilities: tuple[float, ...]
    random_candidates: float
    bytes_per_document: int


@dataclass(frozen=True, slots=True)
class Advice:
    """The options in the order of their rows, and the pick among them.

    Attributes:
        given: the bands that were asked about, if any.
        doubts: what is wrong with these.
    """

    plan: Plan
    options: list[Option]
    pick: Option
    given: Option | None
    doubts: list[str]

    @property
    def reason(self) -> str:
        """The pick, explained in one sentence."""
        return _reason(self)

    def as_json(self) -> dict[str, Any]:
        """Return everything as what JSON can say."""
        return {
            "plan": asdict(self.plan),
            "pick": _option_json(self.pick),
            "reason": self.reason,
            "options": [_option_json(option) for option in self.options],
            "given": None if self.given is None else _option_json(self.given),
            "doubts": self.doubts,
        }


def advise(plan: Plan, given: Banding | None = None) -> Advice:
    """Lay out the options for a plan, and pick one.

    Args:
        plan: what the bands are for.
        given: bands to judge beside them.

    Raises:
        ValueError: ``num_perm`` values cannot reach the recall.
    """
    fitting = fitting_bands(plan.threshold, plan.recall, plan.num_perm)
    pick = choose_bands(plan.threshold, plan.recall, plan.num_perm, plan.corpus, plan.background)
    return Advice(
        plan=plan,
        options=[weigh(banding, plan) for banding in fitting],
        pick=weigh(pick, plan),
        given=None if given is None else weigh(given, plan),
        doubts=[] if given is None else doubts(given, plan.threshold, plan.recall, plan.num_perm),
    )


def weigh(banding: Banding, plan: Plan) -> Option:
    """Return what comes of one way to cut the signatures."""
    # One posting more is that of the whole text, under which exact copies meet.
    postings = _POSTING_BYTES * (banding.bands + 1)
    return Option(
        banding=banding,
        recall=banding.candidate_probability(plan.threshold),
        probabilities=tuple(banding.candidate_probability(at) for at in SIMILARITIES),
        random_candidates=banding.random_candidates(plan.corpus, plan.background),
        bytes_per_document=postings + plan.signature_bytes + ID_BYTES,
    )


def _option_json(option: Option) -> dict[str, Any]:
    curve = zip(SIMILARITIES, option.probabilities, strict=True)
    return {
        "bands": option.banding.bands,
        "rows": option.banding.rows,
        "recall": option.recall,
        "candidate_probability": {f"{at:g}": value for at, value in curve},
        "random_candidates": option.random_candidates,
        "bytes_per_document": option.bytes_per_document,
    }


def _reason(advice: Advice) -> str:
    plan, pick = advice.plan, advice.pick
    fewer = [o for o in advice.options if o.banding.rows == pick.banding.rows - 1]
    more = [o for o in advice.options if o.banding.rows == pick.banding.rows + 1]
    first = (
        f"{pick.banding}, because they find {pick.recall:.2%} of the pairs at "
        f"{plan.threshold:g}, and among {plan.corpus:,} documents of background similarity "
        f"{plan.background:.3g} a lookup meets {_count(pick.random_candidates)} unrelated ones"
    )
    parts = [first]
    if pick.random_candidates >= 1.0:
        parts.append(f"more than one, but {plan.num_perm} values hold no more rows at this recall")
    elif fewer:
        parts.append(
            f"{fewer[0].banding.rows} rows would meet {_count(fewer[0].random_candidates)}"
        )
    if more:
        extra = more[0].banding.bands - pick.banding.bands
        parts.append(f"{more[0].banding.rows} rows would take {extra} bands more and gain little")
    return "; ".join(parts) + "."


def _count(value: float) -> str:
    if value >= 10:  # noqa: PLR2004 - two digits and more need no fraction
        return f"{value:,.0f}"
    return f"{value:.2g}"
