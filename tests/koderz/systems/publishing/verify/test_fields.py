"""Every field of every record, forged one at a time: it is a finding, or the verdict names it among what is on trust.

The fields are those of the records' classes, so that a new one is forged as well. Fields of lines are forged in one
experiment each, as many to a copy of the run as it has experiments.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import orjson
import pytest
from msgspec import inspect
from typer.testing import CliRunner

from koderz.cli import app
from koderz.systems.publishing.calibration import record_calibration
from koderz.systems.publishing.labels import JudgedRun
from koderz.systems.publishing.verify import Verification, verify_run
from koderz.systems.publishing.verify.findings import EXPLAINING, EXPLANATIONS, ON_TRUST
from koderz.systems.publishing.verify.subject import check_plan, restored_run
from koderz_tracker.records import KINDS, Attempt, Plan, decode
from tests.conftest import MEASUREMENT
from tests.koderz.systems.publishing.verify.forging import Lines, copied, forged, lines_of, with_ids, written

SIMULATED = ("--model", "simulated")
QUESTIONS = [{"id": f"q{n}", "input": f"What is {n} + {n}?", "target": [str(2 * n)]} for n in range(6)]
RUNS: Mapping[str, Sequence[object]] = {
    "code": ("benchmark", 0, 8, "--mode", "comparative", "--max-iterations", 3, *SIMULATED),
    "decided": ("benchmark", 0, 8, "--mode", "comparative", "--until-decided", *SIMULATED),
    "questions": (
        *("benchmark", "--suite", "qa", "--dataset", "faq.jsonl", "--scorer", "judge", "--judge-draws", 3),
        *("--role", "judge=simulated", *SIMULATED),
    ),
    "calibrated": (
        *("benchmark", "--suite", "browsecomp-plus", "--judge-model", "simulated", "--limit", 6, *SIMULATED),
    ),
    "long context": ("rlm", "run", "--benchmark", "ruler", "--simulated", "--max-tasks", 8, "--no-save"),
    "optimizers": (
        *("optimize", "run", "--models", "simulated", "--optimizers", "few_shot", "--samples", 4),
        *("--train-items", 5, "--validation-items", 3, "--test-items", 3, "--budget-calls", 8),
    ),
    "rollouts": ("rollouts", "run", "--agent", "oracle"),
    "patches": MEASUREMENT,
}


class HonestRun(NamedTuple):
    """A run, and what `koderz verify` says of it."""

    folder: Path
    found: Verification
    planned: Verification  # of its plan alone
    dataset: Path | None


@pytest.fixture(scope="module", params=RUNS)
def honest(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, speed: Path) -> HonestRun:
    """A run of each system, with the json sink alone."""
    place = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    with chdir(place):
        Path("faq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
        words = [*map(str, RUNS[request.param]), "--results", "runs"]
        done = CliRunner(env={"KODERZ_SINKS": "json"}).invoke(app, words)
        assert done.exit_code == 0, done.output
    (folder,) = (path for path in (place / "runs").iterdir() if path.is_dir())
    if request.param == "calibrated":
        judged = JudgedRun(folder)
        labels = {name: {"": float(number % 2)} for number, name in enumerate(judged.outcomes)}
        digest = "0123456789abcdef"
        record_calibration(folder, digest, judged.calibration(labels, digest).arms, labels)
    dataset = lines_of(folder)[0]["config"].get("dataset")
    dataset = place / dataset if dataset else None
    planned = verified_plan(lines_of(folder), dataset)
    if request.param == "rollouts":  # whose tests take half a minute
        dataset = None
    found = verified(folder, dataset)
    assert found.verified, found.findings
    assert planned.verified, planned.findings
    return HonestRun(folder, found, planned, dataset)


def verified(folder: Path, dataset: Path | None) -> Verification:
    return asyncio.run(verify_run(folder, summary=folder.with_suffix(".json"), dataset=dataset))


# Other values


def another(value: Any, kind: inspect.Type) -> Any:
    """Another value of a type."""
    match kind:
        case inspect.UnionType(types=types):
            of_value = [each for each in types if _is_of(value, each)]
            return another(value, of_value[0] if of_value else types[0])
        case inspect.BoolType():
            return not value
        case inspect.IntType():
            return (value or 0) + 1
        case inspect.FloatType():
            return (value or 0) + 1.5
        case inspect.LiteralType(values=values):
            return next(each for each in values if each != value)
        case inspect.TupleType(item_types=types):
            return [another(each, item) for each, item in zip(value or [0] * len(types), types, strict=True)]
        case inspect.DictType(value_type=item):
            return {**(value or {}), "x": another(None, item)}
        case inspect.ListType(item_type=item) | inspect.CollectionType(item_type=item):
            return [*(value or []), another(None, item)]
        case inspect.StructType(fields=fields):
            own = value or {field.encode_name: another(None, field.type) for field in fields if field.required}
            return {**own, fields[0].encode_name: another(own.get(fields[0].encode_name), fields[0].type)}
    return another_json(value)


def another_json(value: Any) -> Any:
    """Another JSON value: the first part of it changed, if it has parts."""
    if isinstance(value, dict) and value:
        name = next(iter(value))
        return {**value, name: another_json(value[name])}
    if isinstance(value, list) and value:
        return [another_json(value[0]), *value[1:]]
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else f"{value or ''}x"


def _is_of(value: Any, kind: inspect.Type) -> bool:
    kinds: tuple[tuple[type, Any], ...] = (
        (inspect.StrType, str), (inspect.BoolType, bool), (inspect.IntType, int), (inspect.FloatType, float),
        (inspect.StructType, dict), (inspect.DictType, dict), (inspect.ListType, list),
        (inspect.CollectionType, list), (inspect.TupleType, list),
    )  # fmt: skip
    return any(isinstance(kind, each) and isinstance(value, of) for each, of in kinds)


def changed_time(time: str) -> str:
    return f"{time[:-1]}{(int(time[-1]) + 1) % 10}"


def change(owner: dict[str, Any], kind: type[msgspec.Struct], name: str) -> None:
    """Changes one field of a record, or of a struct within one."""
    about = inspect.type_info(kind)
    assert isinstance(about, inspect.StructType)
    (field,) = (each for each in about.fields if each.name == name)
    usual = None if field.default is msgspec.NODEFAULT else field.default
    value = owner.get(name, usual)
    owner[name] = changed_time(str(value)) if name == "time" else another(value, field.type)


def is_told(honest: Verification, found: Verification) -> bool:
    """Whether a verdict has a finding, or says more than of the honest run of what is missing or on trust."""
    told = ("not_derived", "gaps", "on_trust")
    more = any({*getattr(found, each)} - {*getattr(honest, each)} for each in told) or found.chosen != honest.chosen
    return not found.verified or more


# Fields of plans, and of lines that are about the whole run


class Place(NamedTuple):
    """A field of the plan, of a struct in it, or of a line that is about the whole run."""

    kind: type[msgspec.Struct]
    name: str
    path: tuple[str | int, ...]  # within the line
    line: str = "plan"

    def change(self, lines: Lines) -> None:
        """Forges it in the last line of its kind."""
        owner: Any = [line for line in lines if line["kind"] == self.line][-1]
        for name in self.path:
            owner = owner[name]
        change(owner, self.kind, self.name)


def places(lines: Lines) -> Iterator[Place]:
    """Each field of the plan and of what it holds, and of the last line of each kind that is about the whole run."""
    record = decode(orjson.dumps(lines[0]))
    assert isinstance(record, Plan)
    holders: dict[tuple[str | int, ...], Any] = {(): record, ("details",): record.basis}
    holders |= {(name, 0): getattr(record, name)[0] for name in ("arms", "cells", "measures") if lines[0].get(name)}
    holders |= {(name,): getattr(record, name) for name in ("until_decided", "headline") if lines[0].get(name)}
    for path, holder in holders.items():
        yield from (Place(type(holder), name, path) for name in holder.__struct_fields__)
    about_all = (line["kind"] for line in lines[1:] if "experiment_id" not in line)
    for word in dict.fromkeys(about_all):
        yield from (Place(KINDS[word], name, (), word) for name in KINDS[word].__struct_fields__)


def is_trusted(honest: HonestRun, kind: type[Any], name: str) -> bool:
    """Whether the verdict on the honest run names a field among what is on trust."""
    sentence = EXPLANATIONS if kind is Attempt and name in EXPLAINING else ON_TRUST.get(kind, {}).get(name)
    return sentence in honest.found.on_trust


def verified_plan(lines: Lines, dataset: Path | None) -> Verification:
    """The check of a plan alone, which is much faster than the whole run's."""
    record, found = decode(orjson.dumps(lines[0])), Verification(None)
    assert isinstance(record, Plan)
    if check_plan(record, found):
        restored_run(record, dataset, found)
    return found


@pytest.mark.slow
def test_verify_tells_of_each_field_of_the_run(honest: HonestRun, tmp_path: Path) -> None:
    silent = []
    for number, place in enumerate(places(lines_of(honest.folder))):
        if is_trusted(honest, place.kind, place.name):
            continue
        lines = with_ids(lines_of(honest.folder), place.change)
        dataset = lines[0]["config"].get("dataset")
        if lines == lines_of(honest.folder):  # a digest is made anew
            continue
        if is_told(honest.planned, verified_plan(lines, honest.folder.parent.parent / dataset if dataset else None)):
            continue
        folder = copied(honest.folder, tmp_path / str(number))
        written(folder, lines)
        if not is_told(honest.found, verified(folder, honest.dataset)):
            silent.append(".".join(map(str, (place.line, *place.path, place.name))))

    assert not silent


# Fields of lines


class Forgery(NamedTuple):
    """A field of a line to be forged."""

    kind: str
    name: str
    once: str = ""  # how the name of a `once` begins

    def fits(self, line: dict[str, Any]) -> bool:
        return line["kind"] == self.kind and (not self.once or _prefix(line) == self.once)


def _prefix(line: dict[str, Any]) -> str:
    return str(line.get("name", "")).partition(" ")[0].partition("/")[0]


def forgeries(lines: Lines) -> Iterator[Forgery]:
    """Each field of each kind of line about an experiment; of values that are made once, each kind of value."""
    for word in dict.fromkeys(line["kind"] for line in lines if "experiment_id" in line):
        for name in KINDS[word].__struct_fields__:
            if word == "once" and name == "value":
                values = dict.fromkeys(_prefix(line) for line in lines if line["kind"] == word)
                yield from (Forgery(word, name, each) for each in values)
            elif name != "experiment_id":
                yield Forgery(word, name)


def spread(left: list[Forgery], lines: Lines) -> dict[str, Forgery]:
    """Takes as many forgeries from those left as there are experiments that have such lines, one for each."""
    free = [line["experiment_id"] for line in lines if line["kind"] in ("experiment", "fault")]
    at: dict[str, Forgery] = {}
    for forgery in [*left]:
        having = {line["experiment_id"] for line in lines if forgery.fits(line)}
        if name := next((each for each in free if each in having), ""):
            free.remove(name)
            left.remove(forgery)
            at[name] = forgery
    return at


@pytest.mark.slow
def test_verify_tells_of_each_field_of_its_lines(honest: HonestRun, tmp_path: Path) -> None:
    lines, silent = lines_of(honest.folder), []
    left = [each for each in forgeries(lines) if not is_trusted(honest, KINDS[each.kind], each.name)]
    while left:
        at = spread(left, lines)
        folder = forged(honest.folder, tmp_path / str(len(left)), partial(forge, at))
        found = verified(folder, honest.dataset)
        silent += [each for name, each in at.items() if not any(name in finding.where for finding in found.findings)]

    # Work that can't be done anew here is named as such, whatever is on record of it.
    assert not silent or any(each.startswith(("experiments of ", "verdicts: ")) for each in honest.found.not_derived)


def forge(at: Mapping[str, Forgery], lines: Lines) -> None:
    """Forges a field of the last fitting line of each experiment."""
    for name, forgery in at.items():
        own = [line for line in lines if line.get("experiment_id") == name and forgery.fits(line)]
        change(own[-1], KINDS[forgery.kind], forgery.name)
