"""The arms of `koderz helps`, stated as a configuration of rollouts that runs and resumes like any other.

The embedded tasks are codes of parcels, which most depots make as a skill says that comes with them. They are for the
simulated model, which runs the last command that it has read. So some tasks are gained by the skill, some are lost,
and some pass or fail either way.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from koderz.errors import KoderzError, StorageError
from koderz.systems.rollouts.additions import KINDS, read_additions
from koderz_tracker.files import write_whole

_LONGEST = 40  # characters of a name, of those that an arm's may have


class Given(NamedTuple):
    """A thing that may help: its key in a configuration, its text there, and its name in the names of arms."""

    key: str
    said: str
    name: str

    @property
    def thing(self) -> tuple[str, str]:
        """Its key, and its text without a revision, which are equal for revisions of one thing."""
        place, at, _ = self.said.rpartition("@")
        return self.key, place if at and not Path(self.said).exists() else self.said


Arms = Mapping[str, Sequence[Given]]
"""The things that each arm gives, by its name; others are compared with the first."""


def given_by(values: Mapping[str, Sequence[str]]) -> list[Given]:
    """The things that options name, by the keys of a configuration. Raises KoderzError for one that can't be given."""
    found = dict[str, Given]()
    for key, texts in values.items():
        for text in texts:
            whole = "+".join(each.name for each in read_additions(KINDS[key], text, Path.cwd()))
            name = "".join(each if each.isprintable() else "?" for each in whole)[:_LONGEST]
            given = Given(
                key, _absolute(key, text), f"{name} #{len(found) + 1}" if name in found else name
            )
            if given[:2] in [each[:2] for each in found.values()]:
                raise KoderzError(f"{text} is given twice")
            found[given.name] = given
    return [*found.values()]


def arms_of(given: Sequence[Given], *, together: bool = False, each_without: bool = False) -> Arms:
    """The arms that compare what is given: a plain one, and one with each.

    `together`: one with all of it; `each_without`: all of it, and all but one of it. Revisions of one thing are
    compared with the first of them. Raises KoderzError if there is nothing to compare.
    """
    if not given:
        raise KoderzError(
            "say what may help: --skill DIR, --mcp FILE|COMMAND, --context FILE, --memory STORE or more"
        )
    if each_without:
        if together or len(given) < 2:
            raise KoderzError(
                "--each-without takes two things or more, and goes without --together"
            )
        return {
            "with all": given,
            **{f"without {out.name}": [each for each in given if each != out] for out in given},
        }
    if together:
        return {"plain": (), "with all": given}
    alone = {f"with {each.name}": [each] for each in given}
    return (
        alone
        if len(given) > 1 and len({each.thing for each in given}) == 1
        else {"plain": (), **alone}
    )


def write_config(
    folder: Path, name: str, arms: Arms, dataset: str, registry: str | None, agent: str
) -> Path:
    """Writes the configuration of these arms on a dataset, and returns its file.

    The file's name has the digest of what is in it, so that a run which is resumed finds what it began with. Raises
    StorageError if the disk refuses.
    """
    top = {"name": name, "agent": agent, "dataset": dataset}
    if registry:
        top["registry"] = registry if "://" in registry else str(Path(registry).absolute())
    text = partial(json.dumps, ensure_ascii=False)  # whose strings TOML has, too
    lines = [f"{key} = {text(value)}" for key, value in top.items()]
    for arm, given in arms.items():
        lines += ["", "[[arms]]", f"name = {text(arm)}"]
        for key in dict.fromkeys(each.key for each in given):
            lines.append(f"{key} = {text([each.said for each in given if each.key == key])}")
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
    if "://" in said or Path(said).exists():
        return said if "://" in said else str(Path(said).absolute())
    if key == "mcp":
        return shlex.join(
            str(Path(word).absolute()) if Path(word).is_file() else word
            for word in shlex.split(said)
        )
    place, at, revision = said.rpartition("@")
    return f"{Path(place).absolute()}{at}{revision}"


SKILL = Path(__file__).with_name("parcel-codes")
_TASKS = 144
_DEPOTS = ("house", "told", "house", "odd", "house", "house", "house", "old", "house", "told")
"""The kinds of depots, again and again. What makes codes is said by the skill, in the depot, or, if odd, by nobody."""
_NAMES = ("ada", "grace", "edsger", "barbara", "donald", "radia", "niklaus", "frances")
_RULES = {"told": 'toupper($0) "-" length($0)', "old": "length($0) toupper($0)"}
_FILES = {
    "instruction.md": "Write codes.txt: the code of each parcel in parcels.txt, one a line.\n",
    "task.toml": '[task]\nname = "parcels/{name}"\n\n[agent]\ntimeout_sec = 600\n\n[verifier]\ntimeout_sec = 60\n',
    "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY parcels.txt README.md ./\n",
    "environment/parcels.txt": "{parcels}\n",
    "environment/README.md": "# {name}\n{rule}",
    "solution/solve.sh": "#!/bin/bash\ncat > codes.txt <<'END'\n{codes}\nEND\n",
    "tests/test.sh": "#!/bin/bash\n[ \"$(cat codes.txt)\" = '{codes}' ]\n"
    "echo $((1 - $?)) > /logs/verifier/reward.txt\n",
}


def write_tasks(folder: Path) -> Path:
    """Writes the tasks below `folder`, unless they are there, and returns it. Raises StorageError."""
    try:
        for number in range(_TASKS):
            values = _task(number)
            for path, text in _FILES.items():
                file, content = folder / values["name"] / path, text.format(**values)
                if not file.is_file() or file.read_text() != content:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(content)
    except OSError as error:
        raise StorageError(
            f"the embedded tasks can't be written below {folder} ({error.strerror})"
        ) from None
    return folder


def _task(number: int) -> Mapping[str, str]:
    depot = _DEPOTS[number % len(_DEPOTS)]
    parcels = [_NAMES[(number + place) % len(_NAMES)] * (1 + number % 3) for place in range(3)]
    # In odd depots blanks are no characters, which neither the skill nor anybody else says.
    codes = [
        f"{len(each)}{each.upper()}" if depot == "old" else f"{each.upper()}-{len(each)}"
        for each in parcels
    ]
    if depot == "odd":
        parcels, codes = (
            [f"{each} " for each in parcels],
            [code.replace("-", " -") for code in codes],
        )
    rule = (
        f"\n```sh\nawk '{{ print {_RULES[depot]} }}' parcels.txt > codes.txt\n```\n"
        if depot in _RULES
        else ""
    )
    name = f"depot-{number + 1:03}"
    return {"name": name, "parcels": "\n".join(parcels), "codes": "\n".join(codes), "rule": rule}
