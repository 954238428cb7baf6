"""Instances of SWE-bench and of datasets like it: rows, or the folders of a task repository."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

from koderz.errors import KoderzError
from koderz.suites.dataset import Row
from koderz.suites.tables import read_rows
from koderz.systems.rollouts.swebench.dialects import TESTBED, VERSION_5, as_version_5
from koderz.systems.rollouts.swebench.reports import (
    EvalType,
    Expected,
    Parser,
    RuleName,
    Statuses,
    parser_of,
    summary_parser,
)
from koderz.systems.workspaces.environments import EnvironmentRule, first_fitting
from koderz.systems.workspaces.images import ImageStore

_LONGEST_METADATA = 100  # characters of a field
DEPRECATED = "deprecated"  # the split of tasks that a repository keeps without publishing them

_FILES = {
    "patch": "gold.patch",
    "test_patch": "test.patch",
    "eval_script": "eval.sh",
    "problem_statement": "problem_statement.md",
}


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance, with the parts that an agent mustn't see."""

    where: str  # "FILE, line 3"
    id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str  # its own solution
    test_patch: str
    image: str
    eval_script: str
    log_parser: str
    expected: Expected
    version: str = ""
    has_assets: bool = False  # binary files beside its patches
    split: str = ""
    digest: str = ""
    format: str = "swebench"  # by which rules of environments select
    substitute: EnvironmentRule | None = None  # what stands in for its image
    # the short fields of its row
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    workdir: str = TESTBED  # of its repository in its image
    bug: str = ""  # the patch that makes the tree in which one works of the image's
    withheld: tuple[str, ...] = ()  # files of the tests that an agent doesn't see

    @property
    def key(self) -> str:
        """A digest of the row, with what stands in for its image."""
        return f"{self.digest} {self.substitute}" if self.substitute else self.digest

    @property
    def parser(self) -> Parser:
        """The parser of its logs. Raises KoderzError if nothing here has one of that name."""
        told = {
            "instance_id": self.id,
            "image": self.image,
            "repo": self.repo,
            "version": self.version,
        }
        return parser_of(self.log_parser, told, self.where)

    def summarised(self, log: str) -> Statuses:
        """The statuses in lines `STATUS TEST`, by the ids that its row has."""
        return summary_parser(self.log_parser, self.parser)(log)


def is_task_repository(path: Path) -> bool:
    """Whether a folder holds tasks/ID/task.yaml."""
    return path.is_dir() and any((path / "tasks").glob("*/task.yaml"))


def read_instances(path: Path) -> list[Instance]:
    """The instances in a file of rows or in a task repository.

    Raises KoderzError, naming file and line, for a row of no known dataset, or two with the same id.
    """
    rows = _of_repository(path) if path.is_dir() else read_rows(path)
    found: dict[str, Instance] = {}
    for instance in map(_instance, rows):
        if instance.id in found:
            raise KoderzError(
                f"{instance.where}: the instance {instance.id} is in {found[instance.id].where}, too"
            )
        found[instance.id] = instance
    if not found:
        raise KoderzError(f"{path} has no instance of SWE-bench")
    return [*found.values()]


def _of_repository(path: Path) -> Iterator[Row]:
    """Its tasks as rows. Raises KoderzError for a folder without tasks, and files that are missing or damaged."""
    import yaml

    if not is_task_repository(path):
        raise KoderzError(
            f"{path} is no task repository of SWE-bench: it has no tasks/ID/task.yaml"
        )
    for file in sorted(path.glob("tasks/*/task.yaml")):
        try:
            fields = yaml.safe_load(_text(file))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise KoderzError(f"{file}: not YAML ({str(error).splitlines()[0]})") from None
        try:
            tests = json.loads(_text(file.with_name("tests.json")))
        except (ValueError, RecursionError) as error:
            raise KoderzError(f"{file.with_name('tests.json')}: not JSON ({error})") from None
        if not isinstance(fields, dict) or not isinstance(tests, dict):
            raise KoderzError(f"{file.parent}: task.yaml and tests.json have to be tables")
        texts = {name: _text(file.with_name(other)) for name, other in _FILES.items()}
        yield Row(str(file), {**fields, **texts, **tests})


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except FileNotFoundError:
        raise KoderzError(f"{file} is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise KoderzError(f"{file} can't be read: {error}") from None


def _instance(row: Row) -> Instance:
    original, row = row, as_version_5(row)
    if lacking := [name for name in VERSION_5 if row.fields.get(name) in (None, "")]:
        raise row.error(
            f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing, which rows have since SWE-bench 5, "
            "and it is no row of SWE-bench before, SWE-rebench-V2, SWE-bench-Live, SWE-smith or Multi-SWE-bench "
            "(Python); take the dataset as it is published"
        )
    eval_type = row.text("eval_type")
    if eval_type not in get_args(EvalType):
        raise row.error(
            f"eval_type has to be one of {', '.join(get_args(EvalType))}, not {eval_type!r}"
        )
    expected = Expected(
        _tests(row, "FAIL_TO_PASS"),
        _tests(row, "PASS_TO_PASS"),
        cast("EvalType", eval_type),
        cast("RuleName", row.fields.get("rule") if row is not original else "swebench5"),
        row.texts("intact") if row is not original else (),
    )
    own: dict[str, Any] = {}
    if row is not original:  # of another dialect
        bug, withheld = row.text("bug", ""), tuple(row.texts("withheld"))
        own = {"workdir": row.text("workdir", TESTBED), "bug": bug, "withheld": withheld}
    described = json.dumps(
        {name: original.fields[name] for name in sorted(original.fields)}, default=str
    )
    found = Instance(
        row.where,
        row.id("instance_id"),
        repo=row.text("repo"),
        base_commit=row.text("base_commit"),
        problem_statement=row.text("problem_statement"),
        patch=row.text("patch"),
        test_patch=row.text("test_patch"),
        image=row.text("image"),
        eval_script=row.text("eval_script"),
        log_parser=row.text("log_parser"),
        expected=expected,
        version=str(row.fields.get("version") or ""),
        has_assets=_has_assets(row),
        split=str(row.fields.get("split") or ""),
        digest=hashlib.sha256(described.encode()).hexdigest()[:16],
        metadata={
            name: value
            for name, value in original.fields.items()
            if not isinstance(value, str) or len(value) <= _LONGEST_METADATA
        },
        **own,
    )
    parser_of(found.log_parser, {}, row.where)
    return found


def _tests(row: Row, name: str) -> Sequence[str]:
    """A list of tests, which may be written as JSON in a text."""
    if not isinstance(row.fields.get(name), str):
        return row.texts(name) if name in row.fields else [row.text(name)]
    try:
        return Row(row.where, {name: json.loads(row.fields[name])}).texts(name)
    except (ValueError, RecursionError):
        raise row.error(f"the field {name!r} is no JSON list of texts") from None


def _has_assets(row: Row) -> bool:
    value: Any = row.fields.get("image_assets")
    if isinstance(value, str) and value:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise row.error("the field 'image_assets' is no JSON") from None
    return isinstance(value, Mapping) and any(value.values())


def with_substitute(
    instance: Instance, rules: Sequence[EnvironmentRule], images: ImageStore
) -> Instance:
    """The instance with the rule of an environment that stands in for its image, if that isn't here.

    Raises KoderzError for a rule with a setting that isn't for instances.
    """
    if images.find(instance.image) is not None:
        return instance
    rule = first_fitting(rules, instance)
    if rule and rule.downloads:
        raise KoderzError(
            f"--environments: downloads isn't for instances of SWE-bench such as {instance.id}"
        )
    return replace(instance, substitute=rule) if rule and rule.source else instance
