"""A plan, its experiments and their records as bytes, for a worker on another machine."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from msgspec.structs import replace

import koderz_tracker
from koderz.engines.sources import restored_settings
from koderz.errors import KoderzError
from koderz.experiments.experiment import PendingExperiment
from koderz.plans.plan import Identity, Plan, in_arm, restore_plan
from koderz.settings.layers import fields_in, options_in, replaced
from koderz.settings.options import plain
from koderz.settings.registry import file_of
from koderz.settings.schema import Settings
from koderz.suites import SUITES
from koderz_tracker import records
from koderz_tracker.records import Attempt, Blob, Call, Record, Text, decode, encode

Files = Mapping[str, Mapping[str, str]]
"""The contents of files in base64, by the setting that names them, and by file name."""


def pack_plan(plan: Plan, files: Files) -> bytes:
    """Packs a plan with its files; `unpack_plan` restores it elsewhere."""
    return orjson.dumps({"plan": encode(plan.record).decode(), "files": files})


def files_of(plan: Plan) -> Files:
    """The files that settings name, by setting. Raises KoderzError if they can't be sent elsewhere."""
    settings = plan.settings
    packed = plan.suite.packed()
    found: dict[str, list[Path]] = {}
    if settings.dataset is not None and packed is None:
        found["dataset"] = [settings.dataset]
    if settings.prompt_dir is not None:
        found["prompt_dir"] = sorted(settings.prompt_dir.glob("*.md"))
    if SUITES.is_file(settings.suite):
        found["suite"] = [file_of(settings.suite)]
    if own := {file_of(arm.source) for arm in plan.record.arms if arm.source}:
        found["solver"] = sorted(own)
        if len({path.name for path in own}) < len(own):
            raise KoderzError(
                f"two files of solvers are called {found['solver'][0].name}; rename one of them"
            )
    contents = {
        name: {path.name: path.read_bytes() for path in paths} for name, paths in found.items()
    }
    if packed is not None:
        contents["dataset"] = {"packed": packed}
    return {
        name: {file: base64.b64encode(content).decode() for file, content in files.items()}
        for name, files in contents.items()
    }


def plan_record(data: bytes) -> records.Plan:
    """The plan's record in the bytes of `pack_plan`. Raises KoderzError for any other bytes."""
    try:
        record = decode(orjson.loads(data)["plan"].encode())
    except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError):
        record = None
    if not isinstance(record, records.Plan):
        raise KoderzError("what is stored as the run's plan is none")
    return record


def changes_in(plan: Plan) -> dict[str, Any]:
    """The settings that differ in this session from the plan's record, as JSON; addresses are whole."""
    sent = [
        (field, value) for field, value in options_in(plan.settings) if not field.about.is_secret
    ]
    return {
        field.name: plain(value)
        for field, value in sent
        if (field.about.changeable or field.about.is_address)
        and plan.record.config.get(field.name) != plain(value)
    }


def unpack_plan(data: bytes, folder: Path, changes: Mapping[str, Any]) -> Plan:
    """The plan, with its files written into `folder`. Raises KoderzError if the suite or prompts differ here.

    `changes`: see `changes_in`.
    """
    lay_out(data, folder)
    record = plan_record(data)
    settings = restored_settings(record)
    fields = fields_in(settings)
    settings = replaced(
        settings, {name: fields[name].read(value, name) for name, value in changes.items()}
    )
    settings, solvers = laid_out(settings, folder)
    return restore_plan(record, settings, accept_changes=False, solver_files=solvers)


def lay_out(data: bytes, folder: Path) -> None:
    """Writes the files of a packed plan."""
    for name, files in orjson.loads(data)["files"].items():
        if name in _NAMED_BY_PATH:
            place = folder / name
            place.mkdir(parents=True, exist_ok=True)
            for file, coded in files.items():
                (place / Path(file).name).write_bytes(base64.b64decode(coded))


def laid_out(settings: Settings, folder: Path) -> tuple[Settings, Path | None]:
    """The settings with the paths of the files that `lay_out` has written, and the folder of the user's solvers.

    And where it has put the user's own solvers; None where the plan has none.
    """
    there: dict[str, Any] = {
        name: folder / name for name in _NAMED_BY_PATH if (folder / name).is_dir()
    }
    solvers = there.pop("solver", None)
    if "dataset" in there:
        there["dataset"] = next(there["dataset"].iterdir())
    if "suite" in there:
        there["suite"] = f"{next(there['suite'].iterdir())}:{settings.suite.rpartition(':')[2]}"
    return dataclasses.replace(settings, **there), solvers


def pack_work(work: PendingExperiment, text: Callable[[Text], str]) -> dict[str, Any]:
    """Packs an experiment with its records, with texts read back from their blobs."""
    identity, recorded = work.identity, []
    for record in work.recorded:
        found = {name: getattr(record, name) for name in _TEXTS.get(type(record), ())}
        inlined: dict[str, Any] = {
            name: text(value) for name, value in found.items() if value is not None
        }
        if isinstance(record, Call):  # a replay needs no message of it: its key says what was asked
            inlined["messages"] = ()
            if isinstance(record.items, Blob):
                inlined["items"] = orjson.loads(text(record.items))
        recorded.append(encode(replace(record, **inlined)))
    return {
        "experiment_id": identity.experiment_id,
        "task": identity.task.id,
        "arm": identity.arm.name,
        "sample": identity.sample,
        "recorded": recorded,
        "is_whole": work.is_whole,
    }


def unpack_work(data: dict[str, Any], plan: Plan) -> PendingExperiment:
    """Unpacks an experiment. Raises KoderzError if the plan has no such task."""
    task = next((task for task in plan.tasks if task.id == data["task"]), None)
    if task is None:
        raise KoderzError(f"{plan.record.run_id}: the plan has no task {data['task']!r}")
    arm = plan.arm(data["arm"])
    identity = Identity(data["experiment_id"], in_arm(plan.suite, task, arm), arm, data["sample"])
    return PendingExperiment(identity, read_lines(data["recorded"]), data["is_whole"])


def read_lines(lines: Iterable[bytes]) -> Sequence[Record]:
    """The records of journal lines, without those of unknown kinds."""
    return [record for line in lines if (record := decode(line)) is not None]


def line_key(record: Record) -> tuple[str, str, str]:
    """A key that is the same for all copies of an experiment's line, and different for its other lines."""
    return record.kind, record.time, str(getattr(record, "key", ""))


@cache
def source_digest() -> str:
    """A digest of koderz' and the tracker's source, 16 hex digits, equal wherever the code is."""
    digest = hashlib.sha256()
    for root in (Path(__file__).parents[1], Path(koderz_tracker.__file__).parent):
        for path in sorted(root.rglob("*")):
            if path.suffix in _SOURCES and "__pycache__" not in path.parts:
                digest.update(f"{root.name}/{path.relative_to(root).as_posix()}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


_TEXTS: Mapping[type[Record], Sequence[str]] = {
    Call: ("reply", "text", "reasoning", "body"),
    Attempt: ("program", "feedback", "detail"),
}
_NAMED_BY_PATH = ("dataset", "prompt_dir", "solver", "suite")
_SOURCES = (".py", ".md", ".html", ".css", ".js", ".toml")
