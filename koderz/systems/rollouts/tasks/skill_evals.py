"""Evals of skills as tasks of rollouts: the evals.json of agentskills.io and of the skill skill-creator."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from koderz.errors import KoderzError
from koderz.suites.dataset import Row
from koderz.systems.rollouts.task import Rollout, Rubric, SkillEval
from koderz.systems.rollouts.tasks.runnable import Omission
from koderz.systems.workspaces.folders import leads_out
from koderz.systems.workspaces.scripts import Script
from koderz_tracker.files import MB

_FILE = "evals/evals.json"  # of a skill's folder
_LARGEST = 16 * MB
_KEYS = {"id", "name", "prompt", "expected_output", "files", "expectations", "assertions", "tests"}
_FOLDERS = ("evals/files/", "evals/")  # without which files are laid into the checkout


def evals_files(place: Path) -> list[Path]:
    """The files of evals that a dataset's place names: itself, or those of a skill's folder or of a folder of skills.

    Told by content: JSON with a list `evals`. None for any other dataset.
    """
    if place.is_dir():
        own = place / _FILE
        return [own] if own.is_file() else sorted(path for path in place.glob(f"*/{_FILE}") if path.is_file())
    is_small = place.suffix == ".json" and place.is_file() and place.stat().st_size <= _LARGEST
    return [place] if is_small and isinstance(_document(place).get("evals"), list) else []


def _document(path: Path) -> Mapping[str, Any]:
    """The JSON object in a file; empty for anything else."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_evals(path: Path) -> tuple[list[Rollout], list[Omission]]:
    """The evals in a file as tasks, and those that can't be used. Raises KoderzError for a file that holds none."""
    document, root = _document(path), path.absolute().parent
    rows = document.get("evals")
    if not isinstance(rows, list) or not rows:
        raise KoderzError(f"{path} has no evals: it has to be JSON with a list `evals`")
    root = root.parent if root.name == "evals" else root
    skill = document.get("skill_name")
    skill = skill if isinstance(skill, str) and skill else root.name
    tasks, refused = dict[str, Rollout](), list[Omission]()
    for number, fields in enumerate(rows, 1):
        row = Row(f"{path}, eval {number}", fields if isinstance(fields, dict) else {})
        named = next((name for name in ("id", "name") if name in row.fields), "")
        try:
            task = _task(row, f"{skill}/{row.id(named) if named else number}", skill, root)
            if task.id in tasks:
                raise row.error(f"another eval has the id {task.id}")
            tasks[task.id] = task
        except (KoderzError, OSError, UnicodeDecodeError) as error:
            refused.append(Omission(f"{skill}/{number}", str(error)))
    return [*tasks.values()], refused


def _task(row: Row, task_id: str, skill: str, root: Path) -> Rollout:
    def named(key: str) -> dict[str, Path]:
        """The files of the skill's folder that the eval names, by their names for whoever gets them."""
        found = dict[str, Path]()
        for path in row.texts(key):
            inner = path.removeprefix("./")
            name = inner.removeprefix(next((folder for folder in _FOLDERS if inner.startswith(folder)), ""))
            file = root / inner
            if leads_out(file, root) or not file.is_file():
                raise row.error(f"{key}: there is no file {path} in {root}")
            if name in found:
                raise row.error(f"{key}: two files have the name {name}")
            found[name] = file.resolve()
        return found

    expected = row.text("expected_output", "")
    stated = (*row.texts("expectations"), *row.texts("assertions"))
    scripts = tuple(Script(name, "tests", file.read_text("utf-8")) for name, file in named("tests").items())
    if not (stated or expected or scripts):
        raise row.error("it has no expectations, expected_output or tests, so nothing could judge it")
    expectations = stated or ((f"The result is as expected: {expected}",) if expected else ())
    shown = named("files")
    about = f"\n\nInput files: {', '.join(shown)}" if shown else ""
    rubrics = [Rubric(str(number), text) for number, text in enumerate(expectations, 1)]
    task = Rollout(
        folder=root,
        format="evals",
        id=task_id,
        title=row.text("name", task_id),
        instructions=row.text("prompt") + about,
        files={**shown},
        rubrics=(Rubric("tests", "the tests of the eval pass"),) if scripts else tuple(rubrics),
        scripts=scripts,
        skill_eval=SkillEval(skill, expected, tuple(expectations)),
        ignored_keys=tuple(f"evals.json: {key}" for key in row.fields if key not in _KEYS),
    )
    # The skill itself is no part of the task: arms with two revisions of it have the same one.
    digest = hashlib.sha256(repr((replace(task, folder=Path(), files={}), task.skill_eval)).encode())
    for path, source in shown.items():
        digest.update(f"{path}\0".encode() + source.read_bytes())
    return replace(task, digest=digest.hexdigest()[:16])


def skill_notices(tasks: Sequence[Rollout]) -> Iterator[str]:
    """Sentences on what judges the evals of skills among the tasks, and on what is wrong with skills."""
    evals = {task.base or task.id: task for task in tasks if task.skill_eval}.values()  # each once, however many arms
    by = Counter("their tests" if task.scripts else "the role judge" for task in evals)
    if by:
        told = ", ".join(f"{count} by {what}" for what, count in by.items())
        calibrated = "koderz benchmark calibrate says how far that one can be believed"
        yield f"evals of skills are judged: {told}{f'; {calibrated}' if 'the role judge' in by else ''}"
    added = [each for task in tasks for each in task.additions if each.kind == "skill" and not each.inside]
    for folder in dict.fromkeys([*(task.folder for task in evals), *(Path(each.path) for each in added)]):
        yield from skill_problems(folder)


def skill_problems(folder: Path) -> Iterator[str]:
    """Sentences on what the published validator finds wrong with a skill. None where it is not installed."""
    try:
        from skills_ref import validate

        found = validate(folder) if (folder / "SKILL.md").is_file() else ()
    except ImportError:
        return
    except (OSError, ValueError) as error:  # it decodes what it reads
        found = [str(error)]
    for problem in found:
        yield f"skill {folder.name}: not as agentskills.io specifies: {' '.join(problem.split())[:300]}"
