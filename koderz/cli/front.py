"""The common frame of all commands that begin a run or work on one again.

Its options, the plan on the screen or as a dry run, progress, results, the sinks, the exit code, and resuming it.
A command of a system is a few lines:

@app.command(cls=PanelCommand)
@run_options(suite="ruler", solver="rlm")
def rlm(front: Front, count: int = 10) -> None:
    '''Run the first COUNT tasks of RULER.'''
    front.run(range(count))

add_resume_commands(app)
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from koderz.cli.console import OutputOptions, data_output, while_read
from koderz.cli.flags import (
    JUNIT,
    DeclaredCommand,
    Quiet,
    Run,
    SummaryJson,
    Trust,
    Wait,
    parameters_of,
    with_flags,
)
from koderz.cli.gates import Demands, demands_in
from koderz.cli.groups import PanelCommand
from koderz.cli.options import with_settings
from koderz.engines.sources import EVERYTHING, Scope
from koderz.errors import KoderzError
from koderz_tracker.errors import CAUSES

if TYPE_CHECKING:
    from koderz.cli.session import SessionScreen
    from koderz.plans.plan import Plan
    from koderz.runs.session import SessionResult
    from koderz.suites.matrix import Matrix
    from koderz.suites.suite import Suite
    from koderz_tracker import records

EXIT_CODES = {
    "complete": 0,
    "decided": 0,
    "incomplete": 3,
    "stopped": 3,
    "detached": 0,
    "failed": 4,
    "interrupted": 130,
}

AcceptChanges = Annotated[
    bool,
    typer.Option(
        "--accept-changes", help="Continue even if the suite, prompts or solver have changed."
    ),
]
_DETACH = Annotated[
    bool,
    typer.Option(
        "--detach",
        help="With --engine modal: return once everything is submitted; collect results with resume.",
    ),
]
_SHOWN = {"json": SummaryJson, "quiet": Quiet, "wait": Wait}
_REGRESSION = Annotated[
    bool,
    typer.Option(
        "--fail-on-regression",
        help="With --until-decided: exit code 1 where an arm is shown to be worse than the one it is compared with.",
    ),
]
EXIT_REGRESSION = 1
_OF_A_RUN = {
    "dry_run": Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and its estimated cost, then exit.")
    ],
    "sample": Annotated[
        int | None,
        typer.Option(
            "--sample",
            metavar="N",
            min=1,
            help="With --dry-run: ask N tasks and say what that cost. Paid for, up to --max-cost, and kept as a run.",
        ),
    ],
    "detach": _DETACH,
    "fail_on_regression": _REGRESSION,
    **_SHOWN,
    "trust_config": Trust,
}
_ACCEPTED = {
    "accept_changes": AcceptChanges,
    "accept_divergence": Annotated[
        bool,
        typer.Option(
            "--accept-divergence",
            help="Continue even if the solver's calls diverge from the recording.",
        ),
    ],
    "trust_config": Trust,
}
_OF_RESUMING = {
    "detach": _DETACH,
    "past_decision": Annotated[
        bool,
        typer.Option(
            "--past-decision", help="Run the rest of a decided run; its decision stays what it was."
        ),
    ],
    **_SHOWN,
    **JUNIT,
    **_ACCEPTED,
}
_OF_RETRYING = {
    "causes": Annotated[
        list[str] | None,
        typer.Option(
            "--cause",
            metavar="CAUSE",
            help=f"Only faults of this cause; repeatable. One of {', '.join(CAUSES)}.",
            autocompletion=lambda incomplete: [
                cause for cause in CAUSES if cause.startswith(incomplete)
            ],
        ),
    ],
    "detach": _DETACH,
    **_SHOWN,
    **JUNIT,
    **_ACCEPTED,
}
_OF_RESCORING = {
    **_SHOWN,
    **JUNIT,
    "calls": Annotated[
        bool,
        typer.Option(
            "--continue",
            help="Make the calls that new verdicts lead to; otherwise those experiments end as faults.",
        ),
    ],
    "ask_judge": Annotated[
        bool,
        typer.Option(
            "--ask-judge",
            help="Ask a judge that is a model again, instead of using its old replies.",
        ),
    ],
    **_ACCEPTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """A new run, as the options of its command describe it."""

    values: Mapping[str, Any]  # the settings and options of what takes part, as the user gave them
    usual: Mapping[str, Any]  # those that hold where nothing is given
    scope: Scope = EVERYTHING  # what has an effect in the command
    shown: OutputOptions = field(default_factory=OutputOptions)
    demands: Demands = field(default_factory=Demands)
    dry_run: bool = False
    sample: int | None = None  # tasks that a dry run asks
    detach: bool = False
    fail_on_regression: bool = False
    trust_config: bool = False
    suite: Suite | None = None  # the settings' own, if the command has loaded it already

    def __post_init__(self) -> None:
        if self.sample and not self.dry_run:
            raise KoderzError(
                "--sample asks a few tasks before a run is begun: it goes with --dry-run"
            )

    def run(
        self,
        span: range | None = None,
        *,
        solver_arguments: Mapping[str, str] | None = None,
        matrix: Matrix | None = None,
        asks_first: bool = False,
        figures: Callable[[Path], object] | None = None,
        screen: SessionScreen | None = None,
        complete: Callable[[Plan], Plan] = lambda plan: plan,
        resumes: bool = False,
    ) -> None:
        """Plans the tasks in `span` and carries the plan out, or with --dry-run prints it. Ends with the exit code.

        `matrix`: the arms and cells, where options don't state them; `asks_first`: in a terminal the plan is shown, and
        begun only where the user says so; `figures`: prints what the run in a folder has come to; `screen`: in place of
        the usual one; `complete`: adds to the plan what is known only once it is about to begin; `resumes`: goes on
        with the last run of the same plan, where there is one.
        """
        import asyncio

        from koderz.cli.session import SessionScreen
        from koderz.engines.sources import require_effect
        from koderz.plans.plan import sample_of
        from koderz.runs.prepare import prepare

        screen = screen or SessionScreen(self.shown, figures)
        prepared = prepare(
            self.settings,
            span,
            solver_arguments=solver_arguments,
            trust_config=self.trust_config,
            matrix=matrix,
            observer=screen,
            suite=self.suite,
            scope=self.scope,
        )
        plan = asyncio.run(prepared)
        if not self.scope.only:  # of a command that has these alone, each is read
            require_effect([plan], self.values)
        if self.fail_on_regression and plan.record.until_decided is None:
            raise KoderzError(
                "--fail-on-regression is for runs with --until-decided; of others ask: benchmark compare"
            )
        asks = asks_first and not self.shown.json and sys.stdin.isatty() and sys.stdout.isatty()
        if self.dry_run or asks:
            from koderz.cli.overview import show_plan

            sampled = (
                asyncio.run(take_sample(complete(sample_of(plan, self.sample))))
                if self.sample
                else None
            )
            show_plan(plan, json=self.shown.json, sampled=sampled)
            if sampled:
                keep_sample(sampled, self.shown)
        if self.dry_run or (asks and not typer.confirm("Begin?", default=True)):
            return
        if resumes and (before := last_of(plan)):
            again = {"results": before.parent}
            take_up(
                before.name,
                again,
                self.shown,
                self.demands,
                screen=screen,
                trust_config=self.trust_config,
            )
        from koderz.runs.session import begin

        code = with_regression if self.fail_on_regression else exit_code
        session = one(begin(complete(plan), screen, detach=self.detach))
        finish(session, self.shown, tell=screen.results, code=code, demands=self.demands)

    @property
    def settings(self) -> dict[str, Any]:
        """The values, with those that hold where nothing is given, as far as something that takes part has them."""
        from koderz.engines.sources import schema_here

        known = (
            schema_here({**self.usual, **self.values}, scope=self.scope).fields
            if self.usual
            else ()
        )
        return {name: value for name, value in self.usual.items() if name in known} | {
            **self.values
        }


async def take_sample(plan: Plan) -> SessionResult:
    """Carries out the plan of a sample without a screen; what it comes to is shown with the plan it is a sample of."""
    from koderz.cli.session import SessionScreen
    from koderz.runs.session import begin

    return await begin(plan, SessionScreen(OutputOptions(quiet=True)))


def keep_sample(sampled: SessionResult, shown: OutputOptions) -> None:
    """Hands a sample to the sinks, and ends with its exit code if it isn't complete."""
    from koderz.cli.sync import catch_up_session

    catch_up_session(sampled, quiet=True, wait=shown.wait)
    if code := exit_code(sampled):
        raise typer.Exit(code)


def run_options(
    *,
    only: Collection[str] = (),
    without: Mapping[str, str] = MappingProxyType({}),
    parts: Collection[tuple[str, str]] = (),
    offered: Collection[tuple[str, str]] = (),
    told: Mapping[str, str] = MappingProxyType({}),
    flags: Mapping[str, Any] = MappingProxyType({}),
    **usual: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command the options of a run, `only` some or all `without` some, handed to it as one argument `front`.

    `usual` holds unless one is given: with a suite, or with `parts`, the command is about that alone, and what has no
    part in it is neither shown nor taken. `only`, `without` and `offered`: see `Scope`; `told`: see `with_settings`;
    `flags`: more options, of gates and JUnit.
    """
    scope = Scope(
        only=only,
        without=without,
        is_own=bool("suite" in usual or parts),
        parts=parts,
        offered=offered,
    )
    of_a_run = {name: flag for name, flag in (_OF_A_RUN | {**flags}).items() if name not in without}

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        def with_front(given: dict[str, Any], **flags: Any) -> None:
            mine = {p.name: flags.pop(p.name) for p in own}
            shown, demands = _shown(flags), demands_in(flags)
            front = Front(
                values=given, usual=usual, scope=scope, shown=shown, demands=demands, **flags
            )
            command(front=front, **mine)

        own = [
            p
            for p in inspect.signature(command, eval_str=True).parameters.values()
            if p.name != "front"
        ]
        with_front.__doc__, with_front.__name__ = command.__doc__, command.__name__
        declared = DeclaredCommand(with_front, [*own, *parameters_of(of_a_run)])
        return with_settings(scope=scope, usual=usual, told=told)(declared)

    return decorate


def add_resume_commands(app: typer.Typer) -> None:
    """Adds the commands that take a run up again: resume, retry and rescore."""
    text = (
        "Resume a run where it stopped, and with it, in their order, the runs that were planned together with it. "
        "Nothing recorded is asked, judged or paid for again."
    )
    text += _examples("resume latest", "resume latest --max-cost 5")
    app.command(name="resume", cls=PanelCommand, help=text)(_resuming("resume", _OF_RESUMING))
    text = "Run the experiments that ended in a fault again, from what they have on record."
    text += _examples("retry latest", "retry latest --cause unreachable")
    app.command(name="retry", cls=PanelCommand, help=text)(_resuming("retry", _OF_RETRYING))
    text = "Run the solvers again over the recorded replies with new verdicts. No call is made unless asked for."
    text += _examples("rescore latest")
    app.command(name="rescore", cls=PanelCommand, help=text)(_resuming("rescore", _OF_RESCORING))
    text = (
        "Cancel a run's batches at their provider, and keep what they had done by then. "
        "Resuming sends the rest again."
    )
    text += _examples("cancel latest")
    app.command(name="cancel", cls=PanelCommand, help=text)(
        _resuming("resume", {**_SHOWN, **_ACCEPTED}, buys=False, code=_code_of_cancelling)
    )


def _examples(*commands: str) -> str:
    return "\n\nExamples:\n" + "\n".join(f"    koderz benchmark {words}" for words in commands)


_OF_ADDRESSES = {
    "base_url": "Address of the run's server, where its record has it without what could be a secret.",
    "wasm_url": "Address of the run's WASM manager, where its record has it without what could be a secret.",
}


def _code_of_cancelling(session: SessionResult) -> int:
    return 0 if session.ended.status in ("stopped", "incomplete") else exit_code(session)


def _resuming(
    how: Literal["resume", "retry", "rescore"], flags: Mapping[str, Any], **fixed: Any
) -> Callable[..., None]:
    """A command that works on a run again. `fixed`: further arguments of `take_up`."""

    @with_settings("results", of_run=True, told=_OF_ADDRESSES)
    @with_flags(flags)
    def command(run: Run, given: dict[str, Any], **flags: Any) -> None:
        shown, demands = _shown(flags), demands_in(flags)
        way = {name: value for name, value in flags.items() if value is not None}
        take_up(run, given, shown, demands, how=how, **way, **fixed)

    return command


def _shown(flags: dict[str, Any]) -> OutputOptions:
    """Takes the display options out of the flags."""
    return OutputOptions(**{name: flags.pop(name) for name in _SHOWN})


def take_up(
    run: str,
    given: dict[str, Any],
    shown: OutputOptions,
    demands: Demands | None = None,
    *,
    screen: SessionScreen | None = None,
    code: Callable[[SessionResult], int] | None = None,
    **way: Any,
) -> None:
    """Resumes, retries or rescores a run, and ends with its exit code. `way`: the fields of `ResumeOptions`.

    With a run that is resumed, those that were planned together with it are.
    """
    from koderz.cli.session import SessionScreen
    from koderz.runs.resume import ResumeOptions, resume_together

    screen = screen or SessionScreen(shown)
    results: Path | None = given.pop("results", None)
    sessions = resume_together(
        run, ResumeOptions(**way), results=results, changes=given, observer=screen
    )
    finish(sessions, shown, tell=screen.results, code=code or exit_code, demands=demands)


def last_of(plan: Plan, changeable: Collection[str] = ()) -> Path | None:
    """The last run of the same plan in its results folder, whatever the `changeable` settings are."""
    from msgspec import structs

    from koderz.plans.plan import decisive_digest
    from koderz_tracker.runs import read_plan, run_folders

    def digest(record: records.Plan) -> str:
        left = {name: value for name, value in record.config.items() if name not in changeable}
        return (
            decisive_digest(structs.replace(record, config=left))
            if changeable
            else record.basis.digest
        )

    wanted = digest(plan.record)
    for folder in reversed(run_folders(plan.settings.results)):
        with suppress(KoderzError):  # what can't be read is no such run
            found = read_plan(folder)
            if (
                found.config.get("dataset") == plan.record.config.get("dataset")
                and digest(found) == wanted
            ):
                return folder
    return None


def exit_code(session: SessionResult) -> int:
    """The exit code of a command after its session."""
    if session.ended.was_called_off and session.unbegun:
        return EXIT_CODES["interrupted"]
    return EXIT_CODES.get(session.ended.status, 3)


def with_regression(session: SessionResult) -> int:
    """The exit code after a session, 1 where its decision shows that an arm is worse."""
    from koderz.analysis.sequential import regressions

    return exit_code(session) or (EXIT_REGRESSION if regressions(session.summary) else 0)


async def one(session: Awaitable[SessionResult]) -> AsyncIterator[SessionResult]:
    """Yields the only session, for `finish`."""
    yield await session


def finish(
    sessions: AsyncIterator[SessionResult],
    shown: OutputOptions,
    *,
    tell: Callable[[SessionResult], object],
    code: Callable[[SessionResult], int] = exit_code,
    demands: Demands | None = None,
) -> None:
    """Runs sessions and prints the results of each, leaves or waits for their sinks, and ends with an exit code.

    That is the highest of theirs, the one of what went most wrong; by `demands`, of what was asked of them besides.
    """
    import asyncio

    from koderz.cli.sync import catch_up_session

    with interruptible():
        ended = asyncio.run(_reported(sessions, shown, tell))
    for session in ended:
        catch_up_session(session, quiet=shown.quiet, wait=shown.wait)
    raise typer.Exit((demands or Demands()).code_after(ended, code))


async def _reported(
    sessions: AsyncIterator[SessionResult],
    shown: OutputOptions,
    tell: Callable[[SessionResult], object],
) -> Sequence[SessionResult]:
    ended = []
    async for session in sessions:
        tell(session)
        if shown.json:
            from koderz_tracker.sinks.json import encode_summary

            with while_read():
                data_output().writelines(encode_summary(session.summary))
        ended.append(session)
    return ended


@contextmanager
def interruptible() -> Iterator[None]:
    """Treats a cancelled asyncio run, ended by a second Ctrl-C, as an interruption and not as a crash."""
    import asyncio

    try:
        yield
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
