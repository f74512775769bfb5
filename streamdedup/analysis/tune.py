"""*Pure.* The choice of bands and rows: every option, its cost, and the reason for the pick."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from streamdedup.sketch.bands import Banding, choose_bands, doubts, fitting_bands

SIMILARITIES = (0.3, 0.5, 0.6, 0.7)
"""Similarities at which the table shows the S-curve, besides the threshold."""
ID_BYTES = 36
"""Bytes of an id, in the estimate of the index size: the length of a UUID."""

_POSTING_BYTES = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """The requirements that the bands are chosen for.

    Attributes:
        threshold: Jaccard similarity of a duplicate.
        recall: share of the pairs at the threshold that must be found.
        num_perm: MinHash values of a signature.
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
    """One banding and its properties.

    Attributes:
        recall: probability that a pair at the threshold is found.
        probabilities: the S-curve at :data:`SIMILARITIES`.
        random_candidates: unrelated documents that a lookup finds on average.
        bytes_per_document: estimated size of one document in the index.
    """

    banding: Banding
    recall: float
    probabilities: tuple[float, ...]
    random_candidates: float
    bytes_per_document: int


@dataclass(frozen=True, slots=True)
class Advice:
    """The options in ascending order of rows, and the pick among them.

    Attributes:
        given: the banding that the operator asks about, if any.
        doubts: warnings about the given banding.
    """

    plan: Plan
    options: list[Option]
    pick: Option
    given: Option | None
    doubts: list[str]

    @property
    def reason(self) -> str:
        """The pick and the reason for it, in one sentence."""
        return _reason(self)

    def as_json(self) -> dict[str, Any]:
        """Return the advice as JSON values."""
        return {
            "plan": asdict(self.plan),
            "pick": _option_json(self.pick),
            "reason": self.reason,
            "options": [_option_json(option) for option in self.options],
            "given": None if self.given is None else _option_json(self.given),
            "doubts": self.doubts,
        }


def advise(plan: Plan, given: Banding | None = None) -> Advice:
    """List the options for a plan, and pick one.

    Args:
        plan: the requirements.
        given: a banding to compare with the options.

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
    """Return the properties of a banding."""
    # Exact copies are found by one more posting, that of the whole text.
    postings = _POSTING_BYTES * (banding.bands + 1)
    return Option(
        banding=banding,
        recall=banding.candidate_probability(plan.threshold),
        probabilities=tuple(banding.candidate_probability(one) for one in SIMILARITIES),
        random_candidates=banding.random_candidates(plan.corpus, plan.background),
        bytes_per_document=postings + plan.signature_bytes + ID_BYTES,
    )


def _option_json(option: Option) -> dict[str, Any]:
    curve = zip(SIMILARITIES, option.probabilities, strict=True)
    return {
        "bands": option.banding.bands,
        "rows": option.banding.rows,
        "recall": option.recall,
        "candidate_probability": {f"{similarity:g}": value for similarity, value in curve},
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
        f"{plan.background:.3g} a lookup finds {_count(pick.random_candidates)} unrelated ones"
    )
    parts = [first]
    if pick.random_candidates >= 1.0:
        parts.append(f"more than one, but {plan.num_perm} values hold no more rows at this recall")
    elif fewer:
        parts.append(
            f"{fewer[0].banding.rows} rows would find {_count(fewer[0].random_candidates)}"
        )
    if more:
        extra = more[0].banding.bands - pick.banding.bands
        parts.append(f"{more[0].banding.rows} rows would take {extra} more bands and gain little")
    return "; ".join(parts) + "."


def _count(value: float) -> str:
    if value >= 10:  # noqa: PLR2004 - two digits and more need no fraction
        return f"{value:,.0f}"
    return f"{value:.2g}"
