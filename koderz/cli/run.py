"""`koderz run TASK`: one experiment, shown as it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.cli.console import Shown
from koderz.cli.front import Json, Quiet, Trust, exit_code, finish, one
from koderz.cli.options import with_settings
from koderz.settings.layers import Scope
from koderz.settings.schema import OF_SINKS

if TYPE_CHECKING:
    from koderz.runs.session import SessionResult

EXIT_NOT_PASSED = 1
_NOT_FOR_ONE = (
    "problems", "limit", "shuffle", "samples", "baseline_model", "concurrency", "judges", "grace", *OF_SINKS,
)  # fmt: skip


@with_settings(scope=Scope(without=dict.fromkeys(_NOT_FOR_ONE, "")))
def run(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Which one: HumanEval/3, or 3.")],
    given: dict[str, Any],
    json: Json = False,
    quiet: Quiet = False,
    trust_config: Trust = False,
) -> None:
    """Run one experiment: each reply, its program and its verdict are shown as they come.

    Its journal is kept under the results folder, by its own id. Exit code 0 if it passed, 1 if not.
    """
    import asyncio

    from koderz.cli.stories import StoryPrinter
    from koderz.runs.prepare import prepare
    from koderz.runs.session import begin

    printer = StoryPrinter(quiet=quiet or json)
    given |= {"problems": (task,)}
    plan = asyncio.run(prepare(given, None, single=True, trust_config=trust_config, observer=printer))
    finish(one(begin(plan, printer)), Shown(json=json, quiet=quiet), tell=lambda _: None, code=_exit_code)


def _exit_code(session: SessionResult) -> int:
    return exit_code(session) or (0 if session.summary.summary.successes else EXIT_NOT_PASSED)
