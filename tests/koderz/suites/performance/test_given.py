"""Patches that the user has: predictions, and what agents have left."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.suites.performance.given import Given, agents_in, read_agent, read_predictions, require_own
from koderz.suites.performance.mini import mini_tasks
from koderz.suites.performance.tasks import PerfTask

TASKS = mini_tasks()
ONE, OTHER = TASKS[0].id, TASKS[1].id


def _row(task: str, patch: str | None, model: str = "gpt-4o") -> dict[str, str | None]:
    return {"instance_id": task, "model_patch": patch, "model_name_or_path": model}


def test_several_lines_of_one_task_are_its_samples(tmp_path: Path) -> None:
    rows = [_row(ONE, "first"), _row(OTHER, None), _row(ONE, "second")]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (tmp_path / "b.json").write_text(json.dumps([_row(ONE, "third")]))
    (tmp_path / "c.json").write_text(json.dumps({OTHER: {"model_patch": "by id"}}))
    given = read_predictions([tmp_path / name for name in ("a.jsonl", "b.json", "c.json")], TASKS)
    assert given.patches == {ONE: ("first", "second", "third"), OTHER: ("", "by id")}
    assert given.model == "gpt-4o"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"model_patch": ""}', "has no instance_id"),
        ('{"instance_id": "other__repository-1", "model_patch": ""}', "there is no task 'other__repository-1'"),
        (f'{{"instance_id": "{ONE}", "model_patch": 1}}', "is no text"),
        ("{", "can't be read as predictions"),
        ("", "there are no patches"),
    ],
)
def test_what_is_no_prediction_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(KoderzError, match=said):
        read_predictions([tmp_path / "a.jsonl"], TASKS)


def test_folders_of_runs_are_found_by_the_human_commit_that_they_name(tmp_path: Path) -> None:
    for number, (name, commit) in enumerate([("run_summary.json", TASKS[0].human_commit), ("journal.json", "0" * 40)]):
        run = tmp_path / "claude_code" / f"run-{number}"
        run.mkdir(parents=True)
        (run / name).write_text(json.dumps({"commits": {"human": commit}}))
        (run / "model_patch.diff").write_text(f"patch {number}")
    (tmp_path / "codex.jsonl").write_text(json.dumps(_row(OTHER, "by file", "codex")))
    assert agents_in(tmp_path) == ["claude_code", "codex"]
    assert read_agent(tmp_path, "claude_code", TASKS).patches == {ONE: ("patch 0",)}
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


def test_an_agent_s_link_to_another_file_is_no_patch(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-hostile")
    for name in ("linked", "own"):
        run = tmp_path / "patches" / "agent" / name
        run.mkdir(parents=True)
        (run / "run_summary.json").write_text(json.dumps({"commits": {"human": TASKS[0].human_commit}}))
    (tmp_path / "patches/agent/own/model_patch.diff").write_text("+x")
    (tmp_path / "patches/agent/linked/model_patch.diff").symlink_to(tmp_path / "key")
    assert read_agent(tmp_path / "patches", "agent", TASKS).patches == {TASKS[0].id: ("+x",)}


_CHANGES = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"


def test_a_patch_of_another_repository_is_refused_where_the_files_are_at_hand(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/own.py").write_text("a\n")
    for words in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a")):
        subprocess.run(["git", "-C", tmp_path / "repo", *words], check=True)
    shown = subprocess.run(["git", "-C", tmp_path / "repo", "rev-parse", "HEAD"], check=True, capture_output=True)
    task = PerfTask("t", shown.stdout.decode().strip(), repo=str(tmp_path / "repo"))
    for known in (task, replace(task, repo="https://nowhere.invalid/x"), replace(task, base_commit="0000000")):
        given = Given({"t": (_CHANGES.format("own.py"), "", "no diff")}, "m")
        assert require_own(given, [known]) is given
    with pytest.raises(KoderzError, match=r"another repository's: there is no other\.py"):
        require_own(Given({"t": (_CHANGES.format("own.py"), _CHANGES.format("other.py"))}, "m"), [task])
