"""Scorers of replies, by the names that a suite's `scorer` takes, and the label that a reply names."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property

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


_OPEN, _CLOSE = r"(?:[(\[{【「《]|\*\*|__|`|\"|“)\s*", r"\s*(?:[)\]}】」》]|\*\*|__|`|\"|”)"
_NOUN = r"(?:(?:the\s+)?(?:correct\s+|right\s+|best\s+)?(?:option|choice|letter|label|answer)\s*)?"
_MARK = r"[\s:*_`\"'“(\[{【「《$]*"
_STATEMENT = (
    rf"(?:\b(?:answer|option|choice)[\s*_\"'`]*(?:is|would\s+be|should\s+be|must\s+be|[:=]){_MARK}{_NOUN}"
    rf"|</?answer>{_MARK}"
    rf"|\bI(?:'d|’d|'ll|’ll| would| will)?\s+(?:choose|pick|select|go\s+with){_MARK}{_NOUN}"
    # Chinese, Japanese, Korean
    rf"|(?:答案|正确选项|正解|答え|回答|정답)(?:应该|应当|应)?(?:[是为选はが은는]|就是|:)*{_MARK}(?:选项|選択肢)?"
    rf"|(?:故选|应选|选择|选项?){_MARK}(?:选项)?"
    # German, French, Spanish, Portuguese, Italian, Russian
    rf"|\b(?:Antwort|Lösung)[\s*_]*(?:ist|lautet|:){_MARK}|\bréponse(?:\s+correcte)?[\s*_]*(?:est|:){_MARK}"
    rf"|\b(?:respuesta|resposta|risposta)(?:\s+corr?et+a|\s+correcta)?[\s*_]*(?:es\b|é|è|:){_MARK}|\bответ[\s*_]*[:—-]{_MARK})"
)
_RIGHT = (
    r"(?:\s*(?:is|as|would\s+be|must\s+be)\s+(?:(?:the|most|only|also)\s+)*(?:correct|right|best|true|answer)\b"
    r"|\s*(?:是|项)?(?:正确|对的))"
)
_BEFORE = (
    r"(?:\b(?:not|n[o']t|n’t|neither|nor|rather\s+than|instead\s+of|unlike|eliminates?|eliminated|eliminating|rules?\s+out"
    r"|ruled\s+out|ruling\s+out|excludes?|excluding)\s+|(?:不是|不选|排除))(?:(?:option|choice|answer)s?\s+)?[(\[*_\"'`]*$"
)
_AFTER = re.compile(
    r"[)\]*_\"'`】]*[.:)]?(?:(?!\b(?:is|are|was|were)\b)[^.,;\n,。;]){0,80}?"
    r"(?:\b(?:is|are|was|were)(?:\s+(?:not|never|wrong|incorrect|false|out|excluded|eliminated|irrelevant)\b|n['’]t\b)"
    r"|\b(?:can|could|must)\s+be\s+(?:ruled\s+out|eliminated|excluded|rejected)"
    r"|\b(?:does|do|can|could|would|did)(?:\s+not\b|n['’]t\b)|\bcannot\b|(?:不正确|不对|是?错误?的|错误))",
    re.IGNORECASE,
)
_NEGATION = re.compile(_BEFORE, re.IGNORECASE)
_NEAR = 40  # characters before a label that may hold its negation
# but for scripts without blanks between words
_LABEL_WORD = r"[^\W_\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
_END = rf"(?!_?{_LABEL_WORD})"  # of a label; F_1 is none
# behind "A" and "I"
_ARTICLE = r"(?!['’]|\s(?!(?:is|are|was|and|or|but|because|since|as|if|would|seems)\b)[a-z])"


@dataclass(frozen=True)
class Labels:
    """Labels, and the words that stand for each."""

    words: Mapping[str, tuple[str, ...]]  # by label
    # the whole option that a label stands for
    texts: Mapping[str, str] = field(default_factory=dict)
    is_cased: bool = False  # whether `a` isn't A

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> Labels:
        """The labels of a multiple choice, such as A to E or 1 to 5."""
        return cls({label: (label,) for label in options}, options, is_cased=True)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.words)

    def read(self, reply: str) -> set[str]:
        """The labels that a reply names; several if it is ambiguous.

        They are looked for as the reply's only word, in the last LaTeX box, after "answer is" and its like in nine
        languages, before "is correct", alone on a line or there with their option, in brackets or bold, then anywhere;
        at last an option's whole text is. Labels that are said not to be the answer don't count. Of a choice, small
        letters count where a capital couldn't stand for a word.
        """
        text = unicodedata.normalize("NFKC", reply)
        if label := self._alone(text) or self._alone(_unwrapped(last_boxed(text))):
            return {label}
        denied: set[str] = set()
        for found in (self._found(text, pattern, denied) for pattern in self._stated):
            if found:
                return found
        for of_line in (self._alone, self._with_option):
            if (
                len(
                    lines := {label for line in text.splitlines() if (label := of_line(line))}
                    - denied
                )
                == 1
            ):
                return lines
        for pattern in self._marked:
            if found := self._found(text, pattern, denied):
                return found
        return self._by_text(text) - denied

    def _alone(self, text: str) -> str:
        """The label that makes up a whole text; empty if it is none."""
        return self._label.get(self._folded(text.strip().strip("()[]{}*_`\"'.,:;$“”【】。 \n")), "")

    def _with_option(self, line: str) -> str:
        """The label at the beginning of a line whose rest is that label's option; else empty."""
        if not self.texts or len(line) > _LONGEST_LINE:
            return ""
        first, _, rest = line.strip().strip("#*_ ").partition(" ")
        label = self._alone(first)
        return label if label and _words(rest) == _words(self.texts[label]) else ""

    def _found(self, text: str, pattern: re.Pattern[str], denied: set[str]) -> set[str]:
        """The labels that a pattern finds; labels that the text denies are added to `denied`."""
        found: set[str] = set()
        for match in pattern.finditer(text):
            label = self._label.get(self._folded(match["label"])) or self._label.get(
                match["label"].upper()
            )
            if label is None:
                continue
            before = text[max(0, match.start() - _NEAR) : match.start("label")]
            is_denied = _NEGATION.search(before) or _AFTER.match(text, match.end("label"))
            (denied if is_denied else found).add(label)
        return found - denied if len(found) > 1 else found

    @cached_property
    def _label(self) -> dict[str, str]:
        return {self._folded(word): label for label, words in self.words.items() for word in words}

    @cached_property
    def _stated(self) -> tuple[re.Pattern[str], ...]:
        """Patterns of statements that choose a label."""
        return tuple(map(_compiled, self._statements()))

    def _statements(self) -> Iterator[str]:
        word, small = self._word, self._small
        bare = rf"(?:{_OPEN})?{word}[.:]?(?:{_CLOSE})?"
        yield rf"{_STATEMENT}{word}"
        yield rf"(?<!{_LABEL_WORD}){bare}{_RIGHT}"
        if small:
            ended = rf"{small}(?=[)\]}}.,;*_`\"'$]|\s*$|\s+(?:is|because|since)\b)"
            yield rf"{_STATEMENT}{ended}"
            yield rf"(?<!{_LABEL_WORD}){_OPEN}{small}[.:]?{_CLOSE}{_RIGHT}"
            yield rf"\b(?:option|choice)\s+(?:{_OPEN})?{small}{_END}"

    @cached_property
    def _marked(self) -> tuple[re.Pattern[str], ...]:
        """Patterns of labels that stand out from a text."""
        capital = rf"(?P<label>(?-i:[AI]){_END}{_ARTICLE}|(?!(?-i:[AI](?!{_LABEL_WORD}))){self._spelled}{_END})"
        anywhere = capital if self.is_cased else self._word
        patterns = [rf"{_OPEN}{self._word}[.:]?{_CLOSE}"]
        if self._small:
            patterns.append(rf"[(\[]{self._small}[)\]]")
        return tuple(map(_compiled, (*patterns, rf"(?<!{_LABEL_WORD}){anywhere}")))

    @property
    def _word(self) -> str:
        return rf"(?P<label>{self._spelled})(?!{_LABEL_WORD})"

    @property
    def _spelled(self) -> str:
        words = {word for words in self.words.values() for word in words}
        any_word = "|".join(map(_spaced, sorted(words, key=len, reverse=True)))
        return rf"(?-i:{any_word})" if self.is_cased else rf"(?:{any_word})"

    @property
    def _small(self) -> str:
        """A pattern of the lower-case labels of a choice; empty for other labels."""
        letters = [label.lower() for label in self.words if len(label) == 1 and label.isupper()]
        return (
            rf"(?P<label>(?-i:[{''.join(letters)}]))"
            if self.is_cased and len(letters) == len(self.words)
            else ""
        )

    def _folded(self, word: str) -> str:
        flat = " ".join(word.split())
        return flat if self.is_cased else flat.casefold()

    def _by_text(self, reply: str) -> set[str]:
        """The options whose text occurs in the reply, not as part of another one that does."""
        said = _words(reply)
        found = {
            label: words
            for label, text in self.texts.items()
            if (words := _words(text)) and words in said
        }
        return {
            label
            for label, words in found.items()
            if not any(words != others and words in others for others in found.values())
        }


_LONGEST_LINE = 2000  # characters of a line that may be an option


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


def _unwrapped(boxed: str) -> str:
    """The content of a box, without LaTeX's commands for letters."""
    return re.sub(r"\\(?:text|textbf|mathrm|mathbf|boldsymbol)\b|\\[ ,;!]", "", boxed)


def _spaced(word: str) -> str:
    return r"\s+".join(map(re.escape, word.split()))


def _words(text: str) -> str:
    """The text's words in lower case, each between spaces; empty if it has none."""
    words = re.findall(r"[^\W_]+", text.lower())
    return f" {' '.join(words)} " if words else ""
