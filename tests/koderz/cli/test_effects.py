"""Options given on the command line: each changes the plan, or is refused by its name and that of who reads it."""

from __future__ import annotations

from typing import Any

import pytest

from koderz.cli import main
from tests.conftest import Shell
from tests.koderz.cli.conftest import Command
from tests.koderz.cli.test_options import options_of
from tests.koderz.cli.test_scope import DRY

RUNS = {
    "benchmark run": ("benchmark", "0", "3", "--mode", "zero-shot", "--model", "simulated"),
    "decide": ("decide", "simulated", "simulated/other", "--limit", "3"),
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


def value_of(param: Any) -> list[str]:
    """A value of an option that is not its default; none for a yes or no."""
    if param.is_flag or param.count:
        return []
    kind = param.type.name
    usual = "7" if kind.startswith("int") else "0.5" if kind.startswith("float") else "x"
    return [VALUES.get(param.opts[0], usual)]


ELSEWHERE = {
    "what is printed": "--dry-run --json --quiet --verbose --enable-logging --yes",
    "what is trusted, waited for or written": "--trust-config --wait --detach --data --output-dir "
    "--no-save --save-result --save-detailed --result-dir --result-filename --resume --fail-on-regression --api-key",
    "read beside another option of the command: --async, --models": "rlm run --concurrency, optimize run --model",
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
        monkeypatch.setattr("sys.argv", ["koderz", *RUNS[name], "--dry-run", "--json", *more])
        code = main()
        return code, *capsys.readouterr()

    usual = ended()
    assert usual[0] == 0
    for param in options_of(name):
        flag = next(word for word in param.opts if word.startswith("--"))
        code, out, err = ended(flag, *value_of(param))
        elsewhere = " ".join(ELSEWHERE.values()).replace(",", "").split()
        assert code != 0 or out != usual[1] or flag in elsewhere, flag
        assert code == 0 or err.count("\n") == 1, flag


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
