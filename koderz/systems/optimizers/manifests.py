"""Manifests of opik's benchmark runner: tasks of a dataset, an optimizer and a model each, or generators of such."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from koderz.errors import KoderzError
from koderz.systems.optimizers.datasets.payload import SPLITS
from koderz.systems.optimizers.datasets.published import PUBLISHED

_NAMES: Mapping[str, str] = {"candidate_selection_strategy": "candidate_selection"}


class _Splits(msgspec.Struct, kw_only=True):
    """The dataset of a task, and the rows of each split; a split's loader may have another name than the dataset."""

    dataset: str | dict[str, Any]
    datasets: dict[str, dict[str, Any]] | None = None


class _Model(msgspec.Struct):
    name: str
    model_parameters: dict[str, Any] | None = None


class _Optimizer(msgspec.Struct):
    name: str
    optimizer_params: dict[str, Any] | None = None
    optimizer_prompt_params: dict[str, Any] | None = None


class _Task(_Splits, kw_only=True):
    optimizer: str
    model: str
    test_mode: bool | None = None
    model_parameters: dict[str, Any] | None = None
    optimizer_params: dict[str, Any] | None = None
    optimizer_prompt_params: dict[str, Any] | None = None
    metrics: list[Any] | None = None
    prompt: list[Any] | None = None


class _Generator(msgspec.Struct):
    datasets: list[_Splits]
    models: list[_Model]
    optimizers: list[_Optimizer]
    metrics: list[Any] | None = None
    test_mode: bool | None = None
    prompt: list[Any] | None = None


class _Manifest(msgspec.Struct):
    seed: int | None = None
    test_mode: bool | None = None
    tasks: list[_Task] = []
    generators: list[_Generator] = []


@dataclass(frozen=True, slots=True)
class ManifestTask:
    """A task of a manifest, in koderz' names."""

    dataset: str
    optimizer: str
    model: str
    parameters: Mapping[str, Any]  # of the optimizer, known to koderz or not
    sizes: Mapping[str, int]  # items by split, where the manifest says how many
    test_mode: bool | None
    unused: Sequence[str] = ()  # its fields that have no counterpart in a run


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a manifest, of which one run can be made."""

    path: Path
    tasks: Sequence[ManifestTask]
    seed: int | None
    test_mode: bool
    sizes: Mapping[str, int] = field(default_factory=dict)


def read_manifest(path: Path) -> Manifest:
    """Reads a manifest. Keys that opik doesn't know are ignored, as it does.

    Raises KoderzError for a file that is none, and for tasks that one run can't hold: of several sizes, or some of
    them in test mode.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Manifest)
    except OSError as error:
        raise KoderzError(f"--config {path} can't be read ({error.strerror})") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise KoderzError(f"--config {path} is no manifest: {error}") from None
    tasks = [
        _task(path, each, found.test_mode) for each in (*found.tasks, *_generated(found.generators))
    ]
    if not tasks:
        raise KoderzError(
            f"--config {path}: a manifest has tasks or generators, and this one has none"
        )
    if len(sizes := {tuple(sorted(task.sizes.items())) for task in tasks}) > 1:
        raise KoderzError(
            f"--config {path}: its tasks have splits of several sizes; a run has one, so divide the file"
        )
    if len(modes := {bool(task.test_mode) for task in tasks}) > 1:
        raise KoderzError(
            f"--config {path}: some tasks have test_mode and some don't; divide the file"
        )
    return Manifest(path, tasks, found.seed, modes.pop(), dict(sizes.pop()))


def _generated(generators: Sequence[_Generator]) -> Iterator[_Task]:
    """The tasks of each dataset, model and optimizer of a generator, in this order."""
    for each in generators:
        for rows in each.datasets:
            for model in each.models:
                for optimizer in each.optimizers:
                    yield _Task(
                        dataset=rows.dataset,
                        datasets=rows.datasets,
                        optimizer=optimizer.name,
                        model=model.name,
                        test_mode=each.test_mode,
                        model_parameters=model.model_parameters,
                        optimizer_params=optimizer.optimizer_params,
                        optimizer_prompt_params=optimizer.optimizer_prompt_params,
                        metrics=each.metrics,
                        prompt=each.prompt,
                    )


def _task(path: Path, task: _Task, test_mode: bool | None) -> ManifestTask:
    splits = task.datasets or ({"train": task.dataset} if isinstance(task.dataset, dict) else {})
    if task.datasets is not None and "train" not in task.datasets:
        raise KoderzError(f"--config {path}: datasets of {task.dataset!r} names no train split")
    names = {str(each.get("loader") or "") for each in splits.values()} or {str(task.dataset)}
    if len(names) > 1 or "" in names:
        raise KoderzError(
            f"--config {path}: the splits of {task.dataset!r} have to name one loader each, the same"
        )
    for name, each in splits.items():
        if (
            name not in SPLITS
            or each.get("split", name) != name
            or each.get("start")
            or each.get("filter_by")
        ):
            raise KoderzError(
                f"--config {path}: of a split koderz takes its count; {name} of {task.dataset!r} asks for other rows"
            )
    counts = {name: each["count"] for name, each in splits.items() if each.get("count") is not None}
    if wrong := next(
        (name for name, count in counts.items() if type(count) is not int or count < 1), ""
    ):
        raise KoderzError(f"--config {path}: the count of {wrong} has to be a whole number from 1")
    given = {**(task.optimizer_params or {}), **(task.optimizer_prompt_params or {})}
    unused = [name for name in ("model_parameters", "metrics", "prompt") if getattr(task, name)]
    return ManifestTask(
        _dataset(names.pop()),
        task.optimizer,
        task.model,
        {_NAMES.get(name, name): value for name, value in given.items()},
        counts,
        task.test_mode if task.test_mode is not None else test_mode,
        unused,
    )


def _dataset(name: str) -> str:
    """koderz' name of a dataset, which has its three splits: `hotpot` for `hotpot_train`."""
    base = name.rpartition("_")[0]
    return base if name not in PUBLISHED and base in PUBLISHED and name.endswith(SPLITS) else name
