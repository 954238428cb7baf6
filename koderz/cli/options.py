"""The settings as options: one table of help texts, from which a command's signature is made.

A setting's type, default and bounds are those of `koderz.settings.schema`; nothing is said twice.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import typer

from koderz.engines import ENGINES
from koderz.errors import KoderzError
from koderz.plans.selection import read_problems, split_problems
from koderz.sandbox import SANDBOXES
from koderz.settings.schema import FIELDS, Settings, choices
from koderz.suites import SUITES
from koderz.types import Judging
from tracker.sinks import KNOWN


class Text(NamedTuple):
    """What the help says of a setting."""

    help: str
    metavar: str | None = None
    flags: tuple[str, ...] = ()  # others than --field-name


_MODEL, _TASKS, _SOLVER, _RUNNING, _SINKS, _SIMULATED = (
    "Model",
    "Tasks",
    "Solver",
    "Running",
    "Sinks",
    "Simulated model",
)

PANELS: Mapping[str, Mapping[str, Text]] = {
    _TASKS: {
        "suite": Text("The benchmark suite: humaneval, humaneval+, mbpp or mbpp+.", "NAME"),
        "dataset": Text("A JSONL file in the suite's format, plain or .gz, instead of the suite's own.", "FILE"),
        "problems": Text("Only these problems, separated by commas: HumanEval/3,HumanEval/7, or 3,7.", "IDS"),
        "limit": Text("Maximum number of problems.", "N"),
        "shuffle": Text("Shuffle with --seed."),
        "samples": Text("Samples per problem; several give pass@k.", "N"),
        "seed": Text("Seed of shuffling, sampling and the simulated model; sample N is sent this seed plus N.", "N"),
    },
    _MODEL: {
        "local_model": Text(
            "The model to benchmark: qwen2.5-coder:32b (Ollama), openai/gpt-4o-mini, anthropic/claude-…, simulated. "
            "Repeatable: each model has arms of its own. Default: the only model of a running Ollama, else simulated.",
            "MODEL",
            ("--model", "--local-model", "-m"),
        ),
        "base_url": Text("Address of an OpenAI-compatible server: vLLM, llama.cpp, LM Studio, …", "URL"),
        "api_key_env": Text("The environment variable that holds the key for --base-url.", "NAME"),
        "temperature": Text("Sampling temperature, 0 to 2. Default: 0 for one sample, 0.8 for several.", "T"),
        "top_p": Text("Nucleus sampling, 0 to 1. Default: the server's.", "P"),
        "max_tokens": Text("Maximum length of a reply, in tokens.", "N"),
        "context": Text("Maximum length of a conversation, in tokens; Ollama's num_ctx.", "N"),
        "keep_alive": Text("How long Ollama keeps the model loaded, e.g. 30m. Default: Ollama's.", "TIME"),
        "request_timeout": Text("Maximum time to wait for a reply.", "SECONDS"),
        "max_retries": Text("Maximum retries of a call after a 429, a 5xx or a lost connection.", "N"),
    },
    _SOLVER: {
        "mode": Text("zero-shot, iterative, or comparative: both on the same problems.", "MODE"),
        "solver": Text("A solver of your own instead of --mode: an async function in a file.", "FILE:NAME"),
        "matrix": Text("A TOML file that lists arms and cells, instead of --mode and --solver.", "FILE"),
        "roles": Text(
            "The model for a role of the solver, such as judge=openai/gpt-4o; repeatable.", "ROLE=MODEL", ("--role",)
        ),
        "max_iterations": Text("Maximum attempts of the iterative solver.", "N"),
        "history": Text("Earlier attempts shown to each new one.", "N"),
        "feedback": Text(
            "What an attempt is told of the previous one: tests (the failing test), examples (only those of the "
            "docstring), none (that it failed).",
            "KIND",
        ),
        "frontier_spec_model": Text("The model that writes a specification of each problem first.", "MODEL"),
        "reuse_spec": Text("Reuse cached specifications."),
        "frontier_checkpoint_model": Text(
            "The model that reviews failed attempts, every --checkpoint-interval of them.", "MODEL"
        ),
        "checkpoint_interval": Text("Failed attempts between two reviews.", "N"),
        "baseline_model": Text("Report what the local tokens would have cost on this model.", "MODEL"),
        "spec": Text("Skip the specification (ablation)."),
        "checkpoints": Text("Skip the reviews (ablation)."),
        "cot": Text("Skip the request to think step by step (ablation)."),
        "prompt_dir": Text("A folder of *.md files that override the built-in prompts.", "DIR"),
        "use_memory": Text(
            "Show what earlier experiments on other tasks (same-task: on the same one) learnt from the same kind of "
            "failure, as the memory store was when the run began.",
            "[other-tasks|same-task|off]",
        ),
        "memory_live": Text(
            "Recall also what was stored since the run began; results then depend on the order of experiments."
        ),
    },
    _RUNNING: {
        "engine": Text("Where experiments run: local or modal.", "NAME"),
        "max_containers": Text("Modal: maximum number of containers.", "N"),
        "gpu": Text("Modal: GPU of each container, such as L4, H100 or H100:2.", "TYPE"),
        "concurrency": Text("Maximum concurrent experiments; those awaiting a verdict don't count.", "N"),
        "judges": Text("Maximum programs judged at once. Default: one per core and two more, as some never end.", "N"),
        "max_cost": Text("Cost cap: no call starts that could exceed it; the run stops and can be resumed.", "USD"),
        "test_timeout": Text(
            f"CPU time limit of a program with its tests. Default: the suite's, mostly {Judging().timeout:g}.",
            "SECONDS",
        ),
        "test_memory": Text(f"Memory limit of a program. Default: the suite's, mostly {Judging().memory_mb}.", "MB"),
        "sandbox": Text("Where programs run: contained, docker, modal or uncontained.", "NAME"),
        "docker_image": Text("The image for --sandbox docker, with Python 3.11 or later; never pulled.", "IMAGE"),
        "grace": Text("Time that experiments have to finish after the first Ctrl-C.", "SECONDS"),
        "results": Text("The results folder.", "DIR"),
        "tags": Text("A tag to find the run by, WORD or K=V; repeatable.", "TAG", ("--tag",)),
    },
    _SINKS: {
        "sinks": Text("Record into this sink, and into no other that isn't named so; repeatable.", "NAME", ("--sink",)),
        "no_sinks": Text("Don't record into this sink; repeatable.", "NAME", ("--no-sink",)),
        "sink_patience": Text(
            "Time without progress after which a sink is left to koderz sync (three times that until it is open).",
            "SECONDS",
        ),
        "mlflow_detail": Text(
            "What MLflow gets: parent (the run and a table of its experiments), traces (and a trace of each), runs "
            "or full (and a nested run of each). Default: traces up to 5,000 experiments, else parent.",
            "DETAIL",
        ),
    },
    _SIMULATED: {
        "simulated_skill": Text("How often it is right, 0 to 1.", "X"),
        "simulated_latency": Text("Mean latency of a reply.", "SECONDS"),
        "simulated_fault_rate": Text("Share of calls that fail, 0 to 1.", "X"),
    },
}

_REPEATABLE = ("local_model", "roles", "sinks", "no_sinks", "tags")
_NEGATED = ("spec", "checkpoints", "cot")  # on unless --no-…
_TYPES = typing.get_type_hints(Settings)


def with_settings(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command an option for each named setting (all of them without names).

    The command takes them as one argument `given`, a dict of those that were really given.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        options = [_parameter(name, text, panel) for name, text, panel in _texts(names)]
        option_names = [option.name for option in options] + (["problems_file"] if not names else [])
        if not names:
            options.append(_problems_file())

        def wrapper(**arguments: Any) -> Any:
            given = {name: value for name in option_names if (value := arguments.pop(name)) not in (None, [])}
            return command(given=_joined(given), **arguments)

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "given"]
        signature = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in [*own, *options]])
        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__
        return wrapper

    return decorate


def _texts(names: tuple[str, ...]) -> list[tuple[str, Text, str]]:
    return [
        (name, text, panel)
        for panel, texts in PANELS.items()
        for name, text in texts.items()
        if not names or name in names
    ]


def _parameter(name: str, text: Text, panel: str) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    flags = text.flags or ((f"--no-{name}",) if name in _NEGATED else (flag,))
    option = typer.Option(
        None,
        *flags,
        help=f"{text.help}{_default(name)}",
        metavar=text.metavar,
        show_default=False,
        rich_help_panel=panel,
        autocompletion=_completion(name),
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=_annotation(name))


def _completion(name: str) -> Callable[[str], list[str]] | None:
    """What a shell may offer as the value of a setting that has a few known ones."""
    known = {
        "suite": tuple(SUITES),
        "sandbox": tuple(SANDBOXES),
        "engine": tuple(ENGINES),
        "sinks": KNOWN,
        "no_sinks": KNOWN,
    }.get(name, choices(name))
    return (lambda incomplete: [word for word in known if word.startswith(incomplete)]) if known else None


def _annotation(name: str) -> Any:
    if name in _REPEATABLE:
        return list[str] | None
    kind = _TYPES[name]
    if typing.get_origin(kind) is types.UnionType:
        kind = next(arg for arg in typing.get_args(kind) if arg is not type(None))
    if kind in (int, float, bool, Path):
        return kind | None
    return str | None


def _default(name: str) -> str:
    """What the help says of the default; nothing where the text says it already or there is none."""
    default = FIELDS[name].default
    if default is None or default is False or name in _NEGATED or default == ():
        return ""
    if isinstance(default, tuple):
        return f" Default: {', '.join(default)}."
    return f" Default: {default:g}." if isinstance(default, float) else f" Default: {default}."


def _problems_file() -> inspect.Parameter:
    option = typer.Option(
        None, metavar="FILE", help="Only the problems in this file, one per line.", rich_help_panel=_TASKS
    )
    return inspect.Parameter("problems_file", inspect.Parameter.KEYWORD_ONLY, default=option, annotation=Path | None)


def _joined(given: dict[str, Any]) -> dict[str, Any]:
    """The settings as `koderz.settings.schema` knows them: ids split, flags that say no turned round."""
    if isinstance(models := given.get("local_model"), list):
        given["local_model"] = models[0]
        if len(models) > 1:
            given["models"] = models
    if "problems" in given:
        given["problems"] = split_problems(given["problems"])
    if "problems_file" in given:
        given["problems"] = (*given.get("problems", ()), *read_problems(given.pop("problems_file")))
    if "sinks" in given:  # which says it all, whatever else is set to be left out
        given.setdefault("no_sinks", [])
    if not given.get("problems", True):
        raise KoderzError("no problem is named; without --problems and --problems-file, the range says which")
    return given | {name: False for name in _NEGATED if given.get(name)}
