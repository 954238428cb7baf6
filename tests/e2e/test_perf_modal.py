"""Patches measured by Modal's engine: the real command and Modal's own client, on a loopback Modal."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NOISY, PATIENCE, wait_for, whole_lines
from tests.e2e.conftest import Remote, once_each, one_line
from tests.e2e.test_modal_runs import elsewhere, run_of
from tests.e2e.test_perf import LABELS, SERVER, canned
from tests.loopback_modal.processes import rooted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not rooted(), reason="needs user namespaces"),
    pytest.mark.others(NOISY),
]

ONE = "koderz-mini__revenue"
ENGINE = ("--engine", "modal")


def results(machine: Remote, arm: str) -> dict[str, dict[str, Any]]:
    return {each["problem_id"]: each for each in machine.summary()["arms"][arm]["results"]}


def steps(machine: Remote) -> list[str]:
    lines = [line for path in machine.results.glob("[!.]*/journal.jsonl") for line in whole_lines(path)]
    return [line["name"] for line in lines if line["kind"] == "once"]


def repository(folder: Path) -> tuple[str, str]:
    """One with a slow commit and a faster one; their names."""
    folder.mkdir()
    commits = []
    for loops in (400_000, 4_000):
        (folder / "sums.py").write_text(f"def total():\n    return sum(range({loops})) * 0 + 7\n")
        for words in (
            ("init", "-q"),
            ("add", "."),
            ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"),
        ):
            subprocess.run(["git", "-C", folder, *words], check=True)
        found = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
        commits.append(found.stdout.strip())
    return commits[0], commits[1]


def test_perf_on_modal_measures_a_local_repository(on_modal: Remote) -> None:
    """Its patches, too, go there with the plan."""
    base, human = repository(on_modal.folder / "repo")
    work = "def inputs(rng, i):\n    return i\n\n\ndef call(x):\n    import sums\n\n    return sums.total() + x\n"
    (on_modal.folder / "work.py").write_text(work)
    (on_modal.folder / "tasks.toml").write_text(
        f'[[tasks]]\nid = "t"\nrepo = "repo"\nbase_commit = "{base}"\nhuman_commit = "{human}"\n'
        'workloads = ["work.py"]\n'
    )
    slow = "return sum(range(400000)) * 0 + 7"
    patch = f"--- a/sums.py\n+++ b/sums.py\n@@ -1,2 +1,2 @@\n def total():\n-    {slow}\n+    return 7\n"
    agent = on_modal.folder / "patches/someone.jsonl"
    agent.parent.mkdir()
    agent.write_text(json.dumps({"instance_id": "t", "model_patch": patch, "model_name_or_path": "m"}))
    options = ("--dataset", "tasks.toml", "--max-blocks", 1, "--parallel", 2, *ENGINE)

    on_modal("perf", "run", *options, code=(0, 3))

    lines = on_modal.journal()
    assert len({line["experiment_id"] for line in lines if line["kind"] == "compute"}) == 3
    names = Counter(line["name"] for line in lines if line["kind"] == "once")
    assert names == {"calls": 3, "block/1": 3, "applied": 1, "patch": 1}
    for line in lines:
        if line["kind"] == "fault":  # in one block on a busy machine
            assert line["reason"].startswith("noise: ")
    agents = [line["value"] for line in lines if line.get("name") == "applied"]
    assert [each["status"] for each in agents] == ["passed"]
    variant = on_modal.modal.variants("run_experiment")[-1]
    assert (variant.max_containers, variant.concurrency) == (1, 2)
    assert not [each for each in on_modal.modal.sandboxes if each.lives or not each.blocks_network or each.secrets]


def test_perf_on_modal_refuses_locally_what_modal_would_refuse(on_modal: Remote) -> None:
    row = {
        "instance_id": "vllm-project__vllm-abc",
        "repo": "vllm-project/vllm",
        "base_commit": "b" * 40,
        "opt_commit": "a" * 40,
        "tests": ["print(1)"],
    }
    (on_modal.folder / "rows.jsonl").write_text(json.dumps(row))
    said = on_modal("perf", "run", "--dataset", "rows.jsonl", "--suite", "gso", "--mode", "human", *ENGINE, code=2)
    assert "defines no experiment" in one_line(said.err)
    assert "--engine modal" in on_modal("perf", "run", ONE, *ENGINE, "--sandbox", "contained", code=2).err
    assert not on_modal.results.exists()


def test_rollouts_still_need_this_machine(on_modal: Remote) -> None:
    said = on_modal("rollouts", "run", *ENGINE, "--sandbox", "modal", code=2)
    assert "needs workspace, which the engine modal hasn't got" in one_line(said.err)


def test_detached_run_is_watched_and_collected_elsewhere(on_modal: Remote, tmp_path: Path) -> None:
    row = {"instance_id": ONE, "model_patch": canned(ONE, "good")}
    (on_modal.folder / "p.jsonl").write_text(json.dumps(row))
    asked = ("perf", "run", ONE, "--mode", "agent", "--predictions", "p.jsonl", "--max-blocks", 2, *ENGINE)
    shown = on_modal(*asked, "--detach")
    assert "your machine may disconnect" in shown.err
    assert "1/1" in on_modal("benchmark", "watch", "latest", "--every", "0.5").out
    other = elsewhere(on_modal, tmp_path / "elsewhere")

    for machine in (on_modal, other):
        machine("benchmark", "resume", run_of(on_modal), "--quiet", "--trust-config", code=(0, 3))
        assert steps(machine) == ["patch", "applied", "calls", "block/1", "block/2"]
        (end,) = [line for line in machine.journal() if line["kind"] in ("experiment", "fault")]
        assert end.get("reason", "noise: ").startswith("noise: ")  # of two blocks on a busy machine
    again = on_modal(*asked, "--resume", code=(0, 3))
    assert "nothing to do" in again.out + again.err
    assert len([*on_modal.results.glob("bench_*/")]) == 1


def test_patches_are_judged_as_labelled_though_client_and_containers_are_killed(on_modal: Remote) -> None:
    """No finished block is measured again, nothing is submitted twice, and rescoring measures nothing."""
    from koderz.systems.patches.sources import mini_tasks

    wanted = {"good", "wrong"}  # the other kinds: test_perf.py, where the same referee judges them
    kinds = {task.id: task.canned[0].kind for task in mini_tasks() if task.canned[0].kind in wanted}
    run = on_modal.start("perf", "run", *kinds, "--mode", "agent", "--max-blocks", 4, "--gso-strict", *ENGINE)
    wait_for(lambda: "block/2" in steps(on_modal))
    run.kill()
    run.communicate(timeout=PATIENCE)
    before = steps(on_modal)
    for container in on_modal.modal.containers("run_experiment"):
        on_modal.modal.preempt(container)

    on_modal("benchmark", "resume", "latest", "--quiet", code=(0, 3))

    found = {kinds[name]: (each["status"], each["opt"]) for name, each in results(on_modal, "agent").items()}
    assert found == {kind: LABELS[kind] for kind in wanted}
    once_each(on_modal, len(wanted))
    measured = steps(on_modal)
    assert measured[: len(before)] == before
    blocks: dict[str, list[str]] = {}
    for line in on_modal.journal():
        if line["kind"] == "once" and line["name"].startswith("block/"):
            blocks.setdefault(line["experiment_id"], []).append(line["name"])
    assert len(blocks) == len(wanted)
    for names in blocks.values():
        assert names == [f"block/{number}" for number in range(1, len(names) + 1)]
    submitted = Counter(line["experiment_id"] for line in on_modal.journal() if line["kind"] == "submitted")
    assert submitted == dict.fromkeys(blocks, 1)

    on_modal("benchmark", "rescore", "latest", "--threshold", "0.2", "--quiet", code=(0, 3))

    (limits,) = [each["limits"] for each in results(on_modal, "agent").values() if each["status"] == "passed"]
    assert limits["human"] == 0.2
    assert steps(on_modal) == measured


def test_server_on_modal_is_put_under_load_beside_it(on_modal: Remote) -> None:
    on_modal("perf", "run", SERVER, "--mode", "human", "--rounds", 1, *ENGINE)
    human = results(on_modal, "human")[SERVER]
    assert human["status"] == "passed"
    assert human["metrics"]["mean_ttft_ms_human"] > 0
