"""`koderz decide A B`: compares two models, and stops once it is decided."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from koderz.cli.front import Front, run_options
from koderz.errors import KoderzError
from koderz.settings.schema import FIRST_ARM


@run_options(mode="zero-shot", until_decided=FIRST_ARM)
def decide(
    a: Annotated[str, typer.Argument(metavar="A", help="The model that B is compared with.", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="The other model.", show_default=False)],
    front: Front,
) -> None:
    """Compare model B with model A, and stop once it is decided which is better, or that the rest can't tell.

    It is koderz benchmark --model A --model B --until-decided with mode zero-shot, and takes all of its options.
    Without --problems and --limit it is about all tasks. Exit code 0 once it is decided, 3 at the cost cap, 1 with
    --fail-on-regression where B is shown to be worse.

    Examples:
        koderz decide openai/gpt-4o-mini openai/gpt-4.1-mini --max-cost 2
    """
    if {"local_model", "models"} & {*front.values}:
        raise KoderzError("koderz decide takes the models as its arguments A and B, and no --model")
    if a == b:
        raise KoderzError(f"A and B are both {a}; name two models")
    replace(front, values={**front.values, "local_model": a, "models": (a, b)}).run()
