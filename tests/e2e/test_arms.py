"""Agents see what their arm names and nothing else, by their real command lines or stand-ins for these."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from koderz.settings.systems import required
from koderz.systems.rollouts.agents.adapters import AddingAdapter
from koderz.systems.rollouts.suite import SAMPLE
from koderz.systems.workspaces.userland import entries
from tests.conftest import Shell
from tests.e2e.test_agents import FAKE, PRICES, PROGRAMS, WHOLE_FILE
from tests.scripted_model import COMMAND, ScriptedModel, scripted_model

LEAKS = [json.loads(line) for line in Path(__file__).with_name("leaks.jsonl").read_text().splitlines()]
"""Places of an operator's things, each of which gets a canary by its number in place of @."""

AGENTS = {**PROGRAMS, "aider": "aider", "koderz": ""}
CANARY = re.compile(r"CANARY-\d{3}")
# Everything that an agent's command can reach: its variables, its home, and what lies about.
DUMP = (
    "env; bash -lc env; git config --list; ls -a / ~ /etc; "
    "grep -rhoE 'CANARY-[0-9]+' ~ /tmp /opt /etc /root /home /srv /mnt /workspace /app 2>/dev/null | sort -u"
)
OWN = {
    "skill": "CANARY-901",
    "mcp": "CANARY-902",
    "context": "CANARY-903",
    "memory": "CANARY-904",
    "system_prompt": "CANARY-905",
}
"""What the arm `with` gives, by kind."""

_SERVER = f"""
import json, sys
for line in sys.stdin:
    ask = json.loads(line)
    how, tool = ask.get("method"), {{"name": "parcel_code", "inputSchema": {{"type": "object", "properties": {{}}}}}}
    result = {{"tools": [{{**tool, "description": "{OWN["mcp"]}"}}]}} if how == "tools/list" else {{}}
    if how == "initialize":
        about = {{"name": "parcels", "version": "1"}}
        version = ask["params"]["protocolVersion"]
        result = {{"protocolVersion": version, "capabilities": {{"tools": {{}}}}, "serverInfo": about}}
    if "id" in ask:
        print(json.dumps({{"jsonrpc": "2.0", "id": ask["id"], "result": result}}), flush=True)
"""


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with scripted_model() as server:
        server.commands = [DUMP, COMMAND]
        yield server


def _canary(number: int) -> str:
    return f"CANARY-{number:03}"


def _plant(folder: Path) -> dict[str, str]:
    """Lays all files below `folder`, with the operator's home in it; returns the variables."""
    home, texts, variables = folder / "operator", defaultdict[Path, list[str]](list), {"HOME": f"{folder}/operator"}
    for number, leak in enumerate(LEAKS):
        if "variable" in leak:
            value = leak["value"].replace("@", _canary(number))
            variables[leak["variable"]] = value.replace("~", str(home))
            continue
        name = leak["path"].partition(": ")[0].replace("NAME", f"leak-{number}")
        path = home / name[2:] if name.startswith("~/") else folder / name
        texts[path].append(leak["text"].replace("@", _canary(number)).replace("NAME", f"leak-{number}"))
    for path, parts in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json" and len(parts) > 1:
            merged: dict[str, Any] = {}
            for part in map(json.loads, parts):
                for key, value in part.items():
                    merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
            path.write_text(json.dumps(merged))
        else:  # in TOML, keys come before tables
            path.write_text("".join(sorted(parts, key=lambda part: part.startswith("["))))
    return variables


def _installed(agent: str) -> str | None:
    """The PATH with which the real agent is found; None if it isn't installed."""
    path = f"{os.environ.get('KODERZ_AGENTS', '')}:{os.environ['PATH']}"
    return path if not AGENTS[agent] or shutil.which(AGENTS[agent], path=path) else None


def _stand_in(agent: str, folder: Path) -> str:
    if agent == "aider":
        pytest.skip("aider isn't installed")
    folder.mkdir()
    program = folder / AGENTS[agent]
    program.write_text(FAKE.read_text())
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return f"{folder}:{os.environ['PATH']}"


def _with_arms(folder: Path, agent: str, name: str) -> set[str]:
    """Writes a configuration of a plain arm and one of all that the agent takes, which it returns."""
    adapter = required("agents", agent) if agent in PROGRAMS or agent == "aider" else None
    takes = {*adapter.takes} if isinstance(adapter, AddingAdapter) else {*OWN} - {"mcp"}
    arm = folder / "arm"
    (arm / "parcel-codes").mkdir(parents=True)
    head = f"---\nname: parcel-codes\ndescription: {OWN['skill']}\n---\n"
    (arm / "parcel-codes/SKILL.md").write_text(f"{head}{_canary(911)}\n")
    (arm / "parcels.py").write_text(_SERVER)
    server = {"command": "python3", "args": ["parcels.py"]}
    (arm / "mcp.json").write_text(json.dumps({"mcpServers": {"parcels": server}}))
    keys = {"skill": 'skills = ["arm/parcel-codes"]', "mcp": 'mcp = ["arm/mcp.json"]'}
    for kind in ("context", "memory", "system_prompt"):
        (arm / f"{kind}.md").write_text(f"{OWN[kind]} {{{{ braces }}}}\n")
        keys[kind] = f'{kind} = ["arm/{kind}.md"]'
    given = "\n".join(keys[kind] for kind in sorted(takes))
    arms = f'parallel = 1\n[[arms]]\nname = "plain"\n[[arms]]\nname = "with"\n{given}\n'
    entry = f'[[tasks]]\nprepared_dir = "tasks/greeting"\nagent = "{agent}"\nmodel = "{name}"\n'
    (folder / "arms.toml").write_text(f"{arms}{entry}")
    (folder / "koderz.toml").write_text(PRICES)
    return takes


def test_table_holds_a_hundred_places() -> None:
    assert len(LEAKS) >= 100
    assert len({json.dumps(leak) for leak in LEAKS}) == len(LEAKS)


@pytest.mark.slow
@pytest.mark.others("agents give up by clocks of their own where the machine is slow to start them")
@pytest.mark.parametrize("agent", AGENTS)
def test_agent_sees_its_arm_and_nothing_of_the_operators(koderz: Shell, model: ScriptedModel, agent: str) -> None:
    shutil.copytree(SAMPLE / "greeting", koderz.folder / "tasks/greeting")
    takes = _with_arms(koderz.folder, agent, "anthropic/m" if agent == "claude-code" else "openai/m")
    variables = _plant(koderz.folder)
    real = _installed(agent)
    path = real or _stand_in(agent, koderz.folder / "bin")
    if agent == "aider":
        model.text = WHOLE_FILE
    env = {**variables, **model.env(), "PATH": path}
    koderz("rollouts", "run", "arms.toml", "--sandbox", "local", "--quiet", env=env)
    asked = [json.dumps(body) for _, body in model.asked]
    seen = [set(CANARY.findall(text)) for text in asked]
    calls = {line["arm"]: line["calls"] for line in koderz.journal() if line["kind"] == "experiment"}
    mine = [canaries for canaries in seen if canaries]
    told = {number: LEAKS[int(number[-3:])] for number in set().union(*seen) if int(number[-3:]) < len(LEAKS)}
    assert not told  # nothing that was planted
    assert not CANARY.findall("".join(model.headers))
    given = {OWN[kind] for kind in (takes if real else takes & {"skill", "context", "memory"})}
    if real:
        assert len(mine) == calls[f"{agent} · {model_name(agent)} · with"]
        assert all(given <= canaries for canaries in mine)
    assert given <= set().union(*mine)
    assert len(seen) - len(mine) >= calls[f"{agent} · {model_name(agent)} · plain"]
    assert all(line["success"] for line in koderz.journal() if line["kind"] == "experiment")


def model_name(agent: str) -> str:
    return "anthropic/m" if agent == "claude-code" else "openai/m"


_BY_HAND: Mapping[str, tuple[str, ...]] = {
    "claude-code": ("-p", "do it", "--permission-mode", "bypassPermissions", "--model", "m"),
    "codex": ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "m", "do it"),
    "aider": ("--yes-always", "--no-stream", "--no-check-update", "--model=openai/m", "--message=do it"),
    "mini-swe-agent": ("-y", "--exit-immediately", "-m", "openai/m", "-t", "do it", "-o", "run.json"),
}
_CODEX = 'model_provider="own"\nmodel_providers.own={name="own",base_url="URL/v1",env_key="OPENAI_API_KEY"}\n'


@pytest.mark.slow
@pytest.mark.others("agents give up by clocks of their own where the machine is slow to start them")
@pytest.mark.parametrize("agent", _BY_HAND)
def test_planted_places_reach_agents_started_by_hand(
    tmp_path: Path, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    """Else the table would show nothing."""
    path = _installed(agent)
    if path is None:
        pytest.skip(f"{agent} isn't installed")
    _plant(tmp_path)
    config = tmp_path / "operator/.codex/config.toml"
    config.write_text(_CODEX.replace("URL", model.url) + config.read_text())
    shutil.rmtree(tmp_path / ".git")
    subprocess.run(["git", "init", "-q", "repository"], cwd=tmp_path, check=True)
    own = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    own |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1", "TERM": "dumb"}
    nowhere = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}  # no host but this machine
    env = {"PATH": path, "HOME": f"{tmp_path}/operator", **own, **nowhere, **model.env()}
    if agent == "claude-code":  # which waits for streams; its first request is enough
        model.status = 400
    if agent == "mini-swe-agent":
        env["OPENAI_API_BASE"] = env["OPENAI_BASE_URL"]
    monkeypatch.setenv("PATH", path)
    program = required("agents", agent).find().program
    command = [program, *_BY_HAND[agent]]
    subprocess.run(command, cwd=tmp_path / "repository", env=env, capture_output=True, stdin=subprocess.DEVNULL)
    seen = set(CANARY.findall("".join(json.dumps(body) for _, body in model.asked) + "".join(model.headers)))
    found = [leak for number, leak in enumerate(LEAKS) if _canary(number) in seen and leak["agent"] == agent]
    assert found, "no place of the table reached it"


def _run_with_skill(koderz: Shell, *more: str) -> Path:
    """A run of a plain arm and of one with a skill, whose file is returned."""
    _with_arms(koderz.folder, "koderz", "simulated")
    koderz("rollouts", "sample", "tasks")
    koderz("rollouts", "run", "arms.toml", "--sandbox", "local", "--quiet", *more)
    return koderz.folder / "arm/parcel-codes/SKILL.md"


@pytest.mark.slow
def test_record_has_digests_and_resume_names_the_skill_that_changed(koderz: Shell) -> None:
    skill = _run_with_skill(koderz)
    (plan,) = (line for line in koderz.journal() if line["kind"] == "plan")
    given = plan["details"]["suite"]["additions"]["with"]
    assert {(each["kind"], each["name"]) for each in given} >= {("skill", "parcel-codes"), ("context", "context.md")}
    koderz("benchmark", "resume", "latest", "--quiet")
    koderz("verify", "latest", "--dataset", "arms.toml", code=3)  # verified, but for what no replay redoes
    before = skill.read_text()
    skill.write_text(before.replace("911", "912"))
    told = koderz("benchmark", "resume", "latest", "--quiet", code=2).err
    assert "not what it was when the run began: the skill parcel-codes of with. Put it back, or " in told
    assert "the skill parcel-codes of with" in koderz("verify", "latest", "--dataset", "arms.toml", code=1).out
    shutil.rmtree(skill.parent)
    assert "there is no file or folder arm/parcel-codes" in koderz("benchmark", "resume", "latest", code=2).err
    skill.parent.mkdir()
    skill.write_text(before)
    koderz("benchmark", "resume", "latest", "--quiet")


def test_agent_that_cannot_be_given_its_arm_spends_nothing(koderz: Shell) -> None:
    _with_arms(koderz.folder, "koderz", "simulated")
    shutil.copytree(SAMPLE / "greeting", koderz.folder / "tasks/greeting")
    told = koderz("rollouts", "run", "arms.toml", "--agent", "aider", "--sandbox", "local", code=2).err
    assert "--agent: the agent aider can't be given parcel-codes (skill); it takes context, memory" in told
    own = ("--suite", "rollouts", "--dataset", "arms.toml", "--solver", "agent:aider", "--sandbox", "local")
    told = koderz("benchmark", *own, code=2).err
    assert "the agent aider can't be given parcel-codes (skill)" in told
    told = koderz("rollouts", "run", "arms.toml", "--sandbox", "uncontained", "--dry-run", code=2).err
    assert "an agent that isn't contained sees more than its arm; use --sandbox local" in told
    assert not [*koderz.folder.glob("benchmark_results/*/journal.jsonl")]


def test_dry_run_says_what_each_arm_gives(koderz: Shell) -> None:
    _with_arms(koderz.folder, "koderz", "simulated")
    shutil.copytree(SAMPLE / "greeting", koderz.folder / "tasks/greeting")
    shown = koderz("rollouts", "run", "arms.toml", "--sandbox", "local", "--dry-run").out
    assert re.search(r"Given to agents of with: the skill parcel-codes \([0-9a-f]{12}\), ", shown)


def test_task_with_servers_is_left_out_where_its_agent_takes_none(koderz: Shell) -> None:
    for name in ("greeting", "served"):
        shutil.copytree(SAMPLE / "greeting", koderz.folder / "tasks" / name)
    toml = koderz.folder / "tasks/served/task.toml"
    server = '[[environment.mcp_servers]]\nname = "db"\ntransport = "stdio"\ncommand = "serve"\n'
    toml.write_text(toml.read_text().replace("sample/greeting", "sample/served") + server)
    own = ("rollouts", "run", "--dataset", "tasks", "--model", "simulated", "--sandbox", "local", "--dry-run")
    assert "the agent aider can't be given db (mcp)" in koderz(*own, "--agent", "aider", code=2).err
    assert "sample/served is left out: the agent aider" in koderz(*own, "--agent", "aider", "--skip-unrunnable").err
    shown = koderz(*own, "--agent", "codex").out
    assert "Given to agents: the mcp db" in shown


@pytest.mark.slow
@pytest.mark.others("agents give up by clocks of their own where the machine is slow to start them")
@pytest.mark.parametrize("agent", ["codex", "claude-code", "koderz"])
def test_skills_and_servers_of_a_task_are_in_every_arm(koderz: Shell, model: ScriptedModel, agent: str) -> None:
    task = koderz.folder / "tasks/greeting"
    shutil.copytree(SAMPLE / "greeting", task)
    (task / "environment/skills/own-codes").mkdir(parents=True)
    own = f"---\nname: own-codes\ndescription: {_canary(921)}\n---\n"
    (task / "environment/skills/own-codes/SKILL.md").write_text(own)
    (task / "environment/own.py").write_text(_SERVER.replace(OWN["mcp"], _canary(922)))
    dockerfile = task / "environment/Dockerfile"
    dockerfile.write_text(f"{dockerfile.read_text()}COPY skills /opt/skills\nCOPY own.py /opt/own.py\n")
    server = 'name = "own codes"\ntransport = "stdio"\ncommand = "python3"\nargs = ["/opt/own.py"]\n'
    toml = f'[environment]\nskills_dir = "/opt/skills"\n[[environment.mcp_servers]]\n{server}'
    (task / "task.toml").write_text(f"{(task / 'task.toml').read_text()}\n{toml}")
    _with_arms(koderz.folder, agent, model_name(agent))
    real = _installed(agent)
    path = real or _stand_in(agent, koderz.folder / "bin")
    model.commands = [
        "cat $CODEX_HOME/skills/own-codes/SKILL.md $CLAUDE_CONFIG_DIR/skills/own-codes/SKILL.md /opt/skills/*/SKILL.md",
        COMMAND,
    ]
    koderz("rollouts", "run", "arms.toml", "--sandbox", "local", "--quiet", env={**model.env(), "PATH": path})
    last = [set(CANARY.findall(json.dumps(body))) for _, body in model.asked if COMMAND in json.dumps(body)]
    wanted = {_canary(921)} | ({_canary(922)} if real else set())
    assert len(last) == 2  # one of each arm
    assert all(wanted <= canaries for canaries in last)
    if real:
        assert sorted(OWN["skill"] in canaries for canaries in last) == [False, True]


def test_settings_of_the_machine_are_not_seen(tmp_path: Path) -> None:
    seen = {entry.target for entry in entries(tmp_path)}
    names = ("claude-code", "codex", "gitconfig", "profile", "bash.bashrc", "environment", "npmrc", "ssh")
    assert not {f"/etc/{name}" for name in names} & seen
    assert not {place for place in seen if place in ("/", "/etc", "/root", "/home", "/var", "/run", "/opt")}


@pytest.mark.slow
@pytest.mark.others("agents give up by clocks of their own where the machine is slow to start them")
@pytest.mark.parametrize("agent", ["codex", "claude-code"])
@pytest.mark.parametrize("name", ["openai/m", "anthropic/m"])
def test_server_of_an_arm_is_called_by_models_of_both_makers(
    koderz: Shell, model: ScriptedModel, agent: str, name: str
) -> None:
    if (path := _installed(agent)) is None:
        pytest.skip(f"{agent} isn't installed")
    shutil.copytree(SAMPLE / "greeting", koderz.folder / "tasks/greeting")
    _with_arms(koderz.folder, agent, name)
    arms = (koderz.folder / "arms.toml").read_text()
    (koderz.folder / "arms.toml").write_text(arms.replace('[[arms]]\nname = "plain"\n', ""))
    server = _SERVER.replace("else {}\n", 'else {"content": [{"type": "text", "text": "P-2058"}]}\n', 1)
    (koderz.folder / "arm/parcels.py").write_text(server)
    model.tools = [("parcel_code", {})]
    koderz("rollouts", "run", "arms.toml", "--sandbox", "local", "--quiet", env={**model.env(), "PATH": path})
    assert ["P-2058" in json.dumps(body) for _, body in model.asked] == [False, True]


@pytest.mark.slow
def test_arm_is_the_same_wherever_its_agent_works(anywhere: Shell, model: ScriptedModel) -> None:
    shutil.copytree(SAMPLE / "greeting", anywhere.folder / "tasks/greeting")
    _with_arms(anywhere.folder, "codex", "openai/m")
    shown = "cat $CODEX_HOME/skills/*/SKILL.md $CODEX_HOME/AGENTS.md /opt/koderz/additions/*/parcels/parcels.py"
    model.commands = [shown, COMMAND]
    path = _stand_in("codex", anywhere.folder / "bin")
    anywhere("rollouts", "run", "arms.toml", "--quiet", env={**model.env(), "PATH": path})
    last = [set(CANARY.findall(json.dumps(body))) for _, body in model.asked if COMMAND in json.dumps(body)]
    given = {_canary(911), *(OWN[kind] for kind in ("skill", "mcp", "context", "memory"))}
    assert sorted(last, key=len) == [set(), given]
