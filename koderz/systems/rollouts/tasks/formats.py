"""A loader of three formats of tasks: tb_meta.json, Harbor's task.toml and terminal-bench's task.yaml."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import msgspec

from koderz.errors import KoderzError
from koderz.suites.dataset import require_keys
from koderz.systems.rollouts.dockerfiles.recipes import Recipe, read_dockerfile
from koderz.systems.rollouts.environments.trees import shown_below
from koderz.systems.rollouts.task import Repo, Rollout, Rubric, Verifier, with_digest
from koderz.systems.rollouts.tasks.compose import (
    ComposeService,
    needs_of,
    read_compose,
    with_service,
)
from koderz.systems.rollouts.tasks.harbor import existing, own_script, read_harbor_task
from koderz.systems.workspaces.folders import files_below
from koderz.systems.workspaces.scripts import Script
from koderz_tracker.files import MB

_LARGEST = 64 * MB  # of a file that describes a task
_OVERRIDES = {
    *(
        "remove_repo_paths",
        "inject_files",
        "repo",
        "lm_instructions",
        "prompt",
        "overlay_files",
        "overlay_repo_files",
    ),
    *("evaluation", "environment_variables"),
}
_KEYS: Mapping[str, Collection[str]] = {
    "": ("task_id", "metadata", "repo", "lm", "evaluation", "sensitivity"),
    "repo": [field.name for field in dataclasses.fields(Repo)],
    "lm": ("instructions",),
    "evaluation": (
        "rubrics",
        "test_scripts",
        "metrics",
        "content_rubric",
        "location_rubric",
        "clarity_rubric",
    ),
}
"""The keys of tb_meta.json and of its tables; `metadata` may hold any."""
_SOLUTION = "overlay_files/diff.patch"  # the human's diff, in a folder with tb_meta.json
_SCRIPT = "run-tests.sh"  # of terminal-bench
_HIDDEN = ("tests", _SCRIPT, "solution.sh", "solution.yaml")
_ROW_KEYS: Mapping[str, type[Rubric | Script]] = {"rubrics": Rubric, "test_scripts": Script}


FILES = ("tb_meta.json", "task.toml", "task.yaml")
"""The files that make a folder a task, one for each format."""


def load_task(
    folder: Path,
    overrides: Path | None = None,
    *,
    apply_overrides: bool = True,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Rollout:
    """The task in a prepared folder. `overrides`: a file to use instead of the folder's own overrides.json.

    `variables` of this machine are those that the task's own may be taken from. Raises KoderzError naming the file and
    what is wrong with it.
    """
    folder = folder.absolute()
    loaders: dict[str, Callable[[], Rollout]] = {
        "tb_meta.json": lambda: _of_tb_meta(
            folder, _overrides(folder, overrides) if apply_overrides else {}
        ),
        "task.toml": lambda: read_harbor_task(folder, variables),
        "task.yaml": lambda: _of_terminal_bench(folder, variables),
    }
    for name, load in loaders.items():
        if (folder / name).is_file():
            task = load()
            described = dataclasses.replace(task, folder=Path(), files={}, context=None)
            image = _digest_of(shown_below(task)) if task.context else ""
            digest = _digest_of(files_below(task.folder), repr(described))
            return with_digest(dataclasses.replace(task, image_digest=image), digest)
    raise KoderzError(f"{folder} is no task: it has no {', '.join(loaders)}")


def require_work(task: Rollout, *, judged: bool) -> None:
    """Raises KoderzError for a task without repository or instructions, or without tests if no model judges."""
    if task.source and "://" not in task.source and not Path(task.source).exists():
        raise KoderzError(
            f"{task.folder}: there is no repository {task.repo.git_url}; git_url names a folder or a bundle, as seen "
            "from there, or an https:// URL"
        )
    if not task.instructions.strip():
        raise KoderzError(
            f"{task.folder}: the task has no instructions, so an agent would have nothing to do"
        )
    if judged or task.instance:
        return
    parts = [stage.task for stage in task.stages] or [task]
    if not all(part.scripts or (part.verifier and part.verifier.has_script) for part in parts):
        stated = (
            "tests to the eval" if task.skill_eval else "evaluation.test_scripts of tb_meta.json"
        )
        missing = Path(task.verifier.name).name if task.verifier else stated
        raise KoderzError(
            f"{task.folder}: the task has no tests; add {missing}, or name a model with --judge-model"
        )


def _digest_of(files: Mapping[str, Path], more: str = "") -> str:
    digest = hashlib.sha256()
    for path, source in sorted(files.items()):
        digest.update(f"{path}\0".encode())
        digest.update(source.read_bytes())
    digest.update(more.encode())
    return digest.hexdigest()[:16]


def _of_tb_meta(folder: Path, overrides: Mapping[str, Any]) -> Rollout:
    where = folder / "tb_meta.json"
    meta = _json(where)
    _require_known(meta, where)
    laid = folder / "overlay_files"
    shown = {
        path: _text(source) for path, source in files_below(laid).items() if path != "diff.patch"
    }
    shown |= _converted(overrides.get("overlay_files", {}), dict[str, str], where)
    told = (
        overrides.get("prompt")
        or overrides.get("lm_instructions")
        or shown.get("LM_INSTRUCTIONS.md")
    )
    evaluation = overrides.get("evaluation", meta.get("evaluation") or {})
    if not isinstance(evaluation, dict):
        raise KoderzError(f"{where}: evaluation has to be an object")
    if "evaluation" in overrides:
        _require_known({"evaluation": evaluation}, where)
    metadata = _table(meta, "metadata", where)
    repo_files: dict[str, Path | str] = {**files_below(folder / "overlay_repo_files")}
    repo_files |= _converted(overrides.get("overlay_repo_files", {}), dict[str, str], where)
    injected = _converted(overrides.get("inject_files", []), list[dict[str, str]], where)
    scripts = _scripts(evaluation, where)
    return Rollout(
        folder=folder,
        format="tb",
        id=str(meta.get("task_id") or folder.name),
        title=str(metadata.get("title") or meta.get("task_id") or folder.name),
        instructions=str(told or _table(meta, "lm", where).get("instructions") or ""),
        repo=_converted(overrides.get("repo") or meta.get("repo") or {}, Repo, where),
        files=repo_files,
        removed=tuple(_converted(overrides.get("remove_repo_paths", []), list[str], where)),
        injected={file["path"]: file["content"] for file in injected},
        rubrics=_rubrics(evaluation, scripts, where),
        scripts=scripts,
        environment=_converted(overrides.get("environment_variables", {}), dict[str, str], where),
        metrics=_converted(evaluation.get("metrics") or "", str, where),
        context=folder if (folder / "Dockerfile").is_file() else None,
        details=_parsed(shown["repo_info.json"], where) if shown.get("repo_info.json") else {},
        solution_diff=folder / _SOLUTION,
        hidden_files=("tb_meta.json", "overrides.json", _SOLUTION),
        takes_overrides=True,
        metadata=metadata,
    )


def _require_known(meta: Mapping[str, Any], where: Path) -> None:
    """Raises KoderzError, which names the first unknown key and the nearest known one."""
    for name, known in _KEYS.items():
        table = meta.get(name) if name else meta
        if isinstance(table, dict):
            require_keys(table, known, f"{where}{f': {name}' if name else ''}")
    evaluation = meta.get("evaluation")
    if not isinstance(evaluation, dict):
        return
    for name, kind in _ROW_KEYS.items():
        known = [field.name for field in dataclasses.fields(kind)]
        rows = evaluation.get(name)
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict):
                require_keys(row, known, f"{where}: evaluation.{name}")


def _scripts(evaluation: Mapping[str, Any], where: Path) -> tuple[Script, ...]:
    """The test scripts with their texts, which may be in files of the task's folder."""
    rows = _converted(evaluation.get("test_scripts", []), list[dict[str, Any]], where)
    for row in rows:
        if ("content" in row) == ("content_file" in row):
            raise KoderzError(
                f"{where}: the test script {row.get('path')} needs one of content and content_file"
            )
        if "content_file" in row:
            name = PurePosixPath(_converted(row["content_file"], str, where)).as_posix()
            file = files_below(where.parent).get(name)
            if file is None:
                raise KoderzError(f"{where}: content_file: there is no {name} in {where.parent}")
            row |= {"content": _text(file), "content_file": name}
    return tuple(_converted(rows, list[Script], where))


def _rubrics(
    evaluation: Mapping[str, Any], scripts: Sequence[Script], where: Path
) -> tuple[Rubric, ...]:
    """The rubrics in the file; in an older one without any, the content rubric as one without tests."""
    if "rubrics" not in evaluation and evaluation.get("content_rubric"):
        return (Rubric("content", str(evaluation["content_rubric"])),)
    rubrics = tuple(_converted(evaluation.get("rubrics", []), list[Rubric], where))
    known = [rubric.id for rubric in rubrics]
    for script in scripts:
        if script.rubric_id not in known:
            raise KoderzError(
                f"{where}: the test script {script.path} is of a rubric {script.rubric_id!r}, unknown"
            )
    if len(set(known)) < len(known) or any(not rubric.weight >= 0 for rubric in rubrics):
        raise KoderzError(f"{where}: rubrics need ids of their own, and weights from 0 up")
    return rubrics


def _overrides(folder: Path, given: Path | None) -> Mapping[str, Any]:
    path = given or folder / "overrides.json"
    if given is None and not path.is_file():
        return {}
    found = _json(path)
    require_keys(found, _OVERRIDES, str(path))
    return found


def _of_terminal_bench(folder: Path, variables: Mapping[str, str]) -> Rollout:
    import yaml

    where = folder / "task.yaml"
    try:
        meta = yaml.safe_load(_text(where))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise KoderzError(f"{where}: not YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(meta, dict) or not isinstance(meta.get("instruction"), str):
        raise KoderzError(f"{where}: the field 'instruction' is missing")
    compose, dockerfile = folder / "docker-compose.yaml", folder / "Dockerfile"
    service = read_compose(compose, variables) if compose.is_file() else ComposeService()
    if service.image and not dockerfile.is_file():
        image = Recipe(service.workdir or "/app", is_assumed=not service.workdir)
    else:
        image = read_dockerfile(dockerfile, workdir=service.workdir)
    image = with_service(image, service)
    return Rollout(
        folder=folder,
        format="terminal-bench",
        id=folder.name,
        title=folder.name,
        instructions=meta["instruction"],
        rubrics=(Rubric("tests", "run-tests.sh ends with 0"),),
        environment={**image.environment, "TEST_DIR": "/tests"},
        workdir=image.workdir,
        verifier=Verifier(
            own_script(folder / _SCRIPT),
            name=_SCRIPT,
            is_apart=True,
            by_status=True,
            tests=existing(folder / "tests"),
        ),
        solution=folder / "solution.sh",
        image_name=image.image,
        needs=needs_of(compose, service),
        services=dataclasses.replace(service.beside, hidden=_HIDDEN) if service.beside else None,
        ignored_keys=tuple(f"{compose.name}: {key}" for key in service.ignored),
        asked=image.asked,
        mounted=image.mounted,
        context=folder,
        base_image=image.base,
        stated=image.stated,
        workdir_of_image=image.is_assumed,
        steps=image.steps,
        refused=image.refused,
        agent_seconds=_seconds(meta, "max_agent_timeout_sec", 360, where),
        test_seconds=_seconds(meta, "max_test_timeout_sec", 60, where),
        hidden_files=_HIDDEN,
        has_tree_of_image=True,
        metadata=meta,
    )


def _seconds(table: Mapping[str, Any], name: str, default: float, where: Path) -> float:
    value: float = _converted(table.get(name, default), float, where)
    if not 0 < value < float("inf"):
        raise KoderzError(f"{where}: {name} has to be a number of seconds above 0")
    return value


def _table(of: Mapping[str, Any], name: str, where: Path) -> Mapping[str, Any]:
    found = of.get(name) or {}
    if not isinstance(found, dict):
        raise KoderzError(f"{where}: {name} has to be a table")
    return found


def _converted(value: Any, kind: Any, where: Path) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise KoderzError(f"{where}: {str(error)[:1].lower()}{str(error)[1:]}") from None


def _json(path: Path) -> dict[str, Any]:
    found = _parsed(_text(path), path)
    if not isinstance(found, dict):
        raise KoderzError(f"{path}: not a JSON object")
    return found


def _parsed(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise KoderzError(f"{path}: not JSON ({error})") from None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST).decode()
    except FileNotFoundError:
        raise KoderzError(f"{path} is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise KoderzError(f"{path} can't be read: {error}") from None
