"""Commands in sandboxes of Modal's, on a loopback Modal that starts real processes with Modal's own client."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Fault, Unreachable
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Command, Ended, Image, Limits, Meter, Mount, metered
from koderz.systems.modal.names import sandbox_cost
from koderz.systems.modal.workspace import Modal
from tests.conftest import PATIENCE, wait_for
from tests.koderz.systems.workspaces.legs import LEG, talked
from tests.loopback_modal import ModalServer
from tests.loopback_modal.processes import rooted

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not rooted(), reason="needs user namespaces")]


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as folder:
        yield folder


def ran(*lines: str, place: Path, limits: Limits | None = None, **more: Any) -> Ended:
    """What became of the last of some command lines."""

    async def in_loop() -> Ended:
        async with Modal() as modal:
            for line in lines:
                wanted = Command(["bash", "-c", line], limits=limits or Limits(seconds=PATIENCE), **more)
                ended = await modal.run(wanted, place)
            return ended

    return asyncio.run(in_loop())


def test_command_runs_in_a_sandbox_of_its_own_without_network(cloud: ModalServer, place: Path) -> None:
    (place / "checkout").mkdir()
    (place / "checkout/old").write_text("old\n")
    (place / "checkout/old").chmod(0o755)
    (place / "checkout/gone").write_text("")
    known = len(cloud.sandboxes)
    line = "pwd; cat old; rm gone; mkdir -p a/b; echo new > a/b/file; ln -s /etc/hostname link; env; exit 3"
    ended = ran(line, place=place, environment={"MODE": "a=b"})
    assert (ended.status, ended.cause) == (3, "")
    assert ended.output.startswith("/workspace\nold\n")
    assert "\nMODE=a=b\n" in ended.output
    assert "MODAL" not in ended.output
    assert (place / "checkout/a/b/file").read_text() == "new\n"
    assert (place / "checkout/old").stat().st_mode & 0o777 == 0o755
    assert os.readlink(place / "checkout/link") == "/etc/hostname"  # noqa: PTH115
    assert not (place / "checkout/gone").exists()
    (asked,) = cloud.sandboxes[known:]
    assert asked.blocks_network
    assert not asked.lives
    assert (asked.secrets, asked.variables, [*asked.asked.volume_mounts]) == ((), (), [])
    assert [*asked.asked.open_ports.ports] == []


def test_home_and_mounts_are_there(cloud: ModalServer, place: Path, tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown/text").write_text("shown\n")
    (place / "logs").mkdir()
    mounts = [Mount(tmp_path / "shown", "/opt/shown"), Mount(place / "logs", "/logs/verifier", writable=True)]
    last = "cat ~/mine /tmp/mine /opt/shown/text; echo 1 > /logs/verifier/reward.txt"
    ended = ran("echo kept > ~/mine; echo also > /tmp/mine", last, place=place, mounts=mounts)
    assert ended.output == "kept\nalso\nshown\n"
    assert (place / "logs/reward.txt").read_text() == "1\n"


def test_image_is_made_of_the_dockerfile_and_its_folder_taken_out(
    cloud: ModalServer, place: Path, tmp_path: Path
) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/text").write_text("in the image\n")
    (tmp_path / "Dockerfile").write_text("FROM python:3.12-slim\nWORKDIR /app\nCOPY inner .\n")

    async def taken() -> Ended:
        async with Modal() as modal:
            image = Image(tmp_path, "abc")
            for folder in ("app", "nowhere"):
                (place / folder).mkdir()
                await modal.copy_out(image, f"/{folder}", place / folder)
            before = cloud.counts["ImageGetOrCreate"]
            wanted = Command(["bash", "-c", "ls; echo new > file"], image=image, checkout="/app")
            ended = await modal.run(wanted, place)
            assert cloud.counts["ImageGetOrCreate"] == before
            return ended

    assert asyncio.run(taken()).output == ""  # the checkout hides what the image has there
    assert (place / "app/text").read_text() == "in the image\n"
    assert [*(place / "nowhere").iterdir()] == []
    assert (place / "checkout/file").read_text() == "new\n"


def test_image_that_cannot_be_built_is_a_fault(cloud: ModalServer, place: Path, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("BROKEN x\n")
    with pytest.raises(Fault, match=r"--sandbox modal: .*[Bb]uild"):
        ran("true", place=place, image=Image(tmp_path, "abc"))


def test_timeout_ends_a_command_with_its_children_and_keeps_its_work(cloud: ModalServer, place: Path) -> None:
    known = len(cloud.sandboxes)
    line = "echo begun > file; (trap '' TERM; exec setsid sleep 1000) & trap '' TERM; sleep 1000 & wait; sleep 1000"
    ended = ran(line, place=place, limits=Limits(seconds=3.0, grace=0.3))
    assert (ended.cause, ended.status) == ("timeout", -signal.SIGKILL)
    assert (place / "checkout/file").read_text() == "begun\n"
    assert not any(one.lives for one in cloud.sandboxes[known:])


LIMITS = {
    "memory": ("python3 -c 'x = bytearray(200 << 20); import time; time.sleep(1000)'", Limits(memory_mb=100)),
    "processes": ("for n in $(seq 50); do sleep 1000 & done; wait", Limits(processes=20)),
    "disk": ("dd if=/dev/zero of=big bs=1M count=40; sleep 1000", Limits(disk_mb=10)),
}


@pytest.mark.parametrize("cause", LIMITS)
def test_limits_hold(cause: str, cloud: ModalServer, place: Path) -> None:
    line, limits = LIMITS[cause]
    ended = ran(f"echo begun > file; {line}", place=place, limits=limits)
    assert ended.cause == cause
    assert cause == "disk" or (place / "checkout/file").exists()


def test_sparse_file_that_seems_large_does_not_come_back(cloud: ModalServer, place: Path) -> None:
    assert ran("truncate -s 1T large", place=place, limits=Limits(disk_mb=10)).cause == "disk"
    assert not (place / "checkout/large").exists()


def test_command_cannot_touch_what_runs_it(cloud: ModalServer, place: Path) -> None:
    if os.getuid():
        pytest.skip("only root can have others be less")
    ended = ran("id -u; kill -9 $PPID; cat /proc/$PPID/environ; echo still here", place=place)
    assert ended.output.startswith("1000\n")
    assert ended.output.endswith("still here\n")


def test_program_that_is_missing_is_127(cloud: ModalServer, place: Path) -> None:
    async def in_loop() -> Ended:
        async with Modal() as modal:
            return await modal.run(Command(["no-such-program"]), place)

    assert asyncio.run(in_loop()).status == 127


def test_read_only_checkout_is_unchanged(cloud: ModalServer, place: Path) -> None:
    ran("echo x > file", place=place, read_only=True)
    assert not (place / "checkout/file").exists()


def test_sandbox_that_modal_ends_is_a_fault(cloud: ModalServer, place: Path) -> None:
    known = len(cloud.sandboxes)

    async def story() -> None:
        async with Modal() as modal:
            running = asyncio.create_task(modal.run(Command(["sleep", "1000"]), place))
            await asyncio.to_thread(wait_for, lambda: any(one.lives for one in cloud.sandboxes[known:]))
            cloud.preempt(cloud.sandboxes[-1].id)
            await running

    with pytest.raises(Fault, match="--sandbox modal"):
        asyncio.run(story())


_KILLED = """
import asyncio, sys
from pathlib import Path
from koderz.systems.modal.workspace import Modal
from koderz.sandbox.workspace import Command
async def main():
    async with Modal() as modal:
        await modal.run(Command(["bash", "-c", "sleep 1000"]), Path(sys.argv[1]))
asyncio.run(main())
"""


def test_killed_koderz_leaves_nothing(cloud: ModalServer, place: Path) -> None:
    known = len(cloud.sandboxes)
    with subprocess.Popen([sys.executable, "-c", _KILLED, str(place)]) as koderz:
        wait_for(lambda: any(one.lives for one in cloud.sandboxes[known:]))
        koderz.send_signal(signal.SIGKILL)
    wait_for(lambda: not any(one.lives for one in cloud.sandboxes[known:]))


def test_leftovers_are_ended_by_the_next_start(cloud: ModalServer, place: Path) -> None:
    import modal

    known = len(cloud.sandboxes)

    async def story() -> tuple[bool, bool]:
        async with Modal() as first:
            running = asyncio.create_task(first.run(Command(["sleep", "1000"]), place))
            await asyncio.to_thread(wait_for, lambda: len(cloud.sandboxes) > known)
            ours = cloud.sandboxes[-1]
            app = await modal.App.lookup.aio("koderz")
            tags = {**ours.tags, "koderz-folder": "of-one-that-was-killed"}
            own = modal.Image.debian_slim()  # the usual one is remembered, also for other servers
            left = await modal.Sandbox.create.aio("sleep", "1000", app=app, tags=tags, image=own)
            async with Modal():
                alive = {one.id: one.lives for one in cloud.sandboxes}
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return alive[ours.id], alive[left.object_id]

    assert asyncio.run(story()) == (True, False)
    assert not any(one.lives for one in cloud.sandboxes[known:])


def test_workspace_without_a_network_is_unreachable(
    cloud: ModalServer, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    monkeypatch.setenv("MODAL_SERVER_URL", "http://127.0.0.1:9")
    with pytest.raises(Unreachable, match="--sandbox modal: Modal can't be reached"):
        ran("true", place=place)


async def _talked(modal: Modal, place: Path, *argv: str) -> tuple[bytes, int, int, Ended]:
    """See `talked`. One that has ended has no clock any more."""
    wanted = Command(argv, limits=Limits(seconds=PATIENCE), read_only=True)
    async with modal.started(wanted, place) as leg:
        found = await talked(leg)
        if found[0]:
            with pytest.raises(OSError, match="ended"):
                await leg.cpu()
        return found


def test_timed_commands_share_one_sandbox_one_after_the_other(cloud: ModalServer, place: Path) -> None:
    known = len(cloud.sandboxes)

    async def twice() -> list[tuple[bytes, int, int, Ended]]:
        async with Modal() as modal, modal.apart():
            return [await _talked(modal, place, "python3", "-c", LEG) for _ in range(2)]

    for said, waited, used, ended in asyncio.run(twice()):
        assert said == b"readydone"
        assert used > 20_000_000 > waited
        assert (ended.status, ended.output, ended.cause) == (3, "begun\n", "")
        assert ended.cpu > used / 1e9
    (asked,) = cloud.sandboxes[known:]
    assert asked.blocks_network
    assert not asked.lives


def test_files_of_modal_are_neither_shipped_nor_part_of_an_image(
    cloud: ModalServer, place: Path, tmp_path: Path
) -> None:
    known = len(cloud.sandboxes)
    (tmp_path / "big").write_text("not sent")
    here = Mount(tmp_path, "/opt/models", writable=True, kept="models")
    ran("ls -A /opt/models; echo weights > /opt/models/m", place=place, mounts=[here])
    ended = ran(
        "ls /opt/models; cat /opt/models/m", place=place, mounts=[Mount(tmp_path, "/opt/models", kept="models")]
    )
    assert ended.output == "m\nweights\n"
    assert [path.name for path in tmp_path.iterdir()] == ["big"]
    mounts = [each.asked.volume_mounts[0] for each in cloud.sandboxes[known:]]
    assert [(each.mount_path, each.read_only) for each in mounts] == [("/opt/models", False), ("/opt/models", True)]


def test_sandbox_costs_are_noted_by_what_was_asked_for(cloud: ModalServer, place: Path) -> None:
    async def story() -> tuple[Meter, Meter]:
        async with Modal() as modal:
            with metered() as one:
                await modal.run(Command(["true"]), place)
            with metered() as other:
                async with modal.apart():
                    for _ in range(2):
                        await modal.run(Command(["true"], gpus="X999:1"), place)
        return one, other

    one, other = asyncio.run(story())
    assert one.is_known
    assert one.cost == pytest.approx(one.seconds * sandbox_cost(1024))
    assert one.seconds > 0
    assert not other.is_known  # nobody knows what such a GPU costs
    assert other.cost > 0


def test_programs_run_beside_a_command_that_is_reachable(cloud: ModalServer, place: Path) -> None:
    async def story() -> None:
        async with Modal() as modal:
            wanted = Command(["sleep", "1000"], reachable=True)
            async with modal.started(wanted, place) as running:
                assert running.beside
                source = "import sys; print(len(sys.stdin.read()))"
                many = [running.beside(source, "x" * size) for size in (1, 1 << 20)]
                assert await asyncio.gather(*many) == [b"1\n", b"1048576\n"]
                assert len(await running.beside("print('y' * 1000000)", "")) == 1_000_001
                with pytest.raises(OSError, match="has failed"):
                    await running.beside("1 / 0", "")
            with pytest.raises(OSError, match="has ended"):
                await running.beside(source, "")
            async with modal.started(Command(["sleep", "1000"]), place) as alone:
                assert alone.beside is None

    asyncio.run(story())


def test_images_that_aren_t_public_are_pulled_by_the_user_s_name(
    cloud: ModalServer, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_USERNAME", "me")
    monkeypatch.setenv("DOCKER_PASSWORD", "hunter2-hunter2")
    assert ran("env", place=place, image="me/private:1").output.count("hunter2") == 0
    assert cloud.registry_logins == [{"REGISTRY_USERNAME": "me", "REGISTRY_PASSWORD": "hunter2-hunter2"}]


def test_timed_command_that_is_missing_is_told(cloud: ModalServer, place: Path) -> None:
    async def once() -> Ended:
        async with Modal() as modal:
            return (await _talked(modal, place, "no-such-program"))[3]

    ended = asyncio.run(once())
    assert (ended.status, ended.output) == (127, "no-such-program: No such file or directory\n")
