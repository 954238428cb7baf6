"""Options: one for each setting, each with its help, default and unit, and only what was given is given on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from koderz.cli import ALIASES, app
from koderz.cli.groups import LazyGroup, examples_in
from koderz.cli.options import panels, with_settings
from koderz.engines.sources import schema_of
from tests.conftest import Shell
from tests.koderz.world import write_tasks

FIELDS = schema_of().fields
UNITS = {
    "request_timeout": "SECONDS",
    "test_timeout": "SECONDS",
    "grace": "SECONDS",
    "sink_patience": "SECONDS",
    "batch_wait": "SECONDS",
    "poll": "SECONDS",
    "simulated_latency": "SECONDS",
    "every": "SECONDS",
    "max_cost": "USD",
    "max_experiment_cost": "USD",
    "test_memory": "MB",
    "keep_alive": "TIME",
    "margin": "POINTS",
}


def commands() -> Iterator[tuple[str, Any]]:
    """Every command by its whole name, the hidden one too; aliases are none of their own."""
    root = typer.main.get_command(app)
    assert isinstance(root, LazyGroup)
    yield "koderz", root
    for name in (name for name in root.commands if name not in ALIASES):
        command = root.loaded(name)
        yield name, command
        for inner in getattr(command, "commands", {}):
            assert isinstance(command, LazyGroup)
            yield f"{name} {inner}", command.loaded(inner)


ALL = dict(commands())


def options_of(name: str) -> list[Any]:
    """The options of this command."""
    return [param for param in ALL[name].params if param.param_type_name == "option"]


def given_by(*arguments: str) -> dict[str, Any]:
    """What a command with every setting is handed."""
    found: dict[str, Any] = {}
    own = typer.Typer()

    @own.command()
    @with_settings()
    def command(given: dict[str, Any]) -> None:
        found.update(given)

    own(list(arguments), standalone_mode=False)
    return found


# Help


def test_commands_are_those_that_were_promised() -> None:
    assert set(ALL) >= {
        "benchmark run",
        "benchmark resume",
        "benchmark retry",
        "benchmark rescore",
        "benchmark watch",
        "run",
        "doctor",
    }


@pytest.mark.parametrize("name", ALL)
def test_options_all_have_a_help_text(name: str) -> None:
    for param in options_of(name):
        assert param.help, param.name
        assert param.help.endswith((".", "…")) or name == "koderz", param.name


@pytest.mark.parametrize("name", ALL)
def test_commands_all_have_a_help_text_in_whole_sentences(name: str) -> None:
    about, examples = examples_in(ALL[name].help)
    assert about.endswith(".")
    assert 1 <= len(examples) <= 4 or name in ("benchmark", "judge")  # which have those of their hidden command


def test_settings_are_options_and_options_settings() -> None:
    named = [field.name for fields in panels(schema_of()).values() for field in fields]

    assert sorted([*named, "models", "rates"]) == sorted(FIELDS)  # several of --model, and tables of koderz.toml
    params = {param.name for param in ALL["benchmark run"].params}
    assert params >= set(FIELDS) - {"models", "rates"} | {
        "problems_file",
        "solver_arg",
        "dry_run",
        "json",
        "quiet",
        "trust_config",
    }


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.default not in (None, False, ())])
def test_defaults_are_all_told(name: str) -> None:
    (param,) = [param for param in ALL["benchmark run"].params if param.name == name]
    default = FIELDS[name].default
    if default is True:
        assert param.opts == [f"--no-{name}"]
    else:
        shown = f"{default:g}" if isinstance(default, float) else str(default)
        shown = ", ".join(default) if isinstance(default, tuple) else shown
        assert param.help.endswith(f" Default: {shown}.")


@pytest.mark.parametrize("name", ["temperature", "top_p", "judges", "keep_alive", "local_model"])
def test_defaults_that_depend_are_told(name: str) -> None:
    (param,) = [param for param in ALL["benchmark run"].params if param.name == name]

    assert re.search("Default: |Without it: ", param.help)


@pytest.mark.parametrize("name", ALL)
def test_quantities_name_their_unit(name: str) -> None:
    for param in options_of(name):
        if param.name in UNITS:
            assert param.metavar == UNITS[param.name], param.name
        elif param.name in ("max_tokens", "context"):
            assert "in tokens" in param.help, param.name
        elif param.name in FIELDS and not param.is_flag:
            assert param.metavar, param.name
        if param.name in FIELDS and FIELDS[param.name].plain_type is float:
            assert param.name in UNITS or "0 to " in param.help, param.name


def test_settings_that_may_differ_later_are_options_of_going_on() -> None:
    for name in ("resume", "retry", "rescore"):
        params = {param.name for param in ALL[f"benchmark {name}"].params}
        assert params >= {"run", "concurrency", "max_cost", "judges", "grace", "results", "json", "quiet"}
        assert params >= {"accept_changes", "accept_divergence", "trust_config"}
        assert not params & {"seed", "local_model", "mode", "samples"}
    assert "calls" in {param.name for param in ALL["benchmark rescore"].params}


# What is given


def test_values_that_were_given_alone_are_passed_on() -> None:
    assert given_by() == {}


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (["--model", "m"], {"local_model": "m"}),
        (["--local-model", "m"], {"local_model": "m"}),
        (["-m", "m"], {"local_model": "m"}),
        (["--max-iterations", "3"], {"max_iterations": 3}),
        (["--temperature", "0"], {"temperature": 0.0}),
        (["--shuffle"], {"shuffle": True}),
        (["--no-cot"], {"cot": False}),
        (["--no-spec", "--no-checkpoints"], {"spec": False, "checkpoints": False}),
        (["--reuse-spec"], {"reuse_spec": True}),
        (["--problems", "T/1,T/2"], {"problems": ("T/1", "T/2")}),
        (["--results", "there"], {"results": Path("there")}),
        (["--seed", "0"], {"seed": 0}),
        (["--sink", "json", "--sink", "mlflow"], {"sinks": ["json", "mlflow"], "no_sinks": []}),
        (["--no-sink", "mlflow"], {"no_sinks": ["mlflow"]}),
        (["--mode", "anything"], {"mode": "anything"}),  # judged by the settings, not here
        (["--limit", "-3"], {"limit": -3}),
    ],
)
def test_options_become_settings(arguments: list[str], given: dict[str, Any]) -> None:
    assert given_by(*arguments) == given


def test_problems_may_be_named_and_read_from_a_file_at_once(tmp_path: Path) -> None:
    (tmp_path / "problems.txt").write_text("T/2 # two\nT/3\n")

    found = given_by("--problems", "T/1", "--problems-file", str(tmp_path / "problems.txt"))

    assert found == {"problems": ("T/1", "T/2", "T/3")}


@pytest.mark.parametrize("arguments", [("--problems-file", "none.txt"), ("--problems", ","), ("--problems", "")])
def test_problems_option_refuses_an_empty_choice(koderz: Shell, arguments: tuple[str, ...]) -> None:
    write_tasks(koderz.folder, 2)
    (koderz.folder / "none.txt").write_text("# none of them\n")

    koderz("benchmark", *arguments, "--dataset", "tasks.jsonl", "--model", "simulated", "--dry-run", code=2)


def test_single_experiment_ignores_other_settings(koderz: Shell) -> None:
    write_tasks(koderz.folder, 1)
    koderz("run", "T/0", "--dataset", "tasks.jsonl", "--model", "simulated", "-q", env={"KODERZ_SAMPLES": "3"}, code=1)

    assert len([line for line in koderz.journal() if line["kind"] == "experiment"]) == 1


def test_trust_may_be_given_when_a_run_is_picked_up(koderz: Shell, tmp_path_factory: pytest.TempPathFactory) -> None:
    write_tasks(koderz.folder, 1)
    outside = tmp_path_factory.mktemp("outside")
    where = ("--results", outside)
    koderz("benchmark", 0, 1, "--dataset", "tasks.jsonl", "--model", "simulated", "--quiet", *where)
    (koderz.folder / "koderz.toml").write_text(f'results = "{outside}"\n')
    koderz("benchmark", "resume", "latest", code=2)

    koderz("benchmark", "resume", "latest", "--trust-config")
