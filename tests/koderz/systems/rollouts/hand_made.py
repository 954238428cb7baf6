"""The hand-made tasks of audited.txt, written to folders."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path


@cache
def _texts() -> dict[str, dict[str, str]]:
    """The files of each task by its name: `= NAME`, and its files, each after a line `- PATH`."""
    found = {}
    for part in Path(__file__).with_name("audited.txt").read_text().split("\n= ")[1:]:
        name, *files = re.split(r"^- (.+)\n", part.rstrip("\n") + "\n", flags=re.MULTILINE)
        found[name.strip()] = dict(zip(files[::2], files[1::2], strict=True))
    return found


def hand_made(folder: Path, name: str) -> Path:
    """The folder of a task, new below `folder`."""
    for path, text in _texts()[name].items():
        place = folder / name / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder / name
