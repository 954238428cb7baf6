"""The label that a reply names, by one of its words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from koderz.suites.scorers import last_boxed

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
_WORD = r"[^\W_\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
_END = rf"(?!_?{_WORD})"  # of a label; F_1 is none
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
        yield rf"(?<!{_WORD}){bare}{_RIGHT}"
        if small:
            ended = rf"{small}(?=[)\]}}.,;*_`\"'$]|\s*$|\s+(?:is|because|since)\b)"
            yield rf"{_STATEMENT}{ended}"
            yield rf"(?<!{_WORD}){_OPEN}{small}[.:]?{_CLOSE}{_RIGHT}"
            yield rf"\b(?:option|choice)\s+(?:{_OPEN})?{small}{_END}"

    @cached_property
    def _marked(self) -> tuple[re.Pattern[str], ...]:
        """Patterns of labels that stand out from a text."""
        capital = (
            rf"(?P<label>(?-i:[AI]){_END}{_ARTICLE}|(?!(?-i:[AI](?!{_WORD}))){self._spelled}{_END})"
        )
        anywhere = capital if self.is_cased else self._word
        patterns = [rf"{_OPEN}{self._word}[.:]?{_CLOSE}"]
        if self._small:
            patterns.append(rf"[(\[]{self._small}[)\]]")
        return tuple(map(_compiled, (*patterns, rf"(?<!{_WORD}){anywhere}")))

    @property
    def _word(self) -> str:
        return rf"(?P<label>{self._spelled})(?!{_WORD})"

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
