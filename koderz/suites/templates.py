"""Templates of prompts, in which names of columns in braces stand for their values."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_PLACEHOLDER = re.compile(r"\{([^{}\n]{1,200})\}")


def fill(template: str, columns: Mapping[str, str]) -> str:
    """The template with the columns' values in place of their names in braces; other braces stay.

    Values are never looked at again, so that a `{question}` in one remains what it is.
    """
    return _PLACEHOLDER.sub(lambda found: columns.get(found[1], found[0]), template)


def placeholders(template: str, columns: Collection[str]) -> set[str]:
    """The columns whose placeholders a template has."""
    return {name for name in _PLACEHOLDER.findall(template) if name in columns}
