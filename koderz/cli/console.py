"""The one place that draws: results on standard output, progress and warnings on standard error."""

from __future__ import annotations

import io
import os
import sys
import unicodedata
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import IO, TYPE_CHECKING, Any, cast

from koderz.cli.pipe import while_read
from koderz.runs.observer import NOTHING_TO_DO
from koderz.types import MAIN

if TYPE_CHECKING:
    from koderz.plans.plan import Plan
    from koderz.runs.observer import SessionView
    from koderz.runs.session import Session
    from tracker.records import Record
    from tracker.summary import Comparison, Figures, Summary

LINE_EVERY = 5.0  # seconds between two lines of progress where there is no terminal

_RULE = "----------------+-----------------+--------------+----------------"


def plain(text: str) -> str:
    """The text with whatever could steer a terminal made visible: control, format and bidi characters."""
    if text.isprintable():
        return text
    return "".join(_visible(char) if _steers(char) else char for char in text)


def _steers(char: str) -> bool:
    if char in "\n\t" or char.isprintable():
        return False
    return unicodedata.category(char) != "Zs"  # spaces wider or narrower than usual are just spaces


def _visible(char: str) -> str:
    return repr(char)[1:-1] if ord(char) < 0xD800 or ord(char) > 0xDFFF else "\ufffd"


def say(text: str = "", *, after: str = "") -> None:
    """A line of results. `after`: what `link` made, at its end."""
    with while_read():
        sys.stdout.write(f"{plain(text)}{after and ' '}{after}\n")


def say_all(lines: Iterable[str]) -> None:
    """Lines of results, at once."""
    with while_read():
        sys.stdout.writelines(f"{plain(line)}\n" for line in lines)


def data_output() -> IO[bytes]:
    """Standard output for data: to a terminal whatever could steer it is escaped as in JSON, else bytes stay bytes."""
    return cast("IO[bytes]", _TerminalData()) if sys.stdout.isatty() else sys.stdout.buffer


class _TerminalData(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        text = bytes(data).decode("utf-8", "backslashreplace")
        sys.stdout.write("".join(_escaped(char) if _steers(char) else char for char in text))
        return len(data)


def _escaped(char: str) -> str:
    """As JSON may have any character: `\\u009b`, or two of these for one beyond the first 65,536."""
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def print_json(document: Any) -> None:
    """JSON, indented, on standard output."""
    import orjson
    from msgspec.structs import asdict

    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    with while_read():
        data_output().write(orjson.dumps(document, default=asdict, option=option))


def link(text: str, address: str) -> str:
    """Something to click on in a terminal; elsewhere the address itself."""
    address = plain(address)
    if not address or not (sys.stdout.isatty() and is_live()):
        return address
    return f"\x1b]8;;{address}\x1b\\{text}\x1b]8;;\x1b\\"


def warn(text: str) -> None:
    """A line beside the results."""
    sys.stderr.write(f"{plain(text)}\n")
    sys.stderr.flush()


def is_live() -> bool:
    """Whether animation and colour are welcome on standard error."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Console:
    """Shows a session. With `quiet` only what went wrong; with `json` nothing on standard output."""

    def __init__(self, *, quiet: bool = False, json: bool = False) -> None:
        self._quiet, self._json = quiet, json

    def header(self, plan: Plan) -> None:
        """What is about to happen."""
        if self._json or self._quiet:
            return
        config = plan.record.config
        say(f"Benchmark Run ID: {plan.record.run_id}")
        if config["problem_range"]:
            start, _, end = config["problem_range"].partition("-")
            say(f"Range: {start} to {end}")
        else:
            say(f"Problems: {len(plan.tasks)}")
        say(f"Local model: {config['local_model']}")
        both = "Testing both zero-shot and iterative modes"
        say(both if plan.record.mode == "comparative" else f"Mode: {plan.record.mode}")
        helpers = {role: model for arm in plan.arms for role, model in arm.models.items() if role != MAIN}
        for role, model in helpers.items():
            say(f"Frontier {role} model: {model}")
        if plan.record.samples > 1:
            say(f"Samples: {plan.record.samples}")
        say()

    def showing(self, view: SessionView) -> AbstractAsyncContextManager[None]:
        return self._showing(view)

    def recorded(self, record: Record) -> None:
        """Progress is looked at now and then, not drawn line by line."""

    def notice(self, text: str) -> None:
        warn(f"note: {text}")

    @asynccontextmanager
    async def _showing(self, view: SessionView) -> AsyncIterator[None]:
        self.header(view.plan)
        if self._quiet:
            yield
            return
        from koderz.cli.progress import shown  # with asyncio, which takes 20 ms that only a run has to spend

        async with shown(view):
            yield

    def results(self, session: Session) -> None:
        """How a run ended: tables, then where it is saved and what to do next."""
        summary = session.summary
        if not self._json:
            say_all(_result_lines(summary) if _has_ended(summary) else [_heading(summary)])
            say_all(_saved_lines(session) if _has_ended(summary) else ())
        if session.ended.reason == NOTHING_TO_DO:
            warn(f"{session.folder.name}: nothing to do")
        for line in _next_steps(summary, session.folder.name):
            warn(line)


def _result_lines(summary: Summary) -> Iterator[str]:
    if summary.simulated:
        yield "SIMULATED MODEL: these figures say nothing about any real one"
        yield ""
    if summary.comparison:
        yield from _comparison_lines(summary, summary.comparison)
    elif len(summary.arms) > 1:
        yield from _arm_lines(summary)
    else:
        yield from _single_lines(summary)
    if extra := list(_extra_lines(summary)):
        yield from ("", *extra)


def _saved_lines(session: Session) -> Iterator[str]:
    """Where the results are to be found, by the sinks that they go into."""
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


def _comparison_lines(summary: Summary, comparison: Comparison) -> Iterator[str]:
    yield "COMPARATIVE BENCHMARK RESULTS"
    yield "Mode            | Success Rate    | Avg Cost     | Avg Iterations"
    yield _RULE
    for name, label in (("zero-shot", "Zero-Shot"), ("iterative", "Iterative")):
        yield _row(label, summary.arms[name].summary)
    yield _RULE
    points = _known(comparison.success_rate_improvement, "+5.1f", "% points")
    cost = f"$ {comparison.avg_cost_difference:>+8.4f}"
    iterations = _known(comparison.iteration_difference, ">+14.1f")
    yield f"{'Improvement':<15} | {points:<15} | {cost:<12} | {iterations}"


def _row(label: str, figures: Figures) -> str:
    rate = f"{_known(figures.success_rate, '5.1f', '%')} ({figures.successes:2d}/{figures.total_problems:2d})"
    return f"{label:<15} | {rate:<15} | $ {figures.avg_cost:>7.4f}    | {_known(figures.avg_iterations, '>14.1f')}"


def _arm_lines(summary: Summary) -> Iterator[str]:
    width = max(15, *map(len, summary.arms))
    yield _heading(summary)
    yield f"{'Arm':<{width}} | Success Rate    | Avg Cost     | Avg Iterations"
    yield "-" * (width - 15) + _RULE
    for name, arm in summary.arms.items():
        yield _row(f"{name:<{width}}", arm.summary)


def _known(value: float | None, form: str, unit: str = "") -> str:
    """A dash, as wide, for the average of nothing."""
    return f"{value:{form}}{unit}" if value is not None else "-".rjust(len(f"{0.0:{form}}{unit}"))


def _single_lines(summary: Summary) -> Iterator[str]:
    figures = summary.summary
    yield _heading(summary)
    yield f"Mode: {summary.mode}"
    yield f"Problems: {figures.total_problems}"
    yield f"Successes: {figures.successes} ({_known(figures.success_rate, '.1f', '%').strip()})"
    yield f"Total Cost: ${figures.total_cost:.4f}"
    yield f"Avg Cost per Problem: ${figures.avg_cost:.5f}"
    yield f"Avg Iterations per Problem: {_known(figures.avg_iterations, '.1f').strip()}"


def _has_ended(summary: Summary) -> bool:
    """Whether there is anything to show: of a run that was only handed over, there isn't."""
    return summary.status != "detached" or any(arm.results for arm in summary.arms.values())


def _heading(summary: Summary) -> str:
    return f"BENCHMARK {summary.status.upper()}"


def _extra_lines(summary: Summary) -> Iterator[str]:
    pairs = summary.comparison.problems if summary.comparison else None
    if pairs is not None and any(len(arm.results) > pairs for arm in summary.arms.values()):
        yield f"improvement: over the {counted(pairs, 'experiment')} judged in both modes"
    for name, arm in summary.arms.items():
        figures = arm.summary
        if figures.success_rate_interval:
            low, high = figures.success_rate_interval
            interval = f"95% interval {low:.1f}% to {high:.1f}% ({figures.success_rate_interval_method})"
            yield f"{name}: {interval}{_pass_at(figures)}{_causes(figures)}"
        if figures.baseline_cost is not None:
            yield (
                f"{name}: on {summary.config['baseline_model']} the local tokens "
                f"would have cost ${figures.baseline_cost:.4f}"
            )
        if not figures.cost_known:
            yield f"{name}: the price of a model is unknown, so costs are too low; see prices in koderz.toml"


def _pass_at(figures: Figures) -> str:
    if len(figures.pass_at_k) < 2:
        return ""
    return "; " + ", ".join(f"{name} {100 * value:.1f}%" for name, value in figures.pass_at_k.items())


def _causes(figures: Figures) -> str:
    if not figures.causes:
        return ""
    most = sorted(figures.causes.items(), key=lambda item: -item[1])[:4]
    return "; not passed: " + ", ".join(f"{count} {cause}" for cause, count in most)


def _next_steps(summary: Summary, run: str) -> Iterator[str]:
    """What went otherwise than planned, and the command that fixes it."""
    if summary.faults:
        yield f"{len(summary.faults)} of {summary.planned} experiments ended in a fault, the first with: " + str(
            summary.faults[0]["reason"]
        )
        again = "rescore" if summary.config.get("imported") else "retry"  # nobody is there to be asked again
        yield f"run them again with: koderz benchmark {again} {run}"
    if summary.status in ("interrupted", "stopped", "failed", "incomplete") and summary.reason:
        done = sum(len(arm.results) for arm in summary.arms.values()) + len(summary.faults)
        if done < summary.planned:
            why = f": {summary.reason}" if summary.reason != summary.status else ""
            yield f"{summary.status} after {done} of {summary.planned} experiments{why}"
            yield f"continue with: koderz benchmark resume {run}"


def shortened(text: str, width: int) -> str:
    """At most so many characters, the last an ellipsis where some are left out."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def elapsed(seconds: float) -> str:
    """`1:02:03`, or `2:03` below an hour."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
