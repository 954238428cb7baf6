"""Agents on the embedded repositories, by the command line."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, Shell, are_gone, descendants, wait_for, whole_lines
from tests.koderz.systems.rollouts.tasks.test_harbor import written

pytestmark = pytest.mark.slow

OWN = ("--suite", "rollouts", "--solver", "agent:koderz", "--model", "simulated", "--quiet")


def _arm(koderz: Shell) -> dict[str, bool]:
    return {result["problem_id"]: result["success"] for result in koderz.summary()["results"]}


def test_simulated_model_plays_the_sample(anywhere: Shell) -> None:
    anywhere("benchmark", 0, 3, *OWN)
    assert _arm(anywhere) == {"sample/greeting": True, "sample/median": True, "sample/slugs": False}
    slugs = next(each for each in anywhere.summary()["results"] if each["problem_id"] == "sample/slugs")
    assert slugs["score"] == pytest.approx(0.5)
    shown = anywhere(
        "benchmark", "show", "latest", "--problem", "sample/slugs", "--artifact", "evaluation_results.json"
    )
    assert json.loads(shown.out)["evaluation"]["rubrics"]["plain"]["tests_passed"] == 1
    anywhere("benchmark", "export", "latest", "--format", "predictions", "--output", "predictions.jsonl")
    rows = [json.loads(line) for line in (anywhere.folder / "predictions.jsonl").read_text().splitlines()]
    assert [(row["instance_id"], row["model_name_or_path"]) for row in rows] == [
        (f"sample/{task}", "koderz+simulated") for task in ("greeting", "median", "slugs")
    ]
    assert "+Hello, Ada!" in rows[0]["model_patch"]
    calls = sum(line["kind"] == "call" for line in anywhere.journal())
    anywhere("benchmark", "rescore", "latest", "--quiet")
    assert sum(line["kind"] == "call" for line in anywhere.journal()) == calls
    assert _arm(anywhere) == {"sample/greeting": True, "sample/median": True, "sample/slugs": False}


def test_oracle_passes_and_nop_fails(anywhere: Shell, tmp_path: Path) -> None:
    for agent, expected in (("oracle", True), ("nop", False)):
        own = ("--suite", "rollouts", "--solver", f"agent:{agent}", "--model", "simulated", "--quiet")
        anywhere("benchmark", 0, 3, *own, "--results", tmp_path / agent)
        (path,) = (tmp_path / agent).glob("*.json")
        assert {result["success"] for result in json.loads(path.read_text())["results"]} == {expected}


def test_require_fresh_leaves_out_what_passes_only_as_published(koderz: Shell) -> None:
    """The command and its suite alike, so that no entry is about a task that isn't there."""
    for name, place in (("fresh", "it"), ("stale", "/tmp/it")):
        test = f"test -e {place}; echo $((! $?)) > /logs/verifier/reward.txt\n"
        files = {"solution/solve.sh": f"touch {place}\n", "tests/test.sh": test}
        written(koderz.folder / "tasks" / name, files=files)
    own = ("--agent", "oracle", "--sandbox", "local", "--quiet")
    koderz("rollouts", "run", "--dataset", "tasks", *own, "--require-fresh")
    assert _arm(koderz) == {"fresh": True}


def test_script_is_an_agent(anywhere: Shell) -> None:
    (anywhere.folder / "solve.sh").write_text("test ! -e names.txt || sed 's/.*/Hello, &!/' names.txt > greeting.txt\n")
    own = ("--suite", "rollouts", "--solver", "agent:scripted", "--script", "solve.sh", "--model", "simulated")
    anywhere("benchmark", 0, 3, *own, "--quiet")
    assert _arm(anywhere) == {"sample/greeting": True, "sample/median": False, "sample/slugs": False}


def test_agent_that_runs_out_of_time_is_graded_by_what_it_left(anywhere: Shell) -> None:
    (anywhere.folder / "solve.sh").write_text("sed 's/.*/Hello, &!/' names.txt > greeting.txt; sleep 1000\n")
    own = ("--suite", "rollouts", "--solver", "agent:scripted", "--script", "solve.sh", "--model", "simulated")
    anywhere("benchmark", "--problems", "sample/greeting,sample/slugs", *own, "--agent-timeout", 3, "--quiet")
    found = {each["problem_id"]: (each["verdict"], each["cause"]) for each in anywhere.summary()["results"]}
    assert found["sample/greeting"] == ("passed", "agent_timeout")
    assert found["sample/slugs"] in (("failed", "tests"), ("timeout", "agent_timeout"))


def test_killed_run_is_resumed_and_pays_nothing_twice(anywhere: Shell) -> None:
    run = anywhere.start("benchmark", 0, 3, *OWN, "--simulated-latency", "1")

    def has_worked() -> bool:
        journals = [*anywhere.results.glob("[!.]*/journal.jsonl")]
        return bool(journals) and sum(line["kind"] == "once" for line in whole_lines(journals[0])) >= 2

    wait_for(has_worked)
    below = descendants(run.pid)
    run.kill()
    run.communicate(timeout=PATIENCE)
    wait_for(lambda: are_gone(below))
    anywhere("benchmark", "resume", "latest", "--quiet")
    assert _arm(anywhere) == {"sample/greeting": True, "sample/median": True, "sample/slugs": False}
    calls = Counter((line["experiment_id"], line["key"]) for line in anywhere.journal() if line["kind"] == "call")
    assert calls
    assert max(calls.values()) == 1


def test_rollouts_with_the_same_diff_are_graded_where_they_worked(koderz: Shell) -> None:
    koderz("rollouts", "sample", "tasks")
    (koderz.folder / "tasks/greeting/tests/test.sh").write_text(
        "if test -e ~/left -o -e greeting.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    )
    (koderz.folder / "solve.sh").write_text("touch ~/left new\n")
    entry = '[[tasks]]\nprepared_dir = "tasks/greeting"\nagent = "scripted"\nscript = "solve.sh"\nrollouts = 4\n'
    (koderz.folder / "own.toml").write_text(entry)
    koderz("rollouts", "run", "own.toml", "--parallel", 4, "--quiet")
    found = [json.loads(path.read_bytes()) for path in koderz.folder.glob("data/rollouts/own/*/task_results/*.json")]
    assert [each["published"]["success"] for each in found] == [True] * 4
    (arm,) = koderz.summary()["arms"].values()
    assert [each["cause"] for each in arm["results"]] == ["tampering"] * 4  # no fresh home has what they left


def test_containment_that_is_impossible_stops_it_at_the_start(koderz: Shell) -> None:
    done = koderz("benchmark", 0, 3, *OWN, "--sandbox", "docker", code=4)
    assert "--sandbox docker" in done.err
    assert not [*koderz.results.glob("[!.]*/journal.jsonl")]


def test_configuration_is_run_and_its_tasks_checked(koderz: Shell) -> None:
    assert "koderz rollouts run tasks/sample.toml --model MODEL" in koderz("rollouts", "sample", "tasks").out
    koderz("rollouts", "sample", "tasks", code=2)
    planned = ("rollouts", "run", "tasks/sample.toml", "--dry-run")
    assert "needs a model" in koderz(*planned, code=2).err
    koderz(*planned, env={"KODERZ_MODEL": "simulated"})
    (koderz.folder / "solve.sh").write_text("sed 's/.*/Hello, &!/' names.txt > greeting.txt\n")
    entry = '[[tasks]]\nprepared_dir = "tasks/greeting"\nagent = '
    entries = f'{entry}"oracle"\nrollouts = 2\nsandbox = "docker"\n{entry}"scripted"\nscript = "solve.sh"\n'
    (koderz.folder / "own.toml").write_text(entries)
    koderz("rollouts", "run", "own.toml", "--sandbox", "local", "--quiet")  # which is for every entry
    arms = koderz.summary()["arms"]
    assert {name: [each["success"] for each in arm["results"]] for name, arm in arms.items()} == {
        "oracle": [True, True],
        "scripted · solve.sh": [True],
    }
    checked = koderz("rollouts", "check", "tasks/greeting", "tasks/slugs").out
    assert checked == "ok      sample/greeting\nok      sample/slugs\n"
    (koderz.folder / "tasks/greeting/solution/solve.sh").write_text("true\n")
    assert "solution doesn't pass" in koderz("rollouts", "check", "tasks/greeting", code=1).out
    koderz("rollouts", "run", "none.toml", code=2)


def test_strict_check_fails_where_doing_nothing_scores(koderz: Shell) -> None:
    koderz("rollouts", "sample", "tasks")
    task = koderz.folder / "tasks/greeting"
    wrong = 'test -e greeting.txt; echo {\\"kept\\": 1, \\"written\\": $((1 - $?))} > /logs/verifier/reward.json\n'
    (task / "tests/test.sh").write_text(wrong)
    done = koderz("rollouts", "check", "tasks/greeting")
    assert done.out == "ok      sample/greeting\n"
    assert "doing nothing scores 0.50" in done.err
    done = koderz("rollouts", "check", "tasks/greeting", "--strict", code=1)
    assert done.out == "failed  sample/greeting: doing nothing scores 0.50\n"


def test_run_killed_repeatedly_loses_and_doubles_nothing(koderz: Shell, tmp_path: Path) -> None:
    """Nothing of it lives a second later, and none of its checkouts is left after the next start."""
    koderz("rollouts", "sample", "tasks")
    entry = 'prepared_dir = "tasks/greeting"\nmodel = "simulated"\nrollouts = 40\n'
    (koderz.folder / "c.toml").write_text(f"parallel = 6\n[[tasks]]\n{entry}")
    (tmp_path / "tmp").mkdir()
    own = {"TMPDIR": str(tmp_path / "tmp")}
    command = ["rollouts", "run", "c.toml", "--sandbox", "local", "--quiet", "--simulated-latency", "0.2"]

    def written() -> list[bytes]:
        return [line for path in koderz.results.glob("[!.]*/journal.jsonl") for line in path.read_bytes().splitlines()]

    kept: list[bytes] = []
    for more in (1, 8, 3, 40, 20, 2):
        run = koderz.start(*command, env=own)
        wait_for(lambda: len(written()) >= len(kept) + more or run.poll() is not None)  # noqa: B023
        below = descendants(run.pid)
        run.kill()
        told = run.communicate(timeout=PATIENCE)
        assert run.returncode in (0, -signal.SIGKILL), told
        wait_for(lambda: are_gone(below))  # noqa: B023
        assert written()[: len(kept)] == kept
        kept = written()[:-1]
        command = ["benchmark", "resume", "latest", "--quiet"]
    koderz(*command, env=own)
    journal = koderz.journal()
    for kind in ("call", "once", "attempt", "experiment"):
        found = Counter((line["experiment_id"], line.get("key")) for line in journal if line["kind"] == kind)
        assert max(found.values()) == 1, kind
    assert koderz.summary()["summary"]["successes"] == 40
    assert [*(tmp_path / "tmp").glob("koderz-workspaces-*/*")] == []
    (manifest,) = (koderz.folder / "data/rollouts/c").glob("*/manifest.json")
    assert len({entry["run_id"] for entry in json.loads(manifest.read_text())["results"]}) == 40
