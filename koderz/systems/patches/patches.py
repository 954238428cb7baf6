"""Patches in replies of models, and as diffs of texts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

_OPENING = re.compile(r"(`{3,})[ \t]*(diff|patch|file[ \t]+[^\n`]+)")


def patch_of(reply: str, files: Mapping[str, str]) -> str:
    """The diff in a reply, or made from its whole files against `files`; empty if it has neither."""
    blocks = [(word.split(maxsplit=1), body) for word, body in _blocks(reply)]
    whole = {word[1].strip(): body for word, body in blocks if word[0] == "file"}
    diffs = [body for word, body in blocks if word[0] != "file"]
    if diffs:
        return "".join(diffs)
    if whole:
        return diff_of(files, {**files, **whole})
    return reply if re.search(r"^--- \S.*\n\+\+\+ \S", reply, re.MULTILINE) else ""


def _blocks(reply: str) -> Iterator[tuple[str, str]]:
    """The info line and the text of each closed block, in time linear in the reply."""
    lines = reply.split("\n")
    closing: dict[str, list[int]] = {}  # by fence, the last line first
    for number in range(len(lines) - 1, 0, -1):
        closing.setdefault(lines[number].rstrip(), []).append(number)
    number = 0
    while number < len(lines):
        opening = _OPENING.fullmatch(lines[number].rstrip())
        ends = closing.get(opening[1], []) if opening else []
        while ends and ends[-1] <= number:
            ends.pop()
        if opening and ends:
            yield opening[2], "".join(f"{line}\n" for line in lines[number + 1 : ends[-1]])
            number = ends[-1]
        number += 1


def diff_of(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """A unified diff of texts by path, as git writes it; nothing is removed."""
    return "".join(
        part for path, text in sorted(after.items()) if text != before.get(path) for part in _diff(path, before, text)
    )


def _diff(path: str, before: Mapping[str, str], text: str) -> Iterator[str]:
    old = before.get(path)
    yield f"diff --git a/{path} b/{path}\n"
    if old is None:
        yield "new file mode 100644\n"
    lines, more = (each.splitlines(keepends=True) for each in (old or "", text))
    for line in difflib.unified_diff(lines, more, "/dev/null" if old is None else f"a/{path}", f"b/{path}"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
