"""The arms of `koderz helps`, stated as a configuration of rollouts that runs and resumes like any other."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from koderz.errors import KoderzError, StorageError
from koderz.systems.rollouts.additions import KINDS, read_additions
from koderz_tracker.files import write_whole

_LONGEST = 60  # characters of the name of an arm


@dataclass(frozen=True, slots=True)
class Given:
    """A thing that may help: its key in a configuration, its text there, and its name in the names of arms."""

    key: str
    said: str
    name: str

    @property
    def bare(self) -> tuple[str, str]:
        """Its key and its text without a revision, which are equal for revisions of one thing."""
        place, at, _ = self.said.rpartition("@")
        return self.key, place if at and not Path(self.said).exists() else self.said


Arms = Mapping[str, Sequence[Given]]
"""What each arm gives, by the arm's name; others are compared with the first."""


def given_by(values: Mapping[str, Sequence[str]]) -> list[Given]:
    """What the options name, by the keys of a configuration. Raises KoderzError for what can't be given."""
    found = []
    for key, texts in values.items():
        for text in texts:
            names = [each.name for each in read_additions(KINDS[key], text, Path.cwd())]
            found.append(Given(key, _absolute(key, text), "+".join(names)))
    if twice := next((each for place, each in enumerate(found) if each in found[:place]), None):
        raise KoderzError(f"{twice.said} is given twice")
    return found


def arms_of(given: Sequence[Given], *, together: bool = False, each_without: bool = False) -> Arms:
    """The arms that compare what is given.

    Without it and with each; `together` with all of it; `each_without` all of it, and all but one of it. Revisions of
    one thing are compared with the first of them. Raises KoderzError if there is nothing to compare.
    """
    if not given:
        raise KoderzError("say what may help: --skill DIR, --mcp FILE|COMMAND, --context FILE, --memory STORE or more")
    if each_without:
        if together or len(given) < 2:
            raise KoderzError("--each-without takes two things or more, and goes without --together")
        rest = {_named("without", each.name): [one for one in given if one is not each] for each in given}
        return _distinct({"with all": given, **rest}, len(given) + 1)
    if together:
        return {"plain": (), _named("with", " and ".join(each.name for each in given)): given}
    alone = {_named("with", each.name): [each] for each in given}
    if len(alone) < len(given):
        alone = {_named("with", each.said): [each] for each in given}
    has_one_thing = len(given) > 1 and len({each.bare for each in given}) == 1
    return _distinct(alone if has_one_thing else {"plain": (), **alone}, len(given) + (not has_one_thing))


def _named(how: str, what: str) -> str:
    """The name of an arm, as a configuration takes it."""
    name = f"{how} {''.join(each if each.isprintable() else '?' for each in what)}"
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _distinct(arms: Arms, count: int) -> Arms:
    if len(arms) < count:
        raise KoderzError("two of the things that are given have one name, so their arms can't be told apart")
    return arms


def write_config(folder: Path, name: str, arms: Arms, dataset: str, registry: str | None, agent: str) -> Path:
    """Writes the configuration of these arms on a dataset, and returns its file.

    The file's name has the digest of what is in it, so that a run which is resumed finds what it began with. Raises
    StorageError if the disk refuses.
    """
    top = {"name": name, "agent": agent, "dataset": dataset, **({"registry": registry} if registry else {})}
    lines = [f"{key} = {_text(value)}" for key, value in top.items()]
    for arm, given in arms.items():
        lines += ["", "[[arms]]", f"name = {_text(arm)}"]
        for key in dict.fromkeys(each.key for each in given):
            texts = ", ".join(_text(each.said) for each in given if each.key == key)
            lines.append(f"{key} = [{texts}]")
    content = "\n".join([*lines, ""]).encode()
    path = folder / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}.toml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, [content])
    except OSError as error:
        raise StorageError(f"{path} can't be written ({error.strerror})") from None
    return path


def _absolute(key: str, said: str) -> str:
    """The text with the paths of this machine in it absolute, since a run may be resumed from anywhere."""
    if "://" in said:
        return said
    if Path(said).exists():
        return str(Path(said).absolute())
    if key == "mcp":
        words = [str(Path(word).absolute()) if Path(word).is_file() else word for word in shlex.split(said)]
        return shlex.join(words)
    place, at, revision = said.rpartition("@")
    return f"{Path(place).absolute()}{at}{revision}"


def _text(value: str) -> str:
    """The value as a basic string of TOML, which is JSON's but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
