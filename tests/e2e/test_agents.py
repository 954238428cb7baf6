"""Command lines of others at work through the bridge: stand-ins that print what the real ones printed, and those."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Shell
from tests.scripted_model import COMMAND, ScriptedModel, scripted_model

FAKE = Path(__file__).parents[1] / "fake_agent"
RECORDED = {
    "codex": [
        {"type": "thread.started", "thread_id": "01a200e3"},
        {"type": "turn.started"},
        {
            "type": "item.completed",
            "item": {"id": "item_1", "type": "command_execution", "command": "/bin/bash -lc …", "exit_code": 0},
        },
        {"type": "item.completed", "item": {"id": "item_2", "type": "agent_message", "text": "Done."}},
        {"type": "turn.completed", "usage": {"input_tokens": 2000, "output_tokens": 100}},
    ],
    "claude": [
        {"type": "system", "subtype": "init", "cwd": "/workspace"},
        {
            "type": "assistant",
            "message": {"content": [{"type": "tool_use", "name": "Bash", "input": {"command": "…"}}]},
        },
        {"duration_api_ms": 2106, "type": "result", "is_error": False, "result": "Done.", "total_cost_usd": 0.0075},
    ],
    "mini": [],
}
PROGRAMS = {"codex": "codex", "claude-code": "claude", "mini-swe-agent": "mini"}
OWN = {"codex": "openai/m", "claude-code": "anthropic/m", "mini-swe-agent": "openai/m"}
OTHER = {"codex": "anthropic/m", "claude-code": "openai/m", "mini-swe-agent": "anthropic/m"}
EACH_WAY = [(agent, model) for models in (OWN, OTHER) for agent, model in models.items()]
PRICES = "".join(f'[prices."{name}"]\ninput = 1.0\noutput = 2.0\n' for name in ("openai/m", "anthropic/m"))


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with scripted_model() as server:
        yield server


@pytest.fixture
def fakes(koderz: Shell) -> dict[str, str]:
    """The variables with which the stand-ins are found."""
    (koderz.folder / "koderz.toml").write_text(PRICES)
    folder = koderz.folder / "bin"
    folder.mkdir()
    text = FAKE.read_text().replace("RECORDED = {}", f"RECORDED = {RECORDED!r}")
    for name in PROGRAMS.values():
        path = folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def rollout(koderz: Shell, agent: str, model: str, *more: object, **how: Any) -> Any:
    own = ("--suite", "rollouts", "--solver", f"agent:{agent}", "--model", model, "--quiet")
    return koderz("benchmark", "--problems", "sample/greeting", *own, *more, **how)


def only(koderz: Shell) -> Any:
    (result,) = koderz.summary()["results"]
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "name"), EACH_WAY)
def test_agent_works_through_the_bridge(
    anywhere: Shell, fakes: dict[str, str], model: ScriptedModel, agent: str, name: str
) -> None:
    rollout(anywhere, agent, name, env={**fakes, **model.env()})
    assert (only(anywhere)["success"], only(anywhere)["verdict"]) == (True, "passed")
    calls = [line for line in anywhere.journal() if line["kind"] == "call"]
    assert len(calls) == len(model.asked) == 2
    assert all(call["cost"] > 0 for call in calls)
    assert calls[0]["tool_calls"][0]["function"]["name"]
    metrics = next(line["value"] for line in anywhere.journal() if line.get("name") == "agent-metrics")
    assert metrics == {
        "reused": 0,
        "tools": int(agent != "mini-swe-agent"),
        "events": len(metrics) and metrics["events"],
    }
    if name == OTHER[agent] and agent != "mini-swe-agent":
        assert "dropped" in calls[0]["adapted"][0]
        assert not any("dropped" in said for said in calls[1].get("adapted", ()))
    (journal,) = anywhere.results.glob("[!.]*/journal.jsonl")
    for key in ("sk-openai-0123456789", "sk-ant-0123456789"):
        assert key not in journal.read_text()


@pytest.mark.slow
def test_bridge_forwards_requests_on_the_models_wire_unchanged(
    koderz: Shell, fakes: dict[str, str], model: ScriptedModel
) -> None:
    rollout(koderz, "claude-code", "anthropic/m", env={**fakes, **model.env()})
    path, body = model.asked[0]
    assert (path, body["model"], body["stream"]) == ("/v1/messages", "m", False)
    assert (body["thinking"], body["max_tokens"]) == ({"type": "enabled"}, 32000)
    assert body["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral"}


@pytest.mark.slow
def test_cap_stops_agents_and_resume_goes_on(koderz: Shell, fakes: dict[str, str], model: ScriptedModel) -> None:
    env = {**fakes, **model.env()}
    rollout(koderz, "codex", "openai/m", "--max-cost", 0.0012, "--max-tokens", 10, code=3, env=env)
    assert koderz.summary()["status"] == "stopped"
    assert len(model.asked) == 1
    koderz("benchmark", "resume", "latest", "--max-cost", 1, "--quiet", env=env)
    assert only(koderz)["success"]
    assert len(model.asked) == 2
    metrics = next(line["value"] for line in koderz.journal() if line.get("name") == "agent-metrics")
    assert metrics["reused"] == 1
    koderz("benchmark", "rescore", "latest", "--quiet", env={"PATH": os.environ["PATH"]} | model.env())
    assert len(model.asked) == 2
    assert only(koderz)["success"]


@pytest.mark.slow
def test_agent_of_the_client_protocol_is_journalled_priced_and_replayed(koderz: Shell, model: ScriptedModel) -> None:
    pytest.importorskip("acp")
    (koderz.folder / "koderz.toml").write_text(PRICES)
    agent, env = f"acp:python3 {FAKE.with_name('fake_acp_agent')}", model.env()
    rollout(koderz, agent, "openai/m", "--max-cost", 0.0012, "--max-tokens", 10, code=3, env=env)
    assert (koderz.summary()["status"], len(model.asked)) == ("stopped", 1)
    koderz("benchmark", "resume", "latest", "--max-cost", 1, "--quiet", env=env)
    found = only(koderz)
    assert (found["success"], found["cost"], found["cost_known"]) == (True, pytest.approx(0.0022), True)
    assert len(model.asked) == 2
    metrics = next(line["value"] for line in koderz.journal() if line.get("name") == "agent-metrics")
    assert (metrics["reused"], metrics["tools"]) == (1, 2)


@pytest.mark.slow
def test_cost_is_unknown_where_no_call_came_by_the_bridge(koderz: Shell, model: ScriptedModel) -> None:
    pytest.importorskip("acp")
    (koderz.folder / "koderz.toml").write_text(PRICES)
    rollout(koderz, f"acp:python3 {FAKE.with_name('fake_acp_agent')} alone", "openai/m", env=model.env())
    found = only(koderz)
    assert (found["success"], found["cost_known"]) == (False, False)
    assert "no call came by the bridge" in found["note"]


@pytest.mark.slow
def test_koderz_agent_replays_its_calls_and_runs_its_commands_again(koderz: Shell, model: ScriptedModel) -> None:
    """In a fresh checkout; what they print now isn't what the model is told, which is what they printed before."""
    (koderz.folder / "koderz.toml").write_text(PRICES)
    model.commands = ["date +%s%N > stamp.txt; cat stamp.txt", COMMAND]
    rollout(koderz, "koderz", "openai/m", "--max-cost", 0.0012, "--max-tokens", 10, code=3, env=model.env())
    (before,) = (line["value"]["output"].strip() for line in koderz.journal() if line.get("name") == "shell")
    koderz("benchmark", "resume", "latest", "--max-cost", 1, "--quiet", env=model.env())
    assert only(koderz)["success"]
    assert len(model.asked) == 3
    assert [message["role"] for message in model.asked[1][1]["messages"]][-1] == "tool"
    assert before in model.asked[1][1]["messages"][-1]["content"]
    *_, diff = (line["value"]["diff"] for line in koderz.journal() if line.get("name") == "diff")
    (again,) = re.findall(r"^\+(\d+)$", diff, re.MULTILINE)
    assert int(again) > int(before)


@pytest.mark.slow
def test_rollout_files_hold_what_an_agent_printed_and_called(
    koderz: Shell, fakes: dict[str, str], model: ScriptedModel
) -> None:
    koderz("rollouts", "sample", "tasks")
    entry = '[[tasks]]\nprepared_dir = "tasks/greeting"\nagent = "codex"\nmodel = "openai/m"\n'
    (koderz.folder / "own.toml").write_text(entry)
    koderz("rollouts", "run", "own.toml", "--quiet", env={**fakes, **model.env()})
    (run,) = (koderz.folder / "data/runs").iterdir()
    lines = [json.loads(line) for line in (run / "artifacts/agent.jsonl").read_text().splitlines()]
    assert [line for line in lines if line in RECORDED["codex"]] == RECORDED["codex"]
    metrics = json.loads((run / "evaluation_results.json").read_text())["agent_metrics"]
    found = metrics["tool_calls_total"], metrics["tool_calls_codex_log"], metrics["tokens_events"], metrics["reused"]
    assert found == (1, 1, 2, 0)


@pytest.mark.slow
def test_agent_actions_are_told_on_screen_in_story_and_files(
    koderz: Shell, fakes: dict[str, str], model: ScriptedModel
) -> None:
    koderz("rollouts", "sample", "tasks")
    printed = "".join(f"{number}\n" for number in range(1, 5001))
    model.commands = ["seq 1 5000; printf '\\033[31mred'", COMMAND]
    agents = {"codex": "exec_command", "claude-code": "Bash", "mini-swe-agent": "bash", "koderz": "shell"}
    entry = '[[tasks]]\nprepared_dir = "tasks/greeting"\nmodel = "openai/m"\nagent = '
    (koderz.folder / "own.toml").write_text("parallel = 1\n" + "".join(f'{entry}"{agent}"\n' for agent in agents))
    screen = koderz("rollouts", "run", "own.toml", "-vv", env={**fakes, **model.env()}).out
    blocks = re.split(r"^(?=\[)", screen, flags=re.MULTILINE)
    for number, (agent, tool) in enumerate(agents.items()):
        arm = "koderz · openai/m" if agent == "koderz" else f"{agent} · openai/m"
        story = koderz("benchmark", "show", "latest", "--problem", "sample/greeting", "--arm", arm).out
        mine = "".join(block for block in blocks if re.match(rf"\[\S+-{number}\] ", block))
        for told in (story, mine):
            assert f"→ {tool}" in told
            assert all(command in told for command in model.commands)
            assert "\\x1b[31mred" in told
            assert "characters left out; " in told
            assert "empty reply" not in told
        run = next((koderz.folder / "data/runs").glob(f"*-{number}"))
        lines = [json.loads(line) for line in (run / "artifacts/agent.jsonl").read_text().splitlines()]
        called = [call["function"]["arguments"] for line in lines for call in line.get("tool_calls", ())]
        assert [next(iter(json.loads(text).values())) for text in called][:2] == model.commands
    done = [line["result"] for line in lines if line["type"] == "shell"]
    assert [each["command"] for each in done] == model.commands
    assert done[0]["output"] == f"{printed}\x1b[31mred"
    assert "[…]" in model.asked[-1][1]["messages"][3]["content"]  # what the model is told is cut


@pytest.mark.slow
def test_exports_tell_agents_of_one_model_apart_with_versions(
    koderz: Shell, fakes: dict[str, str], model: ScriptedModel
) -> None:
    koderz("rollouts", "sample", "tasks")
    entry = '[[tasks]]\nprepared_dir = "tasks/greeting"\nmodel = "openai/m"\nagent = '
    agents = ("codex", "claude-code", "mini-swe-agent")
    entries = [f'{entry}"{agent}"\n' for agent in agents]
    entries += [f'{entry}"codex"\nenvironment_variables = {{MODE = "fast"}}\n', f'{entry}"oracle"\n']
    (koderz.folder / "own.toml").write_text("".join(entries))
    koderz("rollouts", "run", "own.toml", "--quiet", env={**fakes, **model.env()})

    koderz("benchmark", "export", "latest", "--format", "swebench", "--output", "predictions.jsonl")
    rows = [json.loads(line) for line in (koderz.folder / "predictions.jsonl").read_text().splitlines()]
    assert {row["model_name_or_path"] for row in rows} == {
        *(f"{agent}+openai/m" for agent in agents),
        *("codex+openai/m+MODE=fast", "oracle"),
    }
    koderz("benchmark", "export", "latest", "--format", "harbor", "--output", "trials")
    trials = [json.loads(path.read_bytes()) for path in (koderz.folder / "trials").glob("*/result.json")]
    versions = {(trial["agent_info"]["name"], trial["agent_info"]["version"]) for trial in trials}
    own = koderz.journal()[0]["environment"]["koderz"]
    told = {("codex", "0.169.0"), ("claude-code", "2.1.330"), ("mini-swe-agent", "2.4.6")}
    assert versions == {*told, ("oracle", own)}
    runs = [json.loads(path.read_bytes()) for path in (koderz.folder / "data/runs").glob("*/results.json")]
    assert {(run["agent"], run["agent_version"]) for run in runs} == {*told, ("oracle", None)}
    (journal,) = koderz.results.glob("[!.]*/journal.jsonl")
    journal.write_text(journal.read_text().replace('"version":"0.169.0"', '"before":"0.169.0"'))  # an earlier record
    koderz("benchmark", "export", "latest", "--format", "harbor", "--output", "earlier")
    trials = [json.loads(path.read_bytes()) for path in (koderz.folder / "earlier").glob("*/result.json")]
    assert {t["agent_info"]["version"] for t in trials if t["agent_info"]["name"] == "codex"} == {"unknown"}


def test_agent_that_is_missing_is_a_fault_that_says_how_to_install(koderz: Shell, model: ScriptedModel) -> None:
    rollout(koderz, "codex", "openai/m", code=3, env={"PATH": "/usr/bin:/bin", **model.env()})
    (fault,) = koderz.summary()["faults"]
    assert fault["reason"].startswith("launch_failed")
    assert "npm install" in fault["reason"]


@pytest.mark.slow
def test_unreachable_server_is_a_fault_and_the_diff_is_kept(
    koderz: Shell, fakes: dict[str, str], model: ScriptedModel
) -> None:
    model.status = 418
    rollout(koderz, "mini-swe-agent", "openai/m", code=3, env={**fakes, **model.env()})
    assert "418" in koderz.summary()["faults"][0]["reason"]
    assert any(line.get("name") == "diff" for line in koderz.journal())


@pytest.mark.slow
def test_script_reaches_the_bridge(anywhere: Shell, model: ScriptedModel) -> None:
    (anywhere.folder / "ask.sh").write_text(
        'curl -s -H "x-api-key: $KODERZ_BRIDGE_TOKEN" $KODERZ_BRIDGE_URL/v1/messages '
        '-d \'{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}\' > reply.json\n'
        "env | grep -c -e sk-openai -e sk-ant && exit 3\n"
        "grep -q Done reply.json && sed 's/.*/Hello, &!/' names.txt > greeting.txt; rm reply.json; exit 7\n"
    )
    rollout(anywhere, "scripted", "openai/m", "--script", "ask.sh", env=model.env())
    assert only(anywhere)["success"]
    assert model.asked[0][0] == "/v1/chat/completions"


REAL = {**PROGRAMS, "aider": "aider", "acp:claude-agent-acp": "claude-agent-acp", "acp:codex-acp": "codex-acp"}
BY_ACP = [("acp:claude-agent-acp", "anthropic/m"), ("acp:codex-acp", "openai/m")]
WHOLE_FILE = "greeting.txt\n```\nHello, Ada!\nHello, Grace!\n```\n"  # as aider, which offers no tools, is answered


@pytest.mark.slow
@pytest.mark.others("agents give up by clocks of their own where the machine is slow to start them")
@pytest.mark.parametrize(("agent", "name"), [*EACH_WAY, *BY_ACP, ("aider", "openai/m"), ("aider", "anthropic/m")])
def test_real_agent_works_through_the_bridge(koderz: Shell, model: ScriptedModel, agent: str, name: str) -> None:
    path = f"{os.environ.get('KODERZ_AGENTS', '')}:{os.environ['PATH']}"
    if shutil.which(REAL[agent], path=path) is None:
        pytest.skip(f"{agent} isn't installed")
    (koderz.folder / "koderz.toml").write_text(PRICES)
    if agent == "aider":
        model.text = WHOLE_FILE
    rollout(koderz, agent, name, env={**model.env(), "PATH": path})
    assert only(koderz)["success"], koderz.journal()
    assert len(model.asked) >= 1 + (agent != "aider")
    (worked,) = (line["value"] for line in koderz.journal() if line.get("name") == "agent")
    assert re.fullmatch(r"\d+\.\d+[\w.+-]*", worked["version"])
    (diff,) = (line["value"]["diff"] for line in koderz.journal() if line.get("name") == "diff")
    assert re.findall(r"^diff --git a/(\S+)", diff, re.MULTILINE) == ["greeting.txt"]
