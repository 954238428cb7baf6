"""IFEval: instructions whose following a program can verify, as lm-eval verifies it.

Sentences, words and languages are counted as IFEval's own code counts them: by NLTK and langdetect.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

from koderz.errors import KoderzError
from koderz.settings.installation import extra_command
from koderz.suites.dataset import Row
from koderz.suites.metrics import Graded
from koderz.suites.suite import AskJudge
from koderz.systems.questions.question import Instruction, Question
from koderz.systems.questions.rules import ReadingRule, nothing_read

_NEEDED = ("nltk", "punkt", "langdetect")


def require_libraries() -> None:
    """Raises KoderzError naming the extra where a library of this module is missing."""
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise KoderzError(f"the suite ifeval needs {missing[0]}; run: {extra_command('ifeval')}")


def load_libraries() -> None:
    """Load all that is needed, before its time is counted."""
    count_sentences(".")
    capital_words(".")
    language_of("load")


def count_sentences(text: str) -> int:
    """The number of sentences by Punkt's English model."""
    return len(_punkt().tokenize(text))


def capital_words(text: str) -> int:
    """The number of NLTK's words that are in capital letters."""
    tokenize = _word_tokenizer().tokenize
    return sum(
        word.isupper() for sentence in _punkt().tokenize(text) for word in tokenize(sentence)
    )


def language_of(text: str) -> str | None:
    """The ISO 639-1 code of the text's language, drawn with a fixed seed; None where none can be told."""
    import langdetect

    langdetect.DetectorFactory.seed = 0
    try:
        code: str = langdetect.detect(text)
    except langdetect.LangDetectException:
        return None
    return code


@cache
def _punkt() -> Any:
    """NLTK's Punkt with the parameters of its English model, which another package ships without pickle."""
    import punkt

    module = _nltk("nltk.tokenize.punkt")
    model, parameters = punkt.load_model("english"), module.PunktParameters()
    parameters.abbrev_types = {*model.abbrev_types}
    parameters.collocations = {*model.collocations}
    parameters.sent_starters = {*model.sent_starters}
    parameters.ortho_context = defaultdict(
        int, {word: int(bits) for word, bits in model.ortho_context.items()}
    )
    return module.PunktSentenceTokenizer(parameters)


@cache
def _word_tokenizer() -> Any:
    return _nltk("nltk.tokenize.destructive").NLTKWordTokenizer()


def _nltk(name: str) -> Any:
    """A module of NLTK without the __init__ of its packages, which would load scipy and scikit-learn."""
    if "nltk" in sys.modules:
        return importlib.import_module(name)
    spec = find_spec("nltk")
    assert spec, "whoever loads the suite has looked"
    for package in ("nltk", "nltk.tokenize"):
        bare = ModuleType(package)
        bare.__path__ = [
            f"{place}{package[4:].replace('.', '/')}"
            for place in spec.submodule_search_locations or ()
        ]
        sys.modules[package] = bare
    try:
        return importlib.import_module(name)
    finally:
        for known in [each for each in sys.modules if each.partition(".")[0] == "nltk"]:
            del sys.modules[known]


Arguments = Mapping[str, Any]
"""Arguments by name, checked when the rows are read."""


class Check(NamedTuple):
    """The verification of one kind of instruction, and the arguments that it needs."""

    is_followed: Callable[[str, Arguments], bool]
    needs: tuple[str, ...] = ()


RELATIONS = ("less than", "at least")


def _related(count: int, relation: str, limit: float) -> bool:
    return count < limit if relation == "less than" else count >= limit


def _has_keywords(reply: str, given: Arguments) -> bool:
    return all(re.search(keyword, reply, re.IGNORECASE) for keyword in given["keywords"])


def _keyword_often(reply: str, given: Arguments) -> bool:
    count = sum(1 for _ in re.finditer(given["keyword"].strip(), reply, re.IGNORECASE))
    return _related(count, given["relation"], given["frequency"])


def _lacks_words(reply: str, given: Arguments) -> bool:
    return not any(
        re.search(rf"\b{word}\b", reply, re.IGNORECASE) for word in given["forbidden_words"]
    )


def _letter_often(reply: str, given: Arguments) -> bool:
    count = reply.lower().count(given["letter"].strip().lower())
    return _related(count, given["let_relation"], given["let_frequency"])


def _in_language(reply: str, given: Arguments) -> bool:
    return language_of(reply) in (None, given["language"])


def _sentences(reply: str, given: Arguments) -> bool:
    return _related(count_sentences(reply), given["relation"], given["num_sentences"])


def _words(reply: str, given: Arguments) -> bool:
    return _related(
        sum(1 for _ in re.finditer(r"\w+", reply)), given["relation"], given["num_words"]
    )


def _paragraphs(reply: str, given: Arguments) -> bool:
    """As many paragraphs between `***`; empty ones may stand at the ends alone."""
    paragraphs = re.split(r"\s?\*\*\*\s?", reply)
    filled = [bool(each.strip()) for each in paragraphs]
    return all(filled[1:-1]) and bool(sum(filled) == given["num_paragraphs"])


def _first_word(reply: str, given: Arguments) -> bool:
    """As many paragraphs between empty lines, the n-th of which begins with the word."""
    paragraphs = reply.split("\n\n")
    count = sum(bool(each.strip()) for each in paragraphs)
    number = int(given["nth_paragraph"])
    if not 1 <= number <= count or not (paragraph := paragraphs[number - 1].strip()):
        return False
    word = paragraph.split()[0].lstrip("'").lstrip('"')
    word = "".join(map(str.lower, re.split(r"[.,?!'\"]", word, maxsplit=1)[0]))
    return bool(count == given["num_paragraphs"] and word == given["first_word"].lower())


def _placeholders(reply: str, given: Arguments) -> bool:
    return bool(sum(1 for _ in re.finditer(r"\[.*?\]", reply)) >= given["num_placeholders"])


def _postscript(reply: str, given: Arguments) -> bool:
    marker = given["postscript_marker"].strip()
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return re.search(known.get(marker, marker.lower()), reply.lower()) is not None


def _bullets(reply: str, given: Arguments) -> bool:
    starred = re.findall(r"^\s*\*[^\*].*$", reply, re.MULTILINE)
    return bool(
        len(starred) + len(re.findall(r"^\s*-.*$", reply, re.MULTILINE)) == given["num_bullets"]
    )


def _highlights(reply: str, given: Arguments) -> bool:
    single = sum(bool(each.strip("*").strip()) for each in re.findall(r"\*[^\n\*]*\*", reply))
    double = sum(bool(each[2:-2].strip()) for each in re.findall(r"\*\*[^\n\*]*\*\*", reply))
    return bool(single + double >= given["num_highlights"])


def _sections(reply: str, given: Arguments) -> bool:
    mark = given["section_spliter"].strip()
    return bool(len(re.split(rf"\s?{mark}\s?\d+\s?", reply)) - 1 >= given["num_sections"])


def _title(reply: str, _: Arguments) -> bool:
    return any(each.lstrip("<").rstrip(">").strip() for each in re.findall(r"<<[^\n]+>>", reply))


def _constrained(reply: str, _: Arguments) -> bool:
    return any(f"My answer is {word}." in reply for word in ("yes", "no", "maybe"))


def _json(reply: str, _: Arguments) -> bool:
    text = reply.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _two_responses(reply: str, _: Arguments) -> bool:
    responses = reply.split("******")
    if not all(each.strip() for each in responses[1:-1]):
        return False
    first, *others = [each.strip() for each in responses if each.strip()] or [""]
    return len(others) == 1 and first != others[0]


def _repeats(reply: str, given: Arguments) -> bool:
    return reply.strip().lower().startswith(str(given["prompt_to_repeat"]).strip().lower())


def _ends(reply: str, given: Arguments) -> bool:
    return reply.strip().strip('"').lower().endswith(str(given["end_phrase"]).strip().lower())


def _capital_words(reply: str, given: Arguments) -> bool:
    return _related(capital_words(reply), given["capital_relation"], given["capital_frequency"])


def _upper(reply: str, _: Arguments) -> bool:
    return reply.isupper() and language_of(reply) in (None, "en")


def _lower(reply: str, _: Arguments) -> bool:
    return reply.islower() and language_of(reply) in (None, "en")


def _no_comma(reply: str, _: Arguments) -> bool:
    return "," not in reply


def _quoted(reply: str, _: Arguments) -> bool:
    text = reply.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


CHECKS: Mapping[str, Check] = {
    "keywords:existence": Check(_has_keywords, ("keywords",)),
    "keywords:frequency": Check(_keyword_often, ("keyword", "frequency", "relation")),
    "keywords:forbidden_words": Check(_lacks_words, ("forbidden_words",)),
    "keywords:letter_frequency": Check(_letter_often, ("letter", "let_frequency", "let_relation")),
    "language:response_language": Check(_in_language, ("language",)),
    "length_constraints:number_sentences": Check(_sentences, ("num_sentences", "relation")),
    "length_constraints:number_paragraphs": Check(_paragraphs, ("num_paragraphs",)),
    "length_constraints:number_words": Check(_words, ("num_words", "relation")),
    "length_constraints:nth_paragraph_first_word": Check(
        _first_word, ("num_paragraphs", "nth_paragraph", "first_word")
    ),
    "detectable_content:number_placeholders": Check(_placeholders, ("num_placeholders",)),
    "detectable_content:postscript": Check(_postscript, ("postscript_marker",)),
    "detectable_format:number_bullet_lists": Check(_bullets, ("num_bullets",)),
    "detectable_format:constrained_response": Check(_constrained),
    "detectable_format:number_highlighted_sections": Check(_highlights, ("num_highlights",)),
    "detectable_format:multiple_sections": Check(_sections, ("section_spliter", "num_sections")),
    "detectable_format:json_format": Check(_json),
    "detectable_format:title": Check(_title),
    "combination:two_responses": Check(_two_responses),
    "combination:repeat_prompt": Check(_repeats, ("prompt_to_repeat",)),
    "startend:end_checker": Check(_ends, ("end_phrase",)),
    "change_case:capital_word_frequency": Check(
        _capital_words, ("capital_frequency", "capital_relation")
    ),
    "change_case:english_capital": Check(_upper),
    "change_case:english_lowercase": Check(_lower),
    "punctuation:no_comma": Check(_no_comma),
    "startend:quotation": Check(_quoted),
}
"""Instructions by their ids."""

_COUNTS = ("sentences", "paragraphs", "words", "placeholders", "bullets", "highlights", "sections")
NUMBERS = frozenset(
    {
        "frequency",
        "let_frequency",
        "capital_frequency",
        "nth_paragraph",
        *(f"num_{each}" for each in _COUNTS),
    }
)
"""Arguments that are numbers; `keywords` and `forbidden_words` are lists of texts, all others texts."""

LISTS = frozenset({"keywords", "forbidden_words"})
PATTERNS = frozenset(
    {"keywords", "keyword", "forbidden_words", "postscript_marker", "section_spliter"}
)
"""Arguments that are used as regular expressions."""


def is_followed(instruction: str, arguments: Arguments, reply: str) -> bool:
    """Whether a reply follows an instruction. An empty one follows none."""
    return bool(reply.strip()) and CHECKS[instruction].is_followed(reply, arguments)


def forms_of(reply: str) -> tuple[str, ...]:
    """The eight forms of a reply of which any may follow an instruction when judged loosely."""
    lines = reply.split("\n")
    parts = (reply, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])))
    return tuple(dict.fromkeys((*parts, *(part.replace("*", "") for part in parts))))


@dataclass(frozen=True)
class Followed(ReadingRule):
    """Whether a reply follows all instructions of its prompt; strictly decides, loosely stands beside."""

    def prepare(self) -> None:
        """Load NLTK, its model and langdetect."""
        load_libraries()

    async def grade(self, question: Question, reply: str, ask: AskJudge | None = None) -> Graded:  # noqa: ARG002
        forms = forms_of(reply)
        strict = [is_followed(each.id, each.arguments, reply) for each in question.instructions]
        loose = [
            done or any(is_followed(each.id, each.arguments, form) for form in forms[1:])
            for each, done in zip(question.instructions, strict, strict=True)
        ]
        metrics = {
            "instructions": float(len(strict)),
            "strict": float(sum(strict)),
            "loose": float(sum(loose)),
            "prompt_loose": float(all(loose)),
        }
        if not reply.strip():
            return nothing_read("the reply is empty")._replace(metrics=metrics)
        missed = [
            each.id for each, done in zip(question.instructions, strict, strict=True) if not done
        ]
        if not missed:
            return Graded(1.0, metrics, answer=reply)
        return Graded(0.0, metrics, f"not followed: {', '.join(missed)}", reply, "wrong")

    def demonstrated(self, question: Question) -> str:  # noqa: ARG002
        return ""


def instructions_in(row: Row) -> tuple[Instruction, ...]:
    """The instructions of a row of IFEval. Raises KoderzError, naming the line, for one that can't be verified."""
    ids, given = row.texts("instruction_id_list"), row.fields.get("kwargs")
    if not ids:
        raise row.error("the field 'instruction_id_list' has to be a list of instructions")
    if (
        not isinstance(given, list)
        or len(given) != len(ids)
        or not all(isinstance(each, Mapping) for each in given)
    ):
        raise row.error(
            f"the field 'kwargs' has to hold the arguments of each of the {len(ids)} instructions"
        )
    return tuple(
        Instruction(name, _arguments(row, name, each))
        for name, each in zip(ids, given, strict=True)
    )


def _arguments(row: Row, instruction: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if instruction not in CHECKS:
        raise row.error(f"there is no instruction {instruction!r:.80}")
    return {
        name: _argument(row, instruction, name, given.get(name))
        for name in CHECKS[instruction].needs
    }


def _argument(row: Row, instruction: str, name: str, value: Any) -> Any:
    where = f"the argument {name!r} of {instruction}"
    if name in NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise row.error(f"{where} has to be a number from 0 up")
        return value
    texts = value if name in LISTS else [value]
    if (
        not isinstance(texts, list)
        or not texts
        or not all(isinstance(each, str) and each.strip() for each in texts)
    ):
        raise row.error(f"{where} has to be {'a list of texts' if name in LISTS else 'text'}")
    if name.endswith("relation") and value not in RELATIONS:
        raise row.error(f"{where} has to be one of {', '.join(RELATIONS)}")
    if name in PATTERNS:
        for each in texts:
            try:
                re.compile(each)
            except (re.error, RecursionError, OverflowError) as error:
                raise row.error(f"{where} is no regular expression: {error}") from None
    return value
