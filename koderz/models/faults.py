"""Failures between here and a model's server, by whether another request can help.

Retryable    asking again may help; ends as a Fault when patience does
Refused      the request can't be served as it is; changing a parameter may help
Fault        this request will never be served (koderz.errors)
FatalFault   no request will (koderz.errors)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from koderz.errors import FatalFault, Fault

_LONGEST = 300  # characters of a server's own words that are shown
_RETRIED = frozenset({408, 409, 425, 429})
_FATAL = frozenset({401, 402, 403, 404})
_DENIED = frozenset({401, 403})
_THROTTLED = frozenset({429, 529})
_AS_SENT = frozenset({400, 422})
_HINTS = {
    401: "; see whether the key is this provider's and still good",
    404: "; see whether the model's name is right, and the base URL, which often ends in /v1",
}

# What servers say where no later call can fare better, whatever status they say it with.
_HOPELESS = re.compile(
    r"insufficient_quota|credit balance is too low|not a valid model|model_not_found|api key not valid"
    r"|requires more system memory|does not support chat",
    re.IGNORECASE,
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


class Refused(Exception):
    """The server refuses the request as it is; `parameter` is the culprit if a field names it."""

    def __init__(self, message: str, parameter: str = "") -> None:
        super().__init__(message)
        self.parameter = parameter


class Response(NamedTuple):
    """A response over HTTP."""

    status: int
    body: bytes
    retry_after: float | None = None  # seconds
    location: str = ""  # cleaned
    headers: Mapping[str, str] = MappingProxyType({})  # names in lower case; as the server sent them


def problem_of(response: Response) -> Exception:
    """The error that an unsuccessful response means, with the server's own words, cleaned."""
    words, parameter, code = _error_fields(response.body)
    message = f"{response.status}: {words}" if words else f"{response.status}, and no word why"
    if 300 <= response.status < 400:
        return FatalFault(f"{response.status}: redirected to {response.location}; give that address itself")
    message += _HINTS.get(response.status, "")
    if response.status in _DENIED:
        return FatalFault(f"Authentication failed: {message}")
    if response.status in _FATAL or _HOPELESS.search(f"{code} {words}"):
        return FatalFault(message)
    if response.status in _RETRIED or response.status >= 500:
        throttled = response.status in _THROTTLED or response.retry_after is not None
        return Retryable(message, retry_after=response.retry_after, throttled=throttled)
    return Refused(message, parameter) if response.status in _AS_SENT else Fault(message, cause="rejected")


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


def _error_fields(body: bytes) -> tuple[str, str, str]:
    """Message, culprit parameter and code from the various shapes of a server's error."""
    import orjson

    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        said = body[:4096].decode("utf-8", "replace")
    error = said.get("error", said) if isinstance(said, dict) else said
    if not isinstance(error, dict):
        return clean(str(error)), "", ""
    words = error.get("message") or error.get("detail") or error.get("type") or error
    parameter, code = error.get("param"), error.get("code")
    return clean(str(words)), parameter if isinstance(parameter, str) else "", str(code)
