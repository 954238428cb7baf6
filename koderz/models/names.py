"""Names of models: `qwen2.5-coder:32b`, `openai/gpt-6-luna`, `claude-sonnet-5-5`, `simulated`."""

from __future__ import annotations

import re
import unicodedata
from types import MappingProxyType
from typing import NamedTuple

from koderz.errors import KoderzError
from koderz_tracker.registry import names_of_others

PROVIDERS = MappingProxyType(
    {
        "openai": "koderz.models.providers:OpenAI",
        "anthropic": "koderz.models.providers:Anthropic",
        "gemini": "koderz.models.providers:Gemini",
        "ollama": "koderz.models.providers:Ollama",
        "simulated": "koderz.models.providers:Simulated",
    }
)
"""Each of koderz' own providers: `module:class`, a `Provider`."""

GROUP = "koderz.models"
"""The group of entry points by which other packages add theirs, beside the models of their systems."""

_LONGEST = 256  # characters

# Names that only a hosted provider has. A tag (`:32b`) is Ollama's way to say a size, so a name with one is
# never taken for hosted; and `gpt-oss` is a model to download, whoever made it.
_HOSTED = (
    (re.compile(r"claude-[^:/]+"), "anthropic"),
    (re.compile(r"gemini-[^:/]+"), "gemini"),
    (re.compile(r"(gpt-(?!oss)|chatgpt-|o[134](?![^-]))[^:/]*|ft:gpt-.+"), "openai"),
)


_LATEST = re.compile(r"[:-]latest$")
_SNAPSHOT = re.compile(r"([-@](\d{8}|\d{4}-\d\d-\d\d|(preview-)?\d\d-\d\d(-\d{4})?|\d{3,4}))?")


class ModelName(NamedTuple):
    """A provider and what that provider calls the model. `str()` is how it is shown, and parses back."""

    provider: str
    name: str

    def __str__(self) -> str:
        bare = self.provider in ("ollama", "simulated") and _split(self.name) == (
            self.provider,
            self.name,
        )
        if bare and (self.provider == "simulated" or not _meant(self.name)):
            return self.name
        return f"{self.provider}/{self.name}"


def parse_model_name(text: str) -> ModelName:
    """The model that a user means by `text`. Raises KoderzError where it can't be a name, or is nearly another's."""
    text = text.strip()
    if (
        not text
        or len(text) > _LONGEST
        or any(unicodedata.category(char)[0] == "C" for char in text)
    ):
        shown = ascii(text[:40])
        raise KoderzError(
            f"not a model's name: {shown}; try qwen2.5-coder:32b or openai/gpt-6-luna"
        )
    provider, name = _split(text)
    if not name:
        raise KoderzError(f"no model named after {text!r}; try {text}NAME")
    if provider == "ollama" and name == text and (meant := _meant(text)):
        raise KoderzError(
            f"unknown model {text!r}; did you mean {meant}? An Ollama's of that name is ollama/{text}"
        )
    return ModelName(provider, name)


def is_another(asked: str, answered: str) -> bool:
    """Whether a server that names `answered` as its model was not asked for that one.

    A dated snapshot, an alias such as `latest`, a missing path and a missing tag `latest` are the model itself.
    """
    if not ("/" in asked and "/" in answered):
        asked, answered = (name.rpartition("/")[2] for name in (asked, answered))
    asked, answered = (_LATEST.sub("", name.strip().lower()) for name in (asked, answered))
    longer, shorter = (asked, answered) if len(asked) > len(answered) else (answered, asked)
    return not (longer.startswith(shorter) and _SNAPSHOT.fullmatch(longer.removeprefix(shorter)))


def foreign_provider(text: str) -> str | None:
    """The provider in `PROVIDER/NAME` where an installed package brings it; None for koderz' own, and for Ollama's."""
    provider = text.strip().partition("/")[0]
    return provider if provider not in PROVIDERS and _is_of_others(provider) else None


def other_providers() -> set[str]:
    """The names of the providers that installed packages bring, beside koderz' own."""
    return names_of_others(GROUP) - set(PROVIDERS)


def _split(text: str) -> tuple[str, str]:
    if text == "simulated":
        return "simulated", "simulated"
    prefix, slash, rest = text.partition("/")
    if slash and prefix != "simulated" and (prefix in PROVIDERS or _is_of_others(prefix)):
        return prefix, rest
    for pattern, provider in _HOSTED:
        if pattern.fullmatch(text):
            return provider, text
    return "ollama", text


def _meant(text: str) -> str | None:
    """The name that a text is a slip of the pen for: `opnai/x` for `openai/x`; None where it is none."""
    import difflib

    prefix, slash, rest = text.partition("/")
    known = {*PROVIDERS, *_others_like(prefix)} - {"simulated"} if slash else {"simulated"}
    near = difflib.get_close_matches(prefix.lower(), known, n=1, cutoff=0.8)
    return f"{near[0]}{slash}{rest}" if near else None


def _is_of_others(provider: str) -> bool:
    """Whether an installed package brings this provider."""
    return provider in _others_like(provider)


def _others_like(provider: str) -> set[str]:
    """The providers of installed packages; none for a name that none can have: dots and colons are Ollama's."""
    return other_providers() if provider.replace("-", "_").isidentifier() else set()
