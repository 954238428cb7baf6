"""The lines of a Dockerfile that can be followed without its image: WORKDIR, ENV, COPY and RUN.

Of a verifier's Dockerfile COPY may lead to /tests, and RUN may install packages: koderz' own test tools stand in for
these.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from koderz.errors import KoderzError
from koderz.systems.rollouts.tasks import Step

_USUAL = "/app"
_TESTS = "/tests"
_TOOLS = ("uv", "uvx")
_SEPARATORS = re.compile(r"&&|;|\|\|")
_PIP = re.compile(r"(?:(?:python3?(?:\.\d+)? -m )?pip3?|uv pip) install\b(.*)")
_APT = re.compile(r"apt(?:-get)? (?:-\S+ )*(?:update|upgrade|clean|autoremove)\b.*")
_APT_INSTALL = re.compile(r"apt(?:-get)? (?:-\S+ )*install\b(.*)")
_HARMLESS = re.compile(
    r"rm -rf /var/lib/apt/lists\S*|curl \S.*astral\.sh/uv\S*(?: \| (?:ba)?sh)?|chmod \S+ /tests\S*|true"
)
_WITH_VALUE = ("--index-url", "-i", "--python", "-p", "--target", "-t", "--extra-index-url", "--find-links", "-f")


@dataclass(slots=True)
class Recipe:
    """The way to the machine of a Dockerfile: its image, or its effects on the host's userland."""

    refused: str = ""  # why it needs its image
    workdir: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    installs: tuple[str, ...] = ()  # Python packages of a verifier's, as pip takes them
    programs: tuple[str, ...] = ()  # Debian packages of a verifier's
    image: str = ""  # a published one that takes its place
    has_lines: bool = False  # whether there is a Dockerfile
    is_placed: bool = False  # whether its compose file says where in its image it works


def read_dockerfile(path: Path, *, tests: bool = False) -> Recipe:
    """Reads a Dockerfile, a verifier's with `tests`.

    `refused` names the line, and docker, if it needs more than the host's userland.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise KoderzError(f"{path} is missing or can't be read") from None
    image = Recipe(has_lines=True)
    for number, line in _lines(text):
        word, _, rest = line.partition(" ")
        try:
            if not (tests and _taken_by_tests(image, word.upper(), rest.strip())):
                _take(image, word.upper(), rest.strip())
        except ValueError as error:
            image.refused = image.refused or f"{path}, line {number}: {error}; use --sandbox docker"
    image.workdir = image.workdir or _USUAL
    return image


def _take(image: Recipe, word: str, rest: str) -> None:
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


def _taken_by_tests(image: Recipe, word: str, rest: str) -> bool:
    """Takes in what only a verifier's Dockerfile may do: copy tests, and install what its tests are run by."""
    if word == "COPY":
        words = shlex.split(rest)
        if words[:1] and words[0].startswith("--from="):
            return all(posixpath.basename(each.rstrip("/")) in (*_TOOLS, "bin") for each in words[1:])
        target = posixpath.normpath(posixpath.join(image.workdir or _USUAL, words[-1]))
        if rest.startswith(("-", "[")) or len(words) < 2 or not f"{target}/".startswith(f"{_TESTS}/"):
            return False
        ending = "/" if words[-1].endswith("/") else ""
        image.steps += (Step("COPY", target + ending, tuple(words[:-1])),)
        return True
    if word != "RUN" or rest.startswith(("-", "[")):
        return False
    commands = [command.strip() for command in _SEPARATORS.split(rest) if command.strip()]
    packages, programs = list[str](), list[str]()
    for command in commands:
        if found := _PIP.fullmatch(command):
            packages += _packages(found[1])
        elif found := _APT_INSTALL.fullmatch(command):
            programs += _packages(found[1])
        elif not (_APT.fullmatch(command) or _HARMLESS.fullmatch(command)):
            return False
    image.installs += tuple(packages)
    image.programs += tuple(programs)
    return True


def _packages(rest: str) -> Iterator[str]:
    """The packages that a command installs. Raises ValueError for a file of such."""
    words = iter(shlex.split(rest))
    for word in words:
        if word in ("-r", "--requirement", "-c", "--constraint", "-e", "--editable"):
            raise ValueError(f"{word} needs the image")
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            yield word


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
