"""A session on the screen: its header, its progress, and its results."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from koderz.cli.console import OutputOptions, counted, say, say_all, warn
from koderz.runs.observer import NOTHING_TO_DO
from koderz.settings.systems import added, names_of
from koderz.types import MAIN, TIME
from koderz_tracker.errors import TASK
from koderz_tracker.records import PASSES
from koderz_tracker.registry import Extensible
from koderz_tracker.results import told_reuse
from koderz_tracker.summary import USUAL

if TYPE_CHECKING:
    from pathlib import Path

    from koderz.plans.plan import Plan
    from koderz.runs.observer import SessionView
    from koderz.runs.session import SessionResult
    from koderz_tracker.records import Record
    from koderz_tracker.summary import Figures, Summary


class Account(Extensible):
    """The presentation of a run: its progress line and, in place of success rates, its results."""

    def begin(self, plan: Plan) -> None:
        """Called before the run begins or continues."""

    def doing(self) -> str:
        """Text to show beside the figures of the progress."""
        return ""

    def line_of(self, record: Record) -> str:  # noqa: ARG002
        """A line to print for a new record; empty for none."""
        return ""

    def results(self, folder: Path) -> None:
        """Prints the results of the run in a folder."""
        raise NotImplementedError


def account_of(mode: str) -> Account | None:
    """The account for runs of a mode; None if they are presented as success rates."""
    found: type[Account] | None = added("accounts", mode)
    return found() if found else None


class SessionScreen:
    """Shows a session."""

    def __init__(
        self, shown: OutputOptions, figures: Callable[[Path], object] | None = None
    ) -> None:
        """`figures` prints the results of the run in a folder in place of its success rates."""
        self._shown, self._figures = shown, figures
        self._account: Account | None = None

    def header(self, plan: Plan) -> None:
        """Prints the run's id, tasks and model before it begins."""
        if self._shown.json or self._shown.quiet:
            return
        config = plan.record.config
        say(f"Benchmark Run ID: {plan.record.run_id}")
        if config["problem_range"]:
            start, _, end = config["problem_range"].partition("-")
            say(f"Range: {start} to {end}")
        else:
            say(f"Tasks: {len(plan.tasks)}")
        say(f"Local model: {config['local_model']}")
        arms = list(dict.fromkeys(arm.solver.name for arm in plan.arms))
        say(
            f"Testing {_listed(arms)}"
            if plan.record.mode == "comparative"
            else f"Mode: {plan.record.mode}"
        )
        helpers = {
            role: model for arm in plan.arms for role, model in arm.models.items() if role != MAIN
        }
        for role, model in helpers.items():
            say(f"Frontier {role} model: {model}")
        if plan.record.samples > 1:
            say(f"Samples: {plan.record.samples}")
        say()

    def recorded(self, record: Record) -> None:
        """Prints the account's line for a record, if there is one."""
        if self._account and not self._shown.quiet and (line := self._account.line_of(record)):
            warn(line)

    def notice(self, text: str) -> None:
        warn(text if text.startswith("reuse: ") else f"note: {text}")

    @asynccontextmanager
    async def showing(self, view: SessionView) -> AsyncIterator[None]:
        self.header(view.plan)
        if self._shown.quiet:
            yield
            return
        # with asyncio, which takes 20 ms that only a run has to spend
        from koderz.cli.progress import shown

        if account := account_of(view.plan.record.mode):
            account.begin(view.plan)
        self._account = account
        async with shown(view, account.doing if account else str):
            yield

    def results(self, session: SessionResult) -> None:
        """Prints the results of a run: tables, then where it is saved and what to do next."""
        summary = session.summary
        if not self._shown.json:
            self._tell(session)
        if session.ended.reason == NOTHING_TO_DO:
            warn(f"{session.folder.name}: nothing to do")
        for line in next_steps(summary, session.folder.name):
            warn(line)
        if session.unbegun:
            warn(
                f"{counted(session.unbegun, 'run')} planned together with it not begun; the same command begins them"
            )

    def _tell(self, session: SessionResult) -> None:
        summary = session.summary
        # A run that was only submitted has no results to show.
        if summary.status == "detached" and not any(arm.results for arm in summary.arms.values()):
            say(_heading(summary))
            say(f"Check it with: koderz {self._shown.check} {summary.run_id}")
            return
        from koderz.analysis.compare import own_answer
        from koderz.cli.tables import print_blocks

        account = account_of(summary.mode)
        figures = self._figures or (account.results if account else None)
        if figures or summary.mode in names_of("comparisons"):
            say_all((*summary.cautions, "") if summary.cautions else ())
            say(_heading(summary))
            if figures:
                figures(session.folder)
            elif own := own_answer(summary.mode, session.folder):
                say()
                print_blocks(own.blocks())
        else:
            say_all(_result_lines(summary))
        if summary.decision:
            from koderz.analysis.sequential import decision_lines

            say_all(("", *decision_lines(summary)))
        if summary.breakdown:
            from koderz.analysis.runs import breakdown_blocks

            say()
            print_blocks(breakdown_blocks(summary.breakdown))
        say_all(saved_lines(session))


def _listed(names: Sequence[str]) -> str:
    """Names joined as `a`, `both a and b`, or `a, b and c`."""
    if len(names) == 2:
        return f"both {names[0]} and {names[1]}" + (" modes" if tuple(names) == USUAL else "")
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _result_lines(summary: Summary) -> Iterator[str]:
    if summary.cautions:
        yield from (*summary.cautions, "")
    if len(summary.arms) > 1:
        yield from _arm_lines(summary)
    else:
        from koderz.analysis.measures import headline_measure, summed_up

        figures = summary.summary
        yield _heading(summary)
        yield f"Mode: {summary.mode}"
        judged, tasks = (
            figures.total_problems,
            len({result.problem_id for result in summary.results}),
        )
        has_samples = judged > tasks  # the averages are of samples then, and are called so
        yield f"Problems: {tasks} ({judged} samples)" if has_samples else f"Problems: {judged}"
        if (measure := headline_measure(summary)).name != PASSES:
            mean = figures.measures.get(measure.name)
            yield f"Average: {summed_up(mean.mean, measure) if mean else '-'}"
        if summary.headline.passed:
            yield f"Successes: {figures.successes} ({_known(figures.success_rate, '.1f', '%').strip()})"
        if figures.unread:
            yield f"Unread: {figures.unread.count} ({figures.unread.rate:.1f}%)"
        yield f"Total Cost: ${figures.total_cost:.4f}"
        of = "Sample" if has_samples else "Problem"
        yield f"Avg Cost per {of}: ${figures.avg_cost:.5f}"
        yield f"Avg Iterations per {of}: {_known(figures.avg_iterations, '.1f').strip()}"
    if extra := list(_extra_lines(summary)):
        yield from ("", *extra)


def saved_lines(session: SessionResult) -> Iterator[str]:
    """Lines on where the results are saved, by sink."""
    run = session.summary.run_id
    fed = session.sinks.sinks if session.sinks else ()
    places = {
        "Cortex": f"tags=['benchmark_run', '{run}']" if "memory" in fed else None,
        "File": session.summary_path,
        "View in MLflow": "koderz ui" if "mlflow" in fed else None,
    }
    if any(places.values()):
        yield ""
        yield "BENCHMARK SUMMARY SAVED"
        yield from (f"{name}: {place}" for name, place in places.items() if place)


def _arm_lines(summary: Summary) -> Iterator[str]:
    """A line an arm; below two paired arms, the gain of the second."""
    from koderz.analysis.measures import headline_measure, named_average, shown

    pair = summary.comparison if len(summary.arms) == 2 else None
    measure = headline_measure(summary)
    heads = (
        "Mode" if pair else "Arm",
        "Success Rate" if measure.name == PASSES else named_average(measure),
        "Avg Cost",
        "Avg Iterations",
    )
    rows = []
    for name in pair.arms if pair else summary.arms:
        figures = summary.arms[name].summary
        mean = figures.measures.get(measure.name)
        rate = shown(mean.mean, measure) if mean else "-"
        if measure.name == PASSES:
            rate = f"{_known(figures.success_rate, '5.1f', '%')} ({figures.successes:2d}/{figures.total_problems:2d})"
        label = name.title() if pair and name in USUAL else name
        rows.append(
            (label, rate, f"$ {figures.avg_cost:>7.4f}", _known(figures.avg_iterations, ">14.1f"))
        )
    if pair and measure.name == PASSES:
        points = _known(pair.success_rate_improvement, "+5.1f", "% points")
        iterations = _known(pair.iteration_difference, ">+14.1f")
        rows.append(("Improvement", points, f"$ {pair.avg_cost_difference:>+8.4f}", iterations))
    widths = [
        max(least, *map(len, column))
        for least, column in zip(_WIDTHS, zip(heads, *rows, strict=True), strict=True)
    ]
    rule = "-+-".join("-" * width for width in widths) + "-"
    yield "COMPARATIVE BENCHMARK RESULTS" if pair else _heading(summary)
    yield _line(heads, widths)
    yield rule
    yield from (_line(row, widths) for row in rows[: len(summary.arms)])
    if rows[len(summary.arms) :]:
        yield rule
        yield _line(rows[-1], widths)


_WIDTHS = (15, 15, 12, 14)  # at least


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " | ".join(
        f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)
    ).rstrip()


def _known(value: float | None, form: str, unit: str = "") -> str:
    """A formatted average; a dash of the same width if there is none."""
    return f"{value:{form}}{unit}" if value is not None else "-".rjust(len(f"{0.0:{form}}{unit}"))


def _heading(summary: Summary) -> str:
    return f"BENCHMARK {summary.status.upper()}"


def _extra_lines(summary: Summary) -> Iterator[str]:
    from msgspec.structs import replace

    from koderz.analysis.measures import headline_measure, interval_text

    if summary.comparison and len(summary.arms) > 2:
        from koderz.cli.overview import told_comparison

        yield told_comparison(summary.comparison)
    pairs = summary.comparison.problems if summary.comparison else None
    if pairs is not None and any(len(arm.results) > pairs for arm in summary.arms.values()):
        yield f"improvement: over the {counted(pairs, 'experiment')} judged in both modes"
    for name, arm in summary.arms.items():
        figures = arm.summary
        if figures.success_rate_interval_method and summary.headline.measure == PASSES:
            texts = filter(None, (figures.interval_text, figures.bounds_text, figures.samples_text))
            yield f"{name}: {'; '.join(texts)}{_causes(figures)}"
        elif mean := figures.measures.get(summary.headline.measure):
            interval = "no interval"
            if mean.interval is not None:  # with its method, as those of rates are told
                limits = interval_text(mean.interval, replace(headline_measure(summary), unit=""))
                interval = f"95% interval {limits} ({mean.interval_method})"
            yield f"{name}: {interval}{_causes(figures)}"
        if figures.unread and len(summary.arms) > 1:
            yield f"{name}: {figures.unread.text}"
        if figures.baseline_cost is not None:
            yield (
                f"{name}: on {summary.config['baseline_model']} the local tokens "
                f"would have cost ${figures.baseline_cost:.4f}"
            )
        if reuse := told_reuse(figures.reused_calls, figures.saved_cost):
            yield f"{name}: {reuse}"
        if not figures.cost_known:
            yield f"{name}: what some calls cost is unknown, so costs are too low; see prices in koderz.toml"


def _causes(figures: Figures) -> str:
    if not figures.causes:
        return ""
    most = sorted(figures.causes.items(), key=lambda item: -item[1])[:4]
    return "; not passed: " + ", ".join(f"{count} {cause}" for cause, count in most)


def next_steps(summary: Summary, run: str) -> Iterator[str]:
    """Lines on what went wrong, each with the command that fixes it."""
    # Replies that didn't end in time, and how they count.
    failed = sum(arm.summary.causes.get(TIME, 0) for arm in summary.arms.values())
    faulted = sum("see --request-timeout" in str(fault["reason"]) for fault in summary.faults)
    late = "by a reply that didn't end within --request-timeout"
    if failed:
        yield f"{counted(failed, 'experiment')} failed {late} (--timeout-is failure)"
    if faulted:
        yield f"{counted(faulted, 'fault')} {late}; with --timeout-is failure that is the model's failure"
    if summary.faults:
        first = summary.faults[0]
        where = (
            f" ({first['frames'][-1]['file']}, line {first['frames'][-1]['line']})"
            if first.get("frames")
            else ""
        )
        count = f"{len(summary.faults)} of {summary.planned} experiments"
        yield f"{count} ended in a fault, the first with: {first['reason']}{where}"
        # nobody is there to be asked again
        again = "rescore" if summary.config.get("imported") else "retry"
        if all(fault.get("cause") == TASK for fault in summary.faults):
            yield "their tasks are at fault, so that running them again can't help"
        else:
            yield f"run them again with: koderz benchmark {again} {run}"
    if summary.status in ("interrupted", "stopped", "failed", "incomplete") and summary.reason:
        done = sum(len(arm.results) for arm in summary.arms.values()) + len(summary.faults)
        if done < summary.planned:
            why = f": {summary.reason}" if summary.reason != summary.status else ""
            yield f"{summary.status} after {done} of {summary.planned} experiments{why}"
            yield f"continue with: koderz benchmark resume {run}"
