"""Failures between here and a model's server, by whether another request can help, and outcomes by servers' words.

Retryable    asking again may help; ends as a Fault when patience does
Refused      the request can't be served as it is; changing a parameter may help
Filtered     a filter of the provider keeps the prompt from the model, which is a refusal and no failure of a server
TooLong      the prompt is longer than the model's context, which is the model's failure
Fault        this request will never be served (koderz.errors)
FatalFault   no request will (koderz.errors)
NoSuchPath   a FatalFault: the server has nothing at the path of the request

One table of words serves every wire format; it stands on the page `docs/how-to/whose-fault.md`, too. `WORDS` has those
that end a reply:

stop        the reply is whole
length      it was cut off by a limit of tokens
refusal     the model or a filter of its provider kept it back
broken      the server broke it off: no model can be judged by it, so it is asked for again
call        the model calls a tool; the word stays as it is
own         the word says more than these do, and stays as it is

A word that isn't here is no failure of the server: the reply is there and paid for, and is judged.

`CODES` has those of errors in place of a reply that are no failure of the server:

refusal     a filter of the provider refuses the prompt
context     the prompt is longer than the model's context
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from koderz.errors import FatalFault, Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


Outcome = Literal["stop", "length", "refusal", "broken", "call", "own"]

_PREFIXES = ("finishreason", "stopreason")  # of enumerations, as Gemini's

CODES: dict[Literal["refusal", "context"], tuple[str, ...]] = {
    "refusal": (  # Azure's, OpenAI's, LiteLLM's and Alibaba's
        "content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation", "prohibited_content",
        "moderation_blocked", "prompt_blocked", "data_inspection_failed", "DataInspectionFailed",
    ),
    "context": (
        "context_length_exceeded", "string_above_max_length",  # OpenAI's
        "exceed_context_size_error",  # llama.cpp's
        "ContextWindowExceededError",  # LiteLLM's
        "model_max_prompt_tokens_exceeded", "tokens_limit_reached",  # GitHub's
    ),
}  # fmt: skip

WORDS: dict[Outcome, tuple[str, ...]] = {
    "stop": (
        "stop", "end_turn", "eos", "eos_token", "stop_sequence", "completed",
        "complete", "finish", "stop_criteria_met",  # Cohere's, and Titan's on Bedrock
        "eos_found", "stop_string_found",  # LM Studio's
        "end_of_text", "normal",  # AI21's, and Baidu's
    ),
    "length": (
        "length", "max_tokens", "model_length", "model_context_window_exceeded",
        "max_output_tokens", "max_completion_tokens", "max_new_tokens", "max_length",
        "token_limit", "error_limit",  # watsonx's, and Cohere's
        "max_predicted_tokens_reached", "context_length_reached",  # LM Studio's
    ),
    "refusal": (
        "refusal", *map(str.lower, CODES["refusal"]), "content_filtered", "safety",
        "sensitive",  # Zhipu's
        "recitation", "spii", "blocklist", "other",  # Gemini's
        "language", "image_safety", "model_armor", "filtered",
        "guardrail_intervened",  # Bedrock's
        "error_toxic",  # Cohere's
    ),
    "broken": (
        "error", "abort", "aborted", "cancelled", "canceled", "user_cancel", "failed",
        "network_error", "server_error", "internal_error", "internal_server_error",
        "insufficient_system_resource",  # DeepSeek's
        "time_limit", "timeout", "deadline_exceeded",
        "queued", "in_progress", "not_finished",
        "model_unloaded", "user_stopped",  # LM Studio's
        "load", "unload",  # an Ollama that did no more than load or unload the model
    ),
    "call": (
        "tool_calls", "tool_call", "tool_use", "function_call",
        "malformed_function_call", "unexpected_tool_call", "too_many_tool_calls",  # Gemini's
        "function_call_filter",
        "malformed_tool_use",  # Bedrock's
    ),
    "own": (
        "pause_turn", "incomplete", "malformed_model_output",
        "rejected", "context", "time", "imported",  # koderz' own
    ),
}  # fmt: skip


def outcome_of(word: str) -> Outcome | None:
    """The outcome that a server's word means; None if koderz doesn't know it."""
    return _OUTCOMES.get(_folded(word))


def _folded(word: str) -> str:
    """The letters of a word by which it is looked up.

    Servers write `contentFilter`, `content-filter` or `FinishReason.CONTENT_FILTER`, and gateways add after a colon
    what the provider behind them said, as in `content_filter: RECITATION`. What stands before the colon is the word.
    """
    name = "".join(filter(str.isalnum, word.partition(":")[0].lower()))
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


_OUTCOMES = {_folded(word): outcome for outcome, words in WORDS.items() for word in words}


LONGEST_WAIT = 300.0  # seconds; what a server asks for beyond is not waited for at once
# OpenAI's and Azure's, finer than `Retry-After`
_IN_MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms")
# Google's `RetryInfo`; the quotes are escaped where a gateway passes its provider's error on as a text.
_DELAY = re.compile(r'retry_?Delay\\*"\s*:\s*\\*"(\d+(?:\.\d+)?)s\\*"', re.IGNORECASE)
# A field in seconds, and what Google's clients make of `RetryInfo` in words.
_FIELD = re.compile(
    r'\bretry_?after(?:_?s(?:econds)?)?\\*"\s*:\s*(?:\\*")?(\d+(?:\.\d+)?)\b|retry_delay \{(?:\s|\\n)*seconds: (\d+)',
    re.IGNORECASE,
)
_AMOUNT = r"\d+(?:\.\d+)?\s*(?:ms|milli\w+|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?![a-z])"
# "Please retry in 6.5s", "try again in 7m12.5s", "retry after 4 seconds", "wait 1 minute and 5 seconds"
_ASKED = re.compile(
    rf"(?:(?:retry|try again) (?:in|after)|\bwait(?: for)?) (?:about |another )?({_AMOUNT}(?:(?:,|\s|and)*{_AMOUNT})*)",
    re.IGNORECASE,
)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)


def wait_in_headers(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds to wait by an answer's headers, whose names are in lower case; None if they name none."""
    for name in _IN_MILLISECONDS:
        try:
            return bounded(float(headers.get(name, "")) / 1000)
        except ValueError:
            continue
    return retry_after(headers.get("retry-after", ""), now)


def retry_after(header: str, now: datetime) -> float | None:
    """Seconds to wait by a `Retry-After` header in either of its forms (RFC 9110, 10.2.3); None if it has none."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            until = parsedate_to_datetime(header)
        except (ValueError, OverflowError):  # a year of eleven digits
            return None
        seconds = (until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds()
    return bounded(seconds)


def wait_in_body(body: bytes) -> float | None:
    """Seconds to wait by an error's body, the longest of those that it names; None if it names none."""
    text = body[:65536].decode("utf-8", "replace")
    fields = [float(seconds or others) for seconds, others in _FIELD.findall(text)]
    return longest(
        (*map(float, _DELAY.findall(text)), *fields, *map(_seconds, _ASKED.findall(text)))
    )


def longest(waits: Iterable[float | None]) -> float | None:
    """The longest of some waits, since a request before its end is refused again; None if there is none."""
    known = [bounded(wait) for wait in waits if wait is not None]
    return max((wait for wait in known if wait is not None), default=None)


def bounded(seconds: float) -> float | None:
    """A wait that can be: neither below zero nor too long; None for what is no number."""
    return min(max(0.0, seconds), LONGEST_WAIT) if math.isfinite(seconds) else None


def _seconds(asked: str) -> float:
    """The seconds of an amount in words such as `7m12.5s`."""
    return sum(float(number) * _unit(name.lower()) for number, name in _PART.findall(asked))


def _unit(name: str) -> float:
    if name.startswith(("ms", "milli")):
        return 0.001
    return {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[name[0]]


_LONGEST = 300  # characters of a server's own words that are shown
_RETRIED = frozenset({408, 409, 425, 429})
_FATAL = frozenset({401, 402, 403, 404})
_DENIED = frozenset({401, 403})
_THROTTLED = frozenset({429, 529})
_AS_SENT = frozenset({400, 422})
_MODERATED = _AS_SENT | {403, 451}  # with which aggregators, too, say that a prompt was refused
_HINTS = {
    401: "; see whether the key is this provider's and still good",
    404: "; see whether the model's name is right, and the base URL, which often ends in /v1",
}

# What servers say where no later call can fare better, whatever status they say it with.
_HOPELESS = re.compile(
    r"insufficient_quota|credit balance is too low|not a valid model|model_not_found|api key not valid"
    r"|requires more system memory|does not support chat"
    r"|api_key_invalid|invalid_?api_?key|(incorrect|invalid) api key|api key (not found|expired|is invalid)"
    # the balance doesn't suffice, in Chinese
    r"|insufficient[ _]balance|insufficient[ _]credits|余额不足"
    r"|exceeded_current_quota_error|billing_hard_limit_reached|\barrearage\b",
    re.IGNORECASE,
)
_OF_CODES = {
    kind: re.compile(rf"\b({'|'.join(codes)})\b", re.IGNORECASE) for kind, codes in CODES.items()
}
# How filters say in words that they refuse a prompt: Azure, OpenAI, OpenRouter, Anthropic, DeepSeek, xAI, Zhipu. They
# speak of the prompt or of content, since a 403 may as well be about an account.
_FILTERED = re.compile(
    r"content management policy|blocked by (the )?content (filter|policy|management)|content exists risk"
    r"|(input|prompt)\b.{0,40}\bflagged|data may contain inappropriate content"
    r"|\bcontent violates usage guidelines|unsafe or sensitive content|不安全或敏感内容",
    re.IGNORECASE,
)
_LIMITED = _AS_SENT | {413, 500, 502}  # with which servers say that a prompt is too long
# And how: OpenAI, vLLM, SGLang, llama.cpp, LM Studio, Anthropic, Google, Mistral, xAI, Bedrock, TGI, Cohere, Alibaba,
# Moonshot, SambaNova, watsonx, TabbyAPI.
_TOO_LONG = re.compile(
    r"(maximum|exceed|longer than|larger than|greater than|too (long|large)).{0,60}\bcontext\b"
    r"|\bcontext\b.{0,30}\b(exceeded|overflow)|(prompt|input) is too long|prompt too long|maximum prompt length"
    r"|input token count.{0,20} exceeds|`inputs` (tokens \+|must have)|tokens in the prompt cannot exceed"
    r"|range of input length|longer than the maximum model length|exceeded model token limit"
    r"|maximum supported sequence length|input tokens \d+ cannot exceed|\bcontext length \d+ is greater than\b",
    re.IGNORECASE,
)
# The tokens of the prompt in such words, and those that the context holds.
_PROMPT_TOKENS = re.compile(
    r"(\d+) (?:tokens )?(?:in|from) the (?:input )?(?:messages|prompt|input)|(\d+) input tokens"
    r"|given: (\d+) `inputs`|(\d+) \+ \d+ > \d+",
    re.IGNORECASE,
)
_CONTEXT_TOKENS = re.compile(
    r"(?:context|prompt) (?:length|window|size|limit)(?: of| is|:)? (?:\d+ \+ \d+ > )?(\d+)|<= (\d+)",
    re.IGNORECASE,
)
_MOST_TOKENS = re.compile(r"\bmax_(completion_|new_|output_)?tokens", re.IGNORECASE)
_NO_PATH = re.compile(r"\bunexpected endpoint\b", re.IGNORECASE)  # LM Studio's, with status 200
# A model that its server loads again: LM Studio's, with status 400.
_CRASHED = re.compile(
    r"\bmodel (has )?crashed|\bmodel (was |has been )?(unloaded|reloaded)", re.IGNORECASE
)
# A quota of a day, as Google names it. Beside it stands a wait of seconds that doesn't help.
_DAILY_QUOTA = re.compile(r'quotaId\\*"\s*:\s*\\*"\w*PerDay', re.IGNORECASE)
_DAILY_WORDS = re.compile(
    r"\bper[ -]day\b|ByDay\b|\bdaily (quota|limit|rate|usage|request|token)", re.IGNORECASE
)


class Retryable(Exception):
    """The server is away, busy or answers nonsense; `retry_after` is the wait that it asked for, in seconds."""

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        throttled: bool = False,
        most_retries: int | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.throttled = throttled
        self.most_retries = most_retries


class TimedOut(Retryable):
    """The server's answer didn't end within the time for one request."""


class Refused(Exception):
    """The server refuses the request as it is; `parameter` is the culprit if a field names it."""

    def __init__(self, message: str, parameter: str = "") -> None:
        super().__init__(message)
        self.parameter = parameter


class Filtered(Refused):
    """A filter of the provider refuses the prompt: no parameter helps, and another request fares no better."""


class TooLong(Refused):
    """The prompt is longer than the model's context: no parameter helps, and another request fares no better."""


class NoSuchPath(FatalFault):
    """The server has nothing at the path, by its words and not by its status."""


class Gone(Exception):
    """The server doesn't have any more what is asked for."""


class Response(NamedTuple):
    """A response over HTTP."""

    status: int
    body: bytes
    retry_after: float | None = None  # seconds
    location: str = ""  # cleaned
    # names in lower case; as the server sent them
    headers: Mapping[str, str] = MappingProxyType({})
    # the body of an error with its secrets, to be classified and never shown; empty: `body`
    sent: bytes = b""


def problem_of(response: Response) -> Exception:
    """The error that an unsuccessful response means, with the server's own words, cleaned."""
    shown, _, _ = _error_fields(response.body)
    message = f"{response.status}: {shown}" if shown else f"{response.status}, and no word why"
    # A key such as `x` or `token` is hidden within words, too, which then say nothing any more.
    words, parameter, codes = _error_fields(response.sent or response.body)
    if 300 <= response.status < 400:
        return FatalFault(
            f"{response.status}: redirected to {response.location}; give that address itself"
        )
    if _OF_CODES["refusal"].search(codes) or (
        response.status in _MODERATED and _FILTERED.search(words)
    ):
        return Filtered(message)
    is_limit = _OF_CODES["context"].search(codes) or (
        response.status in _LIMITED and _TOO_LONG.search(words)
    )
    if is_limit and not _fits(words):
        return TooLong(message)
    if _NO_PATH.search(words):
        return NoSuchPath(f"{shown}; see whether the base URL is right, which often ends in /v1")
    message += _HINTS.get(response.status, "")
    if response.status in _DENIED:
        return FatalFault(f"Authentication failed: {message}")
    if response.status in _FATAL or _HOPELESS.search(f"{codes} {words}"):
        return FatalFault(message)
    if response.status in _RETRIED or response.status >= 500 or _CRASHED.search(words):
        sent = response.sent or response.body
        wait = longest((response.retry_after, wait_in_body(sent)))
        if response.status in _THROTTLED and _is_spent_today(sent, words, wait):
            return FatalFault(message)
        throttled = response.status in _THROTTLED or response.retry_after is not None
        return Retryable(message, retry_after=wait, throttled=throttled)
    return (
        Refused(message, parameter)
        if response.status in _AS_SENT
        else Fault(message, cause="rejected")
    )


def without(text: str, *secrets: str) -> str:
    """A text with asterisks in place of secrets; empty secrets are ignored."""
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text


def clean(text: str, *secrets: str) -> str:
    """Foreign text on one line of limited length, without control characters and secrets."""
    text = without(text, *secrets)
    line = " ".join("".join(char if char.isprintable() else " " for char in text[:4096]).split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _fits(words: str) -> bool:
    """Whether a prompt is refused that the context holds, for the tokens of a reply that are asked for beside it."""
    found = [_PROMPT_TOKENS.search(words), _CONTEXT_TOKENS.search(words)]
    prompt, context = (int(each[each.lastindex or 0]) if each else 0 for each in found)
    return prompt < context if prompt and context else bool(_MOST_TOKENS.search(words))


def _is_spent_today(body: bytes, words: str, wait: float | None) -> bool:
    """Whether a quota is spent that is full again on another day.

    Words alone may speak of a limit that slides, as Groq's of tokens per day: a server that names a wait which can be
    waited for is believed.
    """
    if _DAILY_QUOTA.search(body[:65536].decode("utf-8", "replace")):
        return True
    return bool(_DAILY_WORDS.search(words)) and (wait is None or wait >= LONGEST_WAIT)


def _error_fields(body: bytes) -> tuple[str, str, str]:
    """Message, culprit parameter and codes from the various shapes of a server's error."""
    import orjson

    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = body[:4096].decode("utf-8", "replace")
    said = _first(said)
    error = _first(said.get("error") or said) if isinstance(said, dict) else said
    if isinstance(said, dict) and isinstance(error, str):
        error = {**said, "message": error}  # xAI's have the code beside it
    if not isinstance(error, dict):
        return clean(_as_words(error)), "", ""
    words = error.get("message") or error.get("detail") or error.get("type") or error
    parameter = error.get("param")
    inner = error.get("innererror")
    within = inner.get("code") if isinstance(inner, dict) else None
    codes = (error.get("code"), error.get("type"), within, *_reasons(error.get("details")))
    named = " ".join(str(code) for code in codes if isinstance(code, str | int))
    return clean(_as_words(words)), parameter if isinstance(parameter, str) else "", named


def _first(said: Any) -> Any:
    """The first of a list of errors, as Google sends them; what isn't such a list as it is."""
    return said[0] if isinstance(said, list) and said and isinstance(said[0], dict) else said


def _reasons(details: Any) -> Iterator[str]:
    """The reasons in the details of an error, of which Google's `ErrorInfo` has one."""
    for detail in details if isinstance(details, list) else ():
        reason = detail.get("reason") if isinstance(detail, dict) else None
        if isinstance(reason, str):
            yield reason


def _as_words(said: Any) -> str:
    """A server's words as a text: the message in them, or else JSON, as it was sent."""
    import orjson

    if isinstance(said, str):
        return said
    inner = said.get("message") if isinstance(said, dict) else None
    return inner if isinstance(inner, str) and inner else orjson.dumps(said).decode()
