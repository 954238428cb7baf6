"""What RULER's own generators and metrics make: digests of rows, and of the lines of a file."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from typing import Any

COMMIT = "c3f5e3b"
"""Of github.com/NVIDIA/RULER (Apache-2.0), run with tokens = ceil(characters / 4) and wonderwords 3.0.1."""

ROWS: Mapping[tuple[str, int, int], str] = {
    ("niah_single_1", 1024, 5): ("9063ea7407f8161a e8ebc9ff0bbeb730"),
    ("niah_multikey_2", 1024, 5): ("b01a3688f8ea4e97 ec87dbc3387e5f77"),
    ("niah_multikey_3", 1024, 5): ("15f5de886b6ffe60 2f5a64339a2ca224"),
    ("vt", 1024, 5): ("fb31a78e36ac3a4b 3c8786c59d544dc9"),
    ("cwe", 1024, 5): ("f41de596619239b6 595335aefd7222a7"),
    ("fwe", 1024, 5): ("51f922e0d88e5b9a cd5b3d65c38c3715"),
    ("niah_single_1", 8192, 5): ("93743c27c659a5ab 511df87225d15405 8672f568b65945c8"),
    ("niah_multikey_2", 8192, 5): ("bde38b8b80eeac9c b7c5a2dbd14452e0 af49a96e12090161"),
    ("niah_multikey_3", 8192, 5): ("93380e8bdc730169 65e8f01100b5f822 2049be3c77d5e90a"),
    ("vt", 8192, 5): ("8b320d2987b5f673 77c92cde2a98d356 a70eb96d6847114f"),
    ("cwe", 8192, 5): ("41801e7cfc7a1672 ee2fcf48e82d1c09 f12141ffb0bf6eca"),
    ("fwe", 8192, 5): ("c812394423183622 a94df82b15a92561 7766a1ef072ce9ed"),
    ("niah_single_1", 2048, 1): ("f4cd98a59c9c503f 5ce960692ac30f74"),
    ("cwe", 65536, 3): ("657e18b6d03efbcf 449f18c693e30bf9"),
    ("fwe", 65536, 3): ("48a1ffe74e5b32a6 2e2e55fdf3d39e5f"),
    ("niah_multikey_2", 65536, 3): ("6dd752c988c043d1 950f114437c35285"),
    ("niah_multikey_3", 65536, 3): ("8e03954383bd2e02 53b4a3da31504416"),
    ("niah_single_1", 65536, 3): ("1090cee2d8c98afa 07b6655a2633e77f"),
    ("vt", 65536, 3): ("84355e53264015f0 527ba69f9aed2450"),
    ("cwe", 4096, 42): (
        "ffaeb51063c1972e b15a7c647508ad98 2daa2ee553b9b95d b60a470e17f506b1 5357f2eb18c9dd93 7800b8ff627ebf4e"
    ),
    ("fwe", 4096, 42): (
        "b7dc9211c546c538 ea62de8dd50b8f02 4de528fa5a00f553 5285cb6c947ef75c 4017c29baa15e977 8f8a87224de53846"
    ),
    ("niah_multikey_2", 4096, 42): (
        "170f8315da4117f5 53011a3c182ad98b 2d3318714b32c367 2b7e77728c46f07e ecf5023bf8cf0d0d 0a9ece266a82429a"
    ),
    ("niah_multikey_3", 4096, 42): (
        "edb4462b7142291b 9e7a8c5b103d0771 0be6554a6d2b0715 e23360484a2eeefa 66e44ae14f64ed26 8e73a24d60d87538"
    ),
    ("niah_single_1", 4096, 42): (
        "f2afd58b0ab183ca 08e6d9a0c56c5578 4ecf0ddca5374fc0 92658ec060d90aae d1585ce29b4e66b9 9bb0648a93b4a697"
    ),
    ("vt", 4096, 42): (
        "62ee46eede7adc43 bb39d1c241bf2880 fcd7a1264b841f40 f4995626173396de f3e9d70259bd81bd e0209e511d32a128"
    ),
}
"""By task, length and seed: the first 16 hex digits of the SHA-256 of each line of a generator's file, in order."""


OF_QUESTIONS: Mapping[str, str] = {
    "qa_1": ("8f032dcfa8ad7546 0e6c8076984d41d4 741a7b7603d7c18a 8b9069e67ac15f6e 72e95f99b5aba0fb c9d28095061ef44d"),
    "qa_2": ("1e881e281e728ba1 fd752a6acc54a4c6 88b86257a3582bf3 16f26b73de970a79 3625ace3ebc4573f 7d3f67dd16d8c27f"),
}
"""Of 4,096 tokens and the seed 42, made of `question_files()`."""

_WORDS = (
    *("river", "mountain", "treaty", "engine", "theory", "harbour", "museum", "forest", "colony", "library"),
    *("village", "empire", "bridge", "castle", "planet", "desert", "harvest", "signal"),
)


def question_files() -> tuple[Any, Any]:
    """Made-up files in the layout of SQuAD and of HotpotQA."""
    draw = random.Random(1)

    def paragraph(number: int) -> str:
        return f"Article part {number}. " + " ".join(draw.choice(_WORDS) for _ in range(draw.randint(20, 60))) + "."

    articles = []
    for article in range(12):
        paragraphs = []
        for number in range(5 * article + 1, 5 * article + 6):
            text = paragraph(number)
            answers = [{"text": text.split()[3]}, {"text": f"part {number}"}]
            asked = {"question": f"What is in part {number}?", "is_impossible": False, "answers": answers}
            impossible = {"question": "?", "is_impossible": True, "answers": []}
            paragraphs.append({"context": text, "qas": [asked, impossible]})
        articles.append({"title": f"A{article}", "paragraphs": paragraphs})
    documents = [[f"Title {n}", [paragraph(n), f" Second sentence {n}."]] for n in range(120)]
    questions = [
        {
            "question": f"Which is number {n}?",
            "answer": draw.choice(_WORDS),
            "context": [documents[j] for j in draw.sample(range(120), 10)],
        }
        for n in range(20)
    ]
    return {"data": articles}, questions


def digest(row: Mapping[str, Any]) -> str:
    """Of a row as a line of its file, without the line's end."""
    return hashlib.sha256(json.dumps(row).encode()).hexdigest()[:16]
