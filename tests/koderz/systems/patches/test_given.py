"""Patches that the user has: predictions, and what agents have left."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.systems.patches.patches import UserPatches, agents_in, read_agent, read_predictions, require_own, with_tasks
from koderz.systems.patches.sources import mini_tasks
from koderz.systems.patches.tasks import PerfTask
from tests.conftest import Shell

TASKS = mini_tasks()
ONE, OTHER = TASKS[0].id, TASKS[1].id


def _row(task: str, patch: str | None, model: str = "gpt-4o") -> dict[str, str | None]:
    return {"instance_id": task, "model_patch": patch, "model_name_or_path": model}


def test_lines_of_one_task_are_its_samples(tmp_path: Path) -> None:
    rows = [_row(ONE, "first"), _row(OTHER, None), _row(ONE, "second")]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (tmp_path / "b.json").write_text(json.dumps([_row(ONE, "third")]))
    (tmp_path / "c.json").write_text(json.dumps({OTHER: {"model_patch": "by id"}}))
    given = read_predictions([tmp_path / name for name in ("a.jsonl", "b.json", "c.json")], TASKS)
    assert given.patches == {ONE: ("first", "second", "third"), OTHER: ("", "by id")}
    assert given.model == "gpt-4o"
    assert given.names == {ONE: ("gpt-4o",) * 3, OTHER: ("gpt-4o", "")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"model_patch": ""}', "line 1: the field 'instance_id' is missing"),
        ('{"instance_id": "other__repository-1", "model_patch": ""}', "there is no task 'other__repository-1'"),
        (f'{{"instance_id": "{ONE}", "model_patch": 1}}', "line 1: the field 'model_patch' has to be text"),
        (f'{{"instance_id": "{ONE}", "model-patch": "x"}}', "'model_patch' is missing; is 'model-patch' meant for it?"),
        ('{"instance": "x", "model_patch": "x"}', "'instance_id' is missing; is 'instance' meant for it?"),
        ("", "there are no patches"),
    ],
)
def test_invalid_prediction_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(KoderzError, match=re.escape(said)):
        read_predictions([tmp_path / "a.jsonl"], TASKS)


_DIFF = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"


@pytest.mark.parametrize("name", ["my.diff", "a=b.txt"])
def test_plain_diff_is_a_patch_of_the_only_task(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(_DIFF.format("core.py"))
    (word,) = with_tasks([str(tmp_path / name)], TASKS[:1])
    assert word == f"{ONE}={tmp_path / name}"
    assert read_predictions([word], TASKS).patches == {ONE: (_DIFF.format("core.py"),)}
    assert with_tasks([word], TASKS) == [word]
    with pytest.raises(KoderzError, match="is a plain diff, and names no task"):
        with_tasks([str(tmp_path / name)], TASKS)


def test_plain_diff_may_name_its_task_by_a_commit(tmp_path: Path) -> None:
    (tmp_path / "my.diff").write_text(_DIFF.format("core.py"))
    named = f"{TASKS[1].human_commit[:8]}={tmp_path}/my.diff"
    (tmp_path / "a.jsonl").write_text(json.dumps(_row(OTHER, "first")))
    given = read_predictions([tmp_path / "a.jsonl", named], TASKS)
    assert given.patches == {OTHER: ("first", _DIFF.format("core.py"))}
    with pytest.raises(KoderzError, match="is no plain diff"):
        read_predictions([f"{ONE}={tmp_path}/a.jsonl"], TASKS)
    with pytest.raises(KoderzError, match="there is no task or human commit 'other'"):
        read_predictions([f"other={tmp_path}/my.diff"], TASKS)


def test_plain_diff_and_files_go_together_for_one_task(koderz: Shell) -> None:
    task = TASKS[0]
    (koderz.folder / "my.diff").write_text(task.canned[0].diff)
    rows = [_row(OTHER, "x"), _row(ONE, task.canned[0].diff)]
    (koderz.folder / "all.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for which in (task.id, f"--commit={task.human_commit[:7]}"):
        asked = ("perf", "run", which, "--mode", "agent", "--dry-run", "--json", "--predictions", "my.diff")
        plan = json.loads(koderz(*asked, "all.jsonl").out)
        assert (plan["planned"], plan["config"]["problems"]) == (2, [task.id])
        assert plan["config"]["predictions"][0] == f"{task.id}={koderz.folder}/my.diff"
    done = koderz("perf", "run", "--dry-run", "--predictions", "my.diff", code=2)
    assert done.err.startswith("koderz: my.diff is a plain diff, and names no task: ")
    done = koderz("perf", "run", TASKS[2].id, "--dry-run", "--predictions", "all.jsonl", code=2)
    assert f"there are no patches of the tasks that are asked for; there are of {OTHER}, {ONE}" in done.err


def test_folders_of_runs_are_found_by_the_human_commit_that_they_name(tmp_path: Path) -> None:
    for number, (name, commit) in enumerate([("run_summary.json", TASKS[0].human_commit), ("journal.json", "0" * 40)]):
        run = tmp_path / "claude_code" / f"run-{number}"
        run.mkdir(parents=True)
        (run / name).write_text(json.dumps({"commits": {"human": commit}}))
        (run / "model_patch.diff").write_text(f"patch {number}")
    (tmp_path / "codex.jsonl").write_text(json.dumps(_row(OTHER, "by file", "codex")))
    assert agents_in(tmp_path) == ["claude_code", "codex"]
    assert read_agent(tmp_path, "claude_code", TASKS).patches == {ONE: ("patch 0",)}
    assert read_agent(tmp_path, "claude_code", TASKS).names == {ONE: ("run-0",)}
    assert read_agent(tmp_path, "codex", TASKS).patches == {OTHER: ("by file",)}
    with pytest.raises(KoderzError, match="there are claude_code, codex"):
        read_agent(tmp_path, "aider", TASKS)


def test_patches_that_are_no_text_can_be_recorded(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"instance_id": "{ONE}", "model_patch": "+\\udc80\\ud83d\\ude00"}}')
    assert read_predictions([tmp_path / "a.jsonl"], TASKS).patches == {ONE: ("+\ufffd\U0001f600",)}
    run = tmp_path / "patches" / "agent" / "run"
    run.mkdir(parents=True)
    (run / "run_summary.json").write_text(json.dumps({"commits": {"human": TASKS[0].human_commit}}))
    (run / "model_patch.diff").write_bytes(b"+\xff")
    assert read_agent(tmp_path / "patches", "agent", TASKS).patches == {ONE: ("+\ufffd",)}


def test_link_of_an_agent_to_another_file_is_no_patch(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-hostile")
    for name in ("linked", "own"):
        run = tmp_path / "patches" / "agent" / name
        run.mkdir(parents=True)
        (run / "run_summary.json").write_text(json.dumps({"commits": {"human": TASKS[0].human_commit}}))
    (tmp_path / "patches/agent/own/model_patch.diff").write_text("+x")
    (tmp_path / "patches/agent/linked/model_patch.diff").symlink_to(tmp_path / "key")
    assert read_agent(tmp_path / "patches", "agent", TASKS).patches == {TASKS[0].id: ("+x",)}


def test_patch_of_another_repository_is_refused(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/own.py").write_text("a\n")
    for words in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a")):
        subprocess.run(["git", "-C", tmp_path / "repo", *words], check=True)
    shown = subprocess.run(["git", "-C", tmp_path / "repo", "rev-parse", "HEAD"], check=True, capture_output=True)
    task = PerfTask("t", shown.stdout.decode().strip(), repo=str(tmp_path / "repo"))
    for known in (task, replace(task, repo="https://nowhere.invalid/x"), replace(task, base_commit="0000000")):
        given = UserPatches({"t": (_DIFF.format("own.py"), "", "no diff")}, "m")
        assert require_own(given, [known]) is given
    with pytest.raises(KoderzError, match=r"another repository's: there is no other\.py"):
        require_own(UserPatches({"t": (_DIFF.format("own.py"), _DIFF.format("other.py"))}, "m"), [task])
