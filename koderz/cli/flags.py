"""Arguments and options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from koderz.errors import KoderzError

if TYPE_CHECKING:
    from koderz.settings.layers import Schema


SELDOM = (
    "solver_arg",
    "sample",
    "detach",
    "fail_on_regression",
    "wait",
    "trust_config",
    "accept_divergence",
    "junit",
    "task_threshold",
    "least",
    "least_points",
)
"""The flags that several commands share, and that short help leaves out."""

FIRST = ("suite", "solver", "dataset", "problems")
"""The settings that lead the common options of short help: what is asked."""

DISPLAY = ("dry_run", "json", "quiet")
"""The flags of all runs that short help has among the common options."""


def complete_runs(incomplete: str) -> list[str]:
    """Completions for names of runs, the latest first."""
    from koderz.settings.layers import results_folder
    from koderz_tracker.runs import run_folders

    try:
        names = [path.name for path in reversed(run_folders(results_folder()))]
    except KoderzError:  # whoever types is not to be disturbed
        names = []
    return [name for name in ["latest", *names[:50]] if name.startswith(incomplete)]


def with_flags(
    flags: Mapping[str, Any], *, seldom: Collection[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command these options in place of its `**` parameter: each a name and its annotation.

    A yes or no is False where it isn't given, any other None. They stand before the command's keyword-only parameters.
    Short help leaves out those that are `seldom` needed, if there are any.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = [
            p
            for p in inspect.signature(command, eval_str=True).parameters.values()
            if p.kind is not p.VAR_KEYWORD
        ]
        last = [p for p in own if p.kind is p.KEYWORD_ONLY]
        every = [*own[: len(own) - len(last)], *parameters_of(flags), *last]
        shown = {p.name: False for p in every if p.name not in seldom} if seldom else None
        return DeclaredCommand(command, every, shown)

    return decorate


def parameters_of(flags: Mapping[str, Any]) -> Iterator[inspect.Parameter]:
    """The options as parameters of a signature."""
    for name, annotation in flags.items():
        default = False if get_args(annotation)[0] is bool else None
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )


class DeclaredCommand:
    """A command whose parameters are declared one by one, by name, in place of those of its function."""

    def __init__(
        self,
        function: Callable[..., Any],
        parameters: Iterable[inspect.Parameter],
        common: Mapping[str, bool] | None = None,
        spare: Collection[str] = (),
    ) -> None:
        """`common`: the options that short help shows, and whether each is one of all runs; None: there is none.

        `spare`: those of them that it shows only where there is room.
        """
        self.common, self.spare = common, spare
        self._function, self.__name__, self.__doc__ = function, function.__name__, function.__doc__
        self.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in parameters])
        self.__annotations__ = {
            p.name: p.annotation for p in self.__signature__.parameters.values()
        }

    def __call__(self, **arguments: Any) -> Any:
        """Call the function."""
        return self._function(**arguments)


class SettingsCommand(DeclaredCommand):
    """A command that has the options of the suites, solvers, … that its arguments choose, or of the run they name."""

    def __init__(
        self,
        function: Callable[..., Any],
        parameters: Iterable[inspect.Parameter],
        common: Mapping[str, bool] | None = None,
        spare: Collection[str] = (),
        *,
        schema_said: Callable[[Sequence[str]], Schema],
        with_schema: Callable[[Schema], DeclaredCommand],
        use_of: Callable[[str], str],
    ) -> None:
        """Take three functions: the schema of a command line's words, the command for a schema, and `options.use_of`.

        The first raises KoderzError for words that choose what there isn't.
        """
        super().__init__(function, parameters, common, spare)
        self.schema_said, self.with_schema, self.use_of = schema_said, with_schema, use_of


def _results_folder(given: Path | None) -> Path:
    from koderz.settings.layers import results_folder

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
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD", help="Of logs: tasks with the same value of this field are one cluster."
    ),
]
ByMeasure = Annotated[
    str | None,
    typer.Option(
        "--measure",
        metavar="NAME",
        help="success, score, cost, tokens, iterations, latency or a metric. Default: the system's own.",
    ),
]
AllowSimulated = Annotated[
    bool,
    typer.Option("--allow-simulated", help="Put runs of the simulated model beside real ones."),
]
Faults = Annotated[
    Literal["fail"] | None,
    typer.Option(
        "--faults",
        metavar="fail",
        help="fail: each fault counts as a failure. Default: neither way.",
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print the result as JSON, and nothing else, on standard output."),
]
SummaryJson = Annotated[
    bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")
]
gate = partial(typer.Option, rich_help_panel="Gates (exit code 1)")
"""Declares the option of a gate."""


def _require_place(path: Path | None) -> Path | None:
    """The place of JUnit's XML. Raises KoderzError where no file can be, before anything is spent."""
    if path and (path.is_dir() or not path.parent.is_dir()):
        wrong = "is a folder" if path.is_dir() else "lies in no folder that exists"
        raise KoderzError(f"--junit {path} {wrong}; name a file, e.g. junit.xml")
    return path


JUnit = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write each task's result here as JUnit's XML, for a CI's page of tests.",
        callback=_require_place,
    ),
]
TaskThreshold = Annotated[
    float | None,
    gate(
        metavar="SHARE",
        help="A task passes less of its samples, from 0 to 1. In --junit a task fails unless all pass, or this share.",
        min=0,
        max=1,
    ),
]
JUNIT = {"junit": JUnit, "task_threshold": TaskThreshold}
"""The results of single tasks, of which all commands with verdicts may ask."""

LEAST = {
    "least": Annotated[
        list[str] | None,
        gate(
            "--min",
            metavar="MEASURE=VALUE",
            help="The interval of rate, score, cost, pass^3, pass@5, … is below it; of other measures, the average.",
        ),
    ],
    "least_points": Annotated[
        list[str] | None,
        gate(
            "--min-point",
            metavar="[MEASURE=VALUE]",
            help="The plain figure is below it; alone: those of --min are.",
        ),
    ],
}
"""The gates that any run may have."""

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait",
        help="Return only once all sinks are up to date, not just the summary and the memory store.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust-config", help="Trust what koderz.toml, or the run's plan, may send or execute."
    ),
]
