"""What an agent, a diff, a task's folder, a configuration or a reply must not be able to do, on real namespaces."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import socket
import subprocess
import sysconfig
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Fault
from koderz.sandbox.scratch import scratch
from koderz.systems.rollouts.grading import grade
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.task import Rollout
from koderz.systems.rollouts.tasks.formats import load_task
from koderz.systems.rollouts.workspaces.afresh import Work
from koderz.systems.rollouts.workspaces.workspace import Stores, Workspace
from koderz.systems.workspaces import git
from koderz.systems.workspaces.git import GitError
from koderz.systems.workspaces.local import Local
from tests.conftest import Shell

SECRET = "koderz-canary-4711"
_HIDDEN = f"def test_it():\n    assert '{SECRET}' and open('done').read() == 'done\\n'\n"
Working = Callable[[Workspace], Awaitable[Any]]
Worked = Callable[[Rollout, Working], Any]


@pytest.fixture(scope="module", autouse=True)
def _key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", SECRET)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of a task whose tests, solution and later commits hold a secret, as the machine does."""
    made = tmp_path_factory.mktemp("made")
    source, folder = made / "source", made / "task"
    source.mkdir()
    commits = []
    for text in ("one\n", f"{SECRET}\n"):
        (source / "code").write_text(text)
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", text.strip()]):
            _own_git(source, *words)
        commits.append(_own_git(source, "rev-parse", "HEAD"))
    (folder / "overlay_files").mkdir(parents=True)
    (folder / "overlay_files/diff.patch").write_text(f"--- /dev/null\n+++ b/done\n@@ -0,0 +1 @@\n+{SECRET}\n")
    repo = {"git_url": "../source", "start_commit_sha": commits[0], "end_commit_sha": commits[1]}
    scripts = [{"path": "tests/test_hidden.py", "rubric_id": "r", "content": _HIDDEN}]
    evaluation = {"rubrics": [{"id": "r", "criterion": SECRET, "weight": 1}], "test_scripts": scripts}
    meta = {"task_id": "t", "lm": {"instructions": "Do it."}, "repo": repo, "evaluation": evaluation}
    (folder / "tb_meta.json").write_text(json.dumps(meta))
    return made


@pytest.fixture
def task(made: Path, tmp_path: Path) -> Rollout:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return load_task(tmp_path / "task")


def _own_git(folder: Path, *words: str) -> str:
    own = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c", *words]
    return subprocess.run(own, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def stores(local: Local) -> Stores:
    return Stores({"": local})


@pytest.fixture
def worked(runner: asyncio.Runner, stores: Stores) -> Worked:
    """Does something in a checkout of a task's. Those of the same task have one repository prepared."""

    async def once(_name: str, make: Callable[[], Awaitable[Any]], **_: object) -> Any:
        return await make()

    async def in_loop(task: Rollout, work: Working) -> Any:
        with scratch() as place:
            return await work(Workspace(task, stores, place, once, RolloutsOptions()))

    return lambda task, work: runner.run(in_loop(task, work))


_ASIDE = " ".join(f"--exclude-dir={name}" for name in ("proc", "sys", "usr", Path(sysconfig.get_path("stdlib")).name))
_SEARCH = f"""
grep -rIls {_ASIDE} -e '{SECRET[:-1]}[{SECRET[-1]}]' / 2>/dev/null
cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep "OPEN[A]I"
git log --all --format=%s; git remote; git cat-file --batch-all-objects --batch 2>/dev/null | grep -a canary
ls -d {{outside}} {{home}}/.ssh 2>/dev/null
true
"""


def test_agent_reads_no_key_hidden_test_human_diff_or_host_file(worked: Worked, task: Rollout, tmp_path: Path) -> None:
    line = _SEARCH.format(outside=tmp_path, home=Path.home())
    found = worked(task, lambda workspace: workspace.shell(line))
    assert found["output"] == "Baseline\n"
    assert found["status"] == 0


@pytest.mark.parametrize(
    "line",
    [
        "exec 3<>/dev/tcp/127.0.0.1/{port}",
        "python3 -c 'import socket; socket.create_connection((\"{host}\", {port}), 5)'",
        "git clone -q https://127.0.0.1:{port}/x y",
        "python3 -c 'import socket; socket.getaddrinfo(\"example.com\", 80)'",
    ],
)
def test_agent_reaches_no_host(worked: Worked, task: Rollout, line: str) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        server.settimeout(0.2)
        wanted = line.format(port=server.getsockname()[1], host=socket.gethostbyname("localhost"))
        assert worked(task, lambda workspace: workspace.shell(wanted))["status"] != 0
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize(
    "path",
    ["../out", "/tmp/out", "link/out", "a/../../out", ".git/hooks/post-checkout", ".git", "", "a\0b"],
)
def test_reply_edits_nothing_outside(worked: Worked, task: Rollout, tmp_path: Path, path: str) -> None:
    async def work(workspace: Workspace) -> dict[str, Any]:
        await workspace.shell(f"ln -s {tmp_path} link")
        return await workspace.edit(path, "", "x")

    done = worked(task, work)
    assert done["status"] == 1
    assert not (tmp_path / "out").exists()


def test_reply_reads_nothing_by_a_link(worked: Worked, task: Rollout, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)

    async def work(workspace: Workspace) -> str:
        await workspace.shell(f"ln -s {tmp_path}/secret link; mkdir a; ln -s {tmp_path} a/b")
        tried = [await workspace.edit(path, SECRET, "x") for path in ("link", "a/b/secret")]
        return str(tried) + str(await workspace.diff())

    assert "places" not in worked(task, work)
    assert (tmp_path / "secret").read_text() == SECRET


@pytest.mark.parametrize("makes", ["mkfifo code2", "truncate -s 1G code2"])
def test_edit_reads_files_up_to_a_size(worked: Worked, task: Rollout, makes: str) -> None:
    async def work(workspace: Workspace) -> dict[str, Any]:
        await workspace.shell(makes)
        return await workspace.edit("code2", "old", "new")

    done = worked(task, work)
    assert (done["status"], "no file, or too large" in done["output"]) == (1, True)


def test_change_that_git_refuses_is_not_the_hosts_fault(
    worked: Worked, task: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one is found that nothing here knows of."""

    async def work(workspace: Workspace) -> dict[str, Any]:
        await workspace.shell("touch new")
        monkeypatch.setattr(git, "link_tree", lambda _, __, target: target.mkdir(exist_ok=True))
        return await workspace.diff()

    assert "Unable to process path new" in worked(task, work)["error"]


def test_diff_takes_in_nothing_of_the_host(worked: Worked, task: Rollout, tmp_path: Path) -> None:
    """Links are kept as links, and where they lead isn't read; neither is what a nested repository names."""
    (tmp_path / "secret").write_text("host file")
    line = (
        f"ln -s {tmp_path}/secret link; ln -s {tmp_path} folder; git init -q inner; "
        f"echo 'gitdir: {tmp_path}' > inner/.git; echo {tmp_path}/secret > .git/objects/info/alternates; "
        "rm -rf .git; ln -s / .git"
    )

    async def work(workspace: Workspace) -> str:
        await workspace.shell(line)
        return str((await workspace.diff())["diff"])

    diff = worked(task, work)
    assert "120000" in diff
    assert "host file" not in diff


def test_diff_reaches_nothing_while_it_is_graded(worked: Worked, task: Rollout, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    look = (
        "import os, pathlib, socket\n"
        f"found = [os.environ.get('OPENAI_API_KEY'), os.path.exists('{tmp_path}/secret')]\n"
        "try:\n    socket.create_connection(('127.0.0.1', {port}), 5)\n    found.append('reached')\n"
        "except OSError:\n    pass\n"
        f"try:\n    open('{tmp_path}/written', 'w')\nexcept OSError:\n    pass\n"
        "if found != [None, False]:\n    raise SystemExit(str(found))\n"
        "pathlib.Path('done').write_text('done\\n')\n"
    )

    async def work(workspace: Workspace) -> Any:
        with socket.create_server(("127.0.0.1", 0)) as server:
            await workspace.shell("mkdir tests")
            await workspace.edit("tests/conftest.py", "", "import look\n")
            await workspace.edit("look.py", "", look.replace("{port}", str(server.getsockname()[1])))
            await workspace.edit("tests/test_hidden.py", "", "")
            diff = str((await workspace.diff())["diff"])
            changed = diff.replace("conftest.py", "test_more.py")
            return await grade(task, Work(changed), workspace._stores)

    graded = worked(task, work)
    assert not (tmp_path / "written").exists()
    assert "reached" not in graded.log
    assert not graded.scored.success


@pytest.mark.parametrize(
    "meta",
    [
        {"repo": {"git_url": "ext::sh -c 'touch {out}'"}},
        {"repo": {"git_url": "-u{out}"}},
        {"repo": {"git_url": "ssh://host/x"}},
    ],
)
def test_task_address_runs_nothing_here(worked: Worked, tmp_path: Path, meta: dict[str, Any]) -> None:
    told = json.dumps({"task_id": "t", "lm": {"instructions": "x"}, **meta}).replace("{out}", f"{tmp_path}/out")
    (tmp_path / "task").mkdir()
    (tmp_path / "task/tb_meta.json").write_text(told)
    with pytest.raises(Fault):
        worked(load_task(tmp_path / "task"), lambda workspace: workspace.shell("true"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["inject_files", "overlay_repo_files", "remove_repo_paths"])
@pytest.mark.parametrize("path", ["../out", "/{folder}/out", ".git/hooks/post-checkout"])
def test_task_lays_nothing_outside(worked: Worked, task: Rollout, tmp_path: Path, key: str, path: str) -> None:
    place = path.replace("{folder}", str(tmp_path))
    values = {"inject_files": [{"path": place, "content": "x"}], "overlay_repo_files": {place: "x"}}
    (task.folder / "overrides.json").write_text(json.dumps({key: values.get(key, [place])}))
    with pytest.raises(Fault, match="leads out"):
        worked(load_task(task.folder), lambda workspace: workspace.shell("true"))
    assert not (tmp_path / "out").exists()


def test_submodule_is_not_fetched(worked: Worked, task: Rollout, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / ".gitmodules").write_text(f'[submodule "s"]\n\tpath = s\n\turl = {tmp_path}/other\n\tupdate = !touch x\n')
    _own_git(source, "add", "-A")
    _own_git(source, "update-index", "--add", "--cacheinfo", f"160000,{_own_git(source, 'rev-parse', 'HEAD')},s")
    _own_git(source, "commit", "-qm", "submodule")
    meta = json.loads((task.folder / "tb_meta.json").read_text())
    meta["repo"]["start_commit_sha"] = _own_git(source, "rev-parse", "HEAD")
    (task.folder / "tb_meta.json").write_text(json.dumps(meta))
    found = worked(load_task(task.folder), lambda workspace: workspace.shell("ls -A s; ls x"))
    assert found["status"] != 0


_CALL = "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall({}) == -1)'"
_OUTLIVE = (
    "python3 - <<'END'\nimport os, signal, time\n"
    "for how in ('double fork', 'setsid', 'deaf'):\n"
    "    if os.fork() == 0:\n        os.setsid() if how != 'double fork' else None\n"
    "        for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(one, signal.SIG_IGN)\n"
    "        if os.fork() == 0:\n            while True:\n                open('/workspace/alive', 'a').write('x')\n"
    "                time.sleep(.01)\n        os._exit(0)\nEND\n"
)


@pytest.mark.parametrize(
    "call",
    ["425, 8, 0", "426, 0, 0, 0, 0, 0, 0", "427, 0, 0, 0, 0", "323, 0", "321, 0, 0, 0", "298, 0, 0, -1, -1, 0"],
    ids=["io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "bpf", "perf_event_open"],
)
def test_agent_cannot_call_what_would_undo_its_bounds(worked: Worked, task: Rollout, call: str) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the numbers are those of x86_64")
    assert worked(task, lambda workspace: workspace.shell(_CALL.format(call)))["status"] == 1


_WATCH = (
    "python3 -c 'import ctypes; libc = ctypes.CDLL(None); "
    'exit(libc.inotify_add_watch(libc.inotify_init(), b"{outside}", 4095) == -1)\''
)


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the host's."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    "line",
    [
        'python3 -c \'import os; os.execv(f"/proc/self/fd/{{os.memfd_create(chr(120))}}", ["x"])\'',
        _WATCH,
        "cat {outside}/secret",
        "cat /proc/1/root{outside}/secret",
        "cat /proc/*/root{outside}/secret /proc/*/cwd/../secret",
        "ln -s {outside}/secret here && cat here",
        "mknod disk b 8 0 && head -c 1 disk",
        "python3 -c 'import os; os.chroot(\"/tmp\")'",
        "nsenter -t 1 -m cat {outside}/secret",
        "nsenter -t 1 -n true",
        "echo x > {outside}/written",
        "cp /bin/true /usr/local/bin/koderz-canary",
        "echo '#!/bin/sh' > /etc/profile.d/x.sh",
        "exec 3<>/dev/udp/127.0.0.1/{port}; echo x >&3; read -t 1 <&3",
        "python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + \"{named}\")'",
        "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
        "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'",
        "git fetch file://{outside}/source",
        "git fetch {outside}/source",
        "kill -9 {pid}",
        "renice -n -20 $$",
    ],
)
def test_agent_cannot_get_out(
    worked: Worked, task: Rollout, tmp_path: Path, other: subprocess.Popen[bytes], line: str
) -> None:
    (tmp_path / "secret").write_text(SECRET)
    name = f"koderz-canary-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as named:
        named.bind(f"\0{name}")
        named.listen()
        wanted = line.format(outside=tmp_path, port=server.getsockname()[1], pid=other.pid, named=name)
        done = worked(task, lambda workspace: workspace.shell(wanted))
    assert other.poll() is None
    assert done["status"] != 0, done
    assert SECRET not in done["output"]
    assert not (tmp_path / "written").exists()


def test_agent_leaves_nothing_running(worked: Worked, task: Rollout) -> None:
    async def work(workspace: Workspace) -> tuple[int, int]:
        await workspace.shell(_OUTLIVE + "while [ ! -s alive ]; do sleep 0.01; done")
        first = await workspace.shell("stat -c %s alive")
        return int(first["output"]), int((await workspace.shell("stat -c %s alive"))["output"])

    first, second = worked(task, work)
    assert first == second > 0


_HUNK = "--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"
_LINK = (
    "diff --git a/out b/out\nnew file mode 120000\n--- /dev/null\n+++ b/out\n"
    "@@ -0,0 +1 @@\n+{outside}\n\\ No newline at end of file\n"
)
_MODULE = (
    "diff --git a/sub b/sub\nnew file mode 160000\nindex 0000000..{digits}\n--- /dev/null\n+++ b/sub\n"
    "@@ -0,0 +1 @@\n+Subproject commit {digits}\n"
)


@pytest.mark.parametrize(
    "diff",
    [
        _HUNK.format(path="../out"),
        _HUNK.format(path="{outside}/out").replace("b/", ""),
        _HUNK.format(path=".git/hooks/post-checkout"),
        _HUNK.format(path=".GIT/hooks/post-checkout"),
        _HUNK.format(path="a/../../out"),
        _HUNK.format(path="tests/.git/config"),
        _LINK + _HUNK.format(path="out/out"),
        _LINK.replace("+++ b/out", "+++ b/tests").replace("b/out", "b/tests").replace("a/out", "a/tests"),
        _MODULE.replace("{digits}", "1" * 40),
        _HUNK.format(path=".gitattributes").replace("+x", "+* filter=evil diff=evil merge=evil text eol=crlf"),
        _HUNK.format(path=".gitmodules").replace("+x", '+[submodule "x"]'),
        "rename from done\nrename to ../out\n",
        "GIT binary patch\nliteral 1000000000\nzcmV\n",
        "@@ -1,99999999 +1,99999999 @@\n",
        "\0" * 1000,
    ],
    ids=[
        *("above", "absolute", ".git", ".GIT", "above within", ".git within", "through a link", "tests as a link"),
        *("submodule", ".gitattributes", ".gitmodules", "rename", "binary", "no end", "zeros"),
    ],
)
def test_diff_writes_nothing_outside_and_passes_nothing(
    worked: Worked, task: Rollout, tmp_path: Path, diff: str
) -> None:
    async def work(workspace: Workspace) -> bool:
        await workspace.diff()
        try:
            told = diff.replace("{outside}", str(tmp_path))
            return (await grade(task, Work(told), workspace._stores)).scored.success
        except GitError:
            return False

    before = {*tmp_path.rglob("*")}
    assert worked(task, work) is False
    assert {*tmp_path.rglob("*")} == before


def test_names_that_differ_in_case_or_are_odd_are_kept_apart(worked: Worked, task: Rollout) -> None:
    names = ["Code", "CODE", "-x", "a b", "ä\u0301", "\U0001f40d", "a\nb", 'q"', "back\\slash", ".gitignore~"]

    async def work(workspace: Workspace) -> set[str]:
        for name in names:
            await workspace.edit(name, "", f"{name}!")
        diff = str((await workspace.diff())["diff"])
        with scratch() as fresh:
            assert workspace._store
            await workspace._store.checkout(fresh / "checkout")
            await git.apply(diff.encode(), fresh / "checkout")
            return {path.name for path in (fresh / "checkout").iterdir()}

    assert worked(task, work) >= {*names}


@pytest.mark.parametrize(
    "line",
    [
        "git config filter.evil.clean 'touch /tmp/ran'; echo '* filter=evil' > .gitattributes",
        "git config core.fsmonitor 'touch /tmp/ran; false'",
        "git config diff.external 'touch /tmp/ran'; git config diff.evil.textconv 'touch /tmp/ran; cat'",
        "printf '#!/bin/sh\\ntouch /tmp/ran' > .git/hooks/post-index-change; chmod +x .git/hooks/*",
        "git config core.worktree /tmp; git config core.hooksPath .; git config include.path /tmp/ran",
        "echo {outside} > .git/commondir",
        "git config extensions.worktreeConfig true; git config alias.add '!touch /tmp/ran'",
        "rm -rf .git; mkfifo .git",
        "rm .git/HEAD; git init -q --bare .git/x",
        "git update-index --assume-unchanged code; git update-index --skip-worktree code",
        "echo code > .git/info/exclude; echo '*' > .git/info/attributes",
        "mkfifo fifo; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'",
    ],
)
def test_diff_is_taken_by_a_git_that_trusts_nothing(worked: Worked, task: Rollout, tmp_path: Path, line: str) -> None:
    async def work(workspace: Workspace) -> str:
        await workspace.shell(line.format(outside=tmp_path) + "; echo two > code")
        return str((await workspace.diff())["diff"])

    ran = Path("/tmp/ran")
    assert "-one\n+two\n" in worked(task, work)
    assert not ran.exists()


@pytest.mark.slow
@pytest.mark.parametrize("within", ["\ndef test_more():\n    ", ""], ids=["a test fails", "no test runs"])
def test_output_cannot_steer_the_terminal(koderz: Shell, within: str) -> None:
    """Neither by what agents and tests print, nor by names of files, tasks and rubrics."""
    steer = "\x1b]0;owned\x07\x1b[2J"
    koderz("rollouts", "sample", "tasks")
    folder = koderz.folder / "tasks/median"
    meta = json.loads((folder / "tb_meta.json").read_text())
    meta["metadata"] = {"title": f"t{steer}"}
    meta["evaluation"]["rubrics"][0]["criterion"] = steer
    meta["evaluation"]["test_scripts"][0]["content"] += f"\nprint({steer!r})\n{within}raise ValueError({steer!r})\n"
    (folder / "tb_meta.json").write_text(json.dumps(meta))
    script = "printf '\\033]0;owned\\007\\033[2J'; touch $'a\\033[2Jb.txt'\n"
    (koderz.folder / "agent.sh").write_text(script)
    (koderz.folder / "c.toml").write_text(
        '[[tasks]]\nprepared_dir = "tasks/median"\nagent = "scripted"\nscript = "agent.sh"\nsandbox = "local"\n'
    )
    done = koderz("rollouts", "run", "c.toml", "-vv", "--sandbox", "local", code=0 if within else 3)
    told = done.out + done.err + koderz("rollouts", "summarize", "c", code=(0, 3)).out
    told += koderz("benchmark", "show", "latest").out
    told += "".join(
        path.read_text()
        for path in (koderz.folder / "data").rglob("*")
        if path.suffix in (".md", ".log", ".txt", ".json")
    )
    assert "\x1b" not in told
    assert "\x07" not in told
