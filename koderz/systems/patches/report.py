"""The report's section on the speed-ups of patches, by experiment, with the ratio of each block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from koderz.analysis.blocks import Table
from koderz.analysis.sections import Content, Section, Spread, Spreads
from koderz_tracker.records import Plan
from koderz_tracker.results import Result
from koderz_tracker.summary import ArmResults, Summary, summarize

_OF = {
    "base": "times as fast as base",
    "human": "times as fast as the human's answer",
    "aa": "times as fast as itself",
}


def section_of(plan: Plan, folder: Path) -> Section | None:  # noqa: ARG001
    """The section for the run in `folder`; None before anything was measured."""
    summary = summarize(folder)
    results = [(name, result) for name, arm in summary.arms.items() for result in arm.results]
    return Section("Speed-ups", [figures_of(summary), *contents(results)]) if results else None


def figures_of(summary: Summary) -> Table:
    """A table of each arm's figures over its tasks: Opt@K, the share that passed, mean speed-ups."""
    rows = [
        [name, label, form(figure["value"]), _limits(figure, form)]
        for name, arm in summary.arms.items()
        for label, figure, form in _figures(arm)
    ]
    return Table(["Arm", "Figure", "Value", "95 % interval"], rows)


def _limits(figure: Mapping[str, Any], form: Callable[[float], str]) -> str:
    """The interval of a figure with its number of clusters, or the reason for having none."""
    method = figure.get("interval_method") or ""
    limits = " to ".join(map(form, figure["interval"] or ()))
    clusters = method.rpartition(", in ")[2]
    return (
        f"{limits}, in {clusters}"
        if limits and clusters.endswith(" clusters")
        else limits or method
    )


def _figures(arm: ArmResults) -> Iterator[tuple[str, Mapping[str, Any], Callable[[float], str]]]:
    """The figures of an arm with their formats; Opt@K only for arms of patches."""
    if any(result.facts.get("opt") for result in arm.results):
        yield from ((f"Opt@{k}", each, "{:.1%}".format) for k, each in arm.more["opt_at_k"].items())
        if count := arm.more.get("needs_review"):
            yield (
                "of these, patches that need review",
                {"value": count, "interval": None},
                "{:.0f}".format,
            )
    if "passed" in arm.more:
        yield "status passed", arm.more["passed"], "{:.1%}".format
    for name, label in _OF.items():
        if figure := arm.more.get(f"speedup_{name}"):
            yield f"{label}, geometric mean", figure, "{:.2f}".format


def contents(results: Sequence[tuple[str, Result]]) -> Iterator[Content]:
    """A table of results, each with its arm, and drawings of their blocks."""
    yield Table(
        ["Task", "Arm", "Verdict", "Blocks", "Of base", "Of the human's"],
        [
            [
                label,
                arm,
                _word(result),
                f"{_metric(result, 'blocks') or 0:.0f}",
                _speedup(result, "base"),
                _speedup(result, "human"),
            ]
            for arm, result in results
            for label in [label_of(result)]
        ],
        optional=["Blocks"],
    )
    arms = [*dict.fromkeys(arm for arm, _ in results)]
    for name, label in _OF.items():
        found = [
            (result, spread) for arm, result in results if (spread := _spread(arm, result, name))
        ]
        if found:
            limits = dict.fromkeys(_facts(result, "limits").get(name) for result, _ in found)
            across = [each for each in limits if each]
            yield Spreads(f"Blocks: {label}", label, [spread for _, spread in found], across, arms)


def _spread(arm: str, result: Result, name: str) -> Spread | None:
    ratios, value = _facts(result, "ratios").get(name), _metric(result, f"speedup_{name}")
    if not ratios or not value or (name == "aa" and len(_facts(result, "ratios")) > 1):
        return None
    label = f"{label_of(result)}, {arm}"
    return Spread(arm, label, ratios, value, _interval(result, name), result.experiment_id)


def _interval(result: Result, name: str) -> tuple[float, float] | None:
    low, high = (_metric(result, f"speedup_{name}_{end}") for end in ("low", "high"))
    return (low, high) if low and high else None


def _speedup(result: Result, name: str) -> str:
    value, interval = _metric(result, f"speedup_{name}"), _interval(result, name)
    bounds = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
    return f"{value:.2f}{bounds}" if value else ""


def _word(result: Result) -> str:
    hack, word = (
        result.facts.get("hack"),
        result.cause or ("opt" if result.facts.get("opt") else "as fast"),
    )
    return ", ".join(
        [
            word,
            *([hack] if hack else []),
            *(["needs review"] if result.facts.get("needs_review") else []),
        ]
    )


def label_of(result: Result) -> str:
    """The result's task, and its sample if it isn't the first."""
    return result.problem_id + (f", sample {result.sample}" if result.sample > 0 else "")


def _metric(result: Result, name: str) -> float | None:
    return (result.metrics or {}).get(name)


def _facts(result: Result, name: str) -> Mapping[str, Any]:
    found = result.facts.get(name)
    return found if isinstance(found, dict) else {}
