"""Harbor's format: each table and field of schema 1.4 is read, and what can't be honoured is named with a machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.sandbox.workspace import Image
from koderz.systems.rollouts.task import Artifact, CollectHook, Healthcheck, Network, RequestedResources, Rollout
from koderz.systems.rollouts.tasks.formats import load_task
from koderz.systems.rollouts.tasks.runnable import ignored_keys, unmet
from koderz.systems.rollouts.tasks.task_toml import TaskTable, read_task_toml
from koderz.systems.workspaces.images import ImageStore
from tests.koderz.systems.workspaces.images.made import docker_save, folder, layer

EVERY_FIELD = """
schema_version = "1.4"
source = "somewhere"
artifacts = ["/app/out", {source = "/var/log/x", destination = "logs/x", exclude = ["*.tmp"], service = "main"}]
multi_step_reward_strategy = "final"

[task]
name = "org/name"
version = "1.0.0"
description = "d"
authors = [{name = "A", email = "a@b.c"}]
keywords = ["k"]

[metadata]
anything = {at = ["all"]}

[agent]
timeout_sec = 60
user = "root"
network_mode = "allowlist"
allowed_hosts = ["example.org", "*.example.com", "192.0.2.1", "192.0.2.0/24", "2001:db8::1"]

[verifier]
timeout_sec = 30
env = {JUDGE = "x"}
user = 0
environment_mode = "separate"
network_mode = "no-network"
collect = [{command = "dump > /logs/artifacts/db", service = "main", timeout_sec = 5, user = "root"}]

[verifier.environment]
network_mode = "no-network"
build_timeout_sec = 10
os = "Linux"
cpus = 0.5
memory_mb = 512
storage_mb = 100
env = {LEVEL = "2"}
workdir = "/judge"
healthcheck = {command = "test -d /judge"}

[environment]
network_mode = "public"
build_timeout_sec = 600
os = "linux"
cpus = 2
memory_mb = 2048
storage_mb = 10240
gpus = 0
gpu_types = []
mcp_servers = []
skills_dir = ""
workdir = "/srv"
env = {MODE = "on", KEY = "${KEY}", LEVEL = "${LEVEL:-1}"}

[environment.healthcheck]
command = "true"
interval_sec = 1
timeout_sec = 2
start_period_sec = 3
start_interval_sec = 4
retries = 5

[solution]
env = {ANSWER = "42"}
"""

PUBLISHED = """
schema_version = "1.1"

[metadata]
author_name = "A"
difficulty = "medium"
tags = ["x"]

[verifier]
timeout_sec = 900.0

[agent]
timeout_sec = 900.0

[environment]
build_timeout_sec = 600.0
docker_image = "someone/task:20251031"
cpus = 1
memory_mb = 2048
storage_mb = 10240
gpus = 0
allow_internet = true
mcp_servers = []
"""


_PINNED = ("pytest==8.4.1", "pytest-json-ctrf==0.3.5")


def written(folder: Path, toml: str = "", files: Mapping[str, str] | None = None) -> Path:
    """A task's folder with these files besides the usual ones; an empty text leaves a usual one out."""
    usual = {
        "task.toml": toml,
        "instruction.md": "Do it.",
        "environment/Dockerfile": "FROM x\nWORKDIR /app\n",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "true\n",
    }
    for path, text in {**usual, **(files or {})}.items():
        if text or path == "task.toml":
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    return folder


def loaded(folder: Path, toml: str = "", files: Mapping[str, str] | None = None, **more: Any) -> Rollout:
    return load_task(written(folder, toml, files), **more)


def test_every_field_of_the_schema_is_read(tmp_path: Path) -> None:
    task = loaded(tmp_path / "t", EVERY_FIELD, variables={"KEY": "secret"})
    assert (task.id, task.agent_seconds, task.test_seconds, task.workdir) == ("org/name", 60, 30, "/srv")
    assert task.environment == {"MODE": "on", "KEY": "secret", "LEVEL": "1"}
    assert task.asked == RequestedResources(2, 2048, 10240)
    hosts = ("example.org", "*.example.com", "192.0.2.1", "192.0.2.0/24", "2001:db8::1")
    assert task.network == Network("allowlist", hosts)
    assert task.healthcheck == Healthcheck("true", 1, 2, 3, 4, 5)
    assert task.artifacts == (Artifact("/app/out"), Artifact("/var/log/x", "logs/x", ("*.tmp",)))
    assert (task.solution_environment, task.rewards_of) == ({"ANSWER": "42"}, "final")
    verifier = task.verifier
    assert verifier
    assert verifier.is_separate
    assert (verifier.image, verifier.workdir, verifier.asked) == (None, "/judge", RequestedResources(0.5, 512, 100))
    assert verifier.environment == {"LEVEL": "2", "JUDGE": "x"}
    assert verifier.collect == (CollectHook("dump > /logs/artifacts/db", 5),)
    assert (verifier.network, verifier.healthcheck) == (Network("no-network"), Healthcheck("test -d /judge"))
    assert task.needs == ()


def test_defaults_are_those_of_harbor(tmp_path: Path) -> None:
    task = loaded(tmp_path / "t")
    assert (task.id, task.agent_seconds, task.test_seconds, task.network) == ("t", 1800, 600, Network("public"))
    assert (task.asked, task.artifacts, task.stages, task.rewards_of) == (RequestedResources(), (), (), "mean")
    verifier = task.verifier
    assert verifier
    assert not verifier.is_separate
    assert verifier.script == tmp_path / "t/tests/test.sh"
    assert verifier.tests == (tmp_path / "t/tests",)


def test_published_file_of_schema_1_1_is_taken_where_its_image_is(tmp_path: Path) -> None:
    task = loaded(tmp_path / "t", PUBLISHED, {"environment/Dockerfile": "FROM x\nWORKDIR /work\nUSER y\n"})
    assert (task.image, task.workdir) == ("someone/task:20251031", "/work")
    assert unmet(task, "docker") == ""
    layers = [layer(folder("bin"), folder("work"))]
    docker_save(tmp_path / "image.tar", ["someone/task:20251031"], layers)
    images = ImageStore(tmp_path, tmp_path / "cache")
    assert unmet(task, "local", images) == ""
    assert unmet(task, "uncontained", images)
    said = unmet(task, "local")
    assert said.startswith(f"{tmp_path}/t/task.toml: environment.docker_image = ")
    assert said.endswith("needs --sandbox docker, or --images DIR with that image")


def test_dockerfile_is_optional_beside_an_image(tmp_path: Path) -> None:
    task = loaded(tmp_path / "t", PUBLISHED, {"environment/Dockerfile": ""})
    assert (task.image, task.workdir) == ("someone/task:20251031", "/app")
    with pytest.raises(KoderzError, match=r"Dockerfile is missing; write it, or name environment\.docker_image"):
        loaded(tmp_path / "u", "", {"environment/Dockerfile": ""})


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[environment]\ngpus = 2", "task.toml: environment.gpus = 2 needs --sandbox modal"),
        ('[environment]\nos = "Windows"', 'environment.os = "windows" needs a Windows machine'),
        ('[environment]\ntpu = {type = "v6e", topology = "2x4"}', 'environment.tpu = "v6e" needs TPUs'),
        ('[agent]\nuser = "agent"', 'agent.user = "agent" needs several users'),
        ("[verifier]\nuser = 1000", 'verifier.user = "1000" needs several users'),
        ("[verifier.environment]\ngpus = 1", "verifier.environment.gpus = 1 needs --sandbox modal"),
        ('[[verifier.collect]]\ncommand = "x"\nservice = "db"', 'verifier.collect.service = "db" needs several serv'),
        ('[[artifacts]]\nsource = "/x"\nservice = "db"', 'artifacts.service = "db" needs several services'),
        ('[environment.env]\nA = "${TOKEN}"', 'environment.env.A = "${TOKEN}" needs --env TOKEN'),
        ('[solution.env]\nA = "${TOKEN}"', 'solution.env.A = "${TOKEN}" needs --env TOKEN'),
    ],
)
def test_part_that_cannot_be_honoured_names_field_and_machine(tmp_path: Path, toml: str, said: str) -> None:
    found = unmet(loaded(tmp_path / "t", toml), "local")
    assert found.startswith(f"{tmp_path}/t/task.toml: ")
    assert said in found
    assert "\n" not in found


def test_gpus_run_where_there_are_some(tmp_path: Path) -> None:
    task = loaded(tmp_path / "t", '[environment]\ngpus = 2\ngpu_types = ["H100", "A100"]')
    assert unmet(task, "docker")
    assert unmet(task, "modal") == ""
    assert task.asked.gpus == "H100:2"


def test_dockerfile_that_needs_its_image_is_named_with_its_line(tmp_path: Path) -> None:
    task = loaded(tmp_path / "t", "", {"environment/Dockerfile": "FROM x\nUSER y\n"})
    assert unmet(task, "local").endswith("Dockerfile, line 2: USER y needs the image; use --sandbox docker")
    assert unmet(task, "docker") == ""


def test_trajectory_of_another_agent_is_refused(tmp_path: Path) -> None:
    said = unmet(loaded(tmp_path / "t", "", {"trajectory.json": "{}"}), "docker")
    assert said.startswith(f"{tmp_path}/t/trajectory.json needs an agent that goes on")


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("x = [", "not TOML"),
        ('schema_version = "2.0"', 'schema_version = "2.0" is none that koderz reads'),
        ("[environment]\ncpus = 'x'", r"environment\.cpus: expected `float \| null`, got `str`"),
        ("[environment]\nmemory_mb = -1", r"environment\.memory_mb = -1 has to be a number from 0 up"),
        ("[environment]\nmemory = 'much'", r"environment\.memory = \"much\" has to be of the form"),
        ("[environment]\nmemory = '1G'\nmemory_mb = 2", r"environment\.memory = \"1G\" contradicts memory_mb = 2"),
        ("[environment]\nworkdir = 'app'", r"environment\.workdir = \"app\" has to be an absolute path"),
        ("[environment]\nworkdir = '/a/../b'", r"environment\.workdir"),
        ("[environment]\nos = 'plan9'", r"environment\.os: invalid enum value 'plan9'"),
        ("[environment]\nallowed_hosts = ['x']", r"environment\.allowed_hosts is for network_mode"),
        ("[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['https://x']", r"agent\.allowed_hosts \"https://x\""),
        ("[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['x:80']", r"agent\.allowed_hosts"),
        ("[agent]\ntimeout_sec = nan", r"agent\.timeout_sec has to be a number of seconds above 0"),
        ("[verifier]\ntimeout_sec = 0", r"verifier\.timeout_sec has to be a number"),
        ("[verifier]\nenvironment_mode = 'shared'\n[verifier.environment]", r"contradicts \[verifier\.environment\]"),
        ("[environment.healthcheck]\ncommand = 'x'\nretries = 0", r"environment\.healthcheck\.retries"),
        ("[environment.healthcheck]\ninterval_sec = 1", r"environment\.healthcheck: object missing required field"),
        ("artifacts = ['../x']", r"artifacts\.source = '\.\./x' has to be a path without"),
        ("[[artifacts]]\nsource = 'a'\ndestination = '../b'", r"artifacts\.destination = '\.\./b'"),
        ("[[artifacts]]\nsource = 'a'\ndestination = 'manifest.json'", r"artifacts\.destination"),
        ("[[steps]]\nname = 'a/b'", r"steps\.name = 'a/b' can't be the name of a folder"),
        ("[[steps]]\nname = '..'", r"steps\.name"),
        ("[[steps]]\nname = 'a'\n[[steps]]\nname = 'A'", "two steps have it"),
        ("[[steps]]\nname = 'a'\nmin_reward = inf", r"steps\.a\.min_reward has to be a finite number"),
        ("multi_step_reward_strategy = 'best'", "multi_step_reward_strategy: invalid enum value 'best'"),
    ],
)
def test_damaged_file_is_one_line_with_the_field(tmp_path: Path, toml: str, said: str) -> None:
    with pytest.raises(KoderzError, match=said) as found:
        loaded(tmp_path / "t", toml)
    assert str(found.value).startswith(f"{tmp_path}/t/task.toml: ")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("toml", "key"),
    [
        ('[task]\nname = "a/b"\nformat = "x"', "task.format"),
        ("[my_team]\na = 1", "my_team"),
        ("[environmen]", "environmen (did you mean environment?)"),
        ("[environment]\ncpu = 1", "environment.cpu (did you mean cpus?)"),
        ("[[artifacts]]\nsource = 'a'\nexcludes = []", "artifacts.excludes (did you mean exclude?)"),
        ("[verifier]\nretries = 1", "verifier.retries"),
        (
            "[environment.healthcheck]\ncommand = 'x'\nretry = 1",
            "environment.healthcheck.retry (did you mean retries?)",
        ),
    ],
)
def test_key_that_harbor_ignores_is_noted(tmp_path: Path, toml: str, key: str) -> None:
    task = loaded(tmp_path / "t", toml)
    assert task.ignored_keys == (f"task.toml: {key}",)
    assert [*ignored_keys([task, task])] == [f"task.toml: {key}: nothing reads this, in {task.id} and 1 more"]


@pytest.mark.parametrize(
    ("toml", "found"),
    [
        ('version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"', RequestedResources(None, 2048, 512)),
        ('[environment]\nmemory = "2G"\nmemory_mb = 2048', RequestedResources(None, 2048)),
        ("[environment]\ncpus = 0\nmemory_mb = 0\nstorage_mb = 0\ngpus = 0", RequestedResources()),
    ],
)
def test_older_sizes_and_zeroes(tmp_path: Path, toml: str, found: RequestedResources) -> None:
    assert loaded(tmp_path / "t", toml).asked == found


@pytest.mark.parametrize(
    ("toml", "mode"),
    [
        ("[environment]\nallow_internet = false", "no-network"),
        ("[environment]\nallow_internet = true", "public"),
        ("[environment]\nallow_internet = false\nnetwork_mode = 'public'", "public"),
        ("[environment]\nnetwork_mode = 'public'\n[agent]\nnetwork_mode = 'no-network'", "no-network"),
    ],
)
def test_network_of_the_agent(tmp_path: Path, toml: str, mode: str) -> None:
    assert loaded(tmp_path / "t", toml).network.mode == mode


def test_variables_are_only_those_that_are_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    toml = '[environment.env]\nA = "${TOKEN:-none}"\nB = "a ${TOKEN}"\n[verifier.env]\nC = "${TOKEN:-}"'
    task = loaded(tmp_path / "t", toml)
    assert task.environment == {"A": "none", "B": "a ${TOKEN}"}
    assert task.verifier
    assert task.verifier.environment == {"C": ""}
    assert load_task(tmp_path / "t", variables={"TOKEN": "secret"}).environment["A"] == "secret"


def test_variables_of_the_verifier_are_no_agents(tmp_path: Path) -> None:
    assert loaded(tmp_path / "t", '[verifier.env]\nKEY = "x"').environment == {}


def test_steps_inherit_and_override(tmp_path: Path) -> None:
    toml = """
artifacts = ["/app/all"]
[agent]
timeout_sec = 50
[verifier]
environment_mode = "separate"
env = {A = "1", B = "1"}
[[steps]]
name = "one"
min_reward = 0.5
artifacts = ["/app/one"]
[steps.agent]
timeout_sec = 7
[steps.verifier]
timeout_sec = 9
environment_mode = "shared"
env = {B = "2"}
[steps.healthcheck]
command = "true"
[[steps]]
name = "two"
min_reward = {speed = 1, size = 2.5}
"""
    files = {
        "instruction.md": "",
        "steps/one/instruction.md": "First.",
        "steps/one/tests/test.sh": "true",
        "steps/one/workdir/setup.sh": "true",
        "steps/one/solution/solve.sh": "true",
        "steps/two/instruction.md": "Second.",
    }
    task = loaded(tmp_path / "t", toml, files)
    one, two = task.stages
    assert (task.instructions, one.task.instructions, two.task.instructions) == ("First.", "First.", "Second.")
    assert (one.task.id, one.name, two.name) == ("t/one", "one", "two")
    assert (one.task.agent_seconds, two.task.agent_seconds, one.task.test_seconds) == (7, 50, 9)
    assert (one.min_reward, two.min_reward) == ({"reward": 0.5}, {"speed": 1.0, "size": 2.5})
    assert (one.upload, two.upload) == (tmp_path / "t/steps/one/workdir", None)
    assert one.task.artifacts == (Artifact("/app/all"), Artifact("/app/one"))
    assert (one.task.healthcheck, two.task.healthcheck) == (Healthcheck("true"), None)
    first, second = one.task.verifier, two.task.verifier
    assert first
    assert second
    assert (first.is_separate, second.is_separate) == (False, True)
    assert (first.environment, second.environment) == ({"A": "1", "B": "2"}, {"A": "1", "B": "1"})
    assert first.script == tmp_path / "t/steps/one/tests/test.sh"
    assert first.tests == (tmp_path / "t/tests", tmp_path / "t/steps/one/tests")
    assert second.script == tmp_path / "t/tests/test.sh"


def test_separate_verifier_takes_its_image_in_order(tmp_path: Path) -> None:
    separate = '[verifier]\nenvironment_mode = "separate"\n'
    built = {"tests/Dockerfile": "FROM x\nWORKDIR /check\nENV A=1\nCOPY . /tests/\n"}
    fresh = loaded(tmp_path / "fresh", separate).verifier
    own = loaded(tmp_path / "own", separate, built).verifier
    named = loaded(tmp_path / "named", '[verifier.environment]\ndocker_image = "judge:1"', built).verifier
    assert fresh
    assert own
    assert named
    assert (fresh.image, fresh.workdir) == (None, "")
    assert isinstance(own.image, Image)
    assert (own.image.context, own.workdir, own.image.environment) == (tmp_path / "own/tests", "/check", {"A": "1"})
    assert named.image == "judge:1"
    shared = loaded(tmp_path / "shared", "", built).verifier
    assert shared
    assert not shared.is_separate


@pytest.mark.parametrize(
    ("lines", "installs", "refused"),
    [
        (
            f"COPY --from=a/uv /uv /usr/local/bin/uv\nRUN uv pip install --system {' '.join(_PINNED)}\n",
            _PINNED,
            "",
        ),
        ("RUN apt-get update && apt-get install -y curl && rm -rf /var/lib/apt/lists/*\n", (), ""),
        ("RUN pip install --no-cache-dir pytest\nRUN python3 -m pip install -i URL x\n", ("pytest", "x"), ""),
        ("RUN pip install -r requirements.txt\n", (), "line 2: -r needs the image"),
        ("COPY data /var/data\n", (), "line 2: COPY to /var/data, outside of WORKDIR, needs the image"),
    ],
)
def test_dockerfile_of_tests_installs_and_copies(tmp_path: Path, lines: str, installs: Any, refused: str) -> None:
    built = {"tests/Dockerfile": f"FROM x\n{lines}WORKDIR /app\nCOPY . /tests/\n", "tests/data": "1"}
    verifier = loaded(tmp_path / "t", '[verifier]\nenvironment_mode = "separate"', built).verifier
    assert verifier
    assert verifier.installs == installs
    assert refused in verifier.refused
    assert bool(refused) == bool(verifier.refused)


@pytest.mark.parametrize(
    ("compose", "said"),
    [
        ("services: {main: {}, db: {image: y}}", "services.db needs --sandbox docker or podman with compose"),
        ("services: {main: {volumes: ['x:/y']}}", "docker-compose.yaml: services.main.volumes needs what no container"),
        ("services: {main: {build: {context: .., dockerfile: Dockerfile}}}", "services.main.build needs"),
    ],
)
def test_compose_file_of_several_services_needs_compose(tmp_path: Path, compose: str, said: str) -> None:
    assert said in unmet(loaded(tmp_path / "t", "", {"environment/docker-compose.yaml": compose}), "local")


def test_compose_file_of_one_service_is_followed(tmp_path: Path) -> None:
    compose = """
services:
  main:
    build: {context: ., dockerfile: Dockerfile}
    command: ["sh", "-c", "sleep infinity"]
    environment: ["MODE=on", "LOGS=${T_BENCH_TASK_LOGS_PATH}"]
    working_dir: /srv
"""
    task = loaded(tmp_path / "t", "", {"environment/docker-compose.yaml": compose})
    assert (task.environment, task.workdir, task.image_name, task.needs) == ({"MODE": "on"}, "/srv", "", ())
    named = {"environment/docker-compose.yaml": "services: {main: {image: some/thing}}"}
    assert loaded(tmp_path / "u", "", named).image == "some/thing"


@pytest.mark.parametrize("text", ["services: []", "services: {main: 3}", "\t"])
def test_damaged_compose_file_is_one_line(tmp_path: Path, text: str) -> None:
    folder = written(tmp_path / "t", "", {"environment/Dockerfile": "FROM x\n"})
    (folder / "environment/docker-compose.yaml").write_text(text)
    with pytest.raises(KoderzError, match=r"docker-compose\.yaml: no compose file") as found:
        load_task(folder)
    assert "\n" not in str(found.value)


def test_missing_instructions_are_named(tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match=r"t/instruction\.md is missing"):
        loaded(tmp_path / "t", "", {"instruction.md": ""})
    with pytest.raises(KoderzError, match=r"steps/a/instruction\.md is missing"):
        loaded(tmp_path / "u", "[[steps]]\nname = 'a'")


def test_digest_changes_with_the_tests_and_not_with_the_folder(tmp_path: Path) -> None:
    first, second = loaded(tmp_path / "a/t"), loaded(tmp_path / "b/t")
    assert first.digest == second.digest
    assert loaded(tmp_path / "c/t", "", {"tests/test.sh": "false\n"}).digest != first.digest


def test_table_is_read_whole() -> None:
    assert read_task_toml(Path("task.toml"), "") == (TaskTable(), ())


def test_skills_and_servers_of_a_task_are_given_to_its_agent(tmp_path: Path) -> None:
    servers = (
        'name = "db"\ntransport = "stdio"\ncommand = "serve"\nargs = ["--fast"]\n',
        'name = "web"\ntransport = "streamable-http"\nurl = "http://web:8000/mcp"\n',
    )
    toml = '[environment]\nskills_dir = "/opt/skills"\n' + "".join(
        f"[[environment.mcp_servers]]\n{each}" for each in servers
    )
    task = loaded(tmp_path / "t", toml)
    assert task.needs == ()
    assert [(each.kind, each.name, each.path, each.server) for each in task.additions] == [
        ("skill", "skills", "/opt/skills", {}),
        ("mcp", "db", "", {"command": "serve", "args": ["--fast"]}),
        ("mcp", "web", "", {"type": "http", "url": "http://web:8000/mcp"}),
    ]
    assert all(each.mounted == each for each in task.additions)  # they lie in its image
