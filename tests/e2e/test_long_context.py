"""Questions about long texts, asked directly: what is sent, what is recorded of it, and what doesn't fit."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from typing import Any

import pytest

from koderz.systems.long_context.oolong.questions import KINDS
from tests.conftest import PATIENCE, Shell
from tests.koderz.systems.long_context.encrypted import CANARY, as_lines, rows
from tests.koderz.systems.long_context.published import ROWS

RUN = ("benchmark", "--suite", "ruler", "--model", "simulated", "--quiet", "--solver", "direct", "--sink", "json")


def calls(koderz: Shell) -> list[dict[str, Any]]:
    return [line for line in koderz.journal() if line["kind"] == "call"]


def test_ruler_is_asked_directly_with_its_texts_recorded_by_reference(koderz: Shell) -> None:
    koderz(*RUN, "--limit", 10)

    summary = koderz.summary()
    assert summary["simulated"] is True
    assert [row["problem_id"] for row in summary["results"]][:5] == [
        *("niah_single_1/4096/0", "niah_multikey_2/4096/0", "vt/4096/0", "cwe/4096/0", "fwe/4096/0"),
    ]
    assert all(0 <= row["score"] <= 1 and row["success"] == (row["score"] == 1) for row in summary["results"])
    assert all(3000 < call["tokens_in"] <= 4096 for call in calls(koderz))
    (message,) = calls(koderz)[0]["messages"]
    (part,) = message["content"]
    assert part.keys() == {"type", "name", "digest", "of"}
    assert "The grass is green" not in json.dumps(koderz.journal())
    facts = [line["value"] for line in koderz.journal() if line["kind"] == "once"]
    assert {(each["tokenizer"], each["generator"]) for each in facts} == {("chars/4", "official")}


def test_text_that_does_not_fit_the_window_is_not_sent(koderz: Shell) -> None:
    koderz(*RUN, "--ruler-tasks", "vt", "--context-lengths", "4096", "16K", "--limit", 2, "--context", 8000)

    short, long = koderz.summary()["results"]
    assert (long["problem_id"], long["verdict"], long["cause"]) == ("vt/16384/0", "failed", "context")
    assert short["cause"] != "context"
    assert len(calls(koderz)) == 1


RLM = ("benchmark", "--suite", "ruler", "--model", "simulated", "--quiet", "--solver", "rlm", "--sink", "json")


def cells(koderz: Shell) -> list[dict[str, Any]]:
    return [line["value"] for line in koderz.journal() if line["kind"] == "once" and line["name"].startswith("cell")]


@pytest.mark.slow
def test_rlm_works_on_texts_that_no_model_is_shown(koderz: Shell) -> None:
    koderz(*RLM, "--limit", 5, "--context-lengths", "32K", "--context", 16384)

    assert [(row["success"], row["iterations"]) for row in koderz.summary()["results"]] == [(True, 3)] * 5
    assert {call["purpose"] for call in calls(koderz)} == {"root", "sub"}
    assert {(cell["container"], cell["error"]) for cell in cells(koderz)} == {("wasm", None)}
    assert "The grass is green" not in json.dumps(calls(koderz)[0])
    asked = len(calls(koderz))
    koderz("benchmark", "rescore", "latest", "--quiet")
    assert len(calls(koderz)) == asked


def test_native_session_is_recorded(koderz: Shell) -> None:
    tried = (
        "import sys; from koderz.sandbox.linux import isolation, support; "
        "sys.exit(not isolation.contained(support.available()))"
    )
    if subprocess.run([sys.executable, "-c", tried], check=False).returncode:
        pytest.skip("this machine doesn't contain native sessions")
    koderz(*RLM, "--limit", 1, "--session", "native")

    assert {cell["container"] for cell in cells(koderz)} == {"native"}


def test_missing_manager_is_told_before_spending(koderz: Shell) -> None:
    done = koderz(*RLM, "--limit", 1, "--wasm-url", "http://127.0.0.1:9", code=4)

    assert "Failed to create WASM session" in done.err


def test_sessions_of_a_manager_are_used(koderz: Shell) -> None:
    manager = koderz.start("wasm", "serve", "--port", 0, "--workers", 1)
    assert manager.stdout
    url = manager.stdout.readline().split()[-1]
    try:
        done = koderz(*RLM, "--limit", 2, "--wasm-url", url)
    finally:
        manager.terminate()
        manager.communicate(timeout=PATIENCE)

    assert f"code runs in WASM at {url}" in done.err
    assert [row["success"] for row in koderz.summary()["results"]] == [True, True]


def test_longer_texts_are_answered_less_often_by_the_simulated_model(koderz: Shell) -> None:
    koderz(*RUN, "--ruler-tasks", "niah_single_1", "--context-lengths", "1K", "64K", "--context", 100000, "--limit", 20)

    results = koderz.summary()["results"]
    scores = {
        length: sum(row["score"] for row in results if f"/{length}/" in row["problem_id"]) for length in (1024, 65536)
    }
    assert scores[1024] > scores[65536] + 2


def test_long_context_run_is_rescored_and_resumed_without_a_call(koderz: Shell) -> None:
    koderz(*RUN, "--limit", 5)
    before, asked = koderz.summary(), len(calls(koderz))
    koderz("benchmark", "rescore", "latest", "--quiet")

    assert len(calls(koderz)) == asked
    assert [row["score"] for row in koderz.summary()["results"]] == [row["score"] for row in before["results"]]


def test_long_context_solver_refuses_suites_without_texts(koderz: Shell) -> None:
    done = koderz("benchmark", 0, 1, "--model", "simulated", "--solver", "direct", "--quiet", code=2)

    assert "the solver direct asks for a long_context, which HumanEval/0 doesn't provide" in done.err


def test_ruler_rows_are_exported_as_by_its_scripts_and_asked(koderz: Shell) -> None:
    own = ("--ruler-tasks", "vt", "--context-lengths", "1024", "--tasks-per-length", 2, "--seed", 5)
    koderz("suites", "export", "ruler", *own, "--output", "rows")
    path = koderz.folder / "rows" / "vt" / "validation.jsonl"
    lines = [hashlib.sha256(line).hexdigest()[:16] for line in path.read_bytes().splitlines()]
    assert lines == ROWS["vt", 1024, 5].split()

    koderz("suites", "export", "ruler", *own[:2], "--context-lengths", "1K", "2K", *own[4:], "--output", "several")
    assert (koderz.folder / "several" / "1024" / "vt" / "validation.jsonl").read_bytes() == path.read_bytes()

    koderz(*RUN, "--dataset", "rows", "--limit", 2)
    assert [row["problem_id"] for row in koderz.summary()["results"]] == ["vt/0", "vt/1"]
    assert "wrote" not in koderz("suites", "export", "humaneval", "--output", "x", code=2).out


def test_replies_to_rows_of_a_folder_are_judged_line_by_line(koderz: Shell) -> None:
    own = ("--ruler-tasks", "vt", "--context-lengths", "1024", "--tasks-per-length", 2)
    koderz("suites", "export", "ruler", *own, "--output", "rows")
    lines = (koderz.folder / "rows" / "vt" / "validation.jsonl").read_text().splitlines()
    outputs = [json.loads(line)["outputs"] for line in lines]
    replies = [{"task_id": f"vt/{n}", "reply": " ".join(outputs[n][: 5 - 3 * n])} for n in range(2)]
    (koderz.folder / "replies.jsonl").write_text("".join(f"{json.dumps(reply)}\n" for reply in replies))

    koderz("judge", "replies.jsonl", "--suite", "ruler", "--dataset", "rows", "--output", "verdicts.jsonl")
    assert [json.loads(line) for line in (koderz.folder / "verdicts.jsonl").read_text().splitlines()] == [
        {"task_id": "vt/0", "verdict": "passed", "cause": "", "score": 1.0, "metrics": {}},
        {"task_id": "vt/1", "verdict": "failed", "cause": "answer", "score": 0.4, "metrics": {}},
    ]


def test_dataset_that_was_added_is_the_default(koderz: Shell) -> None:
    own = ("--ruler-tasks", "fwe", "--context-lengths", "1024", "--tasks-per-length", 3)
    koderz("suites", "export", "ruler", *own, "--output", "rows")
    assert "ruler: 3 tasks" in koderz("suites", "add", "ruler", "rows").out

    listed = {each["name"]: each for each in json.loads(koderz("suites", "list", "--json").out)}
    assert listed["ruler"]["dataset"] == str(koderz.folder / "rows")
    assert listed["humaneval"]["dataset"] is None
    koderz(*RUN, "--limit", 1)
    assert koderz.summary()["results"][0]["problem_id"] == "fwe/0"
    assert "there is no dataset" in koderz("suites", "add", "humaneval", "nowhere", code=2).err


def test_oolong_is_generated_where_no_file_is_named_and_says_so(koderz: Shell) -> None:
    koderz(*RUN[:2], "oolong", *RUN[3:], "--limit", 6)

    results = koderz.summary()["results"]
    assert results[0]["problem_id"] == "oolong-generated/4096/0"
    assert {*results[0]["metrics"]} == {"score_rlm"}
    assert any(row["score"] == 1 for row in results)
    assert "Instance:" not in json.dumps(koderz.journal())


def test_replies_to_published_questions_are_judged_by_their_ids(koderz: Shell) -> None:
    fields = {"context_len": 1024, "dataset": "d", "context_window_text": "t", "question": "q", "answer": "[65]"}
    rows = [{"id": n, **fields, "answer_type": "ANSWER_TYPE.NUMERIC"} for n in (10, 11)]
    (koderz.folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    replies = [{"task_id": "oolong/11", "reply": "Answer: 64"}, {"task_id": "oolong/10", "reply": "Answer: 65"}]
    (koderz.folder / "replies.jsonl").write_text("".join(f"{json.dumps(reply)}\n" for reply in replies))

    koderz("judge", "replies.jsonl", "--suite", "oolong", "--dataset", "rows.jsonl", "--output", "verdicts.jsonl")
    first, second = map(json.loads, (koderz.folder / "verdicts.jsonl").read_text().splitlines())
    assert (first["task_id"], first["verdict"], first["score"]) == ("oolong/11", "failed", 0.75)
    assert (second["task_id"], second["verdict"], second["score"]) == ("oolong/10", "passed", 1.0)


def test_plan_tells_what_long_texts_may_cost(koderz: Shell) -> None:
    run = ("benchmark", "--suite", "ruler", "--solver", "direct", "--model", "openai/gpt-4o-mini", "--dry-run")
    short, long = koderz(*run, "--limit", 2).out, koderz(*run, "--limit", 2, "--context-lengths", "10M").out

    assert "lengths in tokens of chars/4" in short
    assert "Calls: 2\nTokens in: about 8,2" in short
    assert "Calls: 0\n" in long


def test_compaction_reads_a_long_text_in_parts_into_notes(koderz: Shell) -> None:
    own = ("--ruler-tasks", "niah_single_1", "--context-lengths", "16K", "--limit", 6, "--context", 4096)
    koderz(*RUN[:-4], "--solver", "compaction", "--sink", "json", *own)

    rows = koderz.summary()["results"]
    assert max(row["score"] for row in rows) == 1
    of_one = [call for call in calls(koderz) if call["experiment_id"] == rows[0]["experiment_id"]]
    assert [call["purpose"] for call in of_one] == ["notes"] * 8 + ["attempt"]
    assert max(call["tokens_in"] for call in of_one) < 4096
    assert "The grass is green" not in json.dumps(koderz.journal())


LONG = ("benchmark", "--suite", "ruler", "--model", "simulated", "--sink", "json", "--limit", 5)


@pytest.mark.slow
def test_comparison_shows_the_gain_of_recursion(koderz: Shell) -> None:
    done = koderz(*LONG[:-1], 10, "--mode", "comparative", "--context-lengths", "1K,8K")

    summary = koderz.summary()
    assert (summary["mode"], [*summary["arms"]]) == ("comparative", ["direct", "rlm"])
    assert summary["comparison"]["arms"] == ["direct", "rlm"]
    both = {arm: summary["arms"][arm]["summary"]["success_rate"] for arm in summary["arms"]}
    assert summary["comparison"]["success_rate_improvement"] == both["rlm"] - both["direct"] > 0
    rows = summary["breakdown"]
    assert {(row["by"], row["value"]) for row in rows} == {
        *(("", ""), ("length", "1024"), ("length", "8192")),
        *(("task", name) for name in ("niah_single_1", "niah_multikey_2", "vt", "cwe", "fwe")),
    }
    assert [(row["arm"], row["results"], row["depth"]["p95"]) for row in rows[:2]] == [
        ("direct", 10, 0),
        ("rlm", 10, 1),
    ]
    assert "Testing both direct and rlm" in done.out
    assert next(line.split("|")[1:3] for line in done.out.splitlines() if line.startswith("length 8192 ")) == [
        " direct ",
        "  5 ",
    ]

    shown = koderz("benchmark", "show", "latest").out
    assert f"rlm against direct: {summary['comparison']['success_rate_improvement']:+.1f} points on 10 pairs" in shown
    assert "length 8192" in shown
    koderz("benchmark", "report", "latest", "--output", "report.html")
    page = (koderz.folder / "report.html").read_text()
    assert "<h3>Broken down</h3>" in page
    assert '<th scope="row">length 8192</th><td class="one">direct</td>' in page


def test_oolong_questions_of_every_kind_are_counted_by_sub_calls(koderz: Shell) -> None:
    own = ("--suite", "oolong", "--mode", "comparative", "--tasks-per-length", len(KINDS), "--limit", len(KINDS))
    koderz("benchmark", "--model", "simulated", "--sink", "json", "--quiet", *own)

    rates = {name: arm["summary"]["success_rate"] for name, arm in koderz.summary()["arms"].items()}
    assert rates["rlm"] > max(80, rates["direct"])
    assert rates["direct"] > 0
    assert [cell["error"] for cell in cells(koderz) if cell["error"]] == []
    asked_by_code = {call["experiment_id"] for call in calls(koderz) if call["purpose"] == "sub"}
    assert len(asked_by_code) == len(KINDS)


def test_modes_are_defined_by_the_suite(koderz: Shell) -> None:
    for given, mode in (((), "rlm"), (("--mode", "zero-shot"), "direct")):
        koderz(*LONG[:-1], 1, *given, "--quiet")
        summary = json.loads(koderz("benchmark", "show", "latest", "--json").out)
        assert (summary["mode"], [*summary["arms"]], len(summary["results"])) == (mode, [mode], 1)

    done = koderz(*LONG, "--mode", "iterative", code=2)
    assert "--mode iterative: the suite ruler has no such mode" in done.err
    assert "without --mode: rlm" in done.err


def test_solvers_named_in_any_way_are_arms(koderz: Shell) -> None:
    given: tuple[tuple[str, ...], ...] = (
        ("--solvers", "direct,compaction,rlm"),
        ("--solvers", "direct", "compaction", "rlm"),
        ("--solvers", "direct", "--solvers", "compaction,rlm"),
    )
    for each in given:
        plan = json.loads(koderz(*LONG, *each, "--max-depth", 2, "--dry-run", "--json").out)
        assert plan["planned"] == 15
        assert plan["config"]["max_depth"] == 2
    koderz(*LONG[:-1], 1, *given[0], "--quiet")
    assert [*koderz.summary()["arms"]] == ["direct", "compaction", "rlm"]
    assert koderz.summary()["comparison"]["problems"] == 1
    assert "--solver and --solvers" in koderz(*LONG, "--solver", "rlm", *given[0], code=2).err


def test_judge_prompt_of_the_user_is_told_and_recorded(koderz: Shell) -> None:
    as_lines(koderz.folder / "rows.jsonl", rows(2))
    run = ("benchmark", "--suite", "browsecomp-plus", "--dataset", "rows.jsonl", "--judge-model", "simulated")
    secret = {"KODERZ_BROWSECOMP_CANARY": CANARY}
    said = koderz(*run, "--model", "simulated", "--solver", "direct", "--limit", 1, env=secret).out

    judge = koderz.summary()["judge"]
    assert judge["caveats"][0] in said
    assert koderz.journal()[0]["details"]["judge"] == judge
    assert koderz.journal()[0]["details"]["matches"]["prompt"]["browsecomp_plus-judge"]
    koderz("benchmark", "report", "latest", "--output", "report.html")
    assert judge["prompt_digest"] in (koderz.folder / "report.html").read_text()
    koderz("benchmark", "rescore", "latest", env=secret)
    assert koderz.summary()["judge"] == judge
