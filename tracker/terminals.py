"""Text of any origin made safe to show in a terminal."""

from __future__ import annotations

import unicodedata


def plain(text: str) -> str:
    """The text with every character that could steer a terminal made visible: control, format and bidi characters."""
    if text.isprintable():
        return text
    return "".join(_visible(char) if steers(char) else char for char in text)


def steers(char: str) -> bool:
    """Whether a terminal might act on the character instead of showing it."""
    if char in "\n\t" or char.isprintable():
        return False
    return unicodedata.category(char) != "Zs"  # spaces wider or narrower than usual are just spaces


def _visible(char: str) -> str:
    return repr(char)[1:-1] if ord(char) < 0xD800 or ord(char) > 0xDFFF else "\ufffd"
