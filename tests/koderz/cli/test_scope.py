"""Options of the commands of systems: what has an effect there is shown and taken, and nothing else."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

import pytest

from koderz.settings.options import fields_of
from koderz.settings.requests import BatchOptions
from koderz.settings.schema import Settings
from koderz.systems.long_context.options import OolongOptions, ResearchOptions, RlmOptions
from koderz.systems.long_context.ruler.options import RulerOptions
from koderz.systems.optimizers.datasets.options import DatasetOptions
from koderz.systems.patches.options import PerformanceOptions
from koderz.systems.patches.patching import PatchingOptions
from koderz.systems.rollouts.agents import AgentOptions
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.serving.options import ServingOptions
from tests.conftest import Shell
from tests.koderz.cli.conftest import Command

SYSTEMS: dict[str, Sequence[type]] = {
    "optimize run": (DatasetOptions,),
    "rlm run": (OolongOptions, ResearchOptions, RulerOptions, RlmOptions),
    "rollouts run": (RolloutsOptions, AgentOptions),
    "perf run": (PerformanceOptions, PatchingOptions),
    "perf serve-bench": (ServingOptions,),
}
"""The commands, and the options of their suites and solvers."""

OWN = {"Optimizers", "Benchmarks", "Rollouts", "Arms", "Server", "Result file", "Options"}
OF_PERF = {"--commit", "--commits-file", "--benchmark-type", "--type", "--start-from"}
ELSEWHERE = {"Sandbox docker": "--docker-image", "Engine modal": "--gpu --max-containers"}
OF_CODE = {"--judges", "--use-memory", "--memory-live", "--simulated-skill", "--feedback", "--no-cot", "--test-timeout"}
DRY = {
    "optimize run": "--demo-datasets labels --optimizers random_search --models simulated",
    "rlm run": "--benchmark oolong",
    "rollouts run": "",
    "perf run": "",
    "perf serve-bench": "--model x",
}
commands = pytest.mark.parametrize("name", SYSTEMS)


def shown(command: Command, name: str) -> dict[str, dict[str, str]]:
    """The help's panels: what each flag is said to be."""
    text = re.sub(r"\n {12,}(?=\S)", " ", command(*name.split(), "--help-all", env={"COLUMNS": "110"}).out)
    panels = re.findall(r"^(\w[^\n]*):\n((?:  .*\n)+)", text, re.MULTILINE)
    return {
        heading: {
            flag: said.strip()
            for flags, said in re.findall(r"^  (-.*?)(?:  +(.*))?$", lines, re.MULTILINE)
            for flag in re.findall(r"--[\w-]+", flags)
        }
        for heading, lines in panels
    }


def flags_of(*structs: type) -> set[str]:
    return {flag for struct in structs for field in fields_of(struct).values() for flag in field.flags}


def planned(command: Command, name: str, *more: object, env: dict[str, str] | None = None) -> dict[str, Any]:
    plan = json.loads(command(*name.split(), *DRY[name].split(), *more, "--dry-run", "--json", env=env).out)
    config: dict[str, Any] = plan["config"]
    return config


@commands
def test_help_shows_each_option_where_it_has_an_effect(command: Command, name: str) -> None:
    panels = shown(command, name)

    for heading, flags in panels.items():
        if heading.startswith(("Suite ", "Solver ")):
            assert flags.keys() <= flags_of(*SYSTEMS[name]), heading
        elif heading in ELSEWHERE:
            assert flags.keys() == {*ELSEWHERE[heading].split()}
        elif heading == "Model simulated":
            assert flags.keys() == {"--simulated-latency", "--simulated-fault-rate"}
        elif heading not in OWN:
            own = {"--problems-file"} | (OF_PERF if name == "perf run" else set())
            assert flags.keys() <= flags_of(Settings, BatchOptions) | own, heading
        assert flags.keys().isdisjoint(OF_CODE)
    iterations = [heading for heading, flags in panels.items() if "--max-iterations" in flags]
    assert iterations == (["Solver patching"] if name == "perf run" else [])


@commands
def test_help_begins_with_a_commands_own_options(command: Command, name: str) -> None:
    headings = [heading for heading in shown(command, name) if heading not in ("Arguments", "Options")]

    own = [heading for heading in headings if heading in OWN or (heading == "Tasks" and name == "perf run")]
    parts = [heading for heading in headings if heading.startswith(("Suite ", "Solver "))]
    assert headings[: len(own) + len(parts)] == own + parts


@commands
def test_help_has_the_defaults_that_hold(command: Command, name: str) -> None:
    config = planned(command, name)
    flags: dict[str, str] = {}
    for panel in shown(command, name).values():
        flags |= panel
    told = {  # what isn't the value itself
        "max_connections": "--max-concurrent times --item-concurrency" if name == "optimize run" else "as many as",
        "concurrency": "CONFIG's parallel" if name == "rollouts run" else "5" if name == "rlm run" else None,
        "dataset": "the embedded tasks" if name == "rollouts run" else None,
        "sandbox": "the entry's own" if name == "rollouts run" else None,
        "max_iterations": "3; without a model or patches 1",
        "temperature": "0" if name == "optimize run" else "0 for one sample",
        "pool_size": "3" if name == "rlm run" else None,
        "mode": "--solver rlm" if name == "rlm run" else "all three",
        "label": "--backend",
        "endpoint": "/v1/completions",
    }
    given = {"local_model", "models", "demo_datasets", "optimizers", "problems", "limit", "base_url"}

    for key, value in config.items():
        said = flags.get(f"--{key.replace('_', '-')}")
        if said is None or key in given:
            continue
        default = re.sub(r"- (?=\w)", "-", said).partition("Default: ")[2]
        if told.get(key):
            assert default.startswith(str(told[key])), key
        elif isinstance(value, int | float) and not isinstance(value, bool) and default:
            assert default.startswith(f"{value:g}."), key
        elif value and isinstance(value, str | list):
            assert default.startswith(", ".join([value] if isinstance(value, str) else value)), key


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "optimize run --max-iterations 3",
            "--max-iterations has no effect here: only the solvers iterative or patching read it",
        ),
        ("optimize run --max_iterations=3", "has no effect here: only the solvers iterative or patching read it"),
        ("optimize run --solver direct", "--solver has no effect here: use --optimizers"),
        ("optimize run --feedback none", "--feedback has no effect here: only the suites humaneval, humaneval+"),
        ("rlm run --judges 2", "--judges has no effect here: it is for koderz benchmark"),
        ("rlm run --ruler-tasks vt --suite ruler", "--suite has no effect here: use --benchmark"),
        ("rlm run --detach", "--detach has no effect here: it is for koderz benchmark"),
        ("rollouts run --samples 3", "--samples has no effect here: use --rollouts"),
        ("rollouts run --use-memory", "--use-memory has no effect here"),
        ("perf run --no-cot", "--no-cot has no effect here: only the suites humaneval, humaneval+"),
        ("perf run --problems x", "--problems has no effect here: use TASK"),
        ("perf serve-bench --max-cost 3", "--max-cost has no effect here: it is for koderz benchmark"),
        ("run 3 --samples 2", "--samples has no effect here: it is for koderz benchmark"),
        ("benchmark 0 1 --max-depth 3", "--max-depth has no effect here: only the solver rlm reads it"),
        ("optimize run --max-iteratoins 3", "No such option: --max-iteratoins"),
    ],
)
def test_option_without_effect_is_refused_in_one_line(command: Command, words: str, said: str) -> None:
    done = command(*words.split(), code=2)

    assert said in done.err
    assert done.err.count("\n") == 1


def test_solver_that_is_chosen_brings_its_options(command: Command) -> None:
    words = ("rlm", "run", "--simulated", "--benchmark", "ruler", "--solvers", "direct,iterative")

    done = command(*words, "--max-iterations", 4, "--dry-run", "--json")

    assert json.loads(done.out)["config"]["max_iterations"] == 4
    assert "Solver iterative:" in command(*words, "--help").out


@commands
def test_koderz_toml_and_variables_of_other_commands_have_no_effect(command: Command, koderz: Shell, name: str) -> None:
    usual = planned(command, name)
    (koderz.folder / "koderz.toml").write_text(
        'suite = "mbpp"\nmode = "comparative"\nsolvers = ["direct", "own.py:solve"]\nmatrix = "none.toml"\n'
        'problems = ["HumanEval/3"]\njudges = 3\nuse-memory = "same-task"\nfeedback = "none"\ntest-timeout = 9\n'
        "simulated-skill = 0.1\nfrontier-spec-model = 'openai/gpt-4o'\n"
        + ("limit = 1\nsamples = 3\nshuffle = true\n" if name == "rollouts run" else "")
        + ('dataset = "own.jsonl"\n' if name in ("optimize run", "rlm run", "rollouts run") else "")
        + ('sandbox = "docker"\n' if name in ("optimize run", "rlm run") else "")
    )
    env = {"KODERZ_SOLVER": "own.py:solve", "KODERZ_MODE": "zero-shot", "KODERZ_COT": "no"}

    assert planned(command, name, env=env) == usual


@pytest.mark.parametrize("name", ["optimize run", "rlm run", "rollouts run", "perf run"])
def test_koderz_toml_has_its_say_where_it_has_an_effect(command: Command, koderz: Shell, name: str) -> None:
    (koderz.folder / "koderz.toml").write_text('max-tokens = 99\ntags = ["nightly"]\n')

    config = planned(command, name, env={"KODERZ_TOP_P": "0.5"})

    assert (config["max_tokens"], config["tags"], config["top_p"]) == (99, ["nightly"], 0.5)


def test_koderz_toml_is_trusted_by_rlm_run(command: Command, koderz: Shell) -> None:
    (koderz.folder / "koderz.toml").write_text('prompt-dir = "prompts"\n')
    (koderz.folder / "prompts").mkdir()

    assert "--trust-config" in command("rlm", "run", "--benchmark", "oolong", "--dry-run", code=2).err
    assert planned(command, "rlm run", "--trust-config")["prompt_dir"] == "prompts"


@pytest.mark.slow
def test_resume_takes_up_runs_whose_plans_hold_options_without_effect(koderz: Shell) -> None:
    data = ("--suite", "datasets", "--demo-datasets", "labels", "--train-items", 8, "--validation-items", 8)
    (koderz.folder / "koderz.toml").write_text(
        'max-iterations = 4\nfeedback = "none"\njudges = 2\nsimulated-skill = 0.1\n'
    )
    koderz("benchmark", *data, "--test-items", 8, "--limit", 1, "--solver", "random_search", "--budget-calls", 40,
           "--model", "simulated", "--quiet")  # fmt: skip
    (journal,) = koderz.results.glob("[!.]*/journal.jsonl")
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])
    (koderz.folder / "koderz.toml").unlink()

    koderz("optimize", "run", "--resume-run-id", "latest", "--quiet")

    summary = koderz.summary()
    assert summary["status"] == "complete"
    assert (summary["config"]["max_iterations"], summary["config"]["feedback"]) == (4, "none")


@pytest.mark.parametrize(("name", "is_taken"), [("optimize run", False), ("perf run", True), ("benchmark", True)])
def test_shell_completion_offers_what_is_taken(koderz: Shell, name: str, is_taken: bool) -> None:
    words = f"koderz {name} --max-it"
    env = {"_KODERZ_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(shlex.split(words)) - 1)}

    offered = koderz(env=env).out.split()

    assert ("--max-iterations" in offered) is is_taken


@pytest.mark.parametrize("command_line", ["rlm run --simulated --benchmark ruler", "benchmark 0 2 --suite ruler"])
def test_matrix_states_the_arms_of_a_suite_with_modes_of_its_own(
    command: Command, koderz: Shell, command_line: str
) -> None:
    (koderz.folder / "arms.toml").write_text('[[arms]]\nname = "one"\nsolver = "direct"\n')
    words = (*command_line.split(), "--model", "simulated", "--matrix", "arms.toml", "--dry-run", "--json")

    plan = json.loads(command(*words).out)

    assert plan["config"]["mode"] == "matrix"
    assert plan["estimate"]["calls"] == [plan["planned"]] * 2  # each asked once
