"""Options given on the command line: each changes the plan, or is refused by its name and that of who reads it."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import typer

from koderz.cli import main
from koderz.engines.sources import REGISTRIES
from koderz.settings.options import fields_of
from tests.conftest import Shell, whole_lines
from tests.koderz.cli.conftest import Command
from tests.koderz.cli.test_options import ALL
from tests.koderz.cli.test_scope import DRY

RUNS = {
    "benchmark run": ("benchmark", "0", "3", "--mode", "zero-shot", "--model", "simulated"),
    "decide": ("decide", "simulated", "simulated/other", "--limit", "3"),
    "run": ("run", "HumanEval/0", "--mode", "zero-shot", "--model", "simulated"),
    **{name: (*name.split(), *words.split()) for name, words in DRY.items()},
}
VALUES = {
    "--base-url": "http://127.0.0.1:9/v1",
    "--engine": "modal",
    "--extra-body": '{"x": 1}',
    "--extra-header": "x=y",
    "--feedback": "none",
    "--max-iterations": "9",
    "--mlflow-detail": "parent",
    "--model": "simulated/third",
    "--no-sink": "memory",
    "--reasoning-effort": "low",
    "--role": "spec=simulated",
    "--role-option": "spec.temperature=1",
    "--sandbox": "uncontained",
    "--sink": "memory",
    "--solver": "iterative",
    "--solvers": "direct,iterative",
    "--wire": "responses",
}
"""Values of options that take no text."""


def options_taken(name: str) -> list[Any]:
    """The options that the command has with the arguments of `RUNS`: those of what they choose, too."""
    command = inspect.unwrap(ALL[name].callback)
    app = typer.Typer()
    app.command()(command.with_schema(command.schema_said(RUNS[name])))
    return [param for param in typer.main.get_command(app).params if param.param_type_name == "option"]


def value_of(param: Any) -> list[str]:
    """A value of an option that is not its default; none for a yes or no."""
    if param.is_flag or param.count:
        return []
    kind = param.type.name
    usual = "7" if kind.startswith("int") else "0.5" if kind.startswith("float") else "x"
    return [VALUES.get(param.opts[0], usual)]


ELSEWHERE = {
    "what is printed": "--dry-run --json --quiet --verbose --enable-logging --yes",
    "what tasks a dry run asks first, which changes what later ones expect": "--sample",
    "what is trusted, waited for or written": "--trust-config --wait --detach --data --output-dir "
    "--no-save --save-result --save-detailed --resume --fail-on-regression --api-key --junit --task-threshold",
}
"""The options that a dry run can't show: they change the screen, or what is left of a run."""


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_options_change_the_plan_or_are_refused(
    koderz: Shell, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(koderz.folder)
    for variable, text in koderz.environment({"OPENAI_API_KEY": "sk-test-4f9a"}).items():
        monkeypatch.setenv(variable, text)

    def ended(*more: str) -> tuple[int, str, str]:
        """The exit code, the plan and the messages. One experiment has no dry run: its plan is that of its journal."""
        words = ("--quiet",) if name == "run" else ("--dry-run", "--json")
        monkeypatch.setattr("sys.argv", ["koderz", *RUNS[name], *words, *more])
        code = main()
        out, err = capsys.readouterr()
        if name == "run" and code in (0, 1):
            journal = max(koderz.folder.rglob("journal.jsonl"), key=lambda path: path.stat().st_mtime_ns)
            (plan,) = (line for line in whole_lines(journal) if line["kind"] == "plan")
            return 0, json.dumps([plan["config"], plan["arms"]]), ""
        return code, out, err

    usual = ended()
    assert usual[0] == 0
    elsewhere = " ".join(ELSEWHERE.values()).split()
    flags = {next(word for word in param.opts if word.startswith("--")): param for param in options_taken(name)}
    idle = []
    for flag in flags.keys() - set(elsewhere):
        code, out, err = ended(flag, *value_of(flags[flag]))
        if code == 0 and out == usual[1]:
            idle.append(flag)
        assert code == 0 or sum(not line.startswith("note: ") for line in err.splitlines()) == 1, flag
    assert not idle
    assert ended() == usual


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--checkpoint-interval 9", "--checkpoint-interval has no effect here: only the solver iterative reads it"),
        ("--gpu L4", "--gpu has no effect here: only the engine modal reads it"),
        ("--keep-alive 3m", "--keep-alive has no effect here: only a model of Ollama reads it"),
    ],
)
@pytest.mark.parametrize("name", ["benchmark run", "rlm run", "optimize run", "perf run", "rollouts run"])
def test_option_that_nothing_reads_names_its_readers(command: Command, name: str, words: str, said: str) -> None:
    assert said in command(*RUNS[name], *words.split(), "--dry-run", code=2).err


@pytest.mark.parametrize("words", [RUNS["benchmark run"], ("perf", "run", "--mode", "human"), RUNS["rlm run"]])
def test_every_option_of_a_solver_that_takes_no_part_is_refused(command: Command, words: tuple[str, ...]) -> None:
    for field in fields_of(REGISTRIES["solver"].options_of("iterative")).values():
        flag = field.flags[0]
        given = () if isinstance(field.default, bool) else (VALUES.get(flag, "7"),)
        assert f"{flag} has no effect here: only" in command(*words, flag, *given, "--dry-run", code=2).err


REFUSED = {
    "benchmark report latest --limit 3": "--limit has no effect here: only a report that names no run",
    "benchmark export latest --format csv --all-arms": "--all-arms has no effect here: only --format jsonl",
    "benchmark export latest --format jsonl --arm x --all-arms": "--all-arms has no effect here: only an export",
    "benchmark import s.jsonl --model a --docker-image x": "--docker-image has no effect here: only the sandboxes",
    "optimize run --demo-datasets labels --cluster-column x --dry-run": "--cluster-column names a column of a file",
    "benchmark resume latest --max-containers 3": "--max-containers has no effect here: only the engine modal",
    "judge p.py --task HumanEval/0 --docker-image x": "--docker-image has no effect here: only the sandboxes",
    "judge p.py --task HumanEval/0 --judges 2": "--judges has no effect here: only a file of samples",
    "judge serve humaneval --docker-image x": "--docker-image has no effect here: only the sandboxes",
    "optimize results --watch-interval 3": "--watch-interval has no effect here: only --watch",
    "optimize results --list-runs --detailed": "--list-runs lists all runs; give it alone",
    "optimize run --models simulated --model simulated": "--models and --model say the same",
    "perf check --docker-image x": "--docker-image has no effect here: only the sandboxes",
    "perf serve-bench --model x --result-dir y": "--result-dir has no effect here: only a load with --save-result",
    "rlm run --simulated --pool-size 2": "--pool-size has no effect here: only a run with --async",
}
"""Commands that begin no run or read an option beside another one, and the beginnings of what they say."""


def test_option_without_what_reads_it_is_refused(command: Command) -> None:
    command("benchmark", 0, 1, "--mode", "zero-shot", "--model", "simulated", "--sink", "json", "--quiet")
    for name in ("p.py", "s.jsonl"):
        Path(name).touch()

    for words, said in REFUSED.items():
        assert said in command(*words.split(), code=2).err, words
