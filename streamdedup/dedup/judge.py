"""*Pure.* The kernels that judge the documents of a batch one after another.

:mod:`streamdedup.dedup.resolve` prepares their arguments and describes the rules. A *place* names a
document that another one is compared with: below ``m`` a row of the ``m`` candidates of the index,
from ``m`` on a row of the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamdedup.columns import F64, I64, U8, U64
from streamdedup.dedup.rule import is_better, is_in_reach, is_in_window, oldest_in_window
from streamdedup.kernels import kernel

I32 = NDArray[np.int32]
Bools = NDArray[np.bool_]

IGNORED_KEY_BITS = np.uint64(24)
"""Documents share a bucket if their band keys agree in the bits above these, in a batch as in the
index, which stores no others."""
CANDIDATES, VERIFIED, TRUNCATED = range(3)
"""Indices of the counters."""
_BYTE, _NIBBLE, _PAIR = 8, 4, 2  # bits of a signature's value
ALONE = -1
"""The bucket of a band key that no other document of the batch has."""
NO_PLACE = -1
"""The place of the best match of a document without a match."""


class Documents(NamedTuple):
    """What is compared of ``n`` documents: those of the batch, or those of the index."""

    signatures: U64  # (n, words), the stored bits padded with zeros; see words_of
    namespaces: U64  # (n,)
    compared_ms: I64  # (n,), the time by which each is compared
    effective_ms: I64  # (n,), the time from which its stay counts
    sources: I64  # (n,), equal for documents of one partition
    offsets: I64  # (n,)


class BatchArrays(NamedTuple):
    """What else is known of the ``n`` documents of the batch."""

    skipped: Bools  # (n,), documents that are not compared: without text, or kept before
    judged: Bools  # (n,), documents whose position was judged before
    firsts: I64  # (n,), the earlier row with the same position; -1 if there is none
    now_ms: I64  # (n,), the clock when each is judged
    buckets: I32  # (n, columns), the bucket of each band key that occurs several times
    leaders: I32  # (n, columns), the first row with each band key, which has its hits


class Hits(NamedTuple):
    """The hits in the index, by row of the batch, column and number."""

    starts: I64  # (n * columns + 1,): where those of a cell, row * columns + column, begin
    places: I64  # (h,); -1 for an erased document
    numbers: I64  # (m,), the numbers of the documents at the places


class RuleArrays(NamedTuple):
    """The rule; see :class:`streamdedup.dedup.resolve.Rule`. -1 stands for no limit of a time."""

    threshold: float
    bucket_size: int
    window_documents: int
    window_ms: int
    reach_ms: int
    first_number: int
    bits: int  # bits of a signature's value
    estimates: F64  # (num_perm + 1,): the similarity for each number of unequal values
    near: Bools  # (num_perm + 1,): whether the texts decide at that number
    has_texts: bool  # whether the texts decide at any number


class BestArrays(NamedTuple):
    """The best of some candidates of each of ``n`` documents: best first, ties to the earliest."""

    counts: I64  # (n,): how many are known of each document
    places: I64  # (n, most)
    estimates: F64  # (n, most)
    similarities: F64  # (n, most): what has decided

    @classmethod
    def of(cls, count: int, most: int) -> BestArrays:
        """Return the arrays for ``count`` documents, before any candidate is known."""
        return cls(
            np.zeros(count, dtype=np.int64),
            np.empty((count, most), dtype=np.int64),
            np.empty((count, most)),
            np.empty((count, most)),
        )


class JudgingState(NamedTuple):
    """What the judgement of each document changes."""

    counters: I64  # candidates, those at or above the threshold, and look-ups in full buckets
    unequal: I64  # (num_perm + 1,): candidates by their number of unequal values
    accepted: I64  # (num_perm + 1,): the same, of those at or above the threshold
    # (n, 2): for each row the two smallest numbers of unequal values of its candidates, or
    # num_perm + 1; if texts decide, only of candidates at or above the threshold.
    nearest: I64
    kept: I64  # (1,): documents kept so far
    kept_rows: I64  # (n,): their rows
    kept_index: I64  # (n,): for a kept row, how many were kept before it; else -1
    newest: I64  # (buckets,): the last kept row of each bucket, or -1
    older: I64  # (n, columns): the kept row before it in the same bucket, or -1
    sizes: I64  # (buckets,): kept documents of the batch in each bucket
    seen: I64  # (m + n,): 1 + the last row that has met the place
    found: I64  # the places of the current document's candidates
    differences: I64  # their numbers of unequal values
    matches: BestArrays  # the best matches of each row
    refuted: BestArrays  # the best candidate of each row that is below the threshold


def words_of(signatures: U8) -> U64:
    """Return signatures, ``(n, num_bytes)``, as words that are padded with zeros."""
    count, width = signatures.shape
    if width % 8 == 0:
        return np.ascontiguousarray(signatures).view(np.uint64).reshape(count, width // 8)
    padded = np.zeros((count, -(-width // 8) * 8), dtype=np.uint8)
    padded[:, :width] = signatures
    return padded.view(np.uint64)


@kernel
def group(keys: U64, ignored_bits: np.uint64) -> tuple[I32, I32, int]:
    """Number the buckets that several documents of a batch share, by band keys, ``(n, columns)``.

    Return the bucket of each key, ``(n, columns)`` int32, ``ALONE`` for a key that occurs once; the
    first row with each key, ``(n, columns)`` int32; and the number of buckets.
    """
    rows, columns = keys.shape
    buckets = np.full((rows, columns), ALONE, dtype=np.int32)
    leaders = np.empty((rows, columns), dtype=np.int32)
    cells = 16
    while cells < 2 * rows:
        cells *= 2
    table = np.empty(cells, dtype=np.int32)
    mask = np.uint64(cells - 1)
    count = 0
    for column in range(columns):
        table[:] = -1
        for row in range(rows):
            key = keys[row, column] >> ignored_bits
            cell = (key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32) & mask
            while table[cell] >= 0 and keys[table[cell], column] >> ignored_bits != key:
                cell = (cell + np.uint64(1)) & mask
            first = table[cell]
            if first < 0:
                table[cell] = leaders[row, column] = row
                continue
            leaders[row, column] = first
            if buckets[first, column] == ALONE:
                buckets[first, column] = count
                count += 1
            buckets[row, column] = buckets[first, column]
    return buckets, leaders, count


@kernel(inline="always")
def _is_comparable(
    row: int, mine: Documents, theirs: Documents, other: int, batch: BatchArrays, limits: RuleArrays
) -> bool:
    """Return whether a document of the same namespace may match: in the window, and earlier."""
    # A replay is only compared with documents that came before it.
    replayed = batch.judged[row] and mine.sources[row] == theirs.sources[other]
    return (
        is_in_window(mine.compared_ms[row], theirs.compared_ms[other], limits.window_ms)
        and is_in_reach(theirs.effective_ms[other], batch.now_ms[row], limits.reach_ms)
        and not (replayed and theirs.offsets[other] >= mine.offsets[row])
    )


@kernel
def find(
    row: int,
    mine: Documents,
    stored: Documents,
    batch: BatchArrays,
    hits: Hits,
    limits: RuleArrays,
    state: JudgingState,
) -> int:
    """Find the candidates of a document; return how many there are in ``state.found``."""
    oldest = oldest_in_window(limits.first_number + state.kept[0], limits.window_documents)
    # Reading an array from a tuple counts references, which takes longer than the work here.
    seen, candidates, older, kept_index = state.seen, state.found, state.older, state.kept_index
    hit_places, numbers = hits.places, hits.numbers
    own, stored_namespaces, namespace = mine.namespaces, stored.namespaces, mine.namespaces[row]
    is_simple = limits.window_ms < 0 and limits.reach_ms < 0 and not batch.judged[row]
    places = len(numbers)
    found = 0
    columns = batch.buckets.shape[1]
    for column in range(columns):
        cell = batch.leaders[row, column] * columns + column
        begin, hit = hits.starts[cell], hits.starts[cell + 1]
        bucket = batch.buckets[row, column]
        fresh = state.sizes[bucket] if bucket >= 0 else 0
        fresh = min(fresh, limits.bucket_size)
        known = min(hit - begin, limits.bucket_size - fresh)
        if hit - begin + fresh >= limits.bucket_size:
            state.counters[TRUNCATED] += 1
        other = state.newest[bucket] if fresh else -1
        for _ in range(fresh):
            if seen[places + other] != row + 1:
                seen[places + other] = row + 1
                in_reach = limits.first_number + kept_index[other] >= oldest
                if (
                    in_reach
                    and own[other] == namespace
                    and (is_simple or _is_comparable(row, mine, mine, other, batch, limits))
                ):
                    candidates[found] = places + other
                    found += 1
            other = older[other, column]
        for index in range(hit - known, hit):
            place = hit_places[index]
            if place < 0 or seen[place] == row + 1:
                continue
            seen[place] = row + 1
            if (
                numbers[place] >= oldest
                and stored_namespaces[place] == namespace
                and (is_simple or _is_comparable(row, mine, stored, place, batch, limits))
            ):
                candidates[found] = place
                found += 1
    return found


@kernel(inline="always")
def unequal(one: U64, others: U64, row: int, bits: int) -> np.int64:
    """Return how many values of a signature and of a row differ; each has so many bits."""
    count = np.int64(0)
    for word in range(len(one)):
        differs = one[word] ^ others[row, word]
        # Of each value, the lowest bit becomes 1 if any bit differs.
        if bits >= _BYTE:
            differs |= differs >> np.uint64(4)
        if bits >= _NIBBLE:
            differs |= differs >> np.uint64(2)
        if bits >= _PAIR:
            differs |= differs >> np.uint64(1)
        if bits == _BYTE:
            differs &= np.uint64(0x0101010101010101)
        elif bits == _NIBBLE:
            differs &= np.uint64(0x1111111111111111)
        elif bits == _PAIR:
            differs &= np.uint64(0x5555555555555555)
        # The number of bits that are 1; compilers know this form.
        differs -= (differs >> np.uint64(1)) & np.uint64(0x5555555555555555)
        pairs = differs & np.uint64(0x3333333333333333)
        differs = pairs + ((differs >> np.uint64(2)) & np.uint64(0x3333333333333333))
        differs = (differs + (differs >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
        count += np.int64((differs * np.uint64(0x0101010101010101)) >> np.uint64(56))
    return count


@kernel
def compare(
    row: int,
    found: int,
    mine: Documents,
    stored: Documents,
    limits: RuleArrays,
    state: JudgingState,
) -> bool:
    """Count the unequal values of each candidate; return whether texts decide about any of them."""
    places, signature = len(stored.signatures), mine.signatures[row]
    of_batch, of_index = mine.signatures, stored.signatures
    candidates, differences, counts = state.found, state.differences, state.unequal
    near = limits.near
    is_near = False
    for candidate in range(found):
        place = candidates[candidate]
        if place < places:
            count = unequal(signature, of_index, place, limits.bits)
        else:
            count = unequal(signature, of_batch, place - places, limits.bits)
        differences[candidate] = count
        counts[count] += 1
        is_near = is_near or near[count]
    state.counters[CANDIDATES] += found
    return is_near


@kernel(inline="always")
def _enter(row: int, place: int, estimate: float, similarity: float, best: BestArrays) -> None:
    """Enter a candidate of a document if it is one of the best."""
    # The places of the index and the kept rows of the batch ascend with the numbers.
    most, count = best.places.shape[1], best.counts[row]
    at = count
    while at > 0 and is_better(
        similarity, place, best.similarities[row, at - 1], best.places[row, at - 1]
    ):
        at -= 1
    if at < most:
        best.counts[row] = min(count + 1, most)
        for later in range(min(count, most - 1), at, -1):
            best.places[row, later] = best.places[row, later - 1]
            best.estimates[row, later] = best.estimates[row, later - 1]
            best.similarities[row, later] = best.similarities[row, later - 1]
        best.places[row, at] = place
        best.estimates[row, at] = estimate
        best.similarities[row, at] = similarity


@kernel
def decide(
    row: int,
    found: int,
    similarities: F64,
    batch: BatchArrays,
    limits: RuleArrays,
    state: JudgingState,
) -> None:
    """Enter the matches of a document into ``state``, or keep it.

    ``similarities``, ``(found,)`` or longer, decide about its candidates, which ``state`` holds.
    """
    candidates, differences, nearest = state.found, state.differences, state.nearest
    matches, estimates = state.matches, limits.estimates
    refuted, refuted_place, refuted_difference = -1.0, NO_PLACE, 0
    for candidate in range(found):
        similarity, place = similarities[candidate], candidates[candidate]
        is_match, difference = similarity >= limits.threshold, differences[candidate]
        if (is_match or not limits.has_texts) and difference < nearest[row, 1]:
            nearest[row, 1] = max(difference, nearest[row, 0])
            nearest[row, 0] = min(difference, nearest[row, 0])
        if is_match:
            state.counters[VERIFIED] += 1
            state.accepted[difference] += 1
            _enter(row, place, estimates[difference], similarity, matches)
        elif is_better(similarity, place, refuted, refuted_place):
            refuted, refuted_place, refuted_difference = similarity, place, difference
    if refuted_place != NO_PLACE:
        _enter(row, refuted_place, estimates[refuted_difference], refuted, state.refuted)
    if matches.counts[row] == 0 and not batch.judged[row]:
        _keep(row, batch, state)


@kernel
def _keep(row: int, batch: BatchArrays, state: JudgingState) -> None:
    """Keep a document, which is from now on the newest of its buckets."""
    state.kept_index[row] = state.kept[0]
    state.kept_rows[state.kept[0]] = row
    state.kept[0] += 1
    for column in range(batch.buckets.shape[1]):
        bucket = batch.buckets[row, column]
        if bucket >= 0:
            state.older[row, column] = state.newest[bucket]
            state.newest[bucket] = row
            state.sizes[bucket] += 1


@kernel
def shared_bands(rows: I64, places: I64, batch: BatchArrays, hits: Hits) -> Bools:
    """Return in which bands documents, ``(n,)``, share a bucket with the one at a place, ``(n,)``.

    The result, ``(n, bands)`` bool, has no column of whole texts; none is shared at ``NO_PLACE``.
    """
    columns, stored = batch.buckets.shape[1], len(hits.numbers)
    shared = np.zeros((len(rows), columns - 1), dtype=np.bool_)
    for index in range(len(rows)):
        row, place = rows[index], places[index]
        for column in range(columns - 1):
            if place >= stored:
                bucket = batch.buckets[row, column]
                shared[index, column] = (
                    bucket != ALONE and bucket == batch.buckets[place - stored, column]
                )
            elif place != NO_PLACE:
                cell = batch.leaders[row, column] * columns + column
                for hit in range(hits.starts[cell], hits.starts[cell + 1]):
                    shared[index, column] |= hits.places[hit] == place
    return shared


@kernel
def run(
    start: int,
    mine: Documents,
    stored: Documents,
    batch: BatchArrays,
    hits: Hits,
    limits: RuleArrays,
    state: JudgingState,
) -> tuple[int, int]:
    """Judge documents from row ``start`` on, up to one whose texts must be compared.

    Return its row, whose verdict is open, and how many candidates ``state`` holds for it. After the
    last row: the number of rows, and 0.
    """
    similarities = np.empty(len(state.found), dtype=np.float64)
    estimates, differences = limits.estimates, state.differences
    for row in range(start, len(batch.judged)):
        first = batch.firsts[row]
        if batch.skipped[row] or (first >= 0 and state.kept_index[first] >= 0):
            continue
        found = find(row, mine, stored, batch, hits, limits, state)
        if found == 0:
            if not batch.judged[row]:
                _keep(row, batch, state)
            continue
        if compare(row, found, mine, stored, limits, state):
            return row, found
        for candidate in range(found):
            similarities[candidate] = estimates[differences[candidate]]
        decide(row, found, similarities, batch, limits, state)
    return len(batch.judged), 0
