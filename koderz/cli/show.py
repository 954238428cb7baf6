"""`koderz benchmark show`: a run, its failures, or one experiment's whole story."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.analysis.story import (
    thought_of,
    told_asked,
    told_frames,
    told_grade,
    told_grades,
    told_reply,
    told_servers,
    told_tool,
)
from koderz.cli.console import counted, data_output, print_json, say, warn
from koderz.cli.flags import LEAST, Faults, Results, Run, with_flags
from koderz.cli.gates import Demands
from koderz.errors import KoderzError
from koderz.runs.observer import SessionView
from koderz.settings.options import without_effect
from koderz.streams import plain
from koderz_tracker.records import Attempt, Call, Experiment, Fault, Grade, Record

if TYPE_CHECKING:
    from koderz.analysis.blocks import Block
    from koderz.analysis.runs import Run as AnyRun
    from koderz.analysis.story import Experiments, Outcome, Story, StoryStep


@with_flags(LEAST)
def show(
    run: Run,
    problem: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The whole story of this task: HumanEval/3, or 3."),
    ] = None,
    failures: Annotated[
        bool, typer.Option("--failures", help="Only experiments that were not passed.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", help="Only the Nth attempt of a story.", min=1)
    ] = None,
    arm: Annotated[
        str | None, typer.Option(metavar="ARM", help="Only this arm's, e.g. iterative.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(metavar="N", help="Only this sample, from 0.", min=0)
    ] = None,
    artifact: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this artifact of the last attempt, as it is."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print it as JSON, and nothing else.")
    ] = False,
    faults: Faults = None,
    *,
    results: Results,
    **gates: Any,
) -> None:
    """Show a run; with --failures what was not passed and why; with --problem each prompt, reply, program and verdict.

    Works on a run that goes on as well, as far as it has come.

    Examples:
        koderz benchmark show latest --failures
        koderz benchmark show latest --problem HumanEval/3
    """
    from koderz.analysis.runs import find, load_run
    from koderz_tracker.sinks.process import wake

    for option, value in (("--attempt", attempt), ("--artifact", artifact)):
        if value is not None and problem is None:
            raise KoderzError(f"{option} picks from one story: name its task with --problem")
    if faults and (problem is not None or failures):
        raise without_effect("--faults", "the overview of a run")
    if any(gates.values()) and (problem is not None or failures):
        raise without_effect("--min", "the overview of a run")
    demands = Demands(**gates)
    wake(results, os.environ)
    path = find(results, run)
    if problem is None and not failures:
        shown = _show_run(load_run(path), arm, json=json, faults=faults)
        if code := demands.code_of(shown, arm):
            raise typer.Exit(code)
        return
    from koderz.analysis.story import Experiments, journal_folder

    experiments = Experiments(journal_folder(path))
    found = _chosen(experiments, problem, arm, sample, failures=failures)
    if problem is None:
        _show_failures(experiments, found, json=json)
    elif artifact is not None:
        _print_artifact(experiments, found, attempt, artifact)
    else:
        _show_stories(experiments, found, attempt, json=json)
        if not json and attempt is None:
            _show_spreads(load_run(path), found)


def _chosen(
    experiments: Experiments,
    problem: str | None,
    arm: str | None,
    sample: int | None,
    *,
    failures: bool,
) -> list[Outcome]:
    from koderz.analysis.story import problem_named

    plan = experiments.plan
    name = problem_named(problem, plan.tasks) if problem is not None else None
    arms = [each.name for each in plan.arms]
    if arm is not None and arm not in arms:
        raise KoderzError(f"--arm {arm}: the run has {' and '.join(arms)}")
    if sample is not None and sample >= plan.samples:
        raise KoderzError(f"--sample {sample}: the run has {plan.samples}, counted from 0")
    found = [
        outcome
        for outcome in experiments.outcomes
        if (name is None or outcome.problem_id == name)
        and (arm is None or outcome.arm == arm)
        and (sample is None or outcome.sample == sample)
        and not (failures and getattr(outcome, "success", False))
    ]
    if name is not None and not found:
        why = "it was passed" if failures else "it has not ended yet"
        raise KoderzError(f"{experiments.folder.name}: nothing to show of {name}: {why}")
    return found


def _show_run(run: AnyRun, arm: str | None, *, json: bool, faults: str | None) -> AnyRun:
    """Prints a run, and returns it as it was shown."""
    from koderz.analysis.completion import with_faults_failed
    from koderz.cli.overview import overview
    from koderz.cli.tables import print_blocks

    if arm is not None and arm not in run.arms:
        raise KoderzError(f"--arm {arm}: the run has {' and '.join(run.arms)}")
    found = with_faults_failed(run) if faults == "fail" else run
    if not json:
        print_blocks(overview(found, [arm] if arm else list(run.arms)))
    elif found is not run or run.is_log:  # as its file would have it
        from koderz_tracker.sinks.json import encode_summary
        from koderz_tracker.summary import Summary

        shown = Summary(**{item.name: getattr(found, item.name) for item in fields(Summary)})
        data_output().writelines(encode_summary(shown))
    elif run.path.is_file():  # the summary
        from koderz_tracker.files import open_own

        with open_own(run.path) as file:
            data_output().write(file.read())
    else:  # as its file would have it
        from koderz_tracker.sinks.json import encode_summary
        from koderz_tracker.summary import summarize

        data_output().writelines(encode_summary(summarize(run.path)))
    return found


def _show_failures(experiments: Experiments, found: Sequence[Outcome], *, json: bool) -> None:
    if json:
        print_json(found)
        return
    if not found:
        none_ended = not experiments.outcomes
        ended = (
            "no experiment has ended yet"
            if none_ended
            else "no experiment failed of those that have ended"
        )
        say(f"{experiments.folder.name}: {ended}")
        return
    from koderz.analysis.blocks import Table, Text
    from koderz.cli.tables import print_blocks

    # By cause, the commonest first; faults come last.
    groups: dict[str, list[Outcome]] = {}
    for outcome in found:
        cause = (
            f"fault, {outcome.cause}"
            if isinstance(outcome, Fault)
            else outcome.cause or outcome.verdict
        )
        groups.setdefault(cause, []).append(outcome)
    ranked = sorted(
        groups.items(), key=lambda item: (isinstance(item[1][0], Fault), -len(item[1]), item[0])
    )
    blocks: list[Block] = []
    for cause, members in ranked:
        rows = []
        for outcome in members:
            sample = f"sample {outcome.sample}" if outcome.sample else ""
            which = " · ".join(filter(None, [sample, experiments.sample_name(outcome)]))
            row = ["", outcome.problem_id, outcome.arm, which]
            if isinstance(outcome, Fault):
                row.append(outcome.reason)
            else:
                row += [
                    outcome.verdict,
                    counted(outcome.iterations, "attempt"),
                    f"${outcome.cost:.4f}",
                ]
            rows.append(row)
        blocks += [Text(f"{cause}: {len(members)}"), Table((), rows, ruled=False)]
    print_blocks(blocks)
    problem = shlex.quote(found[0].problem_id)
    warn(f"one in full: koderz benchmark show {experiments.folder.name} --problem {problem}")


def _show_stories(
    experiments: Experiments, found: Sequence[Outcome], attempt: int | None, *, json: bool
) -> None:
    stories = [_only(experiments.story(outcome), attempt) for outcome in found]
    if json:
        print_json(stories)
        return

    for story in stories:
        tell(story, experiments.folder.name)


def _show_spreads(run: AnyRun, found: Sequence[Outcome]) -> None:
    """Draws the distributions behind the figures of these experiments, if the report draws them."""
    from koderz.analysis.sections import Spreads, sections_of, strips
    from koderz.cli.tables import print_blocks

    drawn = [content for _, section in sections_of([run]) for content in section.contents]
    print_blocks(
        line
        for content in drawn
        if isinstance(content, Spreads)
        for outcome in found
        for line in strips(content, outcome.experiment_id)
    )


def _print_artifact(
    experiments: Experiments, found: Sequence[Outcome], attempt: int | None, name: str
) -> None:
    """Prints the artifact of that name from the last attempt that has one. Raises KoderzError if none has."""
    from koderz_tracker.blobs import read_data

    attempts = [
        each for outcome in found for each in _only(experiments.story(outcome), attempt).attempts
    ]
    having = [each for each in attempts if name in each.artifacts]
    if not having:
        known = sorted({name for each in attempts for name in each.artifacts})
        raise KoderzError(f"there is no artifact {name!r}; there is {', '.join(known) or 'none'}")
    content = having[-1].artifacts[name]
    data_output().write(
        content.encode() if isinstance(content, str) else read_data(content, experiments.folder)
    )


def _only(story: Story, number: int | None) -> Story:
    if number is None:
        return story
    from dataclasses import replace

    steps = tuple(step for step in story.steps if step.attempt and step.attempt.number == number)
    if not steps:
        raise KoderzError(
            f"{story.problem_id} ({story.arm}) ended after {len(story.attempts)}, so there is no attempt {number}"
        )
    return replace(story, steps=steps)


_BOLD, _DIM, _GREEN, _RED, _CYAN = "1", "2", "32", "31", "36"
_DIFF_COLOURS = {"+": _GREEN, "-": _RED, "@": _CYAN}


def tell(story: Story, run: str) -> None:
    """Prints a story. Text of models is made safe first, then coloured on a terminal."""
    for line in _lines(story, run):
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class StoryPrinter:
    """An observer that prints the whole story as it happens."""

    def __init__(self, *, quiet: bool) -> None:
        self._say = (lambda _text="": None) if quiet else say

    def showing(self, view: SessionView) -> AbstractAsyncContextManager[None]:
        plan = view.plan
        self._say(f"{plan.tasks[0].id} · {plan.record.mode} · {plan.settings.local_model}")
        self._say(f"Journal: {view.tracker.folder / 'journal.jsonl'}")
        return nullcontext()

    def recorded(self, record: Record) -> None:
        """Prints one step of the story."""
        if isinstance(record, Call):
            self._tell_call(record)
        elif isinstance(record, Attempt):
            self._tell_attempt(record)
        elif isinstance(record, Grade):
            self._say(told_grade(record))
        elif isinstance(record, Experiment):
            word = "PASSED" if record.success else record.verdict.upper()
            attempts = counted(record.iterations, "attempt")
            self._say(
                f"\n{word} after {attempts}, ${record.cost:.4f}, {record.latency:.1f} s of calls"
            )
            if record.note:
                self._say(record.note)
        elif isinstance(record, Fault):
            warn(f"fault: {record.reason}")
            if record.frames:
                warn(told_frames(record.frames))

    def notice(self, text: str) -> None:
        warn(f"note: {text}")

    def _tell_call(self, call: Call) -> None:
        self._say(f"\n── {call.purpose} {call.call} · {_figures(call)}")
        self._say(told_reply(call, raw=True))

    def _tell_attempt(self, attempt: Attempt) -> None:
        cause = f" ({attempt.cause})" if attempt.cause else ""
        task = f" of {attempt.task_id}" if attempt.task_id else ""
        self._say(f"\n── verdict{task}: {attempt.verdict}{cause}")
        if attempt.detail:
            self._say(str(attempt.detail))


def _lines(story: Story, run: str) -> Iterator[str]:
    sample = f" · sample {story.sample}" if story.sample else ""
    sample += f" · {story.sample_name}" if story.sample_name else ""
    yield _ink(f"{story.problem_id} · {story.arm}{sample} · {run}", _BOLD)
    if any(call.depth for call in story.calls):
        yield from _tree(story.calls)
    for step in story.steps:
        if step.call:
            yield from _call(step.call, step)
        for tool in step.tools:
            heading, text = told_tool(tool)
            yield _rule(heading)
            yield plain(text)
        if step.attempt:
            yield from _attempt(step.attempt, step)
    if servers := [*told_servers(story)]:
        yield _rule("MCP servers")
        yield from map(plain, servers)
    if story.grades:
        heading, *lines = told_grades(story.grades)
        yield _rule(heading)
        yield from map(plain, lines)
    yield ""
    ended = story.outcome
    if isinstance(ended, Fault):
        text = _ink(
            f"FAULT ({ended.cause}) after {ended.calls} calls, ${ended.cost:.4f}: {ended.reason}",
            _RED,
        )
        outcome = text + (f"\n{plain(told_frames(ended.frames))}" if ended.frames else "")
    else:
        what = f"{ended.verdict.upper()} after {counted(ended.iterations, 'attempt')}"
        text = f"{what}, ${ended.cost:.4f}, {ended.latency:.1f} s of calls"
        outcome = _ink(text, _GREEN if ended.success else _RED) + (
            f"\n{plain(ended.note)}" if ended.note else ""
        )
    yield outcome
    yield ""


def _tree(calls: Sequence[Call]) -> Iterator[str]:
    """The tree of calls: each call below the one whose code made it."""
    yield _rule("the recursion")
    below: dict[int | None, list[Call]] = {}
    for call in calls:
        below.setdefault(call.parent if call.depth else None, []).append(call)

    def branch(parent: int | None, margin: str) -> Iterator[str]:
        for call in below.get(parent, ()):
            figures = f"{call.tokens_in:,} tokens in, {call.tokens_out:,} out · {call.latency:.1f} s · ${call.cost:.4f}"
            yield f"{margin}{call.purpose} {call.call}  {figures}"
            yield from branch(call.call, f"{margin}  ")

    yield from branch(None, "")


def _call(call: Call, step: StoryStep) -> Iterator[str]:
    for who, text in told_asked(call, step.asked):
        yield _rule("user asked" if who == "user" else who)
        yield plain(text).rstrip()
    if call.reasoning:
        yield _rule("reasoning")
        yield _ink(str(call.reasoning).strip(), _DIM)
    place = f" (depth {call.depth})" if call.depth else ""
    place += f" for call {call.parent}" if call.parent is not None else ""
    yield _rule(
        f"{call.purpose} {call.call}{place}: reply of {call.answered_by or call.model} · {_figures(call)}"
    )
    yield plain(told_reply(call))


def _attempt(attempt: Attempt, step: StoryStep) -> Iterator[str]:
    if isinstance(attempt.program, str):
        yield _rule(f"program of attempt {attempt.number}")
        yield _code(attempt.program)
    if step.diff:
        yield _rule("what changed since the attempt before")
        for line in step.diff:
            yield _ink(line, _DIFF_COLOURS.get(line[:1], ""))
    for name, artifact in attempt.artifacts.items():
        size = (
            f"{len(artifact):,} characters"
            if isinstance(artifact, str)
            else f"{artifact.bytes:,} bytes"
        )
        yield _rule(f"artifact {name}: {size}; print it with --artifact {name}")
    cause = f" ({attempt.cause})" if attempt.cause else ""
    yield _rule(
        f"verdict of attempt {attempt.number}"
        + (f" at {attempt.task_id}" if attempt.task_id else "")
    )
    yield _ink(f"{attempt.verdict}{cause}", _GREEN if attempt.passed else _RED)
    if attempt.detail:
        yield plain(str(attempt.detail)).rstrip()
    if attempt.feedback and attempt.feedback != attempt.detail:
        yield _rule("what the solver was told")
        yield plain(str(attempt.feedback)).rstrip()


def _figures(call: Call) -> str:
    out = f"{call.tokens_out} out{thought_of(call.tokens_reasoning)}"
    return f"{call.tokens_in} tokens in, {out} · {call.latency:.1f} s · ${call.cost:.4f}"


def _rule(text: str) -> str:
    return f"\n{_ink(f'── {text}', _DIM)}"


def _ink(text: str, colour: str) -> str:
    return f"\033[{colour}m{plain(text)}\033[0m" if colour and _is_coloured() else plain(text)


def _code(source: str) -> str:
    clean = plain(source).rstrip()
    if not _is_coloured():
        return clean
    from pygments import highlight
    from pygments.formatters.terminal import TerminalFormatter
    from pygments.lexers.python import PythonLexer

    return str(highlight(clean, PythonLexer(stripnl=False), TerminalFormatter())).rstrip()


def _is_coloured() -> bool:
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
