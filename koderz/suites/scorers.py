"""Scorers of replies, by the names that a suite's `scorer` takes: from 0 to 1, of an expected text and a reply's."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from decimal import Decimal

from koderz.errors import KoderzError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WORD = re.compile(r"[^\W_]+")
_WHOLE = ("yes", "no", "noanswer")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_MOST_CHARACTERS = 20_000  # of a text that is compared; what follows isn't looked at


def squad_normalised(text: str) -> str:
    """The text in lower case, without punctuation and articles. Source: SQuAD's evaluate-v1.1.py."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def squad_exact(gold: str, reply: str) -> float:
    """1 if both texts are equal when normalised, else 0."""
    return float(squad_normalised(gold) == squad_normalised(reply))


def squad_f1(gold: str, reply: str) -> float:
    """F1 over normalised words as multisets; yes, no and noanswer match whole. Source: HotpotQA's evaluation."""
    wanted, said = squad_normalised(gold), squad_normalised(reply)
    if wanted != said and (wanted in _WHOLE or said in _WHOLE):
        return 0.0
    ours, theirs = wanted.split(), said.split()
    same = (Counter(ours) & Counter(theirs)).total()
    return 2 * same / (len(ours) + len(theirs)) if same else float(ours == theirs)


def rouge_l(gold: str, reply: str) -> float:
    """F1 (beta 1) of the longest common subsequence of lower-case words, not stemmed. Source: Lin, "ROUGE" (2004)."""
    ours, theirs = (_WORD.findall(text[:_MOST_CHARACTERS].lower()) for text in (gold, reply))
    return _shared(ours, theirs)


def levenshtein_ratio(gold: str, reply: str) -> float:
    """(|a| + |b| - distance) / (|a| + |b|) over characters, an exchange counting as two edits; 1 of two empty texts."""
    a, b = gold[:_MOST_CHARACTERS], reply[:_MOST_CHARACTERS]
    return _shared(a, b) if a or b else 1.0


def _shared(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    """Twice the longest common subsequence over the sum of lengths; 0 for empty sequences."""
    return 2 * _common(a, b) / (len(a) + len(b)) if a and b else 0.0


def _common(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The length of the longest common subsequence, a row of the table at once.

    Source: Hyyrö, "Bit-parallel LCS-length computation revisited" (2004).
    """
    places: dict[Hashable, int] = {}
    for place, each in enumerate(a):
        places[each] = places.get(each, 0) | 1 << place
    full = (1 << len(a)) - 1
    row = full
    for each in b:
        met = row & places.get(each, 0)
        row = (row + met | row - met) & full
    return len(a) - row.bit_count()


Scorer = Callable[[str, str], float]


def same_text(expected: str, reply: str) -> float:
    """1 if both texts are the same but for white space around them, else 0."""
    return float(expected.strip() == reply.strip())


def same_number(expected: str, reply: str) -> float:
    """1 if the number that the reply ends in is the expected one, else 0."""
    found = number_in(reply)
    return float(found is not None and decimal_in(found) == decimal_in(gold_number(expected)))


SCORERS: Mapping[str, Scorer] = {
    "exact_match": squad_exact,
    "f1": squad_f1,
    "rougeL": rouge_l,
    "levenshtein_ratio": levenshtein_ratio,
    "equals": same_text,
    "number": same_number,
}


def scorer_of(name: str) -> Scorer:
    """The scorer of a name. Raises KoderzError, with the names that there are, for an unknown one."""
    if name not in SCORERS:
        raise KoderzError(f"there is no scorer {name!r}; choose from {', '.join(SCORERS)}")
    return SCORERS[name]


_GROUPED = (
    r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])"  # 1,234,567
    r"|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?![0-9])"  # 12,34,567, as in India
    r"|[0-9]{1,3}(?:\.[0-9]{3})+(?=,[0-9]{1,2}(?![0-9]))"  # 1.234 before decimals with a comma
    r"|[0-9]{1,3}(?:\.[0-9]{3}){2,}(?![0-9])"  # 1.234.567
)
_NUMBER = re.compile(
    rf"(?P<minus>(?<![^\W_])-)?[$€£¥]?(?P<digits>{_GROUPED}|[0-9]+|(?<![^\W_])(?=\.[0-9]))"
    r"(?P<rest>\.[0-9]+|(?<=\.[0-9]{3}),[0-9]{1,2}(?![0-9]))?(?P<power>[eE][+-]?[0-9]{1,3}(?![^\W_]))?"
)
_SEPARATOR = re.compile(  # of thousands, as LaTeX, Unicode and program texts write it
    r"(?<=[0-9])(?:,?\\[,;:! ]|\{\\?,\}|[\u00a0\u2005-\u200a\u202f\u205f'\N{RIGHT SINGLE QUOTATION MARK}_])"
    r"(?=[0-9]{3}(?![0-9]))"
)
_POWER_OF_TEN = re.compile(
    r"(?<=[0-9])\s*(?:\\times|\\cdot|×|·|\*)\s*10\s*(?:\^|\*\*)\s*\{?([+-]?[0-9]{1,3})\}?"
)
_SPACED = re.compile(r"\W*[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]+)?\W*")
_EQUALS = re.compile(r"=|≈|→|⇒|->|\\approx|\\Rightarrow|\\to(?![a-z])")
_HEADING = re.compile(
    r"[ \t*_]*(?:step|part|case|stage|phase|section)\b|[ \t*_]*[0-9]{1,2}[.)][ \t]+[^\W\d_]",
    re.IGNORECASE,
)
_BOXED = r"\boxed{"
_PLAIN = str.maketrans(
    {
        **dict.fromkeys(
            "\N{MINUS SIGN}\N{EN DASH}\N{SMALL HYPHEN-MINUS}\N{FULLWIDTH HYPHEN-MINUS}", "-"
        ),
        **dict.fromkeys("\N{FULLWIDTH COMMA}\N{ARABIC THOUSANDS SEPARATOR}", ","),
        **dict.fromkeys("\N{FULLWIDTH FULL STOP}\N{ARABIC DECIMAL SEPARATOR}", "."),
        **dict.fromkeys(
            "\N{ZERO WIDTH SPACE}\N{WORD JOINER}\N{ZERO WIDTH NO-BREAK SPACE}\N{SOFT HYPHEN}", ""
        ),
        "\N{FULLWIDTH DOLLAR SIGN}": "$",
        "\N{FULLWIDTH EQUALS SIGN}": "=",
    }
)


def number_in(reply: str) -> str | None:
    """The number that a reply gives as its answer, without separators of thousands; None if it has none.

    It is the one after the last `####` that is no heading, else the one in the last `\\boxed{…}`, else the reply's
    last. Of several in the first two it is the result of the equation, else the first. A minus counts where it stands
    directly before the number and not after a digit or a letter: `5-10` ends in 10.
    """
    # ASCII digits and signs, and a comma for every other separator of thousands.
    text = reply.translate(_PLAIN).replace(r"\$", "$")
    if not text.isascii():
        text = re.sub(r"(?![0-9])\d", lambda digit: str(unicodedata.digit(digit[0])), text)
    text = _POWER_OF_TEN.sub(r"e\1", _SEPARATOR.sub(",", text))
    # What follows the last `####`, unless that is the heading of a section with more text.
    _, mark, after = text.rpartition("####")
    _, _, later = after.partition("\n")
    marked = "" if not mark or (_HEADING.match(after) and _NUMBER.search(later)) else after
    for answer in (marked, last_boxed(text)):
        if number := _answered(answer):
            return number
    found = None
    for found in _NUMBER.finditer(text):  # noqa: B007 the last one
        pass
    return _plain(found) if found else None


def gold_number(gold: str) -> str:
    """The number of a gold in GSM8K's form, after `####`, or of one that is a number alone."""
    return gold.rpartition("####")[2].strip().replace(",", "")


def decimal_in(number: str) -> Decimal:
    """The value, so that 18.00 equals 18. Raises ValueError for anything but a number."""
    try:
        return Decimal(number)
    except ArithmeticError:
        raise ValueError(f"{number!r:.80} is no number") from None


def last_boxed(text: str) -> str:
    """The content of the last LaTeX box, up to its closing brace; empty if there is none."""
    start = text.rfind(_BOXED)
    if start < 0:
        return ""
    start += len(_BOXED)
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start:end]
    return text[start:]


def _answered(answer: str) -> str | None:
    """The number in an answer: the result of the equation on its first line with a number, else the first."""
    line = next((line for line in answer.split("\n") if _NUMBER.search(line)), "")
    if _SPACED.fullmatch(line):
        line = line.replace(" ", "")
    sides = [found for side in _EQUALS.split(line) if (found := [*_NUMBER.finditer(side)])]
    if not sides:
        return None
    single = [found for found in sides if len(found) == 1]
    return _plain((single or sides)[-1][0])


def _plain(found: re.Match[str]) -> str:
    rest = (found["rest"] or "").replace(",", ".")
    digits = found["digits"].replace(",", "")
    digits = digits.replace(".", "") or "0"
    return f"{found['minus'] or ''}{digits}{rest}{found['power'] or ''}"
