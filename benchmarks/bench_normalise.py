"""Normalising text by text against normalising batches, by script and language, on one core.

Every language has the same text, article 1 of the Universal Declaration of Human Rights, repeated
to 3,000 characters. *Decomposed* languages are written with combining marks (NFD). Run with
``python -m benchmarks.bench_normalise``; docs/adr/0008-normalising-batches-by-kernels.md has the
figures.
"""

from __future__ import annotations

import argparse
import time
import unicodedata
from collections.abc import Callable
from functools import partial

from streamdedup.sketch.batch import BatchNormaliser
from streamdedup.sketch.normalize import PROFILES

CHARACTERS = 3000
TEXTS = 100
ARTICLE = {
    "English": "All human beings are born free and equal in dignity and rights. They are endowed "
    "with reason and conscience and should act towards one another in a spirit of brotherhood.",
    "English, curly quotes": "All human beings are “born free and equal” in dignity and rights. "
    "They’re endowed with reason and conscience — and should act in a “spirit of brotherhood”.",
    "German": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit "
    "Vernunft und Gewissen begabt und sollen einander im Geiste der Brüderlichkeit begegnen.",
    "Vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi. "
    "Mọi con người đều được tạo hóa ban cho lý trí và lương tâm.",
    "Russian": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они "
    "наделены разумом и совестью и должны поступать в отношении друг друга в духе братства.",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. "
    "Είναι προικισμένοι με λογική και συνείδηση.",
    "Arabic, vowelled": "يُولَدُ جَمِيعُ النَّاسِ أَحْرَارًا مُتَسَاوِينَ فِي الْكَرَامَةِ وَالْحُقُوقِ. ",
    "Hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। ",
    "Thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ",
    "Chinese": "人人生而自由，在尊严和权利上一律平等。",
    "Japanese": "すべての人間は、生まれながらにして自由であり、尊厳と権利とについて平等である。",
    "Korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. ",
}
DECOMPOSED = ("German", "Vietnamese", "Greek", "Korean")


def texts_of(article: str) -> list[str]:
    """Return texts of ``CHARACTERS`` characters that begin at different places of an article."""
    long = f"{article} " * (CHARACTERS // len(article) + 2)
    return [long[i % len(article) :][:CHARACTERS] for i in range(TEXTS)]


def microseconds(work: Callable[[], object], repeats: int) -> float:
    """Return the shortest time of several runs, in microseconds of processor time per text."""
    times = []
    for _ in range(repeats):
        start = time.process_time_ns()
        work()
        times.append(time.process_time_ns() - start)
    return min(times) / TEXTS / 1000


def main() -> None:
    """Print a row per language."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="plain")
    arguments = parser.parse_args()
    profile = PROFILES[arguments.profile]
    batch = BatchNormaliser(profile)
    named = dict(ARTICLE)
    for name in DECOMPOSED:
        named[f"{name}, decomposed"] = unicodedata.normalize("NFD", ARTICLE[name])
    print(f"microseconds per text of {CHARACTERS:,} characters, profile {profile.name}")
    print(f"{'':24}{'text by text':>14}{'batch':>8}{'ratio':>8}")
    for name, article in sorted(named.items()):
        texts = texts_of(article)
        expected = [profile(text) for text in texts]
        if batch(texts) != expected:
            raise SystemExit(f"{name}: the batch differs from its texts")
        single = microseconds(partial(lambda some: [*map(profile, some)], texts), arguments.repeats)
        together = microseconds(partial(batch, texts), arguments.repeats)
        print(f"{name:24}{single:14.1f}{together:8.1f}{single / together:8.1f}", flush=True)


if __name__ == "__main__":
    main()
