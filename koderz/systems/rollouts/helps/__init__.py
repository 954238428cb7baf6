"""`koderz helps`: runs an agent with and without what may help it, until it is decided whether it does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.cli.console import print_json, say_all, warn
from koderz.cli.front import Front, exit_code, finish, last_of, run_options, with_regression
from koderz.cli.session import SessionScreen, saved_lines
from koderz.errors import KoderzError
from koderz.settings.schema import FIRST_ARM
from koderz.systems.rollouts.commands import DATA, TOLD, WITHOUT, Data, own, stated, usual_settings

if TYPE_CHECKING:
    from koderz.plans.plan import Plan
    from koderz.runs.session import SessionResult
    from koderz.systems.rollouts.helps.verdict import Arms, Power, Verdict
    from koderz.systems.rollouts.results.files import Place

_AT_ONCE = 4
_WITHOUT = {**WITHOUT, "sample": "", "detach": "", "until_decided": "", "context": ""}


def _thing(help_text: str, metavar: str, *flags: str) -> Any:
    return typer.Option(
        *flags, metavar=metavar, help=f"{help_text} Repeatable.", rich_help_panel="What may help"
    )


@run_options(
    without=_WITHOUT,
    told={
        **TOLD,
        "dataset": TOLD["dataset"].replace("In place of CONFIG: a", "A"),
        "local_model": "The model of the agent; of the embedded tasks simulated.",
        "concurrency": f"Rollouts at work at once. Default: {_AT_ONCE}.",
    },
    suite="rollouts",
    until_decided=FIRST_ARM,
)
def helps(
    front: Front,
    skill: Annotated[
        list[str] | None, _thing("A skill, as it is or at a git revision.", "DIR[@REV]")
    ] = None,
    mcp: Annotated[
        list[str] | None, _thing("An MCP server: .mcp.json, a URL or a command.", "FILE|COMMAND")
    ] = None,
    context_file: Annotated[
        list[str] | None, _thing("A context file, such as AGENTS.md.", "FILE[@REV]", "--context")
    ] = None,
    memory: Annotated[
        list[str] | None, _thing("A memory: a file or folder.", "STORE[@REV]")
    ] = None,
    system_prompt: Annotated[
        list[str] | None, _thing("Added to the system prompt.", "FILE[@REV]")
    ] = None,
    together: Annotated[bool, own("One arm of all that is named.", None, "--together")] = False,
    each_without: Annotated[
        bool, own("All that is named against all but one of it.", None, "--each-without")
    ] = False,
    also: Annotated[
        Path | None,
        own("Tasks that have nothing to do with it, to see whether it harms there.", "DATASET"),
    ] = None,
    agent: Annotated[str, own("The agent.", "NAME")] = "koderz",
    rollouts: Annotated[
        int | None, own("Rollouts of each task in each arm.", "N", min=1, max=1000)
    ] = None,
    data: Data = DATA,
) -> None:
    """Tell whether a skill, server, context file or memory helps an agent.

    The same tasks are run with and without it, until that is decided. Each thing that is named has an arm, compared
    with a plain one; several revisions of one thing are compared with the first. The plan says first what difference
    the tasks can show. The same command again goes on where it was stopped; --seed N begins anew. Exit code 1 with
    --fail-on-regression where something is shown to harm.

    Examples:
        koderz helps
        koderz helps --skill sql-style --dataset tasks --agent codex --max-cost 20
        koderz helps --skill sql-style@v1 --skill sql-style --dataset tasks --dry-run
    """
    from koderz.systems.rollouts.helps.verdict import SKILL, arms_of, given_by, write_tasks

    options = {
        "skills": skill,
        "mcp": mcp,
        "context": context_file,
        "memory": memory,
        "system_prompt": system_prompt,
    }
    named = {key: texts for key, texts in options.items() if texts}
    with ExitStack() as stack:
        if front.dry_run:  # which leaves nothing behind
            data = Path(stack.enter_context(TemporaryDirectory(prefix="koderz-helps-")))
        values = dict(front.values)
        if "dataset" not in values:
            values = {
                "local_model": "simulated",
                **values,
                "dataset": write_tasks(data / "helps" / "parcels"),
            }
            named = named or {"skills": [str(SKILL)]}
        front = replace(front, values=values)
        arms = arms_of(given_by(named), together=together, each_without=each_without)
        asked = partial(_asked, front, arms, agent=agent, rollouts=rollouts, data=data)
        questions = [
            asked("helps", values["dataset"]),
            *([asked("elsewhere", also)] if also else []),
        ]
        for each in questions:
            stack.callback(each.place.release)
        if front.dry_run:
            _show(questions, json=front.shown.json)
            return
        told = iter(questions)
        finish(
            _sessions(questions),
            replace(front.shown, json=False),
            tell=lambda session: next(told).tell(session),
            code=with_regression if front.fail_on_regression else exit_code,
        )


class ArmsScreen(SessionScreen):
    """The arms on one dataset: a run that is planned, and its screen, which ends with the verdict."""

    def __init__(self, name: str, front: Front, arms: Sequence[str], place: Place) -> None:
        super().__init__(front.shown)
        self.name, self.place, self._arms, self.front = name, place, arms, front
        self.plan: Plan
        self.power: Power

    async def planned(self, front: Front) -> Plan:
        """The plan of its run with the settings of `front`."""
        from koderz.runs.prepare import prepare

        trust, scope, matrix = front.trust_config, front.scope, self.place.matrix
        return await prepare(
            front.settings,
            None,
            trust_config=trust,
            matrix=matrix,
            observer=self,
            suite=front.suite,
            scope=scope,
        )

    def tell(self, session: SessionResult) -> None:
        """Prints the verdict on each arm, or with --json all that it rests on."""
        if not self._shown.json:
            self.results(session)
            return
        told = {
            name: getattr(session.summary, name)
            for name in ("run_id", "status", "simulated", "paid")
        }
        verdicts = [verdict.document for verdict in self._verdicts(session)]
        summary = session.summary_path and str(session.summary_path)
        power = self.power._asdict()
        print_json(
            {
                "question": self.name,
                **told,
                "power": power,
                "verdicts": verdicts,
                "summary": summary,
            }
        )

    def _verdicts(self, session: SessionResult) -> Sequence[Verdict]:
        from koderz.systems.rollouts.helps.verdict import verdicts_of

        return verdicts_of(session.summary, self._arms)

    def _tell(self, session: SessionResult) -> None:
        say_all((*session.summary.cautions, "") if session.summary.cautions else ())
        say_all(["ELSEWHERE"] if self.name == "elsewhere" else ())
        verdicts = self._verdicts(session)
        say_all(
            [] if verdicts else [f"Nothing is decided yet: the run is {session.summary.status}"]
        )
        for number, verdict in enumerate(verdicts):
            say_all([*([""] if number else []), *verdict.lines()])
        say_all(saved_lines(session))


def _asked(
    front: Front,
    arms: Arms,
    name: str,
    dataset: Path,
    *,
    agent: str,
    rollouts: int | None,
    data: Path,
) -> ArmsScreen:
    """Plans the arms on a dataset. Raises KoderzError for what can't be run here."""
    import asyncio

    from koderz.engines.sources import require_effect
    from koderz.systems.rollouts.helps.verdict import power_of, write_config
    from koderz.systems.rollouts.options import RolloutsOptions

    if dataset.suffix == ".toml":
        raise KoderzError(
            f"{dataset}: koderz helps takes tasks; a configuration states its arms itself, as [[arms]], and is run by: "
            f"koderz rollouts run {dataset} --until-decided"
        )
    found = str(dataset.absolute()) if dataset.exists() else str(dataset)
    registry = (
        usual_settings(front.values, trust_config=front.trust_config).of(RolloutsOptions).registry
    )
    config = write_config(data.absolute() / "helps", name, arms, found, registry, agent)
    values = {
        key: value for key, value in front.values.items() if key not in ("dataset", "registry")
    }
    front, place = stated(
        replace(front, values=values),
        config,
        agent=agent,
        rollouts=rollouts,
        parallel=_AT_ONCE,
        data=data,
        is_own=True,
    )
    question = ArmsScreen(name, front, [*arms], place)
    question.plan = asyncio.run(question.planned(front))
    require_effect([question.plan], front.values)
    question.power = power_of(question.plan)
    return question


def _show(questions: Sequence[ArmsScreen], *, json: bool) -> None:
    """Prints the plan on each dataset: its forecast, and the differences that it can show."""
    from koderz.analysis.forecast import forecast_of

    for number, each in enumerate(questions):
        forecast = forecast_of(each.plan)
        if json:
            print_json({"question": each.name, **forecast.document, "power": each.power._asdict()})
        else:
            say_all(
                [
                    *(["", "ELSEWHERE"] if number else ()),
                    *forecast.lines(),
                    f"Power: {each.power.line}",
                ]
            )


async def _sessions(questions: Sequence[ArmsScreen]) -> AsyncIterator[SessionResult]:
    """Asks the questions one after the other, or goes on with the run that did. The cost cap is of all together.

    Before anything is spent it warns of tasks that are too few. Raises KoderzError if they can't show anything.
    """
    from koderz.runs.resume import ResumeOptions, resume_run
    from koderz.runs.session import begin
    from koderz.settings.layers import fields_in

    if questions[0].power.shows is None:
        raise KoderzError(f"{questions[0].power.line}. Name more tasks with --dataset")
    for each in questions:
        if not each.power.is_enough:
            warn(f"warning: {each.name}: {each.power.line}")
    cap = questions[0].plan.settings.max_cost
    for number, each in enumerate(questions, 1):
        plan = each.plan
        changeable = {
            name for name, field in fields_in(plan.settings).items() if field.about.changeable
        }
        if before := last_of(plan, changeable):
            changes = {
                name: value for name, value in each.front.values.items() if name in changeable
            }
            changes, results = {**changes, "max_cost": cap}, before.parent
            session = await resume_run(
                before.name, ResumeOptions(), results=results, changes=changes, observer=each
            )
        else:
            if plan.settings.max_cost != cap:
                front = replace(each.front, values={**each.front.values, "max_cost": cap})
                plan = await each.planned(front)
            session = await begin(each.place.documented(plan), each)
        cap = None if cap is None else max(0.0, cap - session.summary.paid.get("total", 0.0))
        # stopped by the user, or at the cap
        is_last = session.ended.ends_all or session.ended.status == "stopped"
        left = len(questions) - number if is_last else 0
        yield session._replace(unbegun=left)
        if left:
            return
