"""JSON objects in the replies of models, which put them into fences and sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_MOST_OBJECTS = 1000  # braces that are tried


def json_object(text: str, *keys: str) -> dict[str, Any] | None:
    """The first JSON object in a text that has one of these keys; None where there is none."""
    return next((found for found in _objects(text) if any(key in found for key in keys)), None)


def _objects(text: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder(strict=False)  # a prompt may hold a bare line break
    start = text.find("{")
    for _ in range(_MOST_OBJECTS):
        if start < 0:
            return
        try:
            found, end = decoder.raw_decode(text, start)
            yield found
        except (ValueError, RecursionError):
            end = start + 1
        start = text.find("{", end)
