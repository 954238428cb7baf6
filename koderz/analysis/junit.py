"""Runs, comparisons and judged samples as JUnit's XML, which CI systems show beside a team's other tests.

The form is that of Jenkins' xunit plugin (junit-10.xsd): a suite an arm, a case a task. Texts of models stand in it
without what XML can't hold, and cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from koderz.analysis.pairs import Side
from koderz.analysis.runs import Run
from koderz.analysis.story import Experiments
from koderz.errors import JournalError
from koderz.types import Verdict
from koderz_tracker.files import write_whole
from koderz_tracker.rates import is_share
from koderz_tracker.records import Fault
from koderz_tracker.results import Result

MOST = 8192  # bytes of a text in the file
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
ALL = 1.0  # the share of its samples that a task has to pass, unless less is asked for


@dataclass(frozen=True, slots=True)
class Case:
    """One task in one arm."""

    name: str
    seconds: float = 0.0
    kind: str = ""  # failure, error or skipped; empty: it passed
    type: str = ""  # the verdict's cause
    message: str = ""
    text: str = ""
    note: str = ""  # what is worth saying of a task that passed


@dataclass(frozen=True, slots=True)
class CaseSuite:
    """The tasks of one arm."""

    name: str
    cases: Sequence[Case]
    properties: Mapping[str, object] = field(default_factory=dict)
    time: str = ""  # when it began, in ISO 8601


def of_run(
    run: Run, threshold: float | None = None, arms: Sequence[str] = ()
) -> Iterator[CaseSuite]:
    """A suite for each arm of a run. A task fails where less than `threshold` of its samples passed."""
    told = _told_by(run)
    for arm in arms or run.arms:
        side = Side(run, arm)
        tasks = side.by_task()
        faults: dict[str, list[Mapping[str, Any]]] = {}
        for fault in side.missing:
            faults.setdefault(str(fault["problem_id"]), []).append(fault)
        cases = [
            _case(task, tasks.get(task, ()), faults.get(task, ()), threshold, told)
            for task in dict.fromkeys([*tasks, *faults])
        ]
        if run.status != "complete":
            left = (
                task
                for task in run.config.get("problems") or ()
                if task not in tasks and task not in faults
            )
            cases += [
                Case(str(task), kind="skipped", message=f"not asked: the run is {run.status}")
                for task in left
            ]
        figures = side.figures
        low, high = figures.success_rate_interval or ("", "")
        properties = {
            "run_id": run.run_id or run.name,
            "arm": arm,
            "model": side.model,
            "success_rate": "" if figures.success_rate is None else figures.success_rate,
            "success_rate_low": low,
            "success_rate_high": high,
            "total_cost": figures.total_cost,
            "status": run.status,
            "simulated": str(side.simulated).lower(),
        }
        yield CaseSuite(f"{run.suite}.{arm}", cases, properties, run.start_time[:19])


def of_comparison(a: Side, b: Side, threshold: float | None = None) -> CaseSuite:
    """The tasks of B, of which those fail that A passed and B doesn't."""
    (before,), (after,) = of_run(a.run, threshold, [a.arm]), of_run(b.run, threshold, [b.arm])
    kinds = {case.name: case.kind for case in before.cases}
    return CaseSuite(
        after.name, [_flip(case, kinds) for case in after.cases], after.properties, after.time
    )


def _flip(case: Case, before: Mapping[str, str]) -> Case:
    was, name, seconds = before.get(case.name, "skipped"), case.name, case.seconds
    if "skipped" in (was, case.kind):
        return Case(
            name, seconds, "skipped", message=case.message or "only one of the runs has this task"
        )
    if "error" in (was, case.kind):
        return Case(
            name,
            seconds,
            "error",
            "fault",
            case.message or "it ended in a fault in the baseline",
            case.text,
        )
    if was == case.kind:
        return Case(name, seconds, note="failed in both runs" if was else "")
    if not case.kind:
        return Case(name, seconds, note="passed, after it failed in the baseline")
    return Case(
        name,
        seconds,
        "failure",
        case.type,
        f"passed in the baseline; now {case.message}",
        case.text,
    )


def of_verdicts(
    suite: str, verdicts: Iterable[tuple[str, Verdict | str]], threshold: float | None = None
) -> CaseSuite:
    """The tasks of judged answers: pairs of a task and a verdict, or the reason why it could not be judged."""
    tasks: dict[str, list[Verdict | str]] = {}
    for task, verdict in verdicts:
        tasks.setdefault(task, []).append(verdict)
    cases = []
    for task, own in tasks.items():
        judged = [(str(n), each) for n, each in enumerate(own) if isinstance(each, Verdict)]
        told = {n: str(each.feedback or each.detail) for n, each in judged}
        results = [
            Result(
                experiment_id=n,
                problem_id=task,
                success=each.passed,
                verdict=each.verdict,
                cause=each.cause,
                duration_seconds=max(0.0, each.metrics.get("wall", 0.0)),
            )
            for n, each in judged
        ]
        faults = [{"reason": each, "cause": "reference"} for each in own if isinstance(each, str)]
        cases.append(_case(task, results, faults, threshold, told.__getitem__))
    return CaseSuite(suite, cases)


def _case(
    task: str,
    results: Sequence[Result],
    faults: Sequence[Mapping[str, Any]],
    threshold: float | None,
    told: Callable[[str], str],
) -> Case:
    """A task by its samples. It is an error only where its faults could turn it."""
    share, samples = ALL if threshold is None else threshold, len(results) + len(faults)
    passed = sum(result.success for result in results)
    seconds = sum(result.duration_seconds for result in results)
    lost = [result for result in results if not result.success]
    if is_share(passed, samples, share):
        return Case(
            task, seconds, note=f"{passed} of {samples} samples passed" if samples > 1 else ""
        )
    if is_share(passed + len(faults), samples, share):
        reason = str(faults[0].get("reason", ""))
        return Case(task, seconds, "error", str(faults[0].get("cause") or "fault"), reason, reason)
    first = lost[0]
    verdict = f"{first.verdict or 'failed'}{f' ({first.cause})' if first.cause else ''}"
    few = f"{passed} of {samples} samples passed; the first that didn't: "
    texts = (told(result.experiment_id) for result in lost)
    return Case(
        task,
        seconds,
        "failure",
        first.cause or first.verdict,
        (few if samples > 1 else "") + verdict,
        next(filter(None, texts), ""),
    )


def _told_by(run: Run) -> Callable[[str], str]:
    """A function that returns the feedback on the last attempt of an experiment, as far as the journal is there."""
    if run.folder is None:
        return lambda _: ""
    try:
        experiments = Experiments(run.folder)
    except JournalError:
        return lambda _: ""
    outcomes = {
        outcome.experiment_id: outcome
        for outcome in experiments.outcomes
        if not isinstance(outcome, Fault)
    }

    def told(experiment_id: str) -> str:
        outcome = outcomes.get(experiment_id)
        attempts = experiments.story(outcome).attempts if outcome else []
        return str(attempts[-1].feedback or attempts[-1].detail) if attempts else ""

    return told


def write_junit(path: Path, suites: Iterable[CaseSuite]) -> None:
    """Writes the file as a whole, or not at all."""
    root = Element("testsuites", {"name": "koderz"})
    totals: list[Case] = []
    for suite in suites:
        totals += suite.cases
        element = SubElement(
            root,
            "testsuite",
            {"name": _clean(suite.name), **_counts(suite.cases, with_skipped=True)},
        )
        if suite.time:
            element.set("timestamp", suite.time)
        if suite.properties:
            properties = SubElement(element, "properties")
            for name, value in suite.properties.items():
                SubElement(properties, "property", {"name": name, "value": _clean(str(value))})
        for case in suite.cases:
            given = {
                "classname": _clean(suite.name),
                "name": _clean(case.name),
                "time": f"{case.seconds:.3f}",
            }
            inner = SubElement(element, "testcase", given)
            if case.kind:
                about = SubElement(inner, case.kind, {"message": _cut(case.message)})
                if case.kind != "skipped":
                    about.set("type", _clean(case.type or case.kind))
                    about.text = _cut(case.text)
            if case.note:
                SubElement(inner, "system-out").text = _cut(case.note)
    for name, value in _counts(totals).items():
        root.set(name, value)
    indent(root)
    write_whole(path, [b"<?xml version='1.0' encoding='UTF-8'?>\n", tostring(root, "utf-8"), b"\n"])


def _counts(cases: Sequence[Case], *, with_skipped: bool = False) -> dict[str, str]:
    count = {
        kind: str(sum(case.kind == kind for case in cases))
        for kind in ("failure", "error", "skipped")
    }
    found = {"tests": str(len(cases)), "failures": count["failure"], "errors": count["error"]}
    found["time"] = f"{sum(case.seconds for case in cases):.3f}"
    return found | ({"skipped": count["skipped"]} if with_skipped else {})


def _clean(text: str) -> str:
    """The text with what XML can't hold made visible."""
    return _ILLEGAL.sub("\ufffd", text)


def _cut(text: str) -> str:
    """The text, cleaned and at most 8 KB."""
    cleaned = _clean(text[: MOST + 1])  # a character has at least one byte
    data = cleaned.encode()
    if len(data) <= MOST and len(text) <= MOST:
        return cleaned
    more = f"… cut off, of {len(text):,} characters"
    return data[: MOST - len(more.encode())].decode(errors="ignore") + more
