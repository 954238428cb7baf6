"""Verdicts on patches by running their tests: as published, and in a place where the patch has no say in its grading.

There a fresh tree carries the patch alone; what is put before pytest or the interpreter is taken out of it, and the
instance's script has prepared it without the patch. Where the parser is one of pytest's, the tests run under koderz'
own pytest, and only what it reports counts. Scripts that passed run again with tests turned round. A patch is resolved
if both gradings say so.

Before an instance is used, its own solution has to pass, and doing nothing must not. Guards under which the solution
can't pass are lifted for that instance, and named.

Anyone's predictions are judged so, or from recorded logs of their tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from koderz.errors import Fault, KoderzError
from koderz.sandbox.once import Once
from koderz.sandbox.scratch import scratch
from koderz.systems.rollouts.doubt import RunAll, opposites, unbelieved
from koderz.systems.rollouts.swebench import Instance, read_instances, with_substitute
from koderz.systems.rollouts.swebench.dialects import EvalScript
from koderz.systems.rollouts.swebench.places import (
    SECONDS,
    InstancePlaces,
    PreparedPlace,
    guarded,
    import_path,
    variables_of,
)
from koderz.systems.rollouts.swebench.reports import (
    END,
    FAILED,
    PASSED,
    SKIPPED,
    XFAIL,
    Report,
    Statuses,
    blank,
    graded,
    report_of,
    runner_of,
    statuses_in,
)
from koderz.systems.workspaces import git
from koderz.systems.workspaces.environments import read_environments
from koderz.systems.workspaces.images import ImageStore
from koderz.systems.workspaces.local import Local
from koderz.systems.workspaces.predictions import Prediction, read_predictions
from koderz.systems.workspaces.scripts import TAMPERED, Script, ScriptResult, run_script

By = Literal["pytest", "log", "published"]

_LIFTED: Sequence[tuple[str, ...]] = ((), ("settings",), ("install",), ("install", "settings"))
_ORDER = ("PASSED", "SKIPPED", "XFAIL", "XPASS", "ERROR", "FAILED")  # of pytest's short summary


@dataclass(frozen=True, slots=True)
class Terms:
    """The way in which an instance is graded, which its own solution passes."""

    by: By  # koderz' pytest, the guarded log of another runner, or the published script alone
    lifted: tuple[str, ...] = ()  # `settings`, `install`: guards that its solution can't pass under
    # tests that its solution skips, or that are expected to fail
    excused: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Tested:
    """One run of all scripts in one tree."""

    results: Sequence[ScriptResult]
    statuses: Statuses


@dataclass(frozen=True, slots=True)
class Fresh:
    """The result of grading in a fresh place."""

    report: Report
    statuses: Mapping[str, str]
    tampering: Sequence[str]


_RunTree = Callable[[Path, Sequence[Script]], Awaitable[_Tested]]


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on a patch."""

    report: Report
    log: str = ""  # of the tests as published


@dataclass(slots=True)
class InstanceJudge:
    """The judge of a run's patches."""

    places: InstancePlaces
    _terms: Once[Terms] = field(default_factory=Once)

    async def judge(self, instance: Instance, patch: str | None) -> Judged:
        """The fields of `report.json` and of this grading.

        These are `published`, `tampering`, `graded`, `lifted`, `isolation` and `environment`.
        Raises Fault if the instance can't be judged here.
        """
        terms = await self.terms(instance)
        about = {
            "isolation": "in-process",
            "environment": "substitute" if instance.substitute else "image",
        }
        if patch is None or not patch.strip():
            told = {
                "published": {"resolved": False},
                "tampering": [],
                "graded": "both",
                "lifted": [],
            }
            return Judged({**blank(patch_exists=patch is not None), **told, **about})
        published, log = await self.published(instance, patch)
        report, tampering = published, list[str]()
        if published["resolved"] and terms.by != "published":
            fresh = await self._fresh(instance, patch, terms)
            report, tampering = fresh.report, [*fresh.tampering]
            if not report["resolved"] and not tampering:
                tampering = [
                    "its tests pass as published, and fail in a fresh place with the same patch"
                ]
        more = {
            "published": {"resolved": published["resolved"]},
            "tampering": tampering,
            "graded": "published" if terms.by == "published" else "both",
            "lifted": [*terms.lifted],
        }
        return Judged({**report, **more, **about}, log)

    async def published(self, instance: Instance, patch: str) -> tuple[Report, str]:
        """The report of the official harness, by the instance's whole script, and the log."""
        applied, ended = await self.places.published(instance, patch)
        if not applied.ok:
            return blank(patch_exists=True), f"The patch doesn't apply: {applied.why}"
        log = ended.output.replace("\r\n", "\n").replace("\r", "\n")
        if ended.cause == "timeout":
            late = f"Timeout error: {SECONDS:.0f} seconds exceeded."
            return report_of(instance.expected, late, instance.parser), f"{log}\n\n{late}"
        return report_of(instance.expected, log, instance.parser), log

    async def terms(self, instance: Instance) -> Terms:
        """The strictest terms under which the instance's own solution passes. Raises Fault if there are none."""
        return await self._terms(instance.key.encode(), lambda: self._find_terms(instance))

    async def _find_terms(self, instance: Instance) -> Terms:
        report, log = await self.published(instance, instance.patch)
        if not report["resolved"]:
            failed = [
                test
                for tests in report.get("tests_status", {}).values()
                for test in tests["failure"]
            ]
            failing = f"{failed[0]} fails" if failed else f"its tests don't run: {_last_words(log)}"
            raise Fault(
                f"{instance.id}: its own solution doesn't pass here: {failing}", cause="task"
            )
        ways: list[By] = (
            ["pytest", "log"] if runner_of(instance.log_parser) == "pytest" else ["log"]
        )
        for terms in (Terms(by, lifted) for by in ways for lifted in _LIFTED):
            prepared = await self._prepared(instance, instance.patch, terms)
            if terms.by == "pytest" and not prepared.scripts:
                continue
            found = await self._fresh(instance, instance.patch, terms, trusted=True)
            if found.report["resolved"]:
                skipped = (
                    test for test, status in found.statuses.items() if status in (SKIPPED, XFAIL)
                )
                settled = replace(terms, excused=frozenset(skipped))
                if (await self._fresh(instance, "", settled)).report["resolved"]:
                    raise Fault(
                        f"{instance.id} is unsound here: doing nothing passes", cause="task"
                    )
                return settled
        return Terms("published")

    async def _prepared(self, instance: Instance, patch: str, terms: Terms) -> PreparedPlace:
        return await self.places.prepared(
            instance, patch if "install" in terms.lifted and patch else None
        )

    async def _fresh(
        self, instance: Instance, patch: str, terms: Terms, *, trusted: bool = False
    ) -> Fresh:
        """Grades a patch in fresh places. Of a `trusted` one tests may be skipped."""
        prepared = await self._prepared(instance, patch, terms)
        with scratch() as aside:
            tree, without = aside / "patched/checkout", aside / "without/checkout"
            tampering = await guarded(patch, prepared, tree, terms.lifted)
            await prepared.store.checkout(without)
            runs: Mapping[By, Callable[..., Awaitable[_Tested]]] = {
                "pytest": self._by_pytest,
                "log": self._by_log,
            }
            changed = await git.touched(patch.encode("utf-8", "surrogateescape"))
            run: _RunTree = partial(runs[terms.by], instance, prepared, changed)
            first = await run(tree, prepared.scripts)
            statuses = first.statuses if trusted else _counted(first.statuses, terms)
            report = graded(instance.expected, statuses)
            whys = [
                f"{result.path}: {TAMPERED}"
                for result in first.results
                if result.cause == "tampering"
            ]
            if report["resolved"]:
                doubts = await _doubts(
                    prepared.scripts, first.results, partial(run, tree), partial(run, without)
                )
                whys += doubts
            resolved = report["resolved"] and not whys
        return Fresh({**report, "resolved": resolved}, statuses, [*tampering, *dict.fromkeys(whys)])

    async def _by_pytest(
        self,
        instance: Instance,
        prepared: PreparedPlace,
        changed: Sequence[str],
        tree: Path,
        scripts: Sequence[Script],
    ) -> _Tested:
        """Runs the scripts by koderz' own pytest."""
        async with self.places.copied(prepared, tree) as place:
            for script in scripts:
                git.write(place / "checkout", script.path, _bytes(script.content))
            wanted = self.places.wanted(instance, prepared)
            words = EvalScript(instance.eval_script).options
            paths = import_path(instance)
            results = [
                await run_script(
                    script, place, self.places.backend, wanted, changed, paths=paths, options=words
                )
                for script in scripts
            ]
        told = [(status, test) for result in results for test, status in result.statuses.items()]
        told.sort(key=lambda each: _ORDER.index(each[0]))
        return _Tested(
            results, instance.summarised("\n".join(f"{status} {test}" for status, test in told))
        )

    async def _by_log(
        self,
        instance: Instance,
        prepared: PreparedPlace,
        _: Sequence[str],
        tree: Path,
        scripts: Sequence[Script],
    ) -> _Tested:
        """Runs the tests by the instance's own command, and reads its log."""
        async with self.places.copied(prepared, tree) as place:
            for script in scripts:
                git.write(place / "checkout", script.path, _bytes(script.content))
            ended = await self.places.tested(instance, prepared, place)
        log = ended.output.replace("\r\n", "\n").replace("\r", "\n")
        statuses = statuses_in(log, instance.parser, instance.expected.rule) or {}
        results = [_logged(script, statuses, ended.cause) for script in scripts]
        return _Tested(results, statuses)


async def _doubts(
    scripts: Sequence[Script],
    results: Sequence[ScriptResult],
    run: Callable[[Sequence[Script]], Awaitable[_Tested]],
    control: Callable[[Sequence[Script]], Awaitable[_Tested]],
) -> list[str]:
    """Why scripts whose tests passed aren't believed."""

    def results_of(run: Callable[[Sequence[Script]], Awaitable[_Tested]]) -> RunAll:
        async def results(scripts: Sequence[Script]) -> Sequence[ScriptResult]:
            return (await run(scripts)).results

        return results

    believed = [replace(result, success=any(result.tests.values())) for result in results]
    found = await unbelieved(scripts, believed, results_of(run), results_of(control))
    return [f"{scripts[number].path}: {why}" for number, (_, why) in found.items()]


def _counted(statuses: Mapping[str, str], terms: Terms) -> Mapping[str, str]:
    """The statuses, where a test that isn't excused counts as failed if it was skipped or expected to fail."""
    return {
        test: FAILED if status in (SKIPPED, XFAIL) and test not in terms.excused else status
        for test, status in statuses.items()
    }


def _logged(script: Script, statuses: Mapping[str, str], cause: str) -> ScriptResult:
    """The tests of a script in a log, as far as their names tell them."""
    one, _ = opposites(script.content)
    defined = one.turned | one.left
    tests = {
        f"{script.path}::{name}": status == PASSED
        for test, status in statuses.items()
        for name in _names(test)
        if name in defined
    }
    return ScriptResult(script.path, success=False, output="", cause=cause, tests=tests)


def _names(test: str) -> Iterator[str]:
    """The `name` or `Class::name` of a test that a log names as `name`, `name (module.Class)` or in full."""
    name, _, where = test.partition(" (")
    parts = where.rstrip(")").split(".")
    inside = [part for part in parts if part and part != name]
    yield f"{inside[-1]}::{name}" if inside else name


def _last_words(log: str) -> str:
    """The last line of the tests' output."""
    lines = [
        line
        for line in log.partition(END)[0].splitlines()
        if line.strip() and not line.startswith("+")
    ]
    return lines[-1].strip()[:200] if lines else "they print nothing"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


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
            raise KoderzError(
                f"{each.where}: {each.instance} has a prediction already; a report has one of each"
            )
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
    rules, store = (
        read_environments(environments, "--environments") if environments else (),
        ImageStore(images),
    )
    predicted = [
        replace(each, instance=with_substitute(each.instance, rules, store)) for each in predicted
    ]
    for known in predicted:
        _require_runnable(known.instance, store)
    async with Local(images=store) as local:
        await _run(predicted, InstanceJudge(InstancePlaces(local)), take, most)
    return len(instances)


def _require_runnable(instance: Instance, images: ImageStore) -> None:
    """Raises KoderzError for an instance that can't run here."""
    if instance.has_assets:
        raise KoderzError(
            f"{instance.where}: image_assets of SWE-bench Multimodal can't be laid in here"
        )
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
            yield Regraded(
                each.instance.id, blank(patch_exists=each.patch is not None), is_empty=True
            )
        elif log.exists():
            yield Regraded(
                each.instance.id,
                report_of(each.instance.expected, read_log(log), each.instance.parser),
            )
        else:
            yield Regraded(each.instance.id, {}, f"there is no {log}")


async def _run(
    predicted: Sequence[Predicted],
    judge: InstanceJudge,
    take: Callable[[Regraded], None],
    most: int,
) -> None:
    free = asyncio.Semaphore(most)

    async def run(each: Predicted) -> None:
        async with free:
            try:
                report = (await judge.judge(each.instance, each.patch)).report
                take(Regraded(each.instance.id, report, is_empty=is_empty(each.patch)))
            except Fault as fault:
                why = {"infra_failure": True, "infra_failure_reason": fault.cause}
                take(
                    Regraded(
                        each.instance.id,
                        {**blank(patch_exists=each.patch is not None), **why},
                        str(fault),
                    )
                )

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
