"""What a command in a workspace can do, and what it can't."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from koderz.sandbox.linux import kernel
from koderz.sandbox.workspace import Command, Limits, Mount, Running
from koderz.systems.workspaces import userland
from koderz.systems.workspaces.local import Local
from tests.conftest import PATIENCE, are_gone, descendants, wait_for
from tests.koderz.systems.workspaces.conftest import Runs


def test_command_works_in_its_checkout_on_the_host(runs: Runs, place: Path) -> None:
    ended = runs("pwd; echo new > file; git --version; exit 3")
    assert (ended.status, ended.cause) == (3, "")
    assert ended.output.startswith("/workspace\ngit version")
    assert (place / "checkout/file").read_text() == "new\n"


def test_home_and_tmp_are_kept_from_one_command_to_the_next(runs: Runs) -> None:
    runs("echo here > ~/mine; echo there > /tmp/mine")
    assert runs("cat ~/mine /tmp/mine").output == "here\nthere\n"


def test_command_has_the_python_of_the_path(runs: Runs) -> None:
    found = runs("python3 -c 'import sys; print(sys.executable, sys.prefix)'").output.split()
    assert found == [userland.python().executable, userland.python().prefixes[0]]


@pytest.mark.parametrize(
    "line",
    [
        "cat /etc/shadow",
        "ls {home}/.ssh {home}/.bashrc",
        "cat {canary}",
        "touch /usr/koderz-canary",
        "echo 1 > /proc/sys/kernel/panic",
        "mount -t tmpfs none /tmp",
        "unshare -r true",
        "cat /proc/1/environ /proc/1/mem",
        "python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) != 0)'",
        "kill -9 1; kill -STOP 1; test ! -d /proc/1",
        "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 5)'",
        "python3 -c 'import socket; socket.socket(40, socket.SOCK_STREAM)'",
        "chmod 777 /; touch /canary",
    ],
)
def test_command_reaches_nothing_else(runs: Runs, tmp_path: Path, line: str) -> None:
    (tmp_path / "canary").write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ended = runs(line.format(home=Path.home(), canary=tmp_path / "canary", port=port))
    assert ended.status
    assert "secret" not in ended.output


def test_read_only_checkout_cannot_be_changed(runs: Runs, place: Path) -> None:
    (place / "checkout").mkdir()
    (place / "checkout/file").write_text("old")
    assert runs("cat file && echo new > file", read_only=True).status
    assert (place / "checkout/file").read_text() == "old"


def test_mount_can_be_read_and_not_written(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("shown")
    mounts = [Mount(tmp_path, "/opt/koderz/shown")]
    assert runs("cat /opt/koderz/shown/file; echo x > /opt/koderz/shown/file", mounts=mounts).output.startswith("shown")
    assert (tmp_path / "file").read_text() == "shown"


def test_servers_are_reached_over_its_own_loopback(runs: Runs) -> None:
    line = (
        'python3 -c \'import socket; s = socket.create_server(("127.0.0.1", 0)); '
        'c = socket.create_connection(s.getsockname()); print("connected")\''
    )
    assert runs(line).output == "connected\n"


_ECHO = """
import socket
server = socket.create_server(("127.0.0.1", 8000))
while True:
    server.accept()[0].sendall(b"hello")
"""


async def test_koderz_reaches_what_listens_on_its_loopback(local: Local, place: Path) -> None:
    command = Command(["python3", "-c", _ECHO], reachable=True, limits=Limits(seconds=PATIENCE))
    async with local.started(command, place) as running:
        assert [await _received(running, PATIENCE) for _ in range(20)] == [b"hello"] * 20
        reach = running.sockets
    assert reach
    with pytest.raises(OSError, match=r"."):
        reach(None)


async def _received(running: Running, seconds: float) -> bytes:
    """What a server says first, once it listens."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(seconds):
        while True:
            try:
                assert running.sockets
                with running.sockets(None) as connection:
                    connection.setblocking(False)
                    await loop.sock_connect(connection, ("127.0.0.1", 8000))
                    return await loop.sock_recv(connection, 100)
            except OSError:
                await asyncio.sleep(0.02)


def test_isolation_says_what_contains_a_command(request: pytest.FixtureRequest, local: Local) -> None:
    by_bubblewrap = local.isolation.removesuffix(" by bubblewrap") != local.isolation
    assert by_bubblewrap is request.node.name.endswith("[bubblewrap]")
    assert "bubblewrap" not in local.isolation_of("an image")


def test_timeout_ends_a_command_with_its_children(runs: Runs) -> None:
    ended = runs("trap '' TERM; (trap '' TERM; sleep 1000) & sleep 1000; sleep 1000", Limits(seconds=0.3, grace=0.3))
    assert ended.cause == "timeout"
    assert ended.seconds < PATIENCE


def test_background_processes_end_with_the_command(runs: Runs) -> None:
    ended = runs("sleep 1000 & setsid sleep 1000 & disown -a; echo done")
    assert (ended.status, ended.output) == (0, "done\n")


_THREADS = (
    "python3 -c 'import threading as t, time; t.stack_size(1 << 16); "
    "[t.Thread(target=time.sleep, args=(1000,), daemon=True).start() for _ in range({})]; time.sleep({})'"
)
_HOLD = "python3 -c 'import time; kept = bytearray(80 << 20); time.sleep(1000)' & "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "limits", "cause"),
    [
        (_HOLD * 4 + "wait", Limits(memory_mb=200), "memory"),
        ("for i in $(seq 99); do sleep 1000 & done; wait", Limits(processes=64), "processes"),
        (_THREADS.format(550, 1000), Limits(), "processes"),
        ("head -c 30000000 /dev/zero > a; cp a b; cp a c; sleep 1000", Limits(disk_mb=50), "disk"),
    ],
)
def test_process_limit_holds_for_all_together(runs: Runs, line: str, limits: Limits, cause: str) -> None:
    assert runs(line, limits).cause == cause


def test_as_many_processes_as_the_limit_allows_are_there_at_any_time(runs: Runs) -> None:
    """Also once the numbers of processes have begun again, which leave the lowest 300 out then."""
    line = f"for i in $(seq 900); do (:); done; {_THREADS.format(490, 0.3)} && echo all"
    assert runs(line).output == "all\n"


def test_memory_of_a_process_is_limited_to_the_total(runs: Runs) -> None:
    assert "MemoryError" in runs("python3 -c 'bytearray(300 << 20)'", Limits(memory_mb=200)).output
    assert runs("head -c 3000000 /dev/zero > large", Limits(disk_mb=1)).status


def test_what_is_written_to_dev_takes_no_memory(runs: Runs) -> None:
    assert runs("head -c 3000000 /dev/zero > /dev/kept").status


def test_output_beyond_the_limit_is_cut_in_the_middle(runs: Runs) -> None:
    ended = runs("echo first; seq 100000; echo last", Limits(output_bytes=1000))
    assert ended.output.startswith("first\n1\n")
    assert ended.output.endswith("last\n")
    assert len(ended.output) < 1100


def test_missing_program_is_no_fault(runs: Runs) -> None:
    assert runs("exec no-such-program").status == 127


_LEG = """
import os, sys, threading
os.write(4, b"ready")
for word in iter(lambda: os.read(3, 10), b""):
    workers = [threading.Thread(target=lambda: sum(range(3_000_000))) for _ in range(2)]
    [each.start() or each.join() for each in workers]
    os.write(4, str(sorted(os.sched_getaffinity(0))).encode())
"""


async def test_timed_command_is_talked_to_and_clocked_from_outside(local: Local, place: Path) -> None:
    loop, core = asyncio.get_running_loop(), min(os.sched_getaffinity(0))
    wanted = Command(["python3", "-c", _LEG], core=core, forks=False, limits=Limits(seconds=PATIENCE))
    async with local.started(wanted, place) as leg:
        assert await loop.sock_recv(leg.channel, 100) == b"ready"
        before = await leg.cpu()
        waited = await leg.cpu() - before
        await loop.sock_sendall(leg.channel, b"go")
        assert (await loop.sock_recv(leg.channel, 100)).decode() == str([core])
        assert await leg.cpu() - before > 10_000_000 > waited
        leg.channel.shutdown(socket.SHUT_WR)
        assert (await leg.ended).status == 0


_MOVING = """
import os, time
os.write(4, b"ready")
for word in iter(lambda: os.read(3, 10), b""):
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count()))
    if not os.fork():
        os.sched_setaffinity(0, range(os.cpu_count()))
        os.write(4, b"yes" if os.sched_getaffinity(0) == cores else b"no")
        os._exit(0)
    os.wait()
"""


async def test_timed_command_stays_on_its_core(local: Local, place: Path) -> None:
    loop, core = asyncio.get_running_loop(), min(os.sched_getaffinity(0))
    wanted = Command(["python3", "-c", _MOVING], core=core, limits=Limits(seconds=PATIENCE))
    async with local.started(wanted, place) as leg:
        assert await loop.sock_recv(leg.channel, 100) == b"ready"
        await loop.sock_sendall(leg.channel, b"go")
        assert await loop.sock_recv(leg.channel, 100) == b"yes"


_UNWAITED = """
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.write(4, b"ready")
for word in iter(lambda: os.read(3, 10), b""):
    read, write = os.pipe()
    if not os.fork():
        sum(range(10_000_000))
        os._exit(0)
    os.close(write)
    os.read(read, 1)
    try:
        os.wait()
    except ChildProcessError:
        os.write(4, b"done")
"""


async def test_processes_that_nobody_waits_for_are_in_a_command_s_cpu(local: Local, place: Path) -> None:
    try:
        os.close(kernel.count_cpu())
    except OSError as error:
        pytest.skip(str(error))
    loop, core = asyncio.get_running_loop(), min(os.sched_getaffinity(0))
    wanted = Command(["python3", "-c", _UNWAITED], core=core, limits=Limits(seconds=PATIENCE))
    async with local.started(wanted, place) as leg:
        assert await loop.sock_recv(leg.channel, 100) == b"ready"
        before, unseen = await leg.cpu(), leg.unseen()
        await loop.sock_sendall(leg.channel, b"go")
        await loop.sock_recv(leg.channel, 100)
        used, after = await leg.cpu() - before, leg.unseen()
        leg.channel.shutdown(socket.SHUT_WR)
        ended = await leg.ended
    assert used > 50_000_000
    assert after.hidden - unseen.hidden > 50_000_000
    assert after.busy - unseen.busy > 50_000_000
    assert ended.cpu > 0.05


async def test_timed_command_that_is_left_ends(local: Local, place: Path) -> None:
    async with local.started(Command(["sleep", "1000"], forks=False), place) as leg:
        assert await leg.cpu() > 0
    with pytest.raises(OSError, match=r"."):
        await leg.cpu()
    assert leg.ended.done()


async def test_timed_command_that_ends_at_once_closes_the_channel(local: Local, place: Path) -> None:
    async with local.started(Command(["no-such-program"]), place) as leg:
        assert await asyncio.get_running_loop().sock_recv(leg.channel, 100) == b""
        assert (await leg.ended).status == 127


async def test_timed_command_that_is_left_as_it_ends_is_waited_for(
    local: Local, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waitpid, here, may_end, waited_for = os.waitpid, threading.get_ident(), threading.Event(), set[int]()

    def late(process: int, options: int) -> tuple[int, int]:
        if threading.get_ident() != here:  # asyncio waits for its processes in threads
            may_end.wait()
            waited_for.add(process)
        return waitpid(process, options)

    monkeypatch.setattr(os, "waitpid", late)
    try:
        async with local.started(Command(["no-such-program"]), place) as leg:
            loop = asyncio.get_running_loop()
            assert await loop.sock_recv(leg.channel, 100) == b""
            loop.call_later(0.1, may_end.set)
        assert waited_for
    finally:
        may_end.set()


def test_threads_run_and_processes_do_not_without_forks(runs: Runs) -> None:
    line = (
        "exec python3 -c 'import os, subprocess, threading\n"
        "t = threading.Thread(target=print, args=[1]); t.start(); t.join()\n"
        'for start in (os.fork, lambda: subprocess.run(["true"])):\n'
        "    try: start()\n    except PermissionError: print(2, flush=True)'"
    )
    assert runs(line, forks=False).output == "1\n2\n2\n"


_KILLED = """
import asyncio, sys
from koderz.sandbox.workspace import Command
from koderz.sandbox.scratch import scratch
from koderz.systems.workspaces.local import Local

async def main():
    with scratch() as place:
        print(place, flush=True)
        wanted = Command(["bash", "-c", "setsid sleep 4711.25 & touch begun; wait"])
        await Local(bubblewrap_allowed=False).run(wanted, place)

asyncio.run(main())
"""


def test_killed_koderz_leaves_nothing(runs: Runs) -> None:
    with subprocess.Popen([sys.executable, "-c", _KILLED], stdout=subprocess.PIPE, text=True) as koderz:
        assert koderz.stdout
        place = Path(koderz.stdout.readline().strip())
        wait_for((place / "checkout/begun").exists)
        children = descendants(koderz.pid)
        assert len(children) >= 3
        koderz.send_signal(signal.SIGKILL)
    wait_for(lambda: are_gone(children))
    again = "from koderz.sandbox.scratch import own_folder; own_folder()"
    subprocess.run([sys.executable, "-c", again], check=True)
    assert not place.parent.exists()


@pytest.mark.slow
def test_folders_of_other_processes_that_live_are_left_alone() -> None:
    line = "from koderz.sandbox.scratch import own_folder; print(own_folder(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        folder = Path(other.stdout.readline().strip())
        again = "from koderz.sandbox.scratch import own_folder; own_folder()"
        subprocess.run([sys.executable, "-c", again], check=True)
        assert folder.exists()
        other.kill()
    assert folder.parent.is_dir()


def test_command_is_held_to_its_cores(runs: Runs) -> None:
    asks = "import os; os.sched_setaffinity(0, range(os.cpu_count())); print(len(os.sched_getaffinity(0)))"
    line = f'nproc; python3 -c "{asks}"'
    assert runs(line, limits=Limits(cpus=0.5)).output == "1\n1\n"
    every = len(os.sched_getaffinity(0))
    assert runs("nproc", limits=Limits(cpus=64)).output == f"{every}\n"
    assert runs("nproc").output == f"{every}\n"
