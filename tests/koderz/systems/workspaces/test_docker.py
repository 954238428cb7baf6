"""Commands in containers: what docker is asked for, by a stand-in that runs it here, and the real one where wanted."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Fault, Unreachable
from koderz.sandbox.workspace import Command, Ended, Image, Limits, Mount, RewardChannel
from koderz.systems.workspaces.cores import available_cores
from koderz.systems.workspaces.docker import Docker, Podman
from koderz.systems.workspaces.uncontained import Uncontained
from tests.conftest import PATIENCE, are_gone, wait_for
from tests.koderz.systems.workspaces.legs import LEG, talked

pytestmark = pytest.mark.slow

STAND_IN = """#!{python} -IS
import json, os, pathlib, sys
words, state = sys.argv[1:], pathlib.Path({state!r})
with open(state / "log", "a") as log:
    log.write(json.dumps(words) + "\\n")
def after(flag):
    return [value for name, value in zip(words, words[1:]) if name == flag]
def kept(tag):
    return state / tag.replace(":", "-").replace("/", "-")
def is_known(tag):
    return (state / "registry").exists() and tag in (state / "registry").read_text().split()
if words[0] == "--config":
    config = json.loads(pathlib.Path(words[1], "config.json").read_text())
    words = words[2:]
match words:
    case ["login"]:
        import base64
        auth = config["auths"]["https://index.docker.io/v1/"]["auth"]
        sys.exit("unauthorized" if base64.b64decode(auth) != b"somebody:p4ssw0rd" else 0)
    case ["manifest", "inspect", tag]:
        sys.exit(not is_known(tag))
    case ["pull", *_, tag]:
        kept(tag).write_text("") if is_known(tag) else sys.exit("no such image")
    case ["version", *_]:
        print("27.5.1")
    case ["image", "inspect", *_, tag]:
        sys.exit(not kept(tag).exists())
    case ["build", *_, folder]:
        if "broken" in pathlib.Path(folder, "Dockerfile").read_text():
            sys.exit("no such instruction")
        import shutil
        own = str(state / after("--tag")[0].replace(":", "-").replace("/", "-")) + ".context"
        shutil.copytree(folder, own, ignore=shutil.ignore_patterns("state"))
        kept(after("--tag")[0]).write_text(own)
    case ["compose", "version"]:
        print("Docker Compose version v2.27.0")
    case ["compose", "--project-name", _, "--project-directory", _, "--env-file", _, "--file", file, word, *_]:
        (state / "project").write_text(pathlib.Path(file).read_text())
        if (state / "fails").exists() and (state / "fails").read_text() == word:
            sys.exit(word + " fails")
    case ["create", *_, image, _]:
        (state / after("--name")[0]).write_text(kept(image).read_text())
    case ["cp", source, target]:
        name, _, folder = source.partition(":")
        if not folder.startswith("/app"):
            sys.exit("no such folder")
        os.execvp("cp", ["cp", "-r", (state / name).read_text() + "/.", target])
    case ["run", *_]:
        import subprocess
        (name,) = after("--name")
        binds = []
        for mount in after("--mount"):
            kind, source, target, *rest = [part.strip('"').partition("=")[2] or part for part in mount.split(",")]
            binds += ["--ro-bind" if rest else "--bind", source, target]
        variables = dict(line.split("=", 1) for line in open(after("--env-file")[0]).read().splitlines())
        variables |= dict(each.split("=", 1) for each in after("--env") if "=" in each)
        at = words.index("--entrypoint")
        host = ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives")
        host = [word for path in host for word in ("--ro-bind-try", path, path)]
        bounds = ["bwrap", "--unshare-all", "--die-with-parent", *host, "--proc", "/proc", "--dev", "/dev", *binds]
        command = [*bounds, "--chdir", after("--workdir")[0], words[at + 1], *words[at + 3:]]
        process = subprocess.Popen(command, env={{"PATH": os.environ["PATH"], **variables}}, start_new_session=True)
        (state / f"{{name}}-folder").write_text(after("--workdir")[0])
        (state / name).write_text(str(process.pid))
        status = process.wait()
        sys.exit(137 if status == -9 else status)
    case ["exec", "--interactive", "--user", _, name, *command]:
        try:
            pid = (state / name).read_text()
            inside = int(pathlib.Path(f"/proc/{{pid}}/task/{{pid}}/children").read_text())
            variables = pathlib.Path(f"/proc/{{inside}}/environ").read_text().split(chr(0))[:-1]
        except (OSError, ValueError):
            sys.exit(f"no such container: {{name}}")
        enter = ["nsenter", "-t", str(inside), "-U", "-p", "-m", "-n", "-i", "--preserve-credentials", "--"]
        begin = ["sh", "-c", 'cd "$0" && exec "$@"', (state / f"{{name}}-folder").read_text()]
        os.execvpe(enter[0], [*enter, *begin, *command], dict(each.split("=", 1) for each in variables))
    case ["stop", *_, name] | ["rm", "--force", name]:
        try:
            os.killpg(int((state / name).read_text()), 9)
        except (OSError, ValueError):
            pass
    case ["inspect", *_]:
        print({inspected!r})
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `docker` that runs what it is told to here, and the folder with the log of its command lines."""
    return stand_in(tmp_path, monkeypatch)


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, inspected: str = "false ", name: str = "docker") -> Path:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap isn't installed, by which the stand-in runs what it is told to")
    program, state = folder / "bin" / name, folder / "state"
    program.parent.mkdir(parents=True)
    state.mkdir()
    program.write_text(STAND_IN.format(python=os.path.realpath(sys.executable), state=str(state), inspected=inspected))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return state


def ran(line: str, place: Path, limits: Limits | None = None, backend: type[Docker] = Docker, **more: Any) -> Ended:
    async def in_loop() -> Ended:
        async with backend("python:3.12-slim") as docker:
            wanted = Command(["bash", "-c", line], limits=limits or Limits(seconds=PATIENCE), **more)
            return await docker.run(wanted, place)

    return asyncio.run(in_loop())


def asked(state: Path, word: str) -> list[list[str]]:
    said = map(json.loads, (state / "log").read_text().splitlines())
    plain = (words[2:] if words[0] == "--config" else words for words in said)
    return [words for words in plain if words[0] == word]


def test_command_runs_in_a_container_of_its_own_without_network(state: Path, place: Path) -> None:
    ended = ran("pwd; echo new > file; echo $MODE; exit 3", place, environment={"MODE": "a=b"})
    assert (ended.status, ended.output, ended.cause) == (3, "/workspace\na=b\n", "")
    assert (place / "checkout/file").read_text() == "new\n"
    (run,) = asked(state, "run")
    for words in (["--network", "none"], ["--cap-drop", "ALL"], ["--user", f"{os.getuid()}:{os.getgid()}"]):
        assert any(run[number : number + 2] == words for number in range(len(run)))
    assert "a=b" not in " ".join(run)  # other users of this machine see command lines
    assert "docker.sock" not in " ".join(run)
    name = run[run.index("--name") + 1]
    assert ["rm", "--force", name] in asked(state, "rm")


def test_command_reaches_its_allowed_hosts_through_a_proxy_alone(state: Path, place: Path) -> None:
    with serving() as port:
        asks = f"import urllib.request as u; print(u.urlopen('http://127.0.0.2:{port}/x').read().decode())"
        ended = ran(f'python3 -c "{asks}"', place, allowed_hosts=["127.0.0.2"])
        assert (ended.status, ended.output) == (0, "here\n")
        ended = ran(f'python3 -c "{asks}"', place, allowed_hosts=["example.org"])
        assert ended.status == 1
        assert "HTTP Error 403: Forbidden" in ended.output
    for run in asked(state, "run"):
        assert run[run.index("--network") + 1] == "none"


def test_cores_of_a_command_are_asked_for(state: Path, place: Path) -> None:
    ran("true", place, Limits(seconds=PATIENCE, cpus=0.5))
    ran("true", place, Limits(seconds=PATIENCE, cpus=4096))
    half, every = asked(state, "run")
    assert half[half.index("--cpus") + 1] == "0.5"
    assert every[every.index("--cpus") + 1] == str(available_cores())


@contextmanager
def serving() -> Iterator[int]:
    """A web server of this machine that says `here`; its port."""

    class Here(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"here")

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.2", 0), Here) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_podman_is_asked_for_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    state = stand_in(tmp_path, monkeypatch, name="podman")
    (state / "registry").write_text("someone/task:1")
    ended = ran("pwd; exit 3", place, backend=Podman, image="someone/task:1")
    assert (ended.status, ended.output) == (3, "/workspace\n")
    assert asked(state, "pull") == [["pull", "--quiet", "someone/task:1"]]
    (run,) = asked(state, "run")
    keeps = [run[number : number + 2] == ["--userns", "keep-id"] for number in range(len(run))]
    assert any(keeps) == bool(os.getuid())
    assert not [word for word in run if word.startswith("type=bind") and '"' in word]
    assert asked(state, "rm")


def test_command_runs_as_a_user_of_its_image(state: Path, place: Path) -> None:
    ran("true", place, user="worker")
    (run,) = asked(state, "run")
    assert run[run.index("--user") + 1] == "worker"


def test_command_in_the_folder_of_an_image_is_for_local_alone(state: Path, place: Path) -> None:
    with pytest.raises(Fault, match="only --sandbox local works in an image's own folder"):
        ran("true", place, in_image=True)
    assert not asked(state, "run")


def test_home_and_mounts_are_there(state: Path, place: Path, tmp_path: Path) -> None:
    (tmp_path / "shown").write_text("shown\n")
    ran("echo kept > ~/mine", place)
    line = 'cat ~/mine /tests; echo x > /tests || echo refused; printf %s "$MORE"'
    ended = ran(line, place, mounts=[Mount(tmp_path / "shown", "/tests")], environment={"MORE": "two\nlines"})
    assert ended.output.startswith("kept\nshown\n")
    assert ended.output.endswith("refused\ntwo\nlines")


def test_image_is_built_once_for_each_digest(state: Path, place: Path, tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM x\n")
    image = Image(context, "abc")
    for _ in range(2):
        ran("true", place, image=image)
    ran("true", place, image=Image(context, "def"))
    assert [words[words.index("--tag") + 1] for words in asked(state, "build")] == [
        "koderz-workspace:abc",
        "koderz-workspace:def",
    ]
    assert [words[words.index("--entrypoint") + 2] for words in asked(state, "run")][:2] == ["koderz-workspace:abc"] * 2


def test_image_leaves_out_what_is_hidden(state: Path, place: Path, tmp_path: Path) -> None:
    context = tmp_path / "context"
    for name in ("Dockerfile", "a/shown", "a/hidden", "tests/hidden"):
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text("FROM x\n")
    ran("true", place, image=Image(context, "abc", hidden=("a/hidden", "tests")))
    (built,) = state.glob("*.context")
    assert {path.relative_to(built).as_posix() for path in built.rglob("*")} == {"Dockerfile", "a", "a/shown"}


def test_image_that_cannot_be_built_is_a_fault(state: Path, place: Path, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("broken\n")
    with pytest.raises(Fault, match="docker build: no such instruction"):
        ran("true", place, image=Image(tmp_path, "abc"))


def test_timeout_stops_a_command(state: Path, place: Path) -> None:
    ended = ran("echo begun; sleep 1000", place, Limits(seconds=2.0, grace=0.3))
    assert ended.cause == "timeout"
    assert asked(state, "stop")


def test_memory_cause_is_the_hosts_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    stand_in(tmp_path, monkeypatch, inspected="true ")
    assert ran("exit 137", place).cause == "memory"


def test_container_that_cannot_be_started_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    stand_in(tmp_path, monkeypatch, inspected="false no space left on device")
    with pytest.raises(Fault, match="no space left"):
        ran("exit 1", place)


_KILLED = """
import asyncio, sys
from pathlib import Path
from koderz.sandbox.workspace import Command
from koderz.systems.workspaces.docker import Docker
asyncio.run(Docker("x").run(Command(["bash", "-c", "touch begun; sleep 1000"]), Path(sys.argv[1])))
"""


def test_container_is_removed_when_koderz_is_killed(state: Path, place: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _KILLED, str(place)]) as koderz:
        wait_for((place / "checkout/begun").exists)
        koderz.send_signal(signal.SIGKILL)
    wait_for(lambda: asked(state, "rm"))


def test_missing_daemon_is_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match="docker"):
        ran("true", place)


def looked_up(*images: Image | str | None, push: bool = False, environ: Mapping[str, str] | None = None) -> None:
    async def in_loop() -> None:
        async with Docker("python:3.12-slim", environ or {}) as docker:
            await docker.look_up(images, push=push)

    asyncio.run(in_loop())


def test_images_are_looked_up_here_and_where_they_are_pulled_from(state: Path, place: Path) -> None:
    (state / "registry").write_text("python:3.12-slim me/there:1")
    (state / "me-here-1").touch()
    looked_up("me/here:1", "me/there:1", None)
    assert not asked(state, "pull")
    with pytest.raises(Unreachable, match="there is no image me/nowhere:1"):
        looked_up("me/there:1", "me/nowhere:1")
    assert ran("true", place, image="me/there:1").status == 0
    assert [words[-1] for words in asked(state, "pull")] == ["me/there:1"]


def test_missing_image_is_built_where_it_can_be_and_pushed_on_request(state: Path, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM x\n")
    looked_up(Image(tmp_path, "", "me/made:1", {"COMMIT": "abc"}), push=True)
    (built,) = asked(state, "build")
    assert "COMMIT=abc" in built
    assert built[built.index("--tag") + 1] == "me/made:1"
    assert asked(state, "push") == [["push", "--quiet", "me/made:1"]]
    looked_up(Image(tmp_path, "", "me/made:1"), push=True)
    assert len(asked(state, "push")) == 1


def test_credentials_are_on_no_command_line_and_gone_afterwards(state: Path, tmp_path: Path) -> None:
    (state / "registry").write_text("me/private:1")
    own = tmp_path / "own"
    own.mkdir()
    (own / "config.json").write_text('{"credsStore": "desktop", "currentContext": "mine"}')
    (own / "contexts").mkdir()
    environ = {"DOCKER_USERNAME": "somebody", "DOCKER_PASSWORD": "p4ssw0rd", "DOCKER_CONFIG": str(own)}
    looked_up("me/private:1", environ=environ)
    assert asked(state, "login") == [["login"]]
    said = (state / "log").read_text()
    assert "p4ssw0rd" not in said
    assert "somebody" not in said
    (folder,) = {words[1] for words in map(json.loads, said.splitlines()) if words[0] == "--config"}
    assert not Path(folder).exists()
    with pytest.raises(Unreachable, match="docker login: unauthorized"):
        looked_up("me/private:1", environ={**environ, "DOCKER_PASSWORD": "wrong"})


def test_variables_of_koderz_go_by_name_alone(state: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    ran("true", place, secrets=["HF_TOKEN"], network=True, gpus="H100:2")
    (run,) = asked(state, "run")
    assert run[run.index("--env") : run.index("--env") + 2] == ["--env", "HF_TOKEN"]
    assert run[run.index("--gpus") : run.index("--gpus") + 2] == ["--gpus", "2"]
    assert "none" not in run[run.index("run") : run.index("--log-driver")]
    assert "hf_secret" not in (state / "log").read_text()


async def _talked(place: Path, *argv: str, limits: Limits | None = None) -> tuple[bytes, int, int, Ended]:
    """See `talked`."""
    wanted = Command(argv, limits=limits or Limits(seconds=PATIENCE), read_only=True)
    async with Docker("python:3.12-slim") as docker, docker.started(wanted, place) as leg:
        return await talked(leg)


def test_timed_command_is_talked_to_and_clocked_with_its_processes(state: Path, place: Path) -> None:
    said, waited, used, ended = asyncio.run(_talked(place, "python3", "-c", LEG))
    assert said == b"readydone"
    assert used > 20_000_000 > waited
    assert (ended.status, ended.output, ended.cause) == (3, "begun\n", "")
    assert ended.cpu > used / 1e9
    (run,) = asked(state, "run")
    for words in (["--user", "0:0"], ["--cgroupns", "private"], ["--network", "none"], ["--cap-drop", "ALL"]):
        assert any(run[number : number + 2] == words for number in range(len(run)))
    assert "--read-only" in run
    (inside,) = asked(state, "exec")
    assert inside[inside.index("--user") + 1] not in ("0:0", "root")
    assert asked(state, "rm")


_SERVER = """
import socket
with socket.create_server(("127.0.0.1", 8000)) as server:
    print("listens", flush=True)
    while True:
        with server.accept()[0] as connection:
            connection.sendall(b"hello")
"""


def test_koderz_reaches_what_listens_on_a_container_s_loopback(state: Path, place: Path) -> None:
    async def heard() -> tuple[bytes, str]:
        command = Command(["python3", "-c", _SERVER], reachable=True, limits=Limits(seconds=PATIENCE))
        async with Docker("python:3.12-slim") as docker, docker.started(command, place) as running:
            async with asyncio.timeout(PATIENCE):
                while "listens" not in running.output():  # noqa: ASYNC110 nothing tells of it
                    await asyncio.sleep(0.02)
            assert running.sockets
            with running.sockets(None) as connection:
                connection.setblocking(False)
                await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", 8000))
                said = await asyncio.get_running_loop().sock_recv(connection, 100)
            assert await running.cpu() > 0
        with pytest.raises(OSError, match=r"."):
            running.sockets(None)
        return said, running.output()

    assert asyncio.run(heard()) == (b"hello", "listens\n")


def test_timed_command_that_is_missing_or_too_slow_is_ended(state: Path, place: Path) -> None:
    assert asyncio.run(_talked(place, "no-such-program"))[3].status == 127
    *_, ended = asyncio.run(_talked(place, "sleep", "1000", limits=Limits(seconds=1.0, grace=0.2)))
    assert ended.cause == "timeout"


def test_clock_that_cannot_be_started_is_a_fault(state: Path, place: Path) -> None:
    (state.parent / "bin/bwrap").symlink_to("/bin/false")
    with pytest.raises(Fault, match="can't start a container"):
        asyncio.run(_talked(place, "true"))


@pytest.mark.docker
def test_real_container_is_clocked(place: Path) -> None:
    said, waited, used, ended = asyncio.run(_talked(place, "python3", "-c", LEG))
    assert (said, ended.status) == (b"readydone", 3)
    assert ended.cpu > used / 1e9 > 0.02 > waited / 1e9


@pytest.mark.docker
def test_real_container_has_no_network(place: Path) -> None:
    ended = ran("python3 -c 'import os, socket; print(os.listdir(\"/sys/class/net\"))'; echo x > file", place)
    assert ended.output == "['lo']\n"
    assert (place / "checkout/file").read_text() == "x\n"


def test_uncontained_commands_see_their_folders_where_they_lie(place: Path, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("tool")

    async def run(*argv: str, **more: Any) -> Ended:
        async with Uncontained() as here:
            return await here.run(Command(argv, limits=Limits(seconds=PATIENCE), **more), place)

    mounts = [Mount(tmp_path / "tool", "/opt/koderz/tool")]
    told = asyncio.run(run("bash", "-c", "pwd; echo ~; cat $0; env", "/opt/koderz/tool", mounts=mounts)).output
    assert told.startswith(f"{place}/checkout\n{place}/home\ntool")
    assert "PYTEST_CURRENT_TEST" not in told
    assert asyncio.run(run("no-such-program")).status == 127
    with pytest.raises(Fault, match="docker"):
        asyncio.run(run("true", mounts=[Mount(tmp_path, "/tests")]))


def test_uncontained_command_ends_with_its_children(place: Path) -> None:
    async def run(seconds: float) -> Ended:
        wanted = Command(["bash", "-c", "sleep 1000 & echo $!; wait"], limits=Limits(seconds=seconds, grace=0.2))
        return await Uncontained().run(wanted, place)

    ended = asyncio.run(run(3.0))
    assert ended.cause == "timeout"
    wait_for(lambda: are_gone({int(ended.output)}))


_VERIFIER = "python3 /workspace/solve.py; cat /workspace/x | bash; echo 1 > /logs/verifier/reward.txt"
_SOLVE = "for name in ('reward.json', 'more'):\n  open(f'/logs/verifier/{name}', 'w').write('1')\n"


@pytest.mark.docker
@pytest.mark.parametrize("backend", [Docker, Podman])
@pytest.mark.parametrize(("image", "kept"), [("python:3.12-slim", True), ("debian:bookworm-slim", False)])
def test_real_container_keeps_the_channel(
    place: Path, tmp_path: Path, backend: type[Docker], image: str, kept: bool
) -> None:
    """Where its image has a python3; where it hasn't, that is told as code that was loaded."""
    if shutil.which(backend.name) is None:
        pytest.skip(f"there is no {backend.name}")
    for name, text in {"solve.py": _SOLVE, "x": "echo 1 > /logs/verifier/reward.json\n"}.items():
        (place / "checkout" / name).write_text(text)
    agents = ["/workspace/solve.py", "/workspace/x"]
    channel = RewardChannel(tmp_path, hidden=["/tests"], agents=agents, homes=["/workspace", "/tmp"])
    wanted = Command(["bash", "-c", _VERIFIER], channel=channel, limits=Limits(seconds=60))
    ended = asyncio.run(backend(image).run(wanted, place))
    written = {path.name for path in tmp_path.iterdir()}
    if kept:
        assert (written, ended.loaded) == ({"reward.txt"}, []), ended.output
        assert ended.refused == ["write /logs/verifier/reward.json"]
    else:
        assert ended.loaded
        assert "no python3" in ended.loaded[0]


def test_image_without_python_keeps_no_channel(state: Path, place: Path, tmp_path: Path) -> None:
    """It is told as code that was loaded, so that the verdict is called in-process."""
    wanted = Command(["sh", "-c", "echo 1 > /logs/verifier/reward.txt"], channel=RewardChannel(tmp_path / "logs"))
    (tmp_path / "logs").mkdir()
    docker = Docker("debian")
    docker._keeping["debian", ""] = False
    ended = asyncio.run(docker.run(wanted, place))
    assert (tmp_path / "logs/reward.txt").read_text() == "1\n"
    assert ended.loaded
    assert "no python3" in ended.loaded[0]


def test_verifier_of_a_container_that_is_killed_gives_no_facts(state: Path, place: Path, tmp_path: Path) -> None:
    wanted = Command(["sh", "-c", "kill -9 $PPID; sleep 5"], channel=RewardChannel(tmp_path), limits=Limits(seconds=20))
    ended = asyncio.run(Docker("debian").run(wanted, place))
    assert ended.loaded is None
