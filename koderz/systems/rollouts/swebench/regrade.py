"""Verdicts on anyone's predictions for SWE-bench, from recorded logs of their tests or by running these."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from koderz.errors import Fault, KoderzError
from koderz.systems.rollouts.swebench.judging import InstanceJudge
from koderz.systems.rollouts.swebench.places import InstancePlaces, variables_of
from koderz.systems.rollouts.swebench.reports import Report, blank, report_of
from koderz.systems.rollouts.swebench.rows import Instance, read_instances, with_substitute
from koderz.systems.workspaces.environments import read_environments
from koderz.systems.workspaces.images import ImageStore
from koderz.systems.workspaces.local import Local
from koderz.systems.workspaces.predictions import Prediction, read_predictions

LOG = "test_output.txt"


@dataclass(frozen=True, slots=True)
class Predicted:
    """An instance and the patch that is predicted for it."""

    instance: Instance
    patch: str | None


def read_predicted(rows: Path, predictions: Path) -> list[Predicted]:
    """The predictions in a file with their instances, in the order of the file.

    Raises KoderzError for an instance that the rows lack, and for two predictions of one instance.
    """
    return predicted_of(read_instances(rows), rows, predictions)


def predicted_of(known: Sequence[Instance], rows: Path, predictions: Path) -> list[Predicted]:
    """As `read_predicted`, for the instances in `rows`."""
    instances = {instance.id: instance for instance in known}
    found: dict[str, Prediction] = {}
    for each in read_predictions(predictions):
        if each.instance not in instances:
            raise KoderzError(f"{each.where}: {rows} has no instance {each.instance!r}")
        if each.instance in found:
            raise KoderzError(f"{each.where}: {each.instance} has a prediction already; a report has one of each")
        found[each.instance] = each
    if not found:
        raise KoderzError(f"{predictions} has no predictions")
    return [Predicted(instances[name], each.patch) for name, each in found.items()]


class Regraded(NamedTuple):
    """The report of an instance, and the fault that kept it from being graded, if any."""

    instance: str
    report: Report  # empty where there is no log
    fault: str = ""
    is_empty: bool = False  # whether its patch is


async def regraded(
    rows: Path,
    predictions: Path,
    take: Callable[[Regraded], None],
    *,
    logs: Path | None = None,
    images: Path | None = None,
    environments: Path | None = None,
    most: int = 1,
) -> int:
    """Grades the predictions in a file, and hands over each report as soon as it is there.

    Returns the number of instances in the rows.

    With a folder of logs from these, else by running the tests of `most` instances at once. Raises KoderzError for
    files that can't be read and instances that can't run here, Unreachable without a sandbox.
    """
    instances = read_instances(rows)
    predicted = predicted_of(instances, rows, predictions)
    if logs:
        for each in of_logs(predicted, logs):
            take(each)
        return len(instances)
    rules, store = read_environments(environments, "--environments") if environments else (), ImageStore(images)
    predicted = [replace(each, instance=with_substitute(each.instance, rules, store)) for each in predicted]
    for known in predicted:
        _require_runnable(known.instance, store)
    async with Local(images=store) as local:
        await _run(predicted, InstanceJudge(InstancePlaces(local)), take, most)
    return len(instances)


def _require_runnable(instance: Instance, images: ImageStore) -> None:
    """Raises KoderzError for an instance that can't run here."""
    if instance.has_assets:
        raise KoderzError(f"{instance.where}: image_assets of SWE-bench Multimodal can't be laid in here")
    if instance.substitute:
        variables_of(instance)
    elif images.find(instance.image) is None:
        raise KoderzError(
            f"{instance.where}: the image {instance.image} isn't here; name a folder that holds it with --images, or "
            "an environment that stands in for it with --environments"
        )


def is_empty(patch: str | None) -> bool:
    """Whether a patch changes nothing: it is null, empty or made of blanks."""
    return patch is None or not patch.strip()


def of_logs(predicted: Sequence[Predicted], folder: Path) -> Iterator[Regraded]:
    """Grades by recorded logs, `INSTANCE/test_output.txt`.

    A patch that is null or blank is never resolved, and needs no log. Raises KoderzError for a log that can't be read.
    """
    if not folder.is_dir():
        raise KoderzError(f"there is no folder of logs {folder}")
    for each in predicted:
        log = folder / each.instance.id / LOG
        if is_empty(each.patch):
            yield Regraded(each.instance.id, blank(patch_exists=each.patch is not None), is_empty=True)
        elif log.exists():
            yield Regraded(each.instance.id, report_of(each.instance.expected, read_log(log), each.instance.parser))
        else:
            yield Regraded(each.instance.id, {}, f"there is no {log}")


async def _run(
    predicted: Sequence[Predicted], judge: InstanceJudge, take: Callable[[Regraded], None], most: int
) -> None:
    free = asyncio.Semaphore(most)

    async def run(each: Predicted) -> None:
        async with free:
            try:
                report = (await judge.judge(each.instance, each.patch)).report
                take(Regraded(each.instance.id, report, is_empty=is_empty(each.patch)))
            except Fault as fault:
                why = {"infra_failure": True, "infra_failure_reason": fault.cause}
                take(Regraded(each.instance.id, {**blank(patch_exists=each.patch is not None), **why}, str(fault)))

    async with asyncio.TaskGroup() as group:
        for each in predicted:
            group.create_task(run(each))


def read_log(path: Path) -> str:
    """A recorded log, with every end of line as one. Raises KoderzError if it can't be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise KoderzError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise KoderzError(f"{path} can't be read: {error.strerror}") from None
