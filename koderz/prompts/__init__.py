"""Prompts for models: one Markdown file each, with `${name}` for values.

`--prompt-dir` overrides them file by file. Their digests stand in the plan, since a changed prompt is
another experiment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from koderz.errors import KoderzError
from koderz.types import Message
from koderz_tracker.files import MB, read_all

_OWN: Mapping[str, str] = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted(Path(__file__).parent.glob("*.md"))
}
PLACEHOLDERS: Mapping[str, frozenset[str]] = {
    name: frozenset(Template(text).get_identifiers()) for name, text in _OWN.items()
}
"""The placeholders that each prompt may use: those in our own text."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Every prompt's text, by name."""

    texts: Mapping[str, str]
    note: Callable[[str], None] | None = None  # told the name of each that is rendered

    def render(self, name: str, **values: str) -> str:
        """Fills in a prompt's values. A paragraph whose only value is empty is left out."""
        text = self.texts[name]
        if self.note:
            self.note(name)
        values = dict.fromkeys(PLACEHOLDERS[name], "") | values
        for key, value in values.items():
            if not value:
                text = text.replace(f"${{{key}}}\n\n", "")
        return Template(text).substitute(values).strip()

    def first_messages(
        self, values: Mapping[str, str], *, cot: bool = True, specification: str = ""
    ) -> tuple[Message, ...]:
        """The first messages of a task, with its values filled in."""
        specified = (
            self.render("specification", specification=specification) if specification else ""
        )
        user = self.render(
            "task",
            **values,
            reasoning=self.render("reasoning") if cot else "",
            specification=specified,
        )
        return {"role": "system", "content": self.render("system")}, {
            "role": "user",
            "content": user,
        }

    def digests(self) -> dict[str, str]:
        """Maps each name to the first 16 hex digits of its text's SHA-256."""
        return {
            name: hashlib.sha256(text.encode()).hexdigest()[:16]
            for name, text in self.texts.items()
        }


def load_prompts(override: Path | None = None) -> Prompts:
    """Loads the prompts; files in `override` replace our own.

    Raises KoderzError for a file there that is no prompt, or that uses what its prompt hasn't got.
    """
    return Prompts({**_OWN, **(_overrides(override) if override is not None else {})})


def trimmed(text: str, limit: int) -> str:
    """The text, with its middle left out if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    note = f"\n… {len(text) - limit} characters left out …\n"
    half = max(0, limit - len(note)) // 2
    return text[:half] + note + text[len(text) - half :]


def _overrides(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise KoderzError(f"--prompt-dir {folder}: there is no such folder")
    texts = {}
    for path in sorted(folder.glob("*.md")):
        if path.stem not in PLACEHOLDERS:
            raise KoderzError(
                f"{path}: no prompt has that name; there are {', '.join(PLACEHOLDERS)}"
            )
        try:
            text = read_all(path, MB).decode("utf-8").replace("\r\n", "\n")
        except (OSError, UnicodeDecodeError) as error:
            raise KoderzError(f"{path} can't be read as UTF-8 text ({error})") from None
        template, allowed = Template(text), PLACEHOLDERS[path.stem]
        if not template.is_valid():
            raise KoderzError(f"{path}: a $ that begins no ${{name}}; write $$ for a dollar sign")
        for name in template.get_identifiers():
            if name not in allowed:
                raise KoderzError(
                    f"{path}: ${{{name}}} is unknown here; it may use {', '.join(sorted(allowed)) or 'none'}"
                )
        texts[path.stem] = text
    return texts
