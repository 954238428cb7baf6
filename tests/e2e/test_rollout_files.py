"""The files and the screen of rollouts, by the command line."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Shell, wait_for

pytestmark = pytest.mark.slow

STAMP = r"\d{8}__\d\d-\d\d-\d\d"


@pytest.fixture
def config(koderz: Shell) -> Path:
    """Three rollouts of the sample's task without pytest: one by its solution, one that does nothing, one more."""
    koderz("rollouts", "sample", "tasks")
    entry = '[[tasks]]\nprepared_dir = "tasks/greeting"\nagent = '
    path = koderz.folder / "nightly.toml"
    path.write_text(f'parallel = 2\n{entry}"oracle"\n{entry}"nop"\n{entry}"oracle"\n')
    return path


def _read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _rollout(koderz: Shell) -> Path:
    (folder,) = (koderz.folder / "data/rollouts/nightly").iterdir()
    return folder


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_rollout_screen_is_that_of_the_original(koderz: Shell, config: Path) -> None:
    said = koderz("rollouts", "run", "nightly.toml").out
    stamp = _rollout(koderz).name
    chosen, *lines = said.replace(stamp, "STAMP").splitlines()
    shown = [line for line in lines if not line.startswith("✓ Task")]
    assert chosen.startswith("[rollouts] sandbox=")
    assert shown[:5] == [
        "[rollouts] config=nightly.toml name=nightly tasks=3 parallel=2",
        "[rollouts] output=data/rollouts/nightly/STAMP",
        "[rollouts] Running in quiet mode - use -vv for full output",
        "[rollouts] Starting 3 tasks with parallel=2",
        "✓ All 3 tasks completed!",
    ]
    assert shown[5:13] == [
        "[rollouts] temp index: data/rollouts/temp/rollout_nightly__STAMP.json",
        "",
        "[rollouts] Summary:",
        "| task | run_id | status |",
        "|---|---|---|",
        *(f"| greeting | STAMP-{number} | launched |" for number in range(3)),
    ]
    assert sorted(re.findall(rf"✓ Task {STAMP}-(\d) completed \(launched\)", said)) == ["0", "1", "2"]
    assert "\r" not in said  # no spinner where there is no terminal
    said = koderz("rollouts", "run", config, "-v", "--data", "other").out
    assert len(re.findall(rf"\[rollouts\] finished: run_id={STAMP}-\d status=launched\n", said)) == 3
    assert "✓" not in said
    assert "Running in quiet mode" not in said
    said = koderz("rollouts", "run", config, "-vv", "--data", "third").out
    assert re.search(rf"\[{STAMP}-0\] diff:\n    diff --git a/greeting.txt", said)
    assert json.loads(koderz("rollouts", "run", config, "--json", "--data", "fourth").out)["mode"] == "rollouts"


def test_files_are_where_the_original_has_them_and_are_redone_by_sync(koderz: Shell, config: Path) -> None:
    koderz("rollouts", "run", config, "--quiet")
    data, rollout = koderz.folder / "data", _rollout(koderz)
    manifest, run = _read(rollout / "manifest.json"), f"runs/{rollout.name}-0"
    assert (manifest["config"], manifest["name"], manifest["created_at"]) == (str(config), "nightly", rollout.name)
    assert [entry["run_id"] for entry in manifest["results"]] == [f"{rollout.name}-{number}" for number in range(3)]
    assert [entry["verdict"] for entry in manifest["results"]] == ["passed", "failed", "passed"]
    assert manifest["results"][0]["run_dir"] == f"data/{run}"
    assert (rollout / "runs.txt").read_text().splitlines() == [each["run_dir"] for each in manifest["results"]]
    assert sorted(path for path in _files(data / run)) == [
        *(f"artifacts/{name}" for name in ("agent.jsonl", "diff.patch", "notes.md", "repo_info.json")),
        *("evaluation_results.json", "logs/eval.log", "results.json", "scoring_results.md"),
    ]
    assert "+Hello, Ada!" in (data / run / "artifacts/diff.patch").read_text()
    assert (data / f"runs/{rollout.name}-1/artifacts/diff.patch").read_text() == ""
    evaluation = _read(data / run / "evaluation_results.json")
    assert evaluation == _read(rollout / f"task_results/{rollout.name}-0.json")
    assert evaluation["total_score"] == 1.0
    assert evaluation["agent_metrics"]["tool_calls_total"] == 0
    assert _read(data / run / "results.json")["exit_code"] == 0
    index = _read(data / f"rollouts/temp/rollout_nightly__{rollout.name}.json")
    assert index["tasks"] == ["tasks/greeting"] * 3

    before = _files(data)
    for named in ((manifest["benchmark_run_id"],), ()):
        shutil.rmtree(data)
        koderz("sync", *named)
        assert _files(data) == before


def test_rollouts_are_summed_up_and_graded_again(koderz: Shell, config: Path) -> None:
    koderz("rollouts", "run", config, "--quiet")
    rollout = _rollout(koderz)
    shown = f"data/rollouts/nightly/{rollout.name}"
    summed = koderz("rollouts", "summarize", "nightly", "--latest").out
    assert f"| sample/greeting | {rollout.name}-1 | 0% | N/A | 0 | 0 |" in summed
    assert "| sample/greeting | 3 | 67% | 100% | N/A | N/A |" in summed
    assert summed.endswith(f"[rollouts] summary.md written: {shown}/summary.md\n")
    assert (rollout / "summary.md").read_text() in summed
    assert json.loads(koderz("rollouts", "summarize", shown, "--json").out)["aggregates"]["unit_max"] == 1.0

    verifier = koderz.folder / "tasks/greeting/tests/test.sh"
    verifier.write_text(
        "test -s greeting.txt && echo 1 > /logs/verifier/reward.txt || echo 0.25 > /logs/verifier/reward.txt\n"
    )
    assert "task sample/greeting" in koderz("rollouts", "eval", "nightly", code=2).err
    graded = koderz("rollouts", "eval", "nightly", "--rollout", rollout.name, "--accept-changes").out
    assert f"[eval] data/runs/{rollout.name}-2 -> ok\n[eval] eval_manifest.json written: {shown}" in graded
    assert "- Unit tests average: 75%" in graded
    assert [each["eval_rc"] for each in _read(rollout / "eval_manifest.json")["results"]] == [0, 0, 0]


def test_missing_files_are_one_line(koderz: Shell, config: Path) -> None:
    for command in (
        ("run", "none.toml"),
        ("summarize", "none"),
        ("eval", "none"),
        ("summarize", "nightly", "--latest", "--rollout", "2026"),
    ):
        assert koderz("rollouts", *command, code=2).err.count("\n") == 1
    koderz("rollouts", "run", config, "--sandbox", "docker", code=4)
    assert not _files(koderz.folder / "data")
    assert not [*(koderz.folder / "data").rglob("*-0")]
    koderz("rollouts", "run", config, "--dry-run")
    assert not [*(koderz.folder / "data").rglob("*-0")]


def test_resumed_run_keeps_its_stamp_and_files_appear_as_rollouts_end(koderz: Shell, config: Path) -> None:
    (koderz.folder / "wait.sh").write_text("echo x > x; test -e /workspace/none || sleep 2\n")
    text = config.read_text().replace("parallel = 2", "parallel = 1")
    config.write_text(
        text + '[[tasks]]\nprepared_dir = "tasks/greeting"\nagent = "scripted"\nscript = "wait.sh"\nrollouts = 3\n'
    )
    run = koderz.start("rollouts", "run", str(config))
    manifests = koderz.folder / "data/rollouts/nightly"
    wait_for(lambda: any(len(_read(path)["results"]) >= 3 for path in manifests.glob("*/manifest.json")))
    run.kill()
    run.communicate()
    rollout = _rollout(koderz)
    koderz("benchmark", "resume", "latest", "--quiet")
    assert _rollout(koderz) == rollout
    assert [each["run_id"] for each in _read(rollout / "manifest.json")["results"]] == [
        f"{rollout.name}-{number}" for number in range(6)
    ]


def test_summary_has_figures_by_task_and_a_grade_per_script(koderz: Shell, config: Path) -> None:
    said = koderz("rollouts", "run", config).out
    figures = koderz.summary()["rollouts"]
    assert figures["oracle"]["pass_at_k"]["pass@2"]["value"] == 1.0
    nothing = {"rollouts": 1, "successes": 0, "score_mean": 0.0, "score_max": 0.0}
    assert figures["nop"]["tasks"]["sample/greeting"] == nothing
    assert "oracle: score 1.00 on average" in said
    grades = [line for line in koderz.journal() if line["kind"] == "grade"]
    assert sorted((line["item"], line["score"]) for line in grades) == [
        ("tests/test.sh", 0.0),
        ("tests/test.sh", 1.0),
        ("tests/test.sh", 1.0),
    ]
    said = koderz("rollouts", "run", config, "--dry-run").out
    assert "Calls: 0\n" in said
    assert "Mount: the checkout at /app" in said
    (koderz.folder / "own.txt").touch()
    entry = '[[tasks]]\nprepared_dir = "tasks/greeting"\nagent = "codex"\nmodel = "gpt-4"\n'
    config.write_text(f'agent_mounts = ["own.txt"]\n{entry}')
    said = koderz("rollouts", "run", config, "--dry-run").out
    assert f"Mount: {koderz.folder / 'own.txt'}, read-only\nMount: the package of codex, read-only" in said


def test_foreign_configuration_needs_trust_to_leave_sandbox_or_folder(koderz: Shell) -> None:
    (koderz.folder / "clone").mkdir()
    koderz("rollouts", "sample", koderz.folder / "clone" / "tasks")
    touched = koderz.folder / "touched"
    (koderz.folder / "clone" / "agent.sh").write_text(f"touch {touched}\n")
    config = koderz.folder / "clone" / "cloned.toml"
    inside = Shell(koderz.folder / "inside")
    inside.folder.mkdir()
    entry = '[[tasks]]\nprepared_dir = "tasks/greeting"\nagent = "scripted"\nscript = "agent.sh"\n'
    risky = {
        'sandbox = "uncontained"\n': "line 5, sandbox: this could run code",
        'agent_mounts = ["/etc"]\n': "line 5, agent_mounts: this could send a file from outside",
    }
    for more, said in risky.items():
        config.write_text(entry + more)
        for option in ((), ("--dry-run",)):
            refused = inside("rollouts", "run", config, *option, code=2)
            assert f"{config}, {said}" in refused.err
            assert refused.err.count("\n") == 1
    config.write_text(entry.replace("agent.sh", "../../elsewhere.sh"))
    (koderz.folder.parent / "elsewhere.sh").write_text("true\n")
    assert "line 4, script: this could run code" in inside("rollouts", "run", config, code=2).err
    assert not touched.exists()

    config.write_text(f'{entry}sandbox = "uncontained"\n{entry}')
    own = ("rollouts", "run", config, "--rollouts", 1)
    assert "sandbox=uncontained, local" in inside(*own, "--trust-config", code=3).out  # its verifier needs the sandbox
    assert touched.exists()
    assert "sandbox=local\n" in inside(*own, "--sandbox", "local", "--dry-run").out


def test_nightly_run_is_compared_with_the_one_before(koderz: Shell, config: Path) -> None:
    script = str(Path(__file__).resolve().parents[2] / "scripts/run_nightly_benchmark.sh")

    def nightly(**env: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [script, config.name],
            cwd=koderz.folder,
            env=koderz.environment({"PYTHON": sys.executable, **env}),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    code, _, err = nightly()
    assert (code, "no run before this one" in err) == (0, True)
    config.write_text(config.read_text().replace('"oracle"', '"nop"', 1))
    code, out, err = nightly()
    assert code == 0, err
    first, second = (
        _read(path)["benchmark_run_id"]
        for path in sorted((koderz.folder / "data/rollouts/nightly").glob("*/manifest.json"))
    )
    assert first in out
    assert second in out


def test_spinner_turns_on_a_terminal(koderz: Shell, config: Path) -> None:
    above, below = os.openpty()
    environ = koderz.environment({"TERM": "xterm", "KODERZ_SINKS": "json"})
    command = [sys.executable, "-m", "koderz", "rollouts", "run", config.name]
    with subprocess.Popen(command, cwd=koderz.folder, env=environ, stdin=below, stdout=below, stderr=below) as run:
        os.close(below)
        said = b""
        with contextlib.suppress(OSError):  # which is how a terminal ends
            while piece := os.read(above, 1 << 16):
                said += piece
        assert run.wait() == 0
    os.close(above)
    shown = said.decode()
    assert re.search(r"⠋ Running tasks\.\.\. 0/3 completed\r +\r⠙ Running", shown)
    assert re.search(r"\r +\r✓ Task .* completed \(launched\)\r\n", shown)


def test_fault_exits_with_3_and_is_no_score(koderz: Shell, config: Path) -> None:
    config.write_text(config.read_text().replace('"nop"', '"koderz"\nmodel = "simulated"'))
    dockerfile = koderz.folder / "tasks/broken/environment/Dockerfile"
    shutil.copytree(koderz.folder / "tasks/greeting", koderz.folder / "tasks/broken")
    dockerfile.write_text(dockerfile.read_text() + "RUN exit 3\n")
    config.write_text(config.read_text() + '[[tasks]]\nprepared_dir = "tasks/broken"\nagent = "nop"\n')
    said = koderz("rollouts", "run", config, "--simulated-fault-rate", 1, code=3).out
    assert len(re.findall(r"✗ Task .* completed \(launch_failed\)", said)) == 1
    rollout = _rollout(koderz)
    entries = _read(rollout / "manifest.json")["results"]
    assert [(each["status"], each["launch_rc"], bool(each["fault"])) for each in entries] == [
        ("launched", 0, False),
        ("launched", 0, True),  # the agent was there, its model wasn't
        ("launched", 0, False),
        ("launch_failed", 1, True),
    ]
    assert not (koderz.folder / entries[1]["run_dir"] / "evaluation_results.json").exists()
    assert [each["eval_rc"] for each in _read(rollout / "eval_manifest.json")["results"]] == [0, 1, 0, 1]
    assert f"| {rollout.name}-1 | N/A |" in koderz("rollouts", "summarize", "nightly").out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("lm", "llm"), "unknown key 'llm'; did you mean 'lm'?"),
        (("evaluation", "evaluaton"), "unknown key 'evaluaton'; did you mean 'evaluation'?"),
    ],
)
def test_typing_error_in_a_task_exits_with_2_before_spending(koderz: Shell, change: tuple[str, str], said: str) -> None:
    koderz("rollouts", "sample", "tasks")
    meta = koderz.folder / "tasks/median/tb_meta.json"
    meta.write_text(json.dumps({change[1] if key == change[0] else key: each for key, each in _read(meta).items()}))
    (koderz.folder / "nightly.toml").write_text('[[tasks]]\nprepared_dir = "tasks/median"\nmodel = "simulated"\n')
    done = koderz("rollouts", "run", "nightly.toml", code=2)
    assert said in done.err
    assert not (koderz.folder / "benchmark_results").exists()


def test_metrics_of_a_tasks_own_are_in_its_evaluation(koderz: Shell) -> None:
    koderz("rollouts", "sample", "tasks")
    meta = koderz.folder / "tasks/median/tb_meta.json"
    task = _read(meta)
    task["evaluation"]["metrics"] = 'echo {\\"added\\": $(grep -c "^+ " "$KODERZ_DIFF")}'
    meta.write_text(json.dumps(task))
    (koderz.folder / "nightly.toml").write_text('[[tasks]]\nprepared_dir = "tasks/median"\nagent = "oracle"\n')
    koderz("rollouts", "run", "nightly.toml", "--quiet")
    (path,) = (_rollout(koderz) / "task_results").iterdir()
    assert _read(path)["custom_metrics"] == {"added": 4}
    assert _read(path)["standard_metrics"] is None
    assert koderz.summary()["results"][0]["metrics"]["added"] == 4.0
    log = koderz.folder / "data/runs" / path.stem / "logs/eval.log"
    assert '==> evaluation.metrics\n{"added": 4}\n' in log.read_text()


def test_settings_of_entries_are_compared_on_one_task(koderz: Shell) -> None:
    """Also when the run is taken up, graded again and summed up, and when its configuration has changed by then."""
    koderz("rollouts", "sample", "tasks")
    (koderz.folder / "solve.sh").write_text('test -z "${WORD:-}" || sed "s/.*/$WORD, &!/" names.txt > greeting.txt\n')
    entry = '[[tasks]]\nprepared_dir = "tasks/greeting"\nagent = "scripted"\nscript = "solve.sh"\n'
    words = [
        f'{entry}environment_variables = {{WORD = "{word}", KEEP_KEY = "k-{word}-17"}}\n' for word in ("Hello", "Hi")
    ]
    config = koderz.folder / "nightly.toml"
    config.write_text("".join([entry, *words]))
    koderz("rollouts", "run", "nightly.toml", "--quiet")
    names = ["scripted · solve.sh" + each for each in ("", " · WORD=Hello · KEEP_KEY=#1", " · WORD=Hi · KEEP_KEY=#2")]
    passed = dict(zip(names, [False, True, False], strict=True))
    shares = {name: float(success) for name, success in passed.items()}
    first = koderz.journal()[0]
    (journal,) = koderz.results.glob("[!.]*/journal.jsonl")
    assert first["tasks"] == ["sample/greeting"]
    assert "k-Hello-17" not in journal.read_text()

    def successes() -> dict[str, bool]:
        return {name: arm["results"][0]["success"] for name, arm in koderz.summary()["arms"].items()}

    def summed() -> dict[str, float]:
        found = json.loads(koderz("rollouts", "summarize", "nightly", "--json").out)["arms"]
        return {name: own["tasks"]["sample/greeting"]["unit_mean"] for name, own in found.items()}

    assert successes() == passed
    assert summed() == shares
    assert f"| {names[1]} | sample/greeting | 1 | 100% |" in koderz("rollouts", "summarize", "nightly").out
    said = json.loads(koderz("benchmark", "compare", "latest", "--json").out)
    assert "Hello" in json.dumps(said, ensure_ascii=False)

    graded = koderz("rollouts", "eval", "nightly").out  # each in what it was made with
    assert f"| {names[2]} | sample/greeting | 1 | 0% |" in graded
    assert successes() == passed

    plan, *others = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(
        plan + b"".join(line for line in others if names[1].encode() not in line and b'"finished"' not in line)
    )
    koderz("benchmark", "resume", "latest", "--quiet")
    assert successes() == passed
    assert summed() == shares

    config.write_text(config.read_text().replace("k-Hello-17", "k-Hello-18"))
    error = koderz("rollouts", "eval", "nightly", code=2).err
    assert f"not what it was when the run began: settings of {names[1]}" in error
    config.write_text("".join([entry, words[0]]))
    assert "no entry has the task sample/greeting with WORD=Hi" in koderz("rollouts", "eval", "nightly", code=2).err


def test_settings_of_entries_make_tasks_where_no_arm_has_them(koderz: Shell) -> None:
    """As in the runs of versions in which they always did."""
    koderz("rollouts", "sample", "tasks")
    entry = '[[tasks]]\nprepared_dir = "tasks/greeting"\n'
    (koderz.folder / "own.toml").write_text(f"{entry}{entry}timeout_sec = 60\n")
    own = ("--suite", "rollouts", "--solver", "agent:oracle", "--model", "simulated", "--quiet")
    koderz("benchmark", 0, 2, *own, "--dataset", "own.toml")
    koderz("benchmark", "rescore", "latest", "--quiet")
    assert [each["problem_id"] for each in koderz.summary()["results"]] == ["sample/greeting", "sample/greeting#2"]
