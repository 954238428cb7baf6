"""`koderz helps`: runs an agent with and without what may help it, until it is decided whether it does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.cli.console import OutputOptions, print_json, say, say_all, warn
from koderz.cli.front import Front, exit_code, finish, last_of, run_options, with_regression
from koderz.cli.session import SessionScreen, saved_lines
from koderz.errors import KoderzError
from koderz.settings.schema import FIRST_ARM
from koderz.systems.rollouts.commands import DATA, TOLD, WITHOUT, Data, own, stated

if TYPE_CHECKING:
    from koderz.plans.plan import Plan
    from koderz.runs.session import SessionResult
    from koderz.systems.rollouts.helps.arms import Arms
    from koderz.systems.rollouts.helps.power import Power
    from koderz.systems.rollouts.helps.verdict import Verdict
    from koderz.systems.rollouts.place import Place

_TASKS = {**WITHOUT, "sample": "--dry-run", "detach": "", "until_decided": ""}


def _thing(help_text: str, metavar: str) -> Any:
    return typer.Option(metavar=metavar, help=f"{help_text} Repeatable.", rich_help_panel="What may help")


@run_options(
    without=_TASKS,
    told={**TOLD, "dataset": TOLD["dataset"].replace("In place of CONFIG: a", "A")},
    suite="rollouts",
    until_decided=FIRST_ARM,
)
def helps(
    front: Front,
    skill: Annotated[list[str] | None, _thing("A skill, as it is or at a git revision.", "DIR[@REV]")] = None,
    mcp: Annotated[list[str] | None, _thing("An MCP server: .mcp.json, a URL or a command.", "FILE|COMMAND")] = None,
    context: Annotated[list[str] | None, _thing("A context file, such as AGENTS.md.", "FILE[@REV]")] = None,
    memory: Annotated[list[str] | None, _thing("A memory: a file or folder.", "STORE[@REV]")] = None,
    system_prompt: Annotated[list[str] | None, _thing("Added to the system prompt.", "FILE[@REV]")] = None,
    together: Annotated[bool, own("One arm of all that is named.", None, "--together")] = False,
    each_without: Annotated[bool, own("All that is named against all but one of it.", None, "--each-without")] = False,
    also: Annotated[str | None, own("Tasks that have nothing to do with it: does it harm there?", "DATASET")] = None,
    agent: Annotated[str, own("The agent.", "NAME")] = "koderz",
    rollouts: Annotated[int | None, own("Rollouts of each task in each arm.", "N", min=1, max=1000)] = None,
    data: Data = DATA,
) -> None:
    """Does it help an agent? Run the same tasks with and without it, and stop once that is decided.

    Each thing that is named has an arm, compared with a plain one; several revisions of one thing are compared with
    the first. The plan says first what difference the tasks can show. The same command again goes on where it was
    stopped; --seed N begins anew. Exit code 1 with --fail-on-regression where something is shown to harm.

    Examples:
        koderz helps --skill skills/sql-style --dataset tasks --agent claude-code --model anthropic/claude-sonnet-5-5
        koderz helps --skill skills/sql-style@v1 --skill skills/sql-style --dataset tasks --dry-run
    """
    from koderz.systems.rollouts.formats import loading_once
    from koderz.systems.rollouts.helps.arms import arms_of, given_by
    from koderz.systems.rollouts.helps.sample import SKILL, write_tasks

    values = dict(front.values)
    if "dataset" not in values:
        values = {"local_model": "simulated", **values, "dataset": write_tasks(data / "helps" / "parcels")}
        if not (skill or mcp or context or memory or system_prompt):
            skill = [str(SKILL)]
    front = replace(front, values=values)
    named = {"skills": skill, "mcp": mcp, "context": context, "memory": memory, "system_prompt": system_prompt}
    given = given_by({key: texts for key, texts in named.items() if texts})
    arms = arms_of(given, together=together, each_without=each_without)
    with ExitStack() as stack:
        stack.enter_context(loading_once())
        asked = partial(_asked, front, arms, agent=agent, rollouts=rollouts, data=data)
        questions = [asked(_MAIN, values["dataset"])]
        if also:
            questions.append(asked("elsewhere", Path(also)))
        for each in questions:
            stack.callback(each.place.release)
        if front.dry_run:
            _show(questions, json=front.shown.json)
            return
        _require_power(questions)
        cap = front.values.get("max_cost")
        code = with_regression if front.fail_on_regression else exit_code
        told = iter(questions)

        def tell(session: SessionResult) -> None:
            question = next(told)
            if front.shown.json:
                print_json(question.document(session))
            else:
                question.screen.results(session)

        finish(_sessions(questions, cap), replace(front.shown, json=False), tell=tell, code=code)


_MAIN = "helps"


class HelpsScreen(SessionScreen):
    """The screen of `koderz helps`: progress with the evidence so far, then the verdict in place of all tables."""

    def __init__(self, shown: OutputOptions, name: str, arms: Sequence[str]) -> None:
        super().__init__(shown)
        self._title = "" if name == _MAIN else "Elsewhere. "
        self._arms = arms

    def verdicts(self, session: SessionResult) -> list[Verdict]:
        """The verdict on each arm; none before anything was decided."""
        from koderz.systems.rollouts.helps.verdict import verdicts_of

        return verdicts_of(session.summary, self._arms)

    def _tell(self, session: SessionResult) -> None:
        summary = session.summary
        say_all((*summary.cautions, "") if summary.cautions else ())
        verdicts = self.verdicts(session)
        for number, verdict in enumerate(verdicts):
            say_all(["", *verdict.lines(self._title)] if number else verdict.lines(self._title))
        if not verdicts:
            say(f"{self._title}Nothing is decided yet: the run is {summary.status}")
        say_all(saved_lines(session))


@dataclass(frozen=True)
class Question:
    """The arms on one dataset: a run that is planned, and its screen."""

    name: str
    place: Place
    plan: Plan
    screen: HelpsScreen
    power: Power

    def document(self, session: SessionResult) -> Mapping[str, Any]:
        """The answer as JSON has it."""
        summary = session.summary
        return {
            "question": self.name,
            "run_id": summary.run_id,
            "status": summary.status,
            "simulated": summary.simulated,
            "paid": summary.paid,
            "power": self.power.document,
            "verdicts": [verdict.document for verdict in self.screen.verdicts(session)],
            "summary": session.summary_path and str(session.summary_path),
        }


def _asked(
    front: Front, arms: Arms, name: str, place: Path, *, agent: str, rollouts: int | None, data: Path
) -> Question:
    """Plans the arms on a dataset. Raises KoderzError for what can't be run here."""
    from koderz.systems.rollouts.helps.arms import write_config
    from koderz.systems.rollouts.helps.power import power_of

    if place.suffix == ".toml":
        raise KoderzError(
            f"{place}: koderz helps takes tasks; a configuration states its arms itself, as [[arms]], and is run by: "
            f"koderz rollouts run {place} --until-decided"
        )
    found = str(place.absolute()) if place.exists() else str(place)
    config = write_config(data.absolute() / "helps", name, arms, found, front.values.get("registry"), agent)
    values = {key: value for key, value in front.values.items() if key not in ("dataset", "registry")}
    front, stated_place = stated(
        replace(front, values=values), config, agent=agent, rollouts=rollouts, data=data, is_own=True
    )
    screen = HelpsScreen(front.shown, name, [*arms])
    plan = front.plan(screen, matrix=stated_place.matrix)
    return Question(name, stated_place, plan, screen, power_of(plan))


def _show(questions: Sequence[Question], *, json: bool) -> None:
    """Prints the plan on each dataset: its forecast, and the differences that it can show."""
    from koderz.analysis.forecast import forecast_of

    for number, each in enumerate(questions):
        forecast = forecast_of(each.plan)
        if json:
            print_json({"question": each.name, **forecast.document, "power": each.power.document})
        else:
            say_all(["", "ELSEWHERE"] if number else ())
            say_all([*forecast.lines(), f"Power: {each.power.line}"])


def _require_power(questions: Sequence[Question]) -> None:
    """Warns of tasks that are too few, before anything is spent. Raises KoderzError if they can't show anything."""
    for each in questions:
        if each.power.shows is None and each.name == _MAIN:
            raise KoderzError(f"{each.power.line}. Name more tasks with --dataset")
        if not each.power.is_enough:
            warn(f"warning: {'' if each.name == _MAIN else 'elsewhere, '}{each.power.line}")


async def _sessions(questions: Sequence[Question], cap: float | None) -> AsyncIterator[SessionResult]:
    """Asks the questions one after the other, or goes on with the run that did; `cap`: US dollars for all of them."""
    from koderz.runs.resume import ResumeOptions, resume_run
    from koderz.runs.session import begin

    spent = 0.0
    for number, each in enumerate(questions, 1):
        left = None if cap is None else max(0.0, cap - spent)
        plan = each.plan
        if before := last_of(plan):
            changes = {"max_cost": left, "concurrency": plan.settings.concurrency}
            session = await resume_run(
                before.name, ResumeOptions(), results=before.parent, changes=changes, observer=each.screen
            )
        else:
            config = {**plan.record.config, "max_cost": left}
            capped = replace(plan, settings=replace(plan.settings, max_cost=left)).having(config=config)
            session = await begin(each.place.documented(capped), each.screen)
        spent += session.summary.paid.get("total", 0.0)
        if session.ended.ends_all and number < len(questions):
            yield session._replace(unbegun=len(questions) - number)
            return
        yield session
