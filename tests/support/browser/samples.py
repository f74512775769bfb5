"""*Pure.* Generated documents for the page, some of them hostile."""

from __future__ import annotations

import random

_TOWNS = ("Aldermoor", "Brackwater", "Corfield", "Dunhollow", "Eastmere", "Fennick", "Gorsley")
_NAMES = ("Ada Merrin", "Tom Oakes", "Lena Voss", "Iris Calder", "Hugh Penrose", "Mara Quill")
_SUBJECTS = (
    "the swimming pool",
    "the tram line",
    "the town library",
    "the old mill",
    "the harbour",
)
_SENTENCES = (
    "The council of {town} will decide on {subject} in {month}.",
    "{name}, who has led the works for {count} years, called the plan overdue.",
    "About {count} people came to the meeting on Tuesday evening.",
    "The costs are put at {count} million crowns, a third more than last year.",
    "Residents of {town} had asked for a vote on {subject} since the spring.",
    "A first report on {subject} had found {count} faults, most of them small.",
    "“We have waited long enough,” said {name} before the doors opened.",
    "Work could begin in {month} and would take {count} weeks.",
    "The neighbouring town of {town} has had good experience with {subject}.",
    "{name} spoke against it and asked for {count} more trees in the square.",
)
_MONTHS = ("January", "March", "May", "June", "September", "November")

HOSTILE = (
    "<script>window.hacked = 'script'</script> <img src=x onerror=\"window.hacked = 'image'\"> "
    '</p></li><svg onload="window.hacked = \'svg\'"> <a href="javascript:window.hacked = 1">go</a> '
    "&lt;b&gt; ]]> --> <iframe srcdoc=\"<script>parent.hacked = 'frame'</script>\"> {{ 7 * 7 }} "
)
"""A text that would run code, or break the layout, on a page that interprets text as HTML."""


def article(generator: random.Random, sentences: int = 8) -> str:
    """Return a short news article, put together from templates."""
    return " ".join(
        sentence.format(
            town=generator.choice(_TOWNS),
            name=generator.choice(_NAMES),
            subject=generator.choice(_SUBJECTS),
            month=generator.choice(_MONTHS),
            count=generator.randrange(3, 90),
        )
        for sentence in generator.sample(_SENTENCES, sentences)
    )


def edited(text: str, generator: random.Random, changes: int) -> str:
    """Return a text with this number of its words replaced."""
    words = text.split(" ")
    for index in generator.sample(range(len(words)), changes):
        words[index] = generator.choice(("again", "soon", "perhaps", "Monday", "nearly", "twelve"))
    return " ".join(words)


def stream(count: int, seed: int = 7) -> list[dict[str, str]]:
    """Return documents; about a third repeat an earlier one, exactly or with changes."""
    generator = random.Random(seed)
    documents: list[dict[str, str]] = []
    for number in range(count):
        if documents and generator.random() < 0.35:
            original = generator.choice(documents)["text"]
            text = edited(original, generator, generator.choice((0, 0, 1, 1, 2, 3, 5, 8)))
        else:
            text = article(generator)
        documents.append({"id": f"news-{number:04}", "text": text})
    return documents
