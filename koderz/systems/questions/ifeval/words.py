"""Sentences, words and languages as IFEval's own code counts them: by NLTK and langdetect."""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from koderz.errors import KoderzError
from koderz.settings.installation import extra_command

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
    tokenize = _words().tokenize
    return sum(word.isupper() for sentence in _punkt().tokenize(text) for word in tokenize(sentence))


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
    parameters.ortho_context = defaultdict(int, {word: int(bits) for word, bits in model.ortho_context.items()})
    return module.PunktSentenceTokenizer(parameters)


@cache
def _words() -> Any:
    return _nltk("nltk.tokenize.destructive").NLTKWordTokenizer()


def _nltk(name: str) -> Any:
    """A module of NLTK without the __init__ of its packages, which would load scipy and scikit-learn."""
    if "nltk" in sys.modules:
        return importlib.import_module(name)
    spec = find_spec("nltk")
    assert spec, "whoever loads the suite has looked"
    for package in ("nltk", "nltk.tokenize"):
        bare = ModuleType(package)
        bare.__path__ = [f"{place}{package[4:].replace('.', '/')}" for place in spec.submodule_search_locations or ()]
        sys.modules[package] = bare
    try:
        return importlib.import_module(name)
    finally:
        for known in [each for each in sys.modules if each.partition(".")[0] == "nltk"]:
            del sys.modules[known]
