"""The embedded tasks of `koderz helps`: codes of parcels, which most depots make as a skill says that comes with them.

They are for the simulated model, which runs the last command that it has read. So some tasks are gained by the skill,
some are lost, and some pass or fail either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from koderz.errors import StorageError

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
        raise StorageError(f"the embedded tasks can't be written below {folder} ({error.strerror})") from None
    return folder


def _task(number: int) -> Mapping[str, str]:
    depot = _DEPOTS[number % len(_DEPOTS)]
    parcels = [_NAMES[(number + place) % len(_NAMES)] * (1 + number % 3) for place in range(3)]
    # In odd depots blanks are no characters, which neither the skill nor anybody else says.
    codes = [f"{len(each)}{each.upper()}" if depot == "old" else f"{each.upper()}-{len(each)}" for each in parcels]
    if depot == "odd":
        parcels, codes = [f"{each} " for each in parcels], [code.replace("-", " -") for code in codes]
    rule = f"\n```sh\nawk '{{ print {_RULES[depot]} }}' parcels.txt > codes.txt\n```\n" if depot in _RULES else ""
    name = f"depot-{number + 1:03}"
    return {"name": name, "parcels": "\n".join(parcels), "codes": "\n".join(codes), "rule": rule}
