"""Made-up prose to hide needles in if the user has no essays."""

from __future__ import annotations

import random

from koderz.systems.long_context.words import words_of

_SENTENCES = 4000


def prose(seed: int) -> str:
    """Meaningless sentences of English words; longer texts repeat them."""
    draw = random.Random(seed)  # noqa: S311 repeatable on purpose
    nouns, adjectives, verbs = (words_of(name) for name in ("nounlist", "adjectivelist", "verblist"))

    def sentence() -> str:
        subject = f"the {draw.choice(adjectives)} {draw.choice(nouns)}"
        middle = draw.choice(("would often", "could hardly", "used to", "may never", "had to"))
        rest = f"{draw.choice(verbs)} a {draw.choice(nouns)}"
        end = draw.choice(
            ("", f" and a {draw.choice(nouns)}", f" beside the {draw.choice(adjectives)} {draw.choice(nouns)}")
        )
        return f"{subject} {middle} {rest}{end}.".capitalize()

    return " ".join(sentence() for _ in range(_SENTENCES))
