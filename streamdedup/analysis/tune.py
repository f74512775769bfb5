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
    """The requirements that the bands are chosen for."""

    threshold: float  # Jaccard similarity of a duplicate
    recall: float  # share of the pairs at the threshold that must be found
    num_perm: int  # MinHash values of a signature
    corpus: int  # documents in the index
    background: float  # Jaccard similarity of unrelated documents
    signature_bytes: int  # of one stored signature


@dataclass(frozen=True, slots=True)
class Option:
    """One banding and its properties."""

    banding: Banding
    recall: float  # probability that a pair at the threshold is found
    probabilities: tuple[float, ...]  # the S-curve at SIMILARITIES
    random_candidates: float  # unrelated documents that a lookup finds on average
    bytes_per_document: int  # estimated size of one document in the index


@dataclass(frozen=True, slots=True)
class Advice:
    """The options in ascending order of rows, and the pick among them."""

    plan: Plan
    options: list[Option]
    pick: Option
    given: Option | None  # the banding that the operator asks about
    doubts: list[str]  # about the given banding

    @property
    def reason(self) -> str:
        """The pick and the reason for it, in one sentence."""
        plan, pick = self.plan, self.pick
        fewer = [o for o in self.options if o.banding.rows == pick.banding.rows - 1]
        more = [o for o in self.options if o.banding.rows == pick.banding.rows + 1]
        reason = (
            f"{pick.banding}, because they find {pick.recall:.2%} of the pairs at "
            f"{plan.threshold:g}, and among {plan.corpus:,} documents of background similarity "
            f"{plan.background:.3g} a lookup finds {short_count(pick.random_candidates)} "
            "unrelated ones"
        )
        if pick.random_candidates >= 1.0:
            reason += (
                f"; more than one, but {plan.num_perm} values hold no more rows at this recall"
            )
        elif fewer:
            count = short_count(fewer[0].random_candidates)
            reason += f"; {fewer[0].banding.rows} rows would find {count}"
        if more:
            extra = more[0].banding.bands - pick.banding.bands
            rows = more[0].banding.rows
            reason += f"; {rows} rows would take {extra} more bands and gain little"
        return reason + "."

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
    """List the options for a plan, and pick one; see :func:`fitting_bands`."""
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


def short_count(value: float) -> str:
    """Write a mean count with two significant digits, or as a whole number."""
    if value >= 10:  # noqa: PLR2004 - two digits and more need no fraction
        return f"{value:,.0f}"
    return f"{value:.2g}"
