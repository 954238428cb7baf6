"""What is exported as Harbor's trials is read by Harbor's own model, and what that writes is read by koderz."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from koderz import load_summary
from koderz.settings.paths import cache_folder
from tests.conftest import Shell

HARBOR = "0.26.0"
READ = """
import sys
from harbor.models.trial.result import TrialResult
for path in sys.argv[1:]:
    found = TrialResult.model_validate_json(open(path).read())
    rewards = found.verifier_result.rewards if found.verifier_result else None
    in_order = found.finished_at >= found.started_at
    print(found.task_name, found.agent_info.name, rewards, bool(found.exception_info), in_order)
"""
WRITE = """
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from harbor.models.agent.context import AgentContext
from harbor.models.task.id import LocalTaskId
from harbor.models.trial.config import TaskConfig, TrialConfig
from harbor.models.trial.result import AgentInfo, ExceptionInfo, ModelInfo, TrialResult
from harbor.models.verifier.result import VerifierResult

begun = datetime(2026, 2, 1, 9, tzinfo=UTC)
late = TimeoutError("the agent ran out of time")
for task, reward, raised in (("right", 1, None), ("wrong", 0, None), ("graded", 1.0, late), ("lost", None, late)):
    result = TrialResult(
        task_name=f"org/{task}",
        trial_name=f"{task}__x",
        trial_uri=f"file:///{task}",
        task_id=LocalTaskId(path=Path(task)),
        source="made",
        task_checksum=task,
        config=TrialConfig(task=TaskConfig(path=Path(task))),
        agent_info=AgentInfo(name="terminus", version="2", model_info=ModelInfo(name="m", provider="p")),
        agent_result=AgentContext(n_input_tokens=7, n_output_tokens=3, cost_usd=0.25),
        verifier_result=None if reward is None else VerifierResult(rewards={"reward": reward}),
        exception_info=ExceptionInfo.from_exception(raised) if raised else None,
        started_at=begun,
        finished_at=begun + timedelta(minutes=1),
    )
    folder = Path(sys.argv[1]) / result.trial_name
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(result.model_dump_json(indent=4))
"""


@pytest.fixture
def harbor() -> Path:
    """An interpreter that has Harbor, which needs a newer Python than koderz; made once where it can be."""
    if given := os.environ.get("KODERZ_HARBOR_PYTHON"):
        return Path(given)
    place = cache_folder() / f"harbor-{HARBOR}"
    python = place / "bin/python"
    if not (place / "ready").exists():
        if not os.environ.get("CI"):
            pytest.skip("Harbor isn't there: name a Python that has it in KODERZ_HARBOR_PYTHON")
        uv = str(Path(sys.executable).with_name("uv"))
        for command in (
            [uv, "venv", "--clear", "--quiet", "--no-python-downloads", "--python", "3.12", str(place)],
            [uv, "pip", "install", "--quiet", "--python", str(python), f"harbor=={HARBOR}"],
        ):
            done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"Harbor can't be installed: {done.stderr.strip()[-300:]}")
        (place / "ready").touch()
    return python


def _environment() -> dict[str, str]:
    """One in which pyenv's stand-ins for each Python find the one that they stand for."""
    if not shutil.which("pyenv"):
        return dict(os.environ)
    versions = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True, check=True).stdout
    return {**os.environ, "PYENV_VERSION": ":".join(versions.split())}


def _exported(koderz: Shell) -> list[Path]:
    koderz("benchmark", "export", "latest", "--format", "harbor", "-o", "trials")
    return sorted((koderz.folder / "trials").glob("*/result.json"))


def test_harbor_trial_is_written_for_each_experiment(koderz: Shell) -> None:
    koderz("benchmark", 0, 2, "--mode", "zero-shot", "--model", "simulated", "--quiet")
    trials = [json.loads(path.read_bytes()) for path in _exported(koderz)]
    results = {each["problem_id"]: each for each in koderz.summary()["results"]}
    assert [trial["task_name"] for trial in trials] == ["HumanEval/0", "HumanEval/1"]
    for trial in trials:
        assert trial["agent_info"]["model_info"] == {"name": "simulated", "provider": None}
        assert trial["verifier_result"]["rewards"] == {"reward": float(results[trial["task_name"]]["success"])}
        assert trial["exception_info"] is None
        assert trial["agent_result"]["n_output_tokens"] > 0
    again = [json.loads(path.read_bytes()) for path in _exported(koderz)]
    assert again == trials  # the ids too
    read = load_summary(koderz.folder / "trials").results
    assert {each.problem_id: each.success for each in read} == {name: each["success"] for name, each in results.items()}


@pytest.mark.slow
def test_harbor_reads_the_trials(koderz: Shell, harbor: Path) -> None:
    koderz("rollouts", "sample", "tasks")
    entry = '[[tasks]]\nprepared_dir = "tasks/greeting"\nagent = '
    (koderz.folder / "own.toml").write_text(f'{entry}"oracle"\n{entry}"nop"\n')
    koderz("rollouts", "run", "own.toml", "--quiet")
    trials = _exported(koderz)
    assert {json.loads(path.read_bytes())["task_id"]["path"] for path in trials} == {"tasks/greeting"}
    done = subprocess.run([str(harbor), "-c", READ, *map(str, trials)], capture_output=True, text=True, check=False)
    assert sorted(done.stdout.splitlines()) == [
        "sample/greeting nop {'reward': 0.0} False True",
        "sample/greeting oracle {'reward': 1.0} False True",
    ], done.stderr


def _steps_and_separate(folder: Path) -> None:
    """Tasks of two steps, and of a separate verifier."""
    test = "test -e {0} && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
    files = {
        "steps/task.toml": '[task]\nname = "org/steps"\n[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n',
        **{f"steps/steps/{step}/instruction.md": "Do it." for step in ("one", "two")},
        "steps/steps/one/tests/test.sh": test.format("made"),
        "steps/steps/two/tests/test.sh": test.format("made"),
        "steps/steps/one/solution/solve.sh": "touch made",
        "steps/steps/two/solution/solve.sh": "true",
        "apart/task.toml": '[task]\nname = "org/apart"\n[verifier]\nenvironment_mode = "separate"\n',
        "apart/instruction.md": "Do it.",
        "apart/tests/test.sh": "cp /logs/artifacts/reward.json /logs/verifier/",
        "apart/solution/solve.sh": """echo '{"a": true, "b": 1.0}' > /logs/artifacts/reward.json""",
    }
    for name, text in {
        **files,
        **{f"{name}/environment/Dockerfile": "FROM x\n" for name in ("steps", "apart")},
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.slow
def test_trials_have_steps_and_the_names_of_rewards(koderz: Shell) -> None:
    _steps_and_separate(koderz.folder / "tasks")
    koderz("rollouts", "run", "--dataset", "tasks", "--agent", "oracle", "--quiet", env={"SANDBOX_BACKEND": "local"})
    apart, steps = (json.loads(path.read_bytes()) for path in _exported(koderz))
    assert apart["verifier_result"] == {"rewards": {"a": 1.0, "b": 1.0}}
    assert apart["verifier_environment_mode"] == "separate"
    assert steps["verifier_result"] == {"rewards": {"reward": 1.0}}
    assert steps["step_results"] == [
        {"step_name": "one", "verifier_result": {"rewards": {"reward": 1.0}}},
        {"step_name": "two", "verifier_result": {"rewards": {"reward": 1.0}}},
    ]


@pytest.mark.slow
def test_harbor_reads_steps_and_separate_verifiers(koderz: Shell, harbor: Path) -> None:
    _steps_and_separate(koderz.folder / "tasks")
    koderz("rollouts", "run", "--dataset", "tasks", "--agent", "oracle", "--quiet", env={"SANDBOX_BACKEND": "local"})
    trials = _exported(koderz)
    done = subprocess.run([str(harbor), "-c", READ, *map(str, trials)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "org/apart oracle {'a': 1.0, 'b': 1.0} False True",
        "org/steps oracle {'reward': 1.0} False True",
    ], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--no-pytest",), ("--steps", "2")], ids=["usual", "no-pytest", "steps"])
def test_tasks_of_harbor_init_are_taken(koderz: Shell, harbor: Path, more: tuple[str, ...]) -> None:
    """They pass as they are made, but for those without tests, which give no reward."""
    command = [str(harbor.with_name("harbor")), "init", "--task", "org/made", "--output-dir", "all", *more]
    done = subprocess.run(
        command, cwd=koderz.folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0, done.stderr
    for path in (koderz.folder / "all").rglob("instruction.md"):
        path.write_text("Do it.\n")
    local = {"SANDBOX_BACKEND": "local"}
    code = 3 if "--no-pytest" in more else 0
    koderz("rollouts", "run", "--dataset", "all/made", "--agent", "oracle", "--quiet", env=local, code=code)
    if not code:
        assert [each["success"] for each in koderz.summary()["results"]] == [True]


@pytest.mark.slow
def test_harbor_reads_a_fault_as_an_exception(koderz: Shell, harbor: Path) -> None:
    faults = ("--simulated-fault-rate", 1)
    koderz("benchmark", 0, 1, "--mode", "zero-shot", "--model", "simulated", *faults, "--quiet", code=3)
    trials = _exported(koderz)
    done = subprocess.run([str(harbor), "-c", READ, *map(str, trials)], capture_output=True, text=True, check=False)
    assert done.stdout == "HumanEval/0 zero-shot None True True\n", done.stderr


@pytest.mark.slow
def test_trials_that_harbor_writes_are_read(harbor: Path, tmp_path: Path) -> None:
    job = tmp_path / "job"
    command = [str(harbor), "-c", WRITE, str(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    run = load_summary(job)

    assert {result.problem_id: (result.success, result.note) for result in run.results} == {
        "org/right": (True, ""),
        "org/wrong": (False, ""),
        "org/graded": (True, "TimeoutError: the agent ran out of time"),
    }
    assert [(fault["problem_id"], fault["reason"]) for fault in run.faults] == [
        ("org/lost", "TimeoutError: the agent ran out of time")
    ]
    assert [*run.arms] == ["terminus"]
    assert (run.model, run.suite) == ("p/m", "made")
    assert {(result.tokens_in, result.tokens_out, result.cost) for result in run.results} == {(7, 3, 0.25)}
