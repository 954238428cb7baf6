"""The embedded tasks of `koderz helps`: codes of parcels, which most depots make as a skill says that comes with them.

They are for the simulated model, which reads what it is offered and runs the last command that it has read. So what a
skill does to an agent can be seen at once: some tasks are gained, some lost, and some pass or fail either way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from koderz.errors import StorageError

SKILL = Path(__file__).with_name("parcel-codes")
_DEPOTS = ("house", "told", "house", "odd", "house", "house", "old", "told", "house", "odd", "house", "house")
"""The kinds of depots, again and again: what makes codes in them is said by the skill, by the depot, or by nobody."""
_TASKS = 144
_NAMES = ("ada", "grace", "edsger", "barbara", "donald", "radia", "niklaus", "frances")
_RULES = {
    "told": "awk '{ print toupper($0) \"-\" length($0) }' parcels.txt > codes.txt",
    "old": "awk '{ print length($0) toupper($0) }' parcels.txt > codes.txt",
}
_TASK = """\
schema_version = "1.4"

[task]
name = "parcels/{name}"

[agent]
timeout_sec = 600

[verifier]
timeout_sec = 60
"""
_TEST = """\
#!/bin/bash
[ "$(cat codes.txt)" = '{codes}' ] && passed=1 || passed=0
echo $passed > /logs/verifier/reward.txt
"""


def write_tasks(folder: Path) -> Path:
    """Writes the tasks below `folder`, unless they are there, and returns it. Raises StorageError."""
    try:
        for number in range(_TASKS):
            name = f"depot-{number + 1:03}"
            for path, content in _files(name, number).items():
                file = folder / name / path
                if not file.is_file() or file.read_text() != content:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(content)
    except OSError as error:
        raise StorageError(f"the embedded tasks can't be written below {folder} ({error.strerror})") from None
    return folder


def _files(name: str, number: int) -> Mapping[str, str]:
    depot = _DEPOTS[number % len(_DEPOTS)]
    parcels = [_NAMES[(number + place) % len(_NAMES)] * (1 + number % 3) for place in range(3)]
    if depot == "odd":
        parcels = [f"{parcel} {parcel}" for parcel in parcels]
    codes = "\n".join(_codes(parcels, depot))
    rule = f"\nCodes are made so here:\n\n```sh\n{_RULES[depot]}\n```\n" if depot in _RULES else ""
    return {
        "instruction.md": "Write codes.txt: the code of each parcel in parcels.txt, one a line.\n",
        "task.toml": _TASK.format(name=name),
        "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY parcels.txt README.md ./\n",
        "environment/parcels.txt": "\n".join([*parcels, ""]),
        "environment/README.md": f"# Depot {number + 1}\n{rule}",
        "solution/solve.sh": f"#!/bin/bash\ncat > codes.txt <<'END'\n{codes}\nEND\n",
        "tests/test.sh": _TEST.format(codes=codes),
    }


def _codes(parcels: list[str], depot: str) -> Iterator[str]:
    for parcel in parcels:
        letters = len(parcel.replace(" ", ""))  # which in odd depots is another number than the skill's
        yield f"{letters}{parcel.upper()}" if depot == "old" else f"{parcel.upper()}-{letters}"
