"""Arguments and options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from koderz.errors import KoderzError


def complete_runs(incomplete: str) -> list[str]:
    """Completions for names of runs, the latest first."""
    from koderz.settings.toml import results_folder
    from tracker.runs import run_folders

    try:
        names = [path.name for path in reversed(run_folders(results_folder()))]
    except KoderzError:  # whoever types is not to be disturbed
        names = []
    return [name for name in ["latest", *names[:50]] if name.startswith(incomplete)]


def with_flags(flags: Mapping[str, Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command these options in place of its `**` parameter: each a name and its annotation.

    A yes or no is False where it isn't given, any other None. They stand before the command's keyword-only parameters.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
        last = [p for p in own if p.kind is p.KEYWORD_ONLY]
        return with_parameters(command, [*own[: len(own) - len(last)], *parameters_of(flags), *last])

    return decorate


def parameters_of(flags: Mapping[str, Any]) -> Iterator[inspect.Parameter]:
    """The options as parameters of a signature."""
    for name, annotation in flags.items():
        default = False if get_args(annotation)[0] is bool else None
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def with_parameters(command: Callable[..., Any], parameters: Iterable[inspect.Parameter]) -> Callable[..., Any]:
    """The command with a signature that declares these parameters, by name."""
    signature = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in parameters])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    return command


def _results_folder(given: Path | None) -> Path:
    from koderz.settings.toml import results_folder

    return results_folder(given)


named_runs = partial(typer.Argument, autocompletion=complete_runs)
"""Declares an argument that names runs."""

Run = Annotated[str, named_runs(metavar="RUN", help="Which run.")]
Results = Annotated[
    Path,  # as variables and koderz.toml say where it isn't given
    typer.Option(
        metavar="DIR",
        help="The results folder. Default: benchmark_results.",
        rich_help_panel="Running",
        show_default=False,
        default_factory=lambda: None,
        callback=_results_folder,
    ),
]
Arm = Annotated[str | None, typer.Option(metavar="ARM", help="Only this arm, e.g. iterative.")]
ByMeasure = Annotated[
    str | None,
    typer.Option(
        "--measure",
        metavar="NAME",
        help="success, score, cost, tokens, iterations, latency or a metric. Default: the system's own.",
    ),
]
AllowSimulated = Annotated[
    bool, typer.Option("--allow-simulated", help="Put runs of the simulated model beside real ones.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on standard output.")]
