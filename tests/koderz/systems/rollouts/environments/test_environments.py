"""Environments that are built of Dockerfiles without Docker, and what agents and verifiers see of them."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from koderz.cli import app
from koderz.errors import Fault, KoderzError, Unreachable
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Command, Ended, Launch, Limits
from koderz.systems.rollouts.agents.bridge import Bridge
from koderz.systems.rollouts.environments import Making, environed, notes_on
from koderz.systems.rollouts.environments.building import build
from koderz.systems.rollouts.environments.needs import needs_of
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.tasks.datasets import read_dataset
from koderz.systems.rollouts.workspaces.workspace import Stores, Workspace, at_once
from koderz.systems.workspaces.built import NAMES, built_environments, kept_folder, remove_built
from koderz.systems.workspaces.images import ImageStore
from koderz.systems.workspaces.images.tree import changes
from koderz.systems.workspaces.local import Local
from koderz.systems.workspaces.proxy import PublicHosts
from koderz.systems.workspaces.rooted import UPPER
from tests.conftest import PATIENCE
from tests.koderz.systems.workspaces.images.made import base, docker_save

TOML = 'schema_version = "1.1"\n[task]\nname = "cases/{}"\n[environment]\nallow_internet = false\n'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def local() -> Local:
    async def opened() -> Local:
        async with Local() as found:
            return found

    try:
        return asyncio.run(opened())
    except (Unreachable, Fault) as error:
        pytest.skip(str(error))


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Rollout]:
    """A task of Harbor's format with a Dockerfile and files beside it."""

    def write(dockerfile: str, name: str = "one", **files: str) -> Rollout:
        folder = tmp_path / name
        texts = {"task.toml": TOML.format(name), "instruction.md": "Do it.\n", "environment/Dockerfile": dockerfile}
        texts |= {f"environment/{path.replace('__', '.')}": text for path, text in files.items()}
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        (task,) = read_dataset(folder, None, {}).tasks
        return task

    return write


def made(task: Rollout, local: Local, **terms: Any) -> Rollout:
    """The task in its environment, which is built."""
    found = task if task.made else environed(task, Making(local.images, **terms))
    assert found.made, found.refused
    asyncio.run(build(found.made, local))
    return found


def seen(task: Rollout, local: Local, line: str, place: Path | None = None) -> str:
    """What a line prints in the environment of a task, over which no checkout lies."""
    wanted = Command(
        ["sh", "-c", line],
        task.environment,
        image=task.image_name,
        checkout=task.workdir,
        in_image=True,
        limits=Limits(seconds=PATIENCE),
    )
    with scratch() as own:
        return asyncio.run(local.run(wanted, place or own)).output


def why(task: Rollout, local: Local, **terms: Any) -> str:
    """Why an environment can't be built."""
    found = environed(task, Making(local.images, **terms))
    assert found.made, found.refused
    with pytest.raises(KoderzError) as error:
        asyncio.run(build(found.made, local))
    return str(error.value)


_THREADS = (
    "python3 -c 'import threading as t, time; t.stack_size(1 << 16); "
    "[t.Thread(target=time.sleep, args=(1000,), daemon=True).start() for _ in range(550)]; time.sleep(1000)'"
)
_HOLD = "python3 -c 'import time; kept = bytearray(80 << 20); time.sleep(1000)' & "


@pytest.mark.slow
def test_limits_hold_in_an_environment_as_elsewhere(written: Callable[..., Rollout], local: Local) -> None:
    task = made(written("FROM python:3.12\nRUN echo one > /opt/one\n"), local)

    def ended(line: str, **limits: Any) -> Ended:
        wanted = Command(["bash", "-c", line], image=task.image_name, checkout=task.workdir, limits=Limits(**limits))
        with scratch() as place:
            return asyncio.run(local.run(wanted, place))

    assert ended(_THREADS).cause == "processes"
    assert ended(_HOLD * 4 + "wait", memory_mb=200).cause == "memory"
    for folder in ("~", "/tmp", "/opt", "/usr/local", "."):
        assert ended(f"cd {folder}; head -c 30000000 /dev/zero > a; cp a b; sleep 1000", disk_mb=50).cause == "disk"
    assert ended("head -c 3000000 /dev/zero > /dev/kept").status
    late = ended("trap '' TERM; (trap '' TERM; setsid sleep 1000) & sleep 1000; sleep 1000", seconds=0.3, grace=0.3)
    assert (late.cause, late.seconds < PATIENCE) == ("timeout", True)
    left = ended("setsid sleep 1000 & disown -a; cat /opt/one")
    assert (left.status, left.output) == (0, "one\n")


def test_environment_keeps_what_lines_do_anywhere(written: Callable[..., Rollout], local: Local) -> None:
    task = written(
        "FROM ubuntu:24.04\nENV GREETING=hello\nCOPY notes.txt /work/notes.txt\nWORKDIR /work\n"
        "RUN echo 5 > ~/n && echo 6 > /tmp/n && mkdir -p /opt/data && echo 7 > /opt/data/n\n"
        "COPY --chmod=755 tool.sh /usr/local/bin/tool\nRUN ln notes.txt twin && chmod 600 twin && rm /usr/bin/env\n"
        "RUN touch -d 2001-01-01T00:00:00Z notes.txt && mkdir -p out/deep\n",
        notes__txt="one\n",
        tool__sh="#!/bin/sh\necho tool\n",
    )
    found = made(task, local)

    line = "pwd; cat ~/n /tmp/n /opt/data/n; tool; stat -c '%a %h %Y' notes.txt; ls -d out/deep; echo $GREETING"
    assert seen(found, local, f"{line}; ls /usr/bin/env").splitlines()[:-1] == [
        *("/work", "5", "6", "7", "tool", "600 2 978307200", "out/deep", "hello")
    ]
    assert Path("/usr/bin/env").exists()
    assert not Path("/usr/local/bin/tool").exists()


def test_environment_is_shared_and_nobody_changes_it(written: Callable[..., Rollout], local: Local) -> None:
    task = made(written("FROM ubuntu:24.04\nWORKDIR /work\nRUN echo clean > /opt/state\n"), local)

    assert seen(task, local, "echo poisoned > /opt/state; rm -rf /usr/bin/git; cat /opt/state") == "poisoned\n"
    assert seen(task, local, "cat /opt/state; command -v git") == "clean\n/usr/bin/git\n"


def test_changes_of_an_environment_are_told_from_all_that_it_has(written: Callable[..., Rollout], local: Local) -> None:
    task = made(written("FROM ubuntu:24.04\nWORKDIR /work\nRUN mkdir /opt/a && touch /opt/a/b /opt/c\n"), local)
    with scratch() as place:
        line = "echo x > /opt/a/b; rm /opt/c /usr/bin/env; cp /bin/true /usr/bin/git; touch /usr/local/bin/own"
        seen(task, local, line, place)
        found = changes(local.images.unpacked(task.image_name).layers, place / UPPER)

    assert {change.path: change.kind for change in found} == {
        "/opt/a/b": "changed",
        "/opt/c": "removed",
        "/usr/bin/env": "removed",
        "/usr/bin/git": "changed",
        "/usr/local/bin/own": "added",
    }


def test_environment_is_built_once_for_equal_lines(written: Callable[..., Rollout], local: Local) -> None:
    lines = "FROM ubuntu:24.04\nWORKDIR /work\nCOPY notes.txt .\nRUN date +%N > /opt/when\n"
    one, same = (made(written(lines, name, notes__txt="a"), local) for name in ("one", "same"))
    other = made(written(lines, "other", notes__txt="b"), local)

    assert one.image_name == same.image_name != other.image_name
    assert (
        seen(one, local, "cat /opt/when") == seen(same, local, "cat /opt/when") != seen(other, local, "cat /opt/when")
    )


def test_environments_differ_by_the_user_that_lines_end_with(written: Callable[..., Rollout], local: Local) -> None:
    lines = "FROM ubuntu:24.04\nWORKDIR /work\n"
    one, other = (
        environed(written(text, name), Making(local.images))
        for name, text in (("one", lines), ("other", f"{lines}USER user\n"))
    )

    assert one.image_name != other.image_name
    assert seen(made(other, local), local, "whoami") == "user\n"


def test_environment_shows_nobodys_home_and_no_secrets(
    written: Callable[..., Rollout], local: Local, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("s3cret")
    hostile = f"cat {tmp_path}/secret /etc/shadow /proc/1/environ ~/.ssh/* /home/*/.ssh/* 2>&1"
    task = made(
        written(f"FROM ubuntu:24.04\nWORKDIR /work\nRUN ({hostile}; ls /root /var/lib) > /opt/found || true\n"), local
    )

    found = seen(task, local, "cat /opt/found")
    assert "s3cret" not in found
    assert "root:$" not in found


def test_environment_has_no_network_and_keeps_no_processes(written: Callable[..., Rollout], local: Local) -> None:
    line = "(sleep 1000 &) ; python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 5)'"
    said = why(written(f"FROM ubuntu:24.04\nWORKDIR /work\nRUN {line}\n"), local)

    assert "environment/Dockerfile, line 3: RUN (sleep 1000 &)" in said
    assert "unreachable" in said


def test_environment_has_a_limit_and_what_fails_is_not_kept(written: Callable[..., Rollout], local: Local) -> None:
    fill = "for i in $(seq 100); do head -c 1000000 /dev/zero > /opt/$i; done; sleep 20"
    said = why(written(f"FROM ubuntu:24.04\nWORKDIR /work\nRUN {fill}\n"), local, layer_mb=16)

    assert said.endswith("exceeds 16 MB of --layer-mb")
    assert built_environments() == []


@pytest.mark.parametrize(
    "lines",
    [
        "RUN ln -s {outside} /opt/way\nCOPY notes.txt /opt/way/notes.txt\n",
        "RUN mkdir -p /opt/a && ln -s ../../../../../../{outside} /opt/a/way\nCOPY notes.txt /opt/a/way/\n",
        "RUN ln -s {outside} /work/way\nWORKDIR way\nCOPY notes.txt .\n",
        "RUN ln -s {outside}/notes.txt /work/notes.txt\nCOPY notes.txt notes.txt\n",
    ],
)
def test_environment_writes_through_no_link_to_this_machine(
    written: Callable[..., Rollout], local: Local, tmp_path: Path, lines: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    task = written("FROM ubuntu:24.04\nWORKDIR /work\n" + lines.format(outside=outside), notes__txt="x")
    made(task, local)

    assert [*outside.iterdir()] == []


def test_environment_copies_from_stages_and_keeps_links_of_its_base(
    written: Callable[..., Rollout], local: Local
) -> None:
    task = written(
        "FROM ubuntu:24.04 AS maker\nRUN mkdir -p /made/sub && echo built > /made/sub/a && ln -s a /made/sub/b\n"
        "FROM scratch AS files\nCOPY tool.sh /tools/\n"
        "FROM ubuntu:24.04\nWORKDIR /work\nCOPY --from=maker /made/ .\nCOPY --from=files /tools/tool.sh /bin/tool\n",
        tool__sh="#!/bin/sh\n",
    )
    found = made(task, local)

    assert seen(found, local, "cat sub/a; readlink sub/b /bin; ls /made /usr/bin/tool 2>&1 | tail -1") == (
        "built\na\nusr/bin\n/usr/bin/tool\n"
    )


def test_apt_leaves_what_is_there_and_unpacks_what_is_not(
    written: Callable[..., Rollout], local: Local, tmp_path: Path
) -> None:
    lines = "FROM ubuntu:24.04\nWORKDIR /work\nRUN apt-get update && apt-get install -y bash {}\n"
    lacking = why(written(lines.format("greeter=1.0 absent"), "lacking"), local)
    assert (
        "needs the Debian packages greeter, absent, which aren't here; put their .deb files into the folder" in lacking
    )

    packages = tmp_path / "packages"
    packages.mkdir()
    write_deb(packages / "greeter_1.0_all.deb", "greeter", "words", {"./usr/bin/greet": "#!/bin/sh\ncat /lib/words\n"})
    write_deb(packages / "words_1.0_all.deb", "words", "", {"./lib/words": "good day\n"})
    task = made(written(lines.format("greeter=1.0"), "there"), local, packages=packages)
    assert seen(task, local, "greet; ls /opt/koderz /var/lib/apt 2>/dev/null") == "good day\n"


def test_apt_downloads_where_lines_reach_the_network(
    written: Callable[..., Rollout], local: Local, tmp_path: Path
) -> None:
    if not Path("/usr/bin/apt-get").exists():
        pytest.skip("this machine has no apt")
    repository = "mkdir -p /repo /etc/apt/apt.conf.d /etc/apt/preferences.d /etc/apt/trusted.gpg.d /var/lib/apt/lists"
    task = written(
        f"FROM ubuntu:24.04\nWORKDIR /work\nRUN {repository}/partial\nCOPY greeter.deb Packages /repo/\n"
        "RUN echo 'deb [trusted=yes] copy:/repo ./' > /etc/apt/sources.list && apt-get update\n"
        "RUN apt-get install -y greeter\n"
    )
    assert task.context
    deb = task.context / "greeter.deb"
    write_deb(deb, "greeter", "", {"./usr/bin/greet": "#!/bin/sh\necho hello\n"})
    about = f"Filename: ./greeter.deb\nSize: {deb.stat().st_size}\nSHA256: {sha256(deb.read_bytes()).hexdigest()}\n"
    stanza = "Package: greeter\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody\n"
    (task.context / "Packages").write_text(stanza + about)
    found = made(task, local, is_online=True)

    assert seen(found, local, "greet; ls /var/cache/apt/archives/*.deb /opt/koderz 2>/dev/null") == "hello\n"


def test_network_is_there_while_lines_are_followed_and_never_later(
    written: Callable[..., Rollout], local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://packages.example.org/\").read().decode())'"
    lines = f"FROM ubuntu:24.04\nWORKDIR /work\nRUN {ask} > /opt/got\n"
    assert "403" in why(written(lines.replace("packages.example.org", "127.0.0.2"), "own"), local, is_online=True)
    assert "--allow-network build" in why(written(lines, "offline"), local)

    async def addresses(_self: PublicHosts, host: str, _port: int) -> list[str]:
        return ["127.0.0.1"] if host == "packages.example.org" else []

    monkeypatch.setattr(PublicHosts, "addresses", addresses)
    with served(b"a package") as port:
        there = lines.replace("example.org/", f"example.org:{port}/")
        task = made(written(there, "online"), local, is_online=True)
        assert seen(task, local, "cat /opt/got") == "a package\n"
        assert "a package" not in seen(task, local, f"{ask}; env | grep -i proxy")


@pytest.mark.slow
def test_pip_takes_wheels_of_the_folder(written: Callable[..., Rollout], local: Local, tmp_path: Path) -> None:
    lines = (
        "FROM ubuntu:24.04\nWORKDIR /work\nRUN python3 -m venv /opt/venv && /opt/venv/bin/pip install greeting==1.0\n"
    )
    said = why(written(lines, "lacking"), local)
    if "ensurepip" in said:
        pytest.skip("this machine's python3 has no ensurepip")
    assert said.endswith(
        "it needs the Python package greeting==1.0, which isn't here; put its wheel into the folder of --packages, or "
        "build with --allow-network build"
    )

    packages = tmp_path / "packages"
    packages.mkdir()
    write_wheel(packages / "greeting-1.0-py3-none-any.whl")
    task = made(written(lines, "there"), local, packages=packages)
    assert seen(task, local, "/opt/venv/bin/python -c 'import greeting; print(greeting.TEXT)'") == "good day\n"
    wanted = {(each.kind, each.name): each.here for each in needs_of(task, Making(local.images, packages))}
    assert wanted[("pip", "greeting==1.0")] == "packages"


def test_npm_takes_archives_of_the_folder(written: Callable[..., Rollout], local: Local, tmp_path: Path) -> None:
    if not Path("/usr/bin/npm").exists():
        pytest.skip("this machine has no npm")
    lines = "FROM ubuntu:24.04\nWORKDIR /work\nRUN npm install greeting@1.0.0 && npm install greeting\n"
    assert "it needs greeting@1.0.0 of npm, which isn't here; put its .tgz" in why(written(lines, "lacking"), local)

    packages = tmp_path / "packages"
    packages.mkdir()
    for name, needs in (("greeting", {"@cases/words": "^1.0.0"}), ("@cases/words", {})):
        about = json.dumps({"name": name, "version": "1.0.0", "main": "index.js", "dependencies": needs})
        content = "module.exports = require('@cases/words')" if needs else "module.exports = 'good day'"
        archive = tarred({"package/package.json": about, "package/index.js": content})
        (packages / f"{name.lstrip('@').replace('/', '-')}-1.0.0.tgz").write_bytes(archive)
    task = made(written(lines, "there"), local, packages=packages)
    assert seen(task, local, "node -p 'require(\"greeting\")'") == "good day\n"


def test_base_images_are_taken_from_the_store(
    written: Callable[..., Rollout], local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    for folder in ("bin", "etc", "site"):
        (root / folder).mkdir(parents=True)
    (root / "site/readme").write_text("placed\n")
    about = {"shop:1": {"path": "root", "workdir": "/site", "env": {"PATH": "/opt/own:/bin"}}}
    (tmp_path / "images.json").write_text(json.dumps(about))
    monkeypatch.setattr(local, "images", ImageStore(tmp_path))
    task = written('FROM shop:1\nENV PATH="/opt/venv/bin:$PATH"\nCOPY notes.txt more/\n', notes__txt="one\n")
    found = made(task, local)

    assert found.workdir == "/site"
    image = local.images.unpacked(found.image_name)
    assert image.environment["PATH"] == "/opt/venv/bin:/opt/own:/bin"
    with scratch() as place:
        (tree := place / "tree").mkdir()
        asyncio.run(local.copy_out(found.image_name, "/site", tree))
        files = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*"))
        assert [*place.iterdir()] == [tree]  # trees of other tasks are made beside it meanwhile
    assert files == ["more", "more/notes.txt", "readme"]
    assert not (root / "site/more").exists()
    assert notes_on([found]) == []


def test_agent_has_a_home_in_images_that_lack_the_usual_one(
    written: Callable[..., Rollout], local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker_save(tmp_path / "shop.tar", ["shop:1"], [base()])
    monkeypatch.setattr(local, "images", ImageStore(tmp_path))
    task = made(written("FROM shop:1\nWORKDIR /work\n"), local)

    async def worked() -> dict[str, Any]:
        async def refuse(*_: object, **__: object) -> Any:
            raise AssertionError

        async with Bridge(refuse, "m") as bridge:
            version = ["sh", "-c", "echo > ~/.own && echo > /home/user/.own && echo agent 1.2.3"]
            launch = Launch(["sh", "-c", "cd /home/user && pwd; echo $HOME"], {}, [], bridge, version)
            with scratch() as place:
                workspace = Workspace(task, Stores({"": local}), place, at_once, RolloutsOptions())
                return await workspace.agent(lambda: launch)

    found = asyncio.run(worked())
    assert (found["version"], found["output"]) == ("1.2.3", "/home/user\n/root\n")


def test_host_stands_in_for_a_base_only_where_it_may(written: Callable[..., Rollout], local: Local) -> None:
    task = written("FROM ubuntu:24.04\nWORKDIR /work\n")

    assert notes_on([environed(task, Making(local.images))] * 2) == [
        "ubuntu:24.04 isn't in --images: this machine's programs stand in for it (in 2 tasks)"
    ]
    refused = environed(task, Making(local.images, has_host=False))
    assert refused.refused.endswith(
        "Dockerfile: FROM ubuntu:24.04: there is no such image in --images; put it there, or leave out --no-host-base"
    )


def test_docker_image_wins_over_a_dockerfile_beside_it(written: Callable[..., Rollout], local: Local) -> None:
    task = written("FROM ubuntu:24.04\nWORKDIR /work\n")
    toml = task.folder / "task.toml"
    toml.write_text(toml.read_text() + 'docker_image = "shop:1"\n')
    (task,) = read_dataset(task.folder, None, {}).tasks

    assert environed(task, Making(local.images)).image_name == "shop:1"


def test_needs_lists_what_lines_ask_for(written: Callable[..., Rollout], tmp_path: Path) -> None:
    task = written(
        "FROM nowhere:1\nCOPY --from=other:2 /a /b\nRUN apt-get update && apt-get install -y bash absent-tool=1.2 \\\n"
        "  && pip3 install --no-cache-dir 'pandas>=99' -r needs.txt && npm install -g left-pad@1.0\n",
        needs__txt="numpy==0.0.1  # old\n",
    )
    done = CliRunner().invoke(app, ["rollouts", "needs", str(task.folder), "--json"])

    (own,) = json.loads(done.stdout)["tasks"]
    assert {(each["kind"], each["name"]): each["here"] for each in own["needs"]} == {
        ("image", "nowhere:1"): "host",
        ("image", "other:2"): "no",
        ("apt", "bash"): "yes",
        ("apt", "absent-tool=1.2"): "no",
        ("pip", "pandas>=99"): "no",
        ("pip", "numpy==0.0.1"): "no",
        ("npm", "left-pad@1.0"): "no",
    }
    table = CliRunner().invoke(app, ["rollouts", "needs", str(task.folder)]).stdout.splitlines()
    assert table[0].split() == ["Kind", "Name", "Tasks", "Here"]
    assert table[-1] == "5 of 7 aren't here"


def test_clean_removes_environments_that_nobody_uses(written: Callable[..., Rollout], local: Local) -> None:
    task = made(written("FROM ubuntu:24.04\nWORKDIR /work\nRUN head -c 5000000 /dev/zero > /opt/zeros\n"), local)
    digest = task.image_name.removeprefix(NAMES)

    shown = CliRunner().invoke(app, ["rollouts", "clean", "--dry-run"]).stdout
    assert digest in shown
    assert "1 environments of 4.8 MB would be removed" in shown
    assert not remove_built(digest)  # this process uses it
    found = json.loads(CliRunner().invoke(app, ["rollouts", "clean", "--json"]).stdout)
    assert [each["removed"] for each in found["environments"]] == [False]

    other = kept_folder() / ("0" * 32)
    other.mkdir()
    (other / "about.json").write_text('{"base": "/", "layers": [], "environment": {}, "bytes": 7}')
    assert remove_built("0" * 32)
    assert not other.exists()


@contextmanager
def served(content: bytes) -> Iterator[int]:
    """The port of a server on this machine that answers all requests so."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def write_deb(path: Path, name: str, needs: str, files: dict[str, str]) -> None:
    """A Debian package, as ar and two tars."""
    control = f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody\n"
    control += f"Depends: {needs}, libc6 (>= 2.0)\n" if needs else ""
    members = [("debian-binary", b"2.0\n"), ("control.tar.gz", tarred({"./control": control}))]
    members.append(("data.tar.gz", tarred(files)))
    with path.open("wb") as file:
        file.write(b"!<arch>\n")
        for member, content in members:
            file.write(f"{member:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode())
            file.write(content + b"\n" * (len(content) % 2))


def tarred(files: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text), 0o755
            archive.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


def write_wheel(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("greeting.py", "TEXT = 'good day'\n")
        archive.writestr("greeting-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        archive.writestr(
            "greeting-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("greeting-1.0.dist-info/RECORD", "")
