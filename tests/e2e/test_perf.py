"""Patches of the embedded repositories, measured by the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from koderz.systems.patches.gso import status_of, times_of
from tests.conftest import NOISY, PATIENCE, Shell, are_gone, wait_for, whole_lines, with_descendants
from tests.koderz.systems.workspaces.test_docker import asked, stand_in
from tests.loopback_modal import ModalServer
from tests.loopback_modal.processes import rooted

pytestmark = [pytest.mark.slow, pytest.mark.others(NOISY)]

ONE = "koderz-mini__revenue"  # whose simulated agent stops clocks

SERVER = "koderz-mini__generation"

ONE_BLOCK = ("--max-blocks", 1, "--gso-strict")

LABELS = {
    "good": ("passed", "opt"),
    "weak": ("passed", "not"),
    "no-op": ("passed", "inconclusive"),  # a server's, of whose figures a block decides nothing
    "wrong": ("test_failed", "not"),
    "memoise": ("passed", "not"),
    "disk": ("passed", "not"),
    "clocks": ("passed", "not"),
    "fork": ("test_failed", "not"),
    "tests": ("test_failed", "not"),
}


def _arms(koderz: Shell) -> dict[str, list[dict[str, Any]]]:
    return {name: arm["results"] for name, arm in koderz.summary()["arms"].items()}


def test_perf_measures_arms_and_rescores_without_measuring(koderz: Shell) -> None:
    busy = (0, 3)  # of a machine on which base was too far off from itself: a fault, which rescoring finds again
    shown = koderz("perf", "run", ONE, "--max-blocks", 7, "--quiet", code=busy).out
    assert re.search(r"agent +\| Opt@1 +\| +0\.0%", shown)
    assert re.search(r"human +\| times as fast as base, geometric mean +\| +\d", shown)
    summary = koderz.summary()
    assert summary["mode"] == "perf"
    arms = _arms(koderz)
    (human,), (agent,) = arms["human"], arms["agent"]
    found = [(each["success"], each["opt"], each["status"]) for each in arms["baseline"]]
    assert found == [(True, None, "passed")] or summary["faults"][0]["reason"].startswith("noise: base is")
    assert (human["success"], human["opt"]) == (True, "opt")
    assert human["metrics"]["speedup_base_low"] > 1.15
    assert (agent["success"], agent["opt"], agent["cause"], agent["hack"]) == (False, "not", "not", None)
    assert agent["gso"] == {"opt_base": False, "opt_commit": False}
    assert {"cpu_seconds_agent", "wall_seconds_human", "speedup_aa", "blocks"} <= agent["metrics"].keys()
    figures = summary["arms"]["human"]["summary"]
    assert figures["opt_at_k"]["1"]["value"] == 1.0
    assert figures["speedup_base"]["value"] == pytest.approx(human["metrics"]["speedup_base"])
    assert len(agent["ratios"]["human"]) == len(agent["ratios"]["base"]) == agent["metrics"]["blocks"]
    assert agent["limits"] == {"base": 1.15, "human": 0.95}
    for words in (("latest",), ("latest", "--problem", ONE)):
        assert "●" in koderz("benchmark", "show", *words).out
    overview = koderz("benchmark", "show", "latest").out
    assert "geometric mean" in overview
    assert not re.search("speedup_base_low|predictions=|gso_strict=", overview)
    koderz("benchmark", "report", "latest", "--output", "report.html")
    page = (koderz.folder / "report.html").read_text()
    assert "Blocks: times as fast as the human&#39;s answer" in page
    assert "<h1>simulated on koderz-perf-mini-generated</h1>" in page
    assert [f"<h3>{name}</h3>" in page for name in ("baseline", "human", "none")] == [False, True, False]
    names = Counter(line["name"] for line in koderz.journal() if line["kind"] == "once")
    assert names["block/1"] == 3
    told = shown[shown.index("BENCHMARK ") : shown.index("BENCHMARK SUMMARY SAVED")]
    assert told in koderz("benchmark", "rescore", "latest", "--quiet", code=busy).out
    assert Counter(line["name"] for line in koderz.journal() if line["kind"] == "once") == names
    assert _arms(koderz)["agent"][0]["opt"] == "not"


def test_killed_run_loses_at_most_the_block_in_flight(koderz: Shell) -> None:
    run = koderz.start("perf", "run", ONE, "--mode", "human", "--max-blocks", 4, "--gso-strict")

    def blocks() -> list[str]:
        lines = [line for path in koderz.results.glob("[!.]*/journal.jsonl") for line in whole_lines(path)]
        return [line["name"] for line in lines if line["kind"] == "once" and line["name"].startswith("block/")]

    wait_for(blocks)  # the first of several
    run.kill()
    run.communicate(timeout=PATIENCE)
    before = blocks()
    resumed = koderz("benchmark", "resume", "latest")
    assert re.search(rf"^\w{{7}} human: {ONE}: optimized: ", resumed.err, re.MULTILINE)
    assert re.search(rf"^human:\n  {ONE}  optimized: .*× base", resumed.out, re.MULTILINE)
    assert blocks()[: len(before)] == before
    assert len({*blocks()}) == len(blocks())
    assert _arms(koderz)["human"][0]["opt"] == "opt"


def _names(koderz: Shell) -> list[str]:
    return [
        line["name"]
        for path in koderz.results.glob("[!.]*/journal.jsonl")
        for line in whole_lines(path)
        if line["kind"] == "once"
    ]


def test_servers_end_with_a_killed_run_and_go_on_with_the_next_block(koderz: Shell) -> None:
    rows = [{"instance_id": SERVER, "model_patch": canned(SERVER, kind)} for kind in ("good", "wrong")]
    (koderz.folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = koderz.start("perf", "run", SERVER, "--mode", "agent", "--predictions", "p.jsonl", "--rounds", "7")
    wait_for(lambda: "block/2" in _names(koderz))
    processes = with_descendants({run.pid})
    run.kill()
    run.communicate(timeout=PATIENCE)
    wait_for(lambda: are_gone(processes))
    before = _names(koderz)
    koderz("benchmark", "resume", "latest", "--quiet")
    assert _names(koderz)[: len(before)] == before
    good, wrong = _arms(koderz)["agent"]
    assert (good["status"], good["metric"], good["iso"]["hard"]) == ("passed", "mean_tpot_ms", True)
    assert good["metrics"]["speedup_base_low"] > 1.05
    assert good["metrics"]["mean_tpot_ms_agent"] < good["metrics"]["mean_tpot_ms_base"]
    assert (wrong["status"], wrong["opt"]) == ("test_failed", "not")
    koderz("benchmark", "rescore", "latest", "--threshold", "0.1", "--quiet")
    assert _arms(koderz)["agent"][0]["opt"] == "opt"
    koderz("benchmark", "export", "latest", "--format", "gso", "--output", "gso")
    (log,) = (koderz.folder / "gso/logs/run_evaluation").glob(f"*/*run_0/{SERVER}/test_output.txt")
    assert times_of(log.read_text())["base"]
    koderz("benchmark", "export", "latest", "--format", "iso", "--output", "iso.jsonl")
    row = json.loads((koderz.folder / "iso.jsonl").read_text().splitlines()[0])
    assert row["agent_metrics"]["tpot_mean"] < row["baseline_metrics"]["tpot_mean"]


def test_server_of_base_that_does_not_start_is_a_fault_with_its_log(koderz: Shell) -> None:
    repository = koderz.folder / "repo"
    repository.mkdir()
    (repository / "server.py").write_text("print('\\x1b[31mno room'); 1 / 0\n")
    for words in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a")):
        subprocess.run(["git", "-C", repository, *words], check=True)
    done = subprocess.run(["git", "-C", repository, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    commit = done.stdout.strip()
    (koderz.folder / "tasks.toml").write_text(
        f'[[tasks]]\nid = "t"\nrepo = "repo"\nbase_commit = "{commit}"\nhuman_commit = "{commit}"\n'
        'serve = ["python3", "server.py", "{port}"]\n'
    )
    said = koderz("perf", "run", "--dataset", "tasks.toml", "--mode", "human", code=3)
    (fault,) = koderz.summary()["faults"]
    assert "the server ended: exit code 1" in fault["reason"]
    assert "no room" in fault["reason"]
    assert "ZeroDivisionError" in fault["reason"]
    assert "\x1b" not in fault["reason"] + said.out


def canned(task_id: str, kind: str) -> str:
    from koderz.systems.patches.sources import mini_tasks

    (task,) = (task for task in mini_tasks() if task.id == task_id)
    return next(canned.diff for canned in task.canned if canned.kind == kind)


def test_patches_of_all_kinds_but_good_ones_are_judged_as_labelled(koderz: Shell) -> None:
    """By GSO's points, which one block decides; the good ones are among those of a file."""
    from koderz.systems.patches.sources import mini_tasks

    kinds = {task.id: task.canned[0].kind for task in mini_tasks() if task.canned[0].kind != "good"}
    koderz("perf", "run", *kinds, "--mode", "agent", *ONE_BLOCK, "--quiet")
    results = {kinds[each["problem_id"]]: each for each in _arms(koderz)["agent"]}
    found = {kind: (each["status"], each["opt"]) for kind, each in results.items()}
    assert found | {"good": LABELS["good"]} == LABELS
    assert {line.partition(":")[0] for line in results["tests"]["tampering"]} == {
        *("conftest.py", "tests/test_word_counts.py")
    }


def test_unmeasurable_input_is_refused_before_anything_is_written(koderz: Shell) -> None:
    for words in (("0000000",), ("--commit", "abc"), ("--mode", "both"), ("--threshold", "2"), ("--type", "mystery")):
        koderz("perf", "run", *words, code=2)
    (koderz.folder / "commits.txt").write_text("# none\nffffffff a comment\n")
    koderz("perf", "run", "--commits-file", "commits.txt", code=2)
    (koderz.folder / "none.txt").write_text("# none\n")
    assert "names no commit" in koderz("perf", "run", "--commits-file", "none.txt", code=2).err
    assert "workload, serving" in koderz("perf", "run", "--type", "mystery", code=2).err
    assert "its tasks are no commits" in koderz("perf", "check", "--suite", "humaneval", code=2).err
    koderz("perf", "run", "--baseline", "--mode", "agent", code=2)
    row = {"instance_id": ONE, "model_patch": "--- a/other.py\n+++ b/other.py\n@@ -1 +1 @@\n-a\n+b\n"}
    (koderz.folder / "other.jsonl").write_text(json.dumps(row))
    said = koderz("perf", "run", "--predictions", "other.jsonl", code=2).err
    assert "another repository's: there is no other.py in this one" in said
    programs = koderz.folder / "programs"  # without git
    programs.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    for command in ("run", "check"):
        assert "git is missing" in koderz("perf", command, ONE, env={"PATH": str(programs)}, code=2).err
    assert not [*koderz.results.glob("*")]


def test_dry_run_shows_the_plan_and_writes_nothing(koderz: Shell) -> None:
    (koderz.folder / "own.diff").write_text("--- /dev/null\n+++ b/own.py\n@@ -0,0 +1 @@\n+x = 1\n")
    both = ("--predictions", "koderz-mini__dedupe=own.diff", "--predictions", f"{ONE}=own.diff")
    limited = json.loads(koderz("perf", "run", *both, "--limit", 1, "--mode", "agent", "--dry-run", "--json").out)
    assert limited["planned"] == 1
    plan = json.loads(koderz("perf", "run", "--start-from", 7, "--dry-run", "--json").out)
    assert plan["planned"] == 6
    assert not [*koderz.results.glob("*")]


def test_patches_of_a_file_are_measured_as_samples(koderz: Shell) -> None:
    from koderz.systems.patches.sources import mini_tasks

    task = next(task for task in mini_tasks() if task.id == ONE)
    diffs = {canned.kind: canned.diff for canned in task.canned}
    rows = [
        {"instance_id": ONE, "model_patch": diffs[kind], "model_name_or_path": "gpt-4o"} for kind in ("wrong", "good")
    ]
    rows.append({**rows[0], "model_patch": ""})
    (koderz.folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ("--predictions", "p.jsonl", "--judge-model", "simulated")
    words = ("perf", "run", ONE, task.human_commit[:8], "--mode", "agent", *given, "--quiet")
    koderz(*words, "--resume")
    results = koderz.summary()["arms"]["agent"]["results"]
    assert [each.get("quadrant") for each in results] == ["Q2", "Q1", None]
    assert koderz.summary()["arms"]["agent"]["summary"]["quadrants"] == {"Q1": 1, "Q2": 1, "Q3": 0, "Q4": 0}
    reviews = [line for line in koderz.journal() if line["kind"] == "call"]
    assert [line["purpose"] for line in reviews] == ["judge", "judge"]
    koderz("benchmark", "rescore", "latest", "--max-blocks", 3, "--quiet", code=(0, 3))  # 3: noise, on a busy machine
    assert [line for line in koderz.journal() if line["kind"] == "call"] == reviews
    koderz("benchmark", "rescore", "latest", "--max-blocks", 30, "--quiet")
    assert [(each["status"], each["opt"], each["model"]) for each in results] == [
        *(("test_failed", "not", "gpt-4o"), ("passed", "opt", "gpt-4o"), ("empty_patch", "not", "gpt-4o"))
    ]
    shown = koderz("benchmark", "show", "latest", "--problem", ONE).out
    told = [" · gpt-4o", " · sample 1 · gpt-4o", " · sample 2 · gpt-4o"]
    assert re.findall(r" · agent( · .*) · bench_", shown) == told
    failures = koderz("benchmark", "show", "latest", "--failures").out
    assert "sample 2 · gpt-4o" in failures
    assert koderz.summary()["arms"]["agent"]["summary"]["opt_at_k"]["3"]["value"] == 1.0
    assert not koderz.summary()["simulated"]
    assert "nothing to do" in koderz(*words, "--resume").err
    koderz("benchmark", "export", "latest", "--format", "predictions", "--output", "out.jsonl")
    _require_exports(koderz, task.human_commit)
    written = [json.loads(line) for line in (koderz.folder / "out.jsonl").read_text().splitlines()]
    assert [(row["instance_id"], row["model_patch"]) for row in written] == [
        (row["instance_id"], row["model_patch"] or "") for row in rows
    ]


def _require_exports(koderz: Shell, commit: str) -> None:
    koderz("benchmark", "export", "latest", "--format", "gso", "--output", "gso")
    logs = sorted((koderz.folder / "gso/logs/run_evaluation").glob(f"*/gpt-4o-run_*/{ONE}/test_output.txt"))
    assert [status_of(path.read_text()) for path in logs] == ["test_failed", "passed"]
    times = times_of(logs[1].read_text())
    assert times["base"]
    assert len(times["base"][0]) >= 7
    koderz("benchmark", "export", "latest", "--format", "iso", "--output", "iso.jsonl")
    rows = [json.loads(line) for line in (koderz.folder / "iso.jsonl").read_text().splitlines()]
    assert [row["status"] for row in rows] == ["test_failed", "passed", "empty_patch"]
    assert {row["full_commit"] for row in rows} == {commit}
    assert rows[1]["agent_metrics"]["cpu_seconds"] < rows[1]["baseline_metrics"]["cpu_seconds"]


def test_patches_of_agents_have_arms_and_missing_ones_fail(koderz: Shell) -> None:
    from koderz.systems.patches.sources import mini_tasks

    task = mini_tasks()[0]
    for agent, kind in (("claude_code", "no-op"), ("codex", "tests")):
        (diff,) = (canned.diff for canned in task.canned if canned.kind == kind)
        run = koderz.folder / "patches" / agent / "run"
        run.mkdir(parents=True)
        (run / "model_patch.diff").write_text(diff)
        (run / "journal.json").write_text(json.dumps({"commits": {"human": task.human_commit}}))
    wanted = (task.id, ONE, "--mode", "agent")
    koderz("perf", "run", *wanted, code=2)
    said = koderz("perf", "run", *wanted, "--agent-type", "claude_code", "--agent-type", "codex", *ONE_BLOCK).err
    assert "has no patch of 1 tasks" in said
    arms = koderz.summary()["arms"]
    assert {name: arm["results"][0]["status"] for name, arm in arms.items()} == {
        "agent · claude_code": "passed",
        "agent · codex": "test_failed",
    }
    assert arms["agent · codex"]["summary"]["opt_at_k"]["1"]["value"] == 0


def test_check_of_a_task(koderz: Shell) -> None:
    assert koderz("perf", "check", ONE, "--max-blocks", 12).out.startswith(f"ok      {ONE}: opt: ")
    koderz("perf", "check", "0000000", code=2)
    assert "nothing can be timed there" in koderz("perf", "check", ONE, "--sandbox", "uncontained", code=2).err


def test_legs_run_in_containers_where_docker_is_named(
    koderz: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = stand_in(tmp_path / "docker", monkeypatch)
    options = ("--mode", "human", "--sandbox", "docker", "--image", "me/python:3")
    refused = koderz("perf", "run", ONE, *options, code=4)
    assert "there is no image me/python:3" in refused.err
    assert "there is no image me/python:3" in koderz("perf", "check", ONE, *options[2:], code=4).err
    assert not [*koderz.results.glob("*")]
    (state / "registry").write_text("me/python:3")
    shown = koderz("perf", "run", ONE, *options, "--max-blocks", "1", code=(0, 3)).err
    assert f"{ONE} runs in me/python:3" in shown
    assert _is_measured(koderz)
    assert koderz.summary()["config"]["sandbox"] == "docker"
    assert koderz.journal()[0]["details"]["suite"]["machines"][ONE]["base"] == "me/python:3"
    assert {words[words.index("--entrypoint") + 2] for words in asked(state, "run")} == {"me/python:3"}


def _is_measured(koderz: Shell) -> bool:
    """Whether the human's answer is faster; on a busy machine base may be too far off from itself in one block."""
    if faults := koderz.summary()["faults"]:
        return bool(faults[0]["reason"].startswith("noise: base is"))
    (human,) = _arms(koderz)["human"]
    return bool(human["status"] == "passed" and human["metrics"]["speedup_base"] > 1.15)


@pytest.mark.skipif(not rooted(), reason="needs user namespaces")
def test_legs_run_on_modal_each_block_in_one_sandbox(koderz: Shell) -> None:
    with ModalServer() as server:
        options = ("--mode", "human", "--sandbox", "modal", "--image", "me/python:3", "--max-blocks", "2")
        shown = koderz("perf", "run", ONE, *options, "--parallel", "2", env=server.environment, code=(0, 3))
        assert f"{ONE} runs in me/python:3" in shown.err
        assert len(server.sandboxes) > 2
        assert not [each for each in server.sandboxes if each.lives or not each.blocks_network or each.secrets]
    assert _is_measured(koderz)
    assert koderz.summary()["config"]["concurrency"] == 2


@pytest.mark.skipif(not rooted(), reason="needs user namespaces")
def test_server_on_modal_is_loaded_from_beside_it(koderz: Shell) -> None:
    from koderz.systems.patches.sources import mini_tasks

    (task,) = (task for task in mini_tasks() if task.kind == "serving")
    diffs = [each.diff for each in task.canned if each.kind in ("good", "wrong")]
    rows = [json.dumps({"instance_id": SERVER, "model_patch": diff}) for diff in diffs]
    (koderz.folder / "p.jsonl").write_text("\n".join(rows))
    options = ("--predictions", "p.jsonl", "--mode", "agent", "--sandbox", "modal", "--rounds", "1", "--quiet")
    with ModalServer() as server:
        koderz("perf", "run", SERVER, *options, env=server.environment)
        before = koderz.summary()["arms"]["agent"]["summary"]["total_cost"]
        koderz("benchmark", "rescore", "latest", "--quiet", env=server.environment)
        assert not [each for each in server.sandboxes if each.lives or not each.blocks_network or each.secrets]
        assert not any(each.asked.open_ports.ports for each in server.sandboxes)
    found = {each["status"]: each for each in _arms(koderz)["agent"]}
    assert found.keys() == {"passed", "test_failed"}
    assert found["passed"]["iso"]["hard"]
    paid = [line for line in koderz.journal() if line["kind"] == "compute"]
    assert {line["engine"] for line in paid} == {"sandbox"}
    assert sum(line["cost"] for line in paid) == pytest.approx(before)
    assert found["passed"]["cost"] > 0
    assert koderz.summary()["arms"]["agent"]["summary"]["total_cost"] == before
    assert found["passed"]["metrics"]["completed_agent"] == found["passed"]["metrics"]["completed_base"] > 0


def test_images_of_a_row_are_looked_up_before_anything_begins(
    koderz: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = stand_in(tmp_path / "docker", monkeypatch)
    row = {
        "instance_id": "vllm-project__vllm-abc",
        "repo": "vllm-project/vllm",
        "base_commit": "b" * 40,
        "commit_hash": "a" * 40,
        "perf_command": "vllm bench serve --model meta-llama/Llama-3-70B --num-prompts 3",
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (state / "registry").write_text(f"anonymous/vllm-baseline:{'b' * 40}")
    options = ("--dataset", "rows.jsonl", "--suite", "iso", "--mode", "human", "--sandbox", "docker")
    assert f"there is no image anonymous/vllm-bench:{'a' * 40}" in koderz("perf", "run", *options, code=4).err
    assert not [*koderz.results.glob("*")]


def test_server_is_reached_in_its_container(koderz: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = stand_in(tmp_path / "docker", monkeypatch)
    (state / "python-3.12-slim").touch()
    koderz("perf", "run", SERVER, "--mode", "human", "--sandbox", "docker", "--rounds", "1", "--quiet")
    (human,) = _arms(koderz)["human"]
    assert human["status"] == "passed"
    assert human["metrics"]["blocks"] == 1
