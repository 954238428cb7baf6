"""`koderz mcp serve`: what agents do with it, within what a client takes and what a person allows."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from koderz.cli import ALIASES
from koderz.errors import KoderzError
from koderz.systems.memory.allowance import Allowance
from koderz.systems.memory.tools import TOOLS, USUAL
from koderz_tracker import open_cortex
from tests.conftest import PATIENCE, Server, Shell
from tests.koderz.cli.test_options import ALL
from tests.scripted_model import scripted_model

Serve = Callable[..., Server]

READING = {"list_runs", "show_run", "failures", "compare_runs", "plan"}
SPENDING = {"run", "resume", "retry", "decide", "stop"}
CAP = 3.0
PRICED = "".join(f'[prices."openai/{name}"]\ninput = 50\noutput = 100\n' for name in ("a", "b"))


class Agent:
    """A client that follows the rules: it notes each tool, and each answer is checked."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.called: list[str] = []

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        self.called.append(tool)
        answer = await self.client.call_tool(tool, arguments)
        (content,) = answer.content
        assert answer.structured_content is None
        assert len(content.text) <= USUAL, tool
        assert not answer.is_error, content.text
        found = json.loads(content.text) if content.text[:1] in "{[" else content.text
        assert not [*bare_claims(found)], tool
        return found

    async def refused(self, tool: str, **arguments: Any) -> str:
        answer = await self.client.call_tool(tool, arguments)
        assert answer.is_error, answer.content
        return str(answer.content[0].text)

    async def ended(self, run: str) -> Any:
        while (shown := await self("show_run", run=run))["status"] == "running":
            await pause()
        return shown


async def pause() -> None:
    await asyncio.sleep(0.1)  # what is waited for is another process's doing


def bare_claims(answer: Any) -> Iterator[Any]:
    """Rates, means and differences in an answer that have no interval beside them."""
    if isinstance(answer, dict):
        if (answer.get("rate") is not None or answer.get("mean") is not None) and not answer.get("interval"):
            yield answer
        for value in answer.values():
            yield from bare_claims(value)
    elif isinstance(answer, list):
        for value in answer:
            yield from bare_claims(value)
    elif isinstance(answer, str):
        for line in answer.splitlines():
            if re.search(r"[-+]\d[\d.]* points|\d ?%", line) and not re.search(r"interval|between|\d to [-+]?\d", line):
                yield line


@asynccontextmanager
async def agent(shell: Shell, *more: object, env: dict[str, str] | None = None) -> AsyncIterator[Agent]:
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters

    arguments = ["-m", "koderz", "mcp", "serve", *map(str, more)]
    environ = shell.environment({"KODERZ_SINKS": "json memory", **(env or {})})
    async with Client(
        StdioServerParameters(command=sys.executable, args=arguments, cwd=shell.folder, env=environ)
    ) as client:
        yield Agent(client)


def paid(shell: Shell) -> float:
    return sum(float(json.loads(path.read_text())["paid"]["total"]) for path in shell.results.glob("bench_*.json"))


@pytest.mark.slow
async def test_twenty_chores_of_an_agent_fit_the_client_and_the_cap(koderz: Shell, serve: Serve) -> None:
    (koderz.folder / "koderz.toml").write_text(f"max-tokens = 500\n{PRICED}")
    env = serve("--model", "a", "--model", "b", "--fail-first", 1, "--latency-ms", 100).env()
    ten = {"start": 0, "end": 10, "mode": "zero-shot"}

    async def work(ask: Agent) -> None:
        # 1 see what there is · 2 was it tried? · 3 what would it cost?
        assert await ask("list_runs") == {"found": 0, "runs": []}
        assert (await ask("recall", query="zero-shot on openai/a"))["found"] == 0
        plan = await ask("plan", models=["openai/a"], **ten)
        assert plan["allowance_left"] == CAP
        assert 0 < plan["cost"][1] < CAP
        # 4 run under a cap of one's own · 5 follow it
        first = await ask("run", models=["openai/a"], maxCost=0.9, **ten)
        assert first["max_cost"] <= 0.9
        shown = await ask.ended(first["run_id"])
        assert (shown["status"], shown["judged"]) == ("complete", 10)
        # 6 what failed, by cause? · 7 the whole story of one task
        failed = await ask("failures", run=first["run_id"])
        assert sum(failed["by_cause"].values()) == failed["found"] == 10 - shown["arms"]["zero-shot"]["successes"]
        story = await ask("failures", run="latest", problem=failed["failures"][0]["problem_id"])
        assert story["stories"][0]["attempts"][0]["program"]
        # 8 another model · 9 is it better? · 10 find the regression
        second = await ask("run", models=["openai/b"], maxCost=0.9, **ten)
        await ask.ended(second["run_id"])
        compared = await ask("compare_runs", runs=[first["run_id"], second["run_id"]])
        assert "95% interval" in compared["headline"]
        for task in compared["lost"]:
            assert (await ask("failures", run=second["run_id"], problem=task))["stories"]
        # 11 a leaderboard of all · 12 list them in pages
        assert "openai/b" in (await ask("compare_runs", runs=["latest~1", "latest"], details=True))["told"]
        page = await ask("list_runs", limit=1)
        rest = await ask("list_runs", limit=1, cursor=page["cursor"])
        assert [page["runs"][0]["run_id"], rest["runs"][0]["run_id"]] == [second["run_id"], first["run_id"]]
        # 13 a run with faults · 14 retry them
        faulty = await ask(
            "run", models=["openai/a"], problems=["11", "12"], mode="zero-shot", options={"max_retries": 0}
        )
        assert sum((await ask.ended(faulty["run_id"]))["faults"].values()) == 2
        await ask("retry", run=faulty["run_id"], maxCost=0.2)
        assert (await ask.ended(faulty["run_id"]))["faults"] == {}
        # 15 stop a run that is too slow · 16 go on with it
        slow = await ask(
            "run", models=["openai/a"], start=20, end=40, mode="zero-shot", options={"concurrency": 1}, maxCost=0.3
        )
        assert "being worked on" in await ask.refused("resume", run=slow["run_id"])
        await ask("stop", run=slow["run_id"])
        assert (await ask.ended(slow["run_id"]))["status"] in ("interrupted", "stopped")
        await ask("resume", run=slow["run_id"], maxCost=0.05)
        await ask.ended(slow["run_id"])
        # 17 decide between two models
        decided = await ask("decide", a="openai/a", b="openai/b", start=0, end=4, maxCost=0.4)
        assert (await ask.ended(decided["run_id"]))["status"] in ("complete", "decided", "stopped")
        # 18 keep what was learnt · 19 find it again · 20 what may be forgotten · 21 the store's content in pages
        await ask("remember", title="a and b", content=compared["headline"], tags=["conclusion"])
        assert (await ask("recall", query="conclusion", tags=["conclusion"]))["found"] == 1
        assert (await ask("forget", tags=["conclusion"]))["would_forget"] == 1
        assert (await ask("export_memories", tags=["benchmark_run"], detail="lesson"))["memories"]
        # 22 spend all that is left: no cap is passed
        while True:
            left = (await ask("plan", models=["openai/a"], **ten))["allowance_left"]
            answer = await ask.client.call_tool(
                "run", {"models": ["openai/a"], "start": 0, "end": 60, "mode": "zero-shot"}
            )
            if answer.is_error:
                assert "is left of the allowance of $3" in answer.content[0].text
                break
            begun = json.loads(answer.content[0].text)
            assert begun["max_cost"] <= left
            await ask.ended(begun["run_id"])
        assert paid(koderz) <= CAP
        assert set(ask.called) >= READING | SPENDING

    async with agent(koderz, "--allow-runs", "--max-cost", CAP, env=env) as ask:
        await work(ask)
    spent = paid(koderz)
    async with agent(koderz, "--allow-runs", "--max-cost", CAP, env=env) as ask:  # a restart gives nothing anew
        left = (await ask("plan", models=["openai/a"], **ten))["allowance_left"]
        assert left == pytest.approx(CAP - spent, abs=0.01)
        assert left <= CAP - spent


@pytest.fixture
def allowance(tmp_path: Path) -> Callable[[float], Allowance]:
    """Allowances of so many dollars, each as another process has it."""
    (tmp_path / "runs").mkdir()
    return lambda cap: Allowance(tmp_path / "runs", cap, {"XDG_STATE_HOME": str(tmp_path / "state")})


def test_allowance_is_taken_first_and_kept_over_restarts(allowance: Callable[[float], Allowance]) -> None:
    assert allowance(2.0).hold("bench_a", 1.5) == 1.5
    assert allowance(2.0).hold("bench_b", 1.5) == 0.5  # no more is left
    assert allowance(2.0).left() == 0
    with pytest.raises(KoderzError, match="bench_a is being worked on"):
        allowance(2.0).hold("bench_a", 0.1)
    allowance(2.0).give_back("bench_b")
    assert allowance(2.0).left() == 0.5
    assert allowance(3.0).left() == 1.5  # a higher cap counts what was spent under the lower one


def test_allowance_of_a_run_that_was_killed_is_spent(allowance: Callable[[float], Allowance]) -> None:
    allowance(2.0).hold("bench_a", 1.5)
    allowance(2.0).hand_over("bench_a", 2**22 + 1)  # a process that is no more

    assert allowance(2.0).left() == 0.5
    assert allowance(2.0).holder("bench_a") is None


def test_allowance_holds_for_many_at_once(allowance: Callable[[float], Allowance]) -> None:
    with ThreadPoolExecutor(8) as pool:
        given = [*pool.map(lambda n: allowance(1.0).hold(f"bench_{n}", 0.3), range(8))]

    assert sum(given) == pytest.approx(1.0)


def test_allowance_of_a_run_that_ended_is_what_it_cost(
    koderz: Shell, allowance: Callable[[float], Allowance], tmp_path: Path
) -> None:
    koderz("benchmark", 0, 1, "--model", "simulated", "--results", tmp_path / "runs", "--quiet")
    (run,) = (path.name for path in (tmp_path / "runs").glob("bench_*_*/"))
    allowance(2.0).hold(run, 1.5)
    allowance(2.0).hand_over(run, 2**22 + 1)

    assert allowance(2.0).left() == 2.0


def test_allowance_that_cant_be_read_spends_nothing(allowance: Callable[[float], Allowance], tmp_path: Path) -> None:
    allowance(2.0).left()
    (book,) = (tmp_path / "state").rglob("*.json")
    book.write_text('{"results": 3}')

    with pytest.raises(KoderzError, match="so nothing is spent"):
        allowance(2.0).hold("bench_a", 1.0)


@asynccontextmanager
async def desk(koderz: Shell, cap: float | None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Agent]:
    """An agent of a server in this process."""
    from mcp.client.client import Client

    from koderz.systems.memory.mcp import make_server
    from koderz.systems.memory.mcp_tools import Desk

    monkeypatch.chdir(koderz.folder)
    environ = koderz.environment({"OPENAI_API_KEY": "sk-test-4f9a"})
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    limit = None if cap is None else Allowance(koderz.results, cap, environ)
    made = Desk(koderz.results, limit, environ)
    async with open_cortex(koderz.folder / "memory.db") as cortex, Client(make_server(cortex, made)) as client:
        yield Agent(client)


async def test_server_without_allow_runs_reads_and_plans_alone(koderz: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    koderz("benchmark", 0, 3, "--model", "simulated", "--mode", "comparative", "--quiet")

    async with desk(koderz, None, monkeypatch) as ask:
        tools = {tool.name: tool for tool in (await ask.client.list_tools()).tools}
        assert set(tools) == set(TOOLS) | READING
        assert all(tool.annotations.read_only_hint for name, tool in tools.items() if name in READING)
        assert "there is no tool run;" in await ask.refused("run", models=["simulated"], limit=1)
        (listed,) = (await ask("list_runs"))["runs"]
        shown = await ask("show_run", run=listed["run_id"][:10])
        assert shown["arms"]["iterative"]["interval"] == listed["arms"]["iterative"]["interval"]
        assert (await ask("plan", models=["simulated"], limit=2))["cost"] == [0.0, 0.0]
        (resource,) = (await ask.client.list_resources()).resources
        (content,) = (await ask.client.read_resource(resource.uri)).contents
        assert json.loads(content.text) == shown
        for prompt in (await ask.client.list_prompts()).prompts:
            words = {each.name: f"<{each.name}>" for each in prompt.arguments}
            (message,) = (await ask.client.get_prompt(prompt.name, words)).messages
            assert all(word in message.content.text for word in words.values())
        for name in ("/etc", "../x", str(koderz.results / listed["run_id"])):
            assert "is no run" in await ask.refused("show_run", run=name)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"solver": "mine.py:solve"}, "can't have files of code run"),
    ({"suite": "mine.py:Suite"}, "can't have files of code run"),
    ({"options": {"dataset": "tasks.jsonl"}}, "dataset: it could run code"),
    ({"options": {"matrix": "arms.toml"}}, "matrix"),
    ({"options": {"base_url": "http://127.0.0.1:9/v1"}}, "base_url: it could send data elsewhere"),
    ({"options": {"prompt_dir": "prompts"}}, "prompt_dir: it could send data elsewhere"),
    ({"options": {"extra_headers": ["a=b"]}}, "extra_headers: it could send data elsewhere"),
    ({"options": {"role_options": ["spec.base-url=http://127.0.0.1:9"]}}, "role_options: it could"),
    ({"options": {"model_options": ["simulated.base-url=http://127.0.0.1:9"]}}, "model_options: it could"),
    ({"options": {"engine": "modal"}}, "engine: it could spend money"),
    ({"options": {"sandbox": "uncontained"}}, "sandbox: it could run code"),
    ({"options": {"solvers": ["mine.py:solve"]}}, "solvers: it could run code"),
    ({"options": {"results": "elsewhere"}}, "results is settled where"),
    ({"options": {"max_cost": 100}}, "max_cost is settled where"),
    ({"options": {"trust_config": True}}, "trust_config is settled where"),
    ({"options": {"max_iter": 3}}, "did you mean max-iterations"),
    ({"options": {"temperature": "hot"}}, "--temperature: invalid value"),
    ({"limit": None}, "Expected `int`"),
    ({"start": 3}, "both start and end"),
    ({"limit": 1, "models": ["openai/nobody-knows-it"]}, "can't hold without the price"),
    ({"limit": 1, "models": ["opnai/x"]}, "did you mean openai/x"),
]
"""What a client may not ask for of a run, and what it is told."""


async def test_run_of_what_a_client_may_not_ask_for_is_refused_at_once(
    koderz: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(koderz, 5.0, monkeypatch) as ask:
        for arguments, says in REFUSED:
            tasks = {} if arguments.keys() & {"limit", "start"} else {"start": 0, "end": 1}
            assert says in await ask.refused("run", **{"models": ["simulated"], **tasks, **arguments}), arguments
    assert not [*koderz.results.glob("bench_*")]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--allow-runs",), "--allow-runs needs a cap: add --max-cost DOLLARS"),
        (("--max-cost", "3"), "--max-cost has no effect here: only --allow-runs reads it"),
    ],
)
def test_cap_goes_with_runs_that_are_allowed(koderz: Shell, words: tuple[str, ...], says: str) -> None:
    done = koderz("mcp", "serve", *words, code=2)

    assert (done.out, done.err.count("\n")) == ("", 1)
    assert says in done.err


SKILL = Path(__file__).parents[4] / "skills" / "koderz" / "SKILL.md"


def test_skill_has_the_form_of_agentskills_io() -> None:
    import yaml

    _, front, body = SKILL.read_text().split("---\n", 2)
    about = yaml.safe_load(front)
    assert about["name"] == SKILL.parent.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", about["name"])
    assert 0 < len(about["description"]) <= 1024
    assert len(about.get("compatibility", "")) <= 500
    assert set(about) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert len(body.splitlines()) < 500
    for command in re.findall(r"`koderz ([a-z]+)(?: ([a-z]+))?", body):
        assert command[0] in (*ALL, *ALIASES)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("KODERZ_AGENTS"), reason="scripts/agents has not installed the validator")
def test_skill_is_valid_by_its_validator() -> None:
    validator = Path(os.environ["KODERZ_AGENTS"]) / "agentskills"
    if not validator.exists():
        pytest.skip("the folder is of an earlier scripts/agents")
    done = subprocess.run([validator, "validate", SKILL.parent], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.others("agents give up by clocks of their own where the machine is slow to start them")
def test_real_codex_plans_runs_and_reads_a_run(koderz: Shell, tmp_path: Path) -> None:
    path = f"{os.environ.get('KODERZ_AGENTS', '')}:{os.environ['PATH']}"
    if shutil.which("codex", path=path) is None:
        pytest.skip("codex isn't installed")
    about = {"models": ["simulated"], "start": 0, "end": 2, "mode": "zero-shot"}
    served = ["-m", "koderz", "mcp", "serve", "--allow-runs", "--max-cost", "1"]
    with scripted_model() as model:
        model.tools = [("plan", about), ("run", about), ("show_run", {}), ("recall", {"query": "has_close_elements"})]
        settings = {
            "mcp_servers.koderz.command": sys.executable,
            "mcp_servers.koderz.args": served,
            "mcp_servers.koderz.required": True,
            "mcp_servers.koderz.startup_timeout_sec": PATIENCE,
            "mcp_servers.koderz.default_tools_approval_mode": "approve",
            "mcp_servers.koderz.env_vars": [*koderz.environment()],
            "model_provider": "scripted",
            "model_providers.scripted.name": "scripted",
            "model_providers.scripted.base_url": f"{model.url}/v1",
            "model_providers.scripted.env_key": "OPENAI_API_KEY",
            "model_providers.scripted.wire_api": "responses",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={json.dumps(value)}")]
        words = ["exec", "--skip-git-repo-check", "-s", "read-only", "--json", "-m", "m"]
        command = ["codex", *words, *options, "Measure."]
        env = koderz.environment({**model.env(), "PATH": path})
        done = subprocess.run(
            command, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    items = [line["item"] for line in map(json.loads, done.stdout.splitlines()) if line["type"] == "item.completed"]
    calls = [item for item in items if item["type"] == "mcp_tool_call"]
    assert [(call["tool"], call["status"]) for call in calls] == [(name, "completed") for name, _ in model.tools], done
    texts = [call["result"]["content"][0]["text"] for call in calls]
    assert max(map(len, texts)) <= USUAL
    assert json.loads(texts[1])["run_id"] == json.loads(texts[2])["run_id"]
