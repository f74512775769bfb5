"""*Pure.* Texts and profiles for the tests of normalisation."""

from __future__ import annotations

from hypothesis import strategies as st

from streamdedup.sketch.normalize import STEPS, Profile, compose

CRUMBS = st.sampled_from(
    [
        "RT @", "rt ", "@", ":", "https://", "HTTP://", "www.", "t.co/x", "> ", "| ", "--", "-- ",
        "\n", "\r\n", "\r", "\t", " ", "\u00a0", "\u2028", "\x0b", "\x85", "\u200b", "\u200d",
        "\ufeff", "\u202e", "\u0301", "\u0345", "\u0316", "\u0344", "\uff9e", "\uff1e", "\uff20",
        "\u2038url\u2038", "\u00df", "\u0130", "\u1e9e", "\u03a3", "\ufb03", "\u1fb3", "\u00b4",
        "\U0001f468", "\ufe0f", "\u1100", "\u1161", "\u11a8", "\ud800", "今", "日", "ش", "ה",
        "word", "Word", "1", "_", ".", "@b.c", "www.a", "23", "1,5", "\u0663", "\u00bd", "\u2038",
        "\u0307", "\u0131", "i", "I", "\u3164", "\uffa0", "\u00e9", "\ufe0f", "\u180e",
        '"', ">", "<",
    ]
)  # fmt: skip
TEXT = st.one_of(
    st.lists(CRUMBS, max_size=25).map("".join),
    st.text(max_size=40),
    st.text(alphabet=st.characters(min_codepoint=0x300, max_codepoint=0x36F), max_size=80),
)


COMPOSITIONS = st.lists(st.sampled_from(list(STEPS)), min_size=1, unique=True).filter(
    lambda names: "drop_retweet" not in names or not any(STEPS[name].of_lines for name in names)
)


def composed(names: list[str]) -> Profile:
    """Return the profile with these steps in the right order."""
    return compose(sorted(names, key=list(STEPS).index))
