"""A run on a screen: its plan and estimated cost before it begins; its settings, results and failures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from koderz.analysis.blocks import Block, Heading, Table, Text
from koderz.analysis.forecast import forecast_of
from koderz.analysis.measures import SUCCESS, headline_measure
from koderz.analysis.sequential import decision_lines
from koderz.analysis.story import thought_of
from koderz.cli.console import counted, elapsed, print_json, say_all, shortened
from koderz.cli.progress import batch_lines
from koderz.engines.sources import schema_of, schema_of_plan
from koderz.errors import KoderzError
from koderz.plans.plan import Plan
from koderz_tracker.errors import TASK, cause_counts
from koderz_tracker.records import Measure
from koderz_tracker.results import told_reuse, untold
from koderz_tracker.runs import read_plan

if TYPE_CHECKING:
    from koderz.analysis.runs import Run
    from koderz.runs.session import SessionResult
    from koderz.settings.options import Field
    from koderz_tracker.breakdown import Mean
    from koderz_tracker.summary import Comparison

_MOST_FAULTS = 5
_MOST_CAUSES = 8
_WIDTH = 40  # of a setting
_MADE_WITH = ("koderz", "python", "sandbox", "git_commit")  # of the environment
_TOLD_APART = frozenset(  # have lines of their own
    {"local_model", "suite", "mode", "problems", "results", "samples", "tags", "sinks", "no_sinks"}
)


def overview(run: Run, arms: Sequence[str]) -> Iterator[Block]:
    """The blocks that show a run, with the results of the named arms."""
    return (Text(part) if isinstance(part, str) else part for part in _parts(run, arms))


def _parts(run: Run, arms: Sequence[str]) -> Iterator[str | Block]:
    from koderz.analysis.compare import own_answer
    from koderz.analysis.runs import breakdown_blocks
    from koderz.analysis.sections import Spreads, sections_of

    yield from _head(run)
    if (
        own := own_answer(run.mode, run.folder)
        if run.folder and len(arms) == len(run.arms)
        else None
    ):
        yield ""
        yield from own.blocks()
        yield from _faults(run)
        return
    sections = [section for _, section in sections_of([run])]
    for name in arms:
        yield ""
        if run.arms[name].results:
            yield from _figures(run, name, has_sections=bool(sections))
            yield from _failures(run, name)
        else:
            yield f"{name}: no results"
    if run.comparison and len(arms) > 1:
        yield ""
        yield told_comparison(run.comparison)
    if run.breakdown:
        yield ""
        yield from breakdown_blocks([each for each in run.breakdown if each.arm in arms])
    if len(arms) == len(run.arms):
        from koderz.analysis.sections import strips

        # The report's sections of suite and solvers, as far as a screen can show them.
        for section in sections:
            yield Heading(section.title)
            for content in section.contents:
                if isinstance(content, Spreads):
                    yield Text("")
                    yield from strips(content)
                elif isinstance(content, Heading | Text | Table):
                    yield content
    yield from _faults(run)


def told_comparison(c: Comparison) -> str:
    """A sentence on the gain of one arm over the other."""
    first, second = c.arms
    if c.success_rate_improvement is None:
        return f"{second} against {first}: no task was judged in both"
    return (
        f"{second} against {first}: {c.success_rate_improvement:+.1f} points on {c.problems} pairs, "
        f"${c.cost_difference:+.4f}; passed by both {c.both_passed}, only {second} {c.only_iterative}, "
        f"only {first} {c.only_zero_shot}, neither {c.neither}"
    )


def _head(run: Run) -> Iterator[str]:
    from koderz_tracker.sinks.process import describe_sinks

    config = run.config
    yield f"{run.name} · {run.mode} · {run.suite} · {run.model}"
    yield from run.cautions
    reason = f" ({run.reason})" if run.reason and run.reason != run.status else ""
    yield f"Status: {run.status}{reason}, {len(run.results)} of {run.planned} judged"
    if run.decision:
        yield from ([f"{run.early[0].upper()}{run.early[1:]}"] if run.early else [])
        yield from decision_lines(run)
    for asked, answering in run.answered_by.items():
        names = ", ".join(f"{name} ({counted(calls, 'call')})" for name, calls in answering.items())
        yield f"{asked} was answered by {names}, as its server says"
    if run.throttled:
        each = (
            f"{provider} {counted(times, 'request')}" for provider, times in run.throttled.items()
        )
        yield f"Refused for load and asked again: {', '.join(each)}"
    if run.folder and config.get("batch"):
        yield from (f"{line[0].upper()}{line[1:]}" for line in batch_lines(run.folder))
    if run.damaged_lines:
        lines = counted(run.damaged_lines, "line")
        yield f"{lines} of its journal can't be read and are left out: koderz doctor --repair {run.name}"
    if run.start_time:
        worked = f", worked on for {elapsed(run.duration_seconds)}" if run.duration_seconds else ""
        yield f"Begun: {run.start_time[:19].replace('T', ' ')}{worked}"
    if config.get("tags"):
        yield f"Tags: {', '.join(config['tags'])}"
    fields = _fields(run)
    if set_by_user := [
        f"{name}={shortened(str(value), _WIDTH)}"
        for name, value in config.items()
        if _is_set(name, value, fields)
    ]:
        yield f"Settings: {', '.join(set_by_user)}"
    made_with = {name.removeprefix("git_"): run.environment.get(name) for name in _MADE_WITH}
    if tools := ", ".join(
        f"{name} {shortened(str(value), _WIDTH)}" for name, value in made_with.items() if value
    ):
        yield f"Made with: {tools}"
    if run.paid:
        parts = [
            f"${run.paid[name]:.4f} on {name}"
            for name in ("faults", "unfinished")
            if run.paid.get(name)
        ]
        unjudged = f", of which {' and '.join(parts)}" if parts else ""
        yield f"Paid: ${run.paid['total']:.4f}{unjudged}"
    if run.folder and (sinks := describe_sinks(run.folder)):
        yield f"Sinks: {'; '.join(f'{name} {words}' for name, words in sinks.items())}"


def _figures(run: Run, name: str, *, has_sections: bool) -> Iterator[str]:
    f, headline, measure = run.arms[name].summary, run.headline, headline_measure(run)
    mean = f.measures.get(measure.name)
    if measure is SUCCESS:
        counts = f"{f.successes} of {f.total_problems}"
        yield f"{name}: {f.success_rate:.1f}% {headline.passed} ({counts}), {f.interval_text}"
    elif mean is None:
        yield f"{name}: {counted(f.total_problems, 'result')}"
    else:
        passed = (
            f", {f.successes} of {f.total_problems} {headline.passed}" if headline.passed else ""
        )
        yield f"{name}: {_average(measure, mean)}{passed}"
    if f.bounds_text and headline.passed:
        yield f"  success rate {f.bounds_text}"
    if f.unread:
        yield f"  {f.unread.text}"
    if f.samples_text and headline.passed:
        yield f"  {f.samples_text}"
    yield from _spent(
        run, name, says_passes=bool(headline.passed) and (measure is SUCCESS or mean is not None)
    )
    for other, found in () if has_sections else f.measures.items():  # which tell what matters
        if other != measure.name:
            yield f"  {_average(Measure(other, 'higher'), found)}"


def _spent(run: Run, name: str, *, says_passes: bool) -> Iterator[str]:
    """The costs, attempts and tokens of an arm, as far as they are told."""
    f = run.arms[name].summary
    cost = "" if f.cost_known else ", too low: what some calls cost is unknown"
    each = (
        f", ${f.cost_per_success:.4f} a success"
        if f.cost_per_success is not None and says_passes
        else ""
    )
    absent = untold(run.arms[name].results)
    if "cost" not in absent:
        yield f"  cost ${f.total_cost:.4f}{each}{cost}"
    if reuse := told_reuse(f.reused_calls, f.saved_cost):
        yield f"  {reuse}"
    if any(value for tier, value in f.cost_by_tier.items() if tier != "local"):
        yield "  by tier: " + ", ".join(
            f"{tier} ${value:.4f}" for tier, value in f.cost_by_tier.items()
        )
    asked = run.asked_of(name)
    tokens = f"{f.tokens_in:,} tokens in, {f.tokens_out:,} out{thought_of(f.tokens_reasoning)}"
    if f.avg_iterations is not None:
        average = f"{f.avg_iterations:.1f} attempts and {f.avg_latency:.1f} s of calls on average"
        yield f"  {average}{asked and f' {asked}'}; {tokens}"
    elif "tokens" not in absent:
        yield f"  {tokens}"


def _average(measure: Measure, found: Mean) -> str:
    """A mean with its interval, and the kind of average if it isn't the usual one."""
    sure = (
        f", 95% interval {found.interval[0]:.4g} to {found.interval[1]:.4g}"
        if found.interval
        else ""
    )
    how = "on average" if measure.averaged == "arithmetic" else f"({measure.averaged} mean)"
    how = "(median)" if measure.averaged == "median" else how
    return f"{measure.name} {found.mean:.4g} {how}{sure}{f' ({found.interval_method})' if sure else ''}"


def _failures(run: Run, arm: str) -> Iterator[str | Table]:
    """Failed attempts by cause, and the fixes by later attempts, if experiments pass or fail."""
    if not run.headline.passed:
        return
    from koderz.analysis.failures import causes_table, failures_of, unrecovered
    from koderz.analysis.pairs import Side

    found = failures_of(Side(run, arm))
    if found.tokens_to_solution:
        yield f"  {found.tokens_to_solution:,.0f} tokens to a solution (median)"
    if found.causes:
        yield causes_table({"": found}, _MOST_CAUSES)
    if len(found.causes) > _MOST_CAUSES:
        yield f"  and {len(found.causes) - _MOST_CAUSES} rarer causes"
    if found.never_fixed:
        yield f"  recovered from no {unrecovered(found, _MOST_CAUSES)}"


def _faults(run: Run) -> Iterator[str]:
    if not run.faults:
        return
    yield ""
    count, causes = (
        counted(len(run.faults), "fault"),
        cause_counts(fault["cause"] for fault in run.faults),
    )
    is_final = all(fault["cause"] == TASK for fault in run.faults)
    again = (
        "their tasks are at fault"
        if is_final
        else f"run again with: koderz benchmark retry {run.name}"
    )
    yield f"{count} ({causes}), not counted as failures; {again}"
    for fault in run.faults[:_MOST_FAULTS]:
        yield f"  {fault['problem_id']} ({fault['solver']}): {fault['reason']}"
    if len(run.faults) > _MOST_FAULTS:
        yield f"  and {len(run.faults) - _MOST_FAULTS} more: --failures"


def _fields(run: Run) -> Mapping[str, Field]:
    """The options of the run's suite, solvers, …, as far as they are known here."""
    if run.folder:
        with suppress(KoderzError):
            return schema_of_plan(read_plan(run.folder)).fields
    return schema_of().fields


def _is_set(name: str, value: Any, fields: Mapping[str, Field]) -> bool:
    """Whether a setting differs from its default."""
    if name in _TOLD_APART:
        return name == "samples" and value != 1
    default = fields[name].default if name in fields else None
    return value is not None and value != (list(default) if isinstance(default, tuple) else default)


def show_plan(
    plan: Plan,
    *,
    json: bool,
    sampled: SessionResult | None = None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Prints the plan, and what a sample of it came to. No model is asked, and no key is needed."""
    forecast = forecast_of(plan, environ)
    summary = sampled.summary if sampled else None
    if not json:
        say_all(forecast.lines(summary))
        return
    document = dict(forecast.document)
    if summary:
        document["sample"] = {
            "run_id": summary.run_id,
            "status": summary.status,
            "problems": summary.config["problems"],
            "cost": summary.paid.get("total", 0.0),
        }
    print_json(document)
