"""A quick test for texts that surely hold no credentials, so that the slow rules need not be loaded."""

from __future__ import annotations

REDACTED = "[redacted]"

# characters of the shortest run of letters and digits that a token could be part of
RUN_LENGTH = 16
_SOME_RUN = b"x" * RUN_LENGTH
_IN_RUNS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_CLASSES = bytes(ord("x") if code in _IN_RUNS else ord(" ") for code in range(256))
WORDS = (
    "key",
    "token",
    "secret",
    "passw",
    "passphrase",
    "credential",
    "authorization",
    "bearer",
    "cookie",
    "sig=",
    "session=",
    "auth=",
)
"""Lower-case words that occur in the names of secrets."""


def is_plain(text: str) -> bool:
    """Whether a text holds no credentials for sure."""
    if may_hold_tokens(text) or ("@" in text and "://" in text):
        return False
    lowered = text.lower()
    for word in WORDS:  # noqa: SIM110 a generator would take four times as long
        if word in lowered:
            return False
    return True


def may_hold_tokens(text: str) -> bool:
    """Whether a text has a long run of letters and digits, tested at the speed of a comparison of bytes."""
    return _SOME_RUN in text.encode("utf-8", "surrogatepass").translate(_CLASSES)
