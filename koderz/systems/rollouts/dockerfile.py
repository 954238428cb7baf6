"""The lines of a Dockerfile that can be followed without its image: WORKDIR, ENV, COPY and RUN."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from koderz.errors import KoderzError
from koderz.systems.rollouts.tasks import Step

_USUAL = "/app"


@dataclass(slots=True)
class Image:
    """The effects of a Dockerfile on the host's userland."""

    refused: str = ""  # why it needs its image

    workdir: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()


def read_dockerfile(path: Path) -> Image:
    """Reads a Dockerfile. `refused` names the line, and docker, if it needs more than the host's userland."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise KoderzError(f"{path} is missing or can't be read") from None
    image = Image()
    for number, line in _lines(text):
        word, _, rest = line.partition(" ")
        try:
            _take(image, word.upper(), rest.strip())
        except ValueError as error:
            image.refused = image.refused or f"{path}, line {number}: {error}; use --sandbox docker"
    image.workdir = image.workdir or _USUAL
    return image


def _take(image: Image, word: str, rest: str) -> None:
    """Takes in one instruction. Raises ValueError for one that can't be followed."""
    if word == "FROM" and not (image.workdir or image.steps):
        return
    if word == "WORKDIR":
        wanted = posixpath.normpath(posixpath.join(image.workdir or "/", rest))
        if image.workdir not in ("", wanted) or wanted == "/" or wanted.startswith(("/usr", "/etc", "/proc", "/dev")):
            image.workdir = wanted
            raise ValueError(f"WORKDIR {rest} can't be the checkout")
        image.workdir = wanted
    elif word == "ENV":
        image.environment |= _variables(rest)
    elif word == "COPY":
        *sources, target = shlex.split(rest)
        if not sources or rest.startswith(("-", "[")):
            raise ValueError(f"COPY {rest} isn't understood")
        place = posixpath.join(image.workdir or _USUAL, target)
        inner = posixpath.relpath(posixpath.normpath(place), image.workdir or _USUAL)
        if inner.startswith(".."):
            raise ValueError(f"COPY to {target}, outside of WORKDIR, needs the image")
        image.steps += (Step("COPY", inner + ("/" if target.endswith("/") else ""), tuple(sources)),)
    elif word == "RUN" and not rest.startswith(("-", "[")):
        image.steps += (Step("RUN", rest),)
    else:
        raise ValueError(f"{word} needs the image")


def _variables(rest: str) -> dict[str, str]:
    words = shlex.split(rest)
    if words and "=" not in words[0]:
        return {words[0]: rest.partition(" ")[2].strip()}
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers from 1; continued lines are joined, comments left out."""
    begun, joined = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not joined):
            continue
        begun = begun or number
        joined += line.rstrip().removesuffix("\\") + (" " if line.rstrip().endswith("\\") else "")
        if not line.rstrip().endswith("\\"):
            yield begun, joined.strip()
            begun, joined = 0, ""
