"""Commands in the root of an image, and what they leave of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Fault, KoderzError, Unreachable
from koderz.sandbox.scratch import scratch
from koderz.sandbox.workspace import Command, Ended, Limits, Mount
from koderz.systems.workspaces.images import ImageStore
from koderz.systems.workspaces.images.tree import ImageChange, carry, changes, copy_folder
from koderz.systems.workspaces.local import Local
from tests.conftest import PATIENCE
from tests.koderz.systems.workspaces.images.made import File, base, config_of, docker_save, folder, layer, link

Works = Callable[..., Ended]
APP = layer(
    folder("app"),
    folder("app/sub"),
    File("app/file", b"one\n"),
    File("app/sub/deep", b"two\n"),
    File("app/tool", b"#!/bin/sh\necho tool\n", mode=0o755),
    File("etc/setting", b"on\n"),
    folder("run"),
    link("var/run", "/run"),
)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Local:
    """This machine with a store of images, entered once."""
    images = tmp_path_factory.mktemp("images")
    layers = [base(), APP]
    docker_save(images / "app.tar", ["app"], layers, config_of(layers, WorkingDir="/app", Env=["COLOUR=blue"]))
    docker_save(images / "worker.tar", ["worker"], layers, config_of(layers, User="worker"))
    database = [base(), layer(File("etc/passwd", b"postgres:x:999:999::/:/bin/sh\n"), folder("var/lib/pg", uid=999))]
    docker_save(images / "pg.tar", ["postgres:16"], database)

    async def opened() -> Local:
        async with Local(images=ImageStore(images, tmp_path_factory.mktemp("cache"))) as found:
            await found.run(Command(["true"], image="app", in_image=True), tmp_path_factory.mktemp("place"))
            return found

    try:
        return asyncio.run(opened())
    except (Unreachable, Fault) as error:
        pytest.skip(str(error))


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as found:
        yield found


@pytest.fixture
def works(local: Local, place: Path) -> Works:
    """Runs a line in the shell of the image `app`."""

    def run(line: str, at: Path = place, **more: Any) -> Ended:
        about: dict[str, Any] = {"image": "app", "checkout": "/app", "in_image": True, **more}
        about.setdefault("limits", Limits(seconds=PATIENCE))
        return asyncio.run(local.run(Command(["sh", "-c", line], **about), at))

    return run


def root_of(local: Local) -> Path:
    return local.images.unpacked("app").root


def changed(local: Local, place: Path) -> dict[str, str]:
    return {change.path: change.kind for change in changes(root_of(local), place / "upper")}


def test_command_runs_in_the_root_of_an_image(works: Works) -> None:
    said = works("pwd; id; echo $HOME $COLOUR $PATH; cat file; ./tool; ls /; cat /etc/hosts").output
    assert said.startswith("/app\nuid=0(root) gid=0(root)")
    assert "\n/root blue /usr/local/sbin:/usr/local/bin:" in said
    assert "\none\ntool\n" in said
    assert "127.0.0.1 localhost" in said
    assert "lost+found" not in said


def test_command_runs_as_the_user_of_the_image_or_its_own(works: Works) -> None:
    assert works("id -u; echo $HOME", image="worker").output == "1000\n/home/worker\n"
    assert works("id -u; echo $HOME", user="worker").output == "1000\n/home/worker\n"
    assert works("id -u; echo $HOME", user="4711").output == "4711\n/\n"
    assert works("id -u", image="worker", user="root").output == "0\n"
    with pytest.raises(Fault, match="has no user 'nemo'"):
        works("id", user="nemo")


def test_variables_of_the_command_win_over_those_of_the_image(works: Works) -> None:
    assert works("echo $COLOUR $MORE", environment={"COLOUR": "red", "MORE": "yes"}).output == "red yes\n"


def test_user_of_an_image_has_no_capabilities(works: Works) -> None:
    said = works("cat /proc/self/status").output
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{name}:\t0000000000000000" in said
    assert "NoNewPrivs:\t1" in said


@pytest.mark.parametrize(
    "line",
    [
        "cat {canary}",
        "ls {canary}",
        "cat /proc/1/environ",
        "ls /proc/1/root/",
        "echo 1 > /proc/sys/kernel/panic",
        "echo b > /proc/sysrq-trigger",
        "mount -t tmpfs none /tmp",
        "unshare -r true",
        "kill -9 1; kill -STOP 1; test ! -d /proc/1",
        "test ! -e /dev/sda -a ! -e /dev/mem",
    ],
)
def test_command_in_an_image_reaches_nothing_of_this_machine(works: Works, tmp_path: Path, line: str) -> None:
    (tmp_path / "canary").write_text("secret")
    ended = works(f"{line.format(canary=tmp_path / 'canary')} && echo reached")
    assert "secret" not in ended.output
    assert "reached" not in ended.output or line.startswith("test")
    assert ended.cause == ""


def test_changes_are_exactly_those_of_the_commands(local: Local, place: Path, works: Works) -> None:
    works("true")
    assert changed(local, place) == {}
    works(
        "echo new > /etc/new; echo two > file; rm sub/deep; mkdir -p /srv/a/b; ln -s /etc ln; chmod 700 /opt; "
        "touch tool; cat /etc/setting > /tmp/x; mv /tmp/x /etc/setting; rm tool; ln -s file tool; mkdir sub/more"
    )
    assert changed(local, place) == {
        "/app/file": "changed",
        "/app/ln": "added",
        "/app/sub/deep": "removed",
        "/app/sub/more": "added",
        "/app/tool": "changed",
        "/etc/new": "added",
        "/opt": "changed",
        "/srv/a": "added",
        "/srv/a/b": "added",
    }


def test_image_stays_as_it_is_whatever_commands_do(local: Local, place: Path, works: Works) -> None:
    root = root_of(local)
    before = {path: path.lstat() for path in sorted(root.rglob("*"))}
    works("cd /; rm -rf /app; ln -s / /app; chmod 0 /var; echo x > /bin/id; rm -rf /etc /home /opt /usr/lib* /bin/*")
    after = {path: path.lstat() for path in sorted(root.rglob("*"))}
    assert before.keys() == after.keys()
    assert all(
        (old.st_mode, old.st_size, old.st_mtime_ns, old.st_ino)
        == (new.st_mode, new.st_size, new.st_mtime_ns, new.st_ino)
        for old, new in zip(before.values(), after.values(), strict=True)
    )
    assert changed(local, place)["/app"] == "changed"


def test_next_command_of_a_place_sees_the_changes_and_other_places_dont(works: Works, tmp_path: Path) -> None:
    works("echo mine > /etc/mine; rm file")
    assert works("cat /etc/mine; ls").output == "mine\nsub\ntool\n"
    assert works("cat /etc/mine; ls", at=tmp_path).output.endswith("file\nsub\ntool\n")


def test_replaced_folder_hides_what_the_image_has_in_it(local: Local, place: Path, works: Works) -> None:
    works("rm -r sub; mkdir sub; echo 1 > sub/new")
    assert changed(local, place) == {"/app/sub/deep": "removed", "/app/sub/new": "added"}


def test_changes_are_carried_into_a_fresh_root(local: Local, place: Path, works: Works, tmp_path: Path) -> None:
    works("echo 2 > file; rm -r sub; mkdir sub; echo 1 > sub/new; ln -s /etc/passwd ln; rm /etc/setting; chmod +x file")
    works("mkdir -p /srv/x; echo daemon > /srv/x/y; rm tool; mkdir tool; echo 3 > tool/3")
    root, fresh = root_of(local), tmp_path / "upper"
    fresh.mkdir()

    made = carry(root, place / "upper", fresh, lambda change: change.path.startswith("/app/"))

    below = [change for change in changes(root, place / "upper") if change.path.startswith("/app/")]
    assert made == below == changes(root, fresh)
    said = works("cat file sub/new tool/3 /etc/setting; ls sub; ls /srv; ls -l ln; ./file", at=tmp_path).output
    assert said.startswith("2\n1\n3\non\nnew\n")
    assert "ln -> /etc/passwd" in said


def test_carried_links_lead_nowhere_on_this_machine(local: Local, place: Path, works: Works, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    works(f"rm -r sub; ln -s {tmp_path}/host sub; ln -s {tmp_path}/host/file out")
    carry(root_of(local), place / "upper", tmp_path, lambda _: True)
    works("rm sub; mkdir sub; echo evil > sub/file")
    fresh = tmp_path / "second"
    fresh.mkdir()
    carry(root_of(local), place / "upper", fresh, lambda _: True)
    assert not [*(tmp_path / "host").iterdir()]


def test_folder_of_an_image_is_copied_as_it_is_or_was_left(
    local: Local, place: Path, works: Works, tmp_path: Path
) -> None:
    works("rm file; echo 5 > sub/deep; ln -s /etc/passwd ln; mkfifo pipe 2>/dev/null; ln sub/deep hard")
    works("mkdir empty; chmod 750 sub; touch -h -d 2001-01-01T00:00:00.5Z sub ln; chmod 711 .; touch -d @5 .")
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    copy_folder(root_of(local), "/app", old)
    copy_folder(root_of(local), "/app", new, place / "upper")
    assert sorted(path.name for path in old.rglob("*")) == ["deep", "file", "sub", "tool"]
    assert sorted(path.name for path in new.rglob("*")) == ["deep", "empty", "hard", "ln", "sub", "tool"]
    assert (new / "hard").samefile(new / "sub/deep")
    assert [path.stat().st_mode & 0o777 for path in (new, new / "sub")] == [0o711, 0o750]
    assert [path.lstat().st_mtime for path in (new, new / "sub", new / "ln")] == [5, 978307200.5, 978307200.5]
    assert (new / "sub/deep").read_text() == "5\n"
    assert (new / "ln").is_symlink()
    copy_folder(root_of(local), "/none", new / "empty")
    assert not [*(new / "empty").iterdir()]


@pytest.mark.parametrize(
    "line",
    [
        "ln -s /etc /tests",
        "ln -s /nowhere /tests",
        "ln -s /tests /tests",
        "echo > /tests",
        "mkdir -p /tests/a; echo > /tests/a/b",
        "mkdir /tests; chmod 0 /tests",
        "rm -rf /opt; ln -s / /opt",
        "mkdir -p /opt/koderz/script/x",
        "rm -rf /dev /proc; echo > /dev; ln -s /etc /proc",
        "ln -s ../../../../../../../../etc /tests",
    ],
)
def test_mounts_are_there_whatever_lies_in_their_place(works: Works, tmp_path: Path, line: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/answer").write_text("42\n")
    works(line)
    mounts = [Mount(tmp_path / "tests", "/tests"), Mount(tmp_path / "tests/answer", "/opt/koderz/script")]
    ended = works("cat /tests/answer /opt/koderz/script; echo > /tests/new; echo x > /dev/null", mounts=mounts)
    assert ended.output.startswith("42\n42\n")
    assert [path.name for path in (tmp_path / "tests").iterdir()] == ["answer"]


def test_mount_points_are_no_changes(local: Local, place: Path, works: Works, tmp_path: Path) -> None:
    mounts = [Mount(tmp_path, "/logs/verifier", writable=True), Mount(tmp_path, "/var/run/deep/er")]
    assert works("echo 1 > /logs/verifier/reward.txt", mounts=mounts).status == 0
    assert (tmp_path / "reward.txt").read_text() == "1\n"
    assert changed(local, place) == {}


def test_checkout_lies_over_the_folder_of_the_image(local: Local, place: Path, works: Works) -> None:
    works("true")
    (place / "checkout/own").write_text("own\n")
    assert works("ls; echo 1 > made", in_image=False).output == "own\n"
    assert (place / "checkout/made").read_text() == "1\n"
    assert changed(local, place) == {}


@pytest.mark.slow
def test_read_only_checkout_leaves_a_command_its_home(works: Works) -> None:
    line = "mkdir -p ~/.config && echo mine > ~/.config/set && cat ~/.config/set; echo new > %s && echo written"
    for path in ("/app/file", "/etc/setting"):
        assert "mine" in (said := works(line % path, in_image=False, read_only=True).output)
        assert "written" not in said


def test_usual_home_is_there_if_asked_for_and_gone_unless_used(local: Local, place: Path, works: Works) -> None:
    assert works("ls -d /home/user").status
    assert works("ls -A /home/user; echo $HOME", home=True).output == "/root\n"
    assert changed(local, place) == {}
    works("echo state > /home/user/state", home=True)
    assert changed(local, place) == {"/home/user": "added", "/home/user/state": "added"}
    assert works("cat /home/user/state", home=True).output == "state\n"


@pytest.mark.parametrize(
    ("line", "limits", "cause"),
    [
        ("sleep 600", Limits(seconds=1, grace=0.2), "timeout"),
        (
            "n=0; while [ $n -lt 300 ]; do sleep 600 & n=$((n + 1)); done; wait",
            Limits(seconds=PATIENCE, processes=64),
            "processes",
        ),
    ],
    ids=["seconds", "processes"],
)
def test_limits_hold_in_an_image(works: Works, line: str, limits: Limits, cause: str) -> None:
    assert works(line, limits=limits).cause == cause


def test_image_that_needs_several_users_is_refused_by_name(local: Local) -> None:
    with pytest.raises(
        KoderzError, match=r"image postgres:16 can't run .*need the user postgres, who owns /var/lib/pg"
    ):
        asyncio.run(local.look_up(["postgres:16"]))
    asyncio.run(local.look_up(["app", "worker", None]))
    with pytest.raises(KoderzError, match="there is no image nowhere in"):
        asyncio.run(local.look_up(["nowhere"]))


@pytest.mark.slow
def test_agent_can_make_paths_that_are_too_deep(local: Local, place: Path, works: Works) -> None:
    works("i=0; while [ $i -lt 1500 ]; do mkdir d || break; cd d; i=$((i+1)); done; cd /app; chmod 0 sub")
    found = changes(root_of(local), place / "upper")
    assert any(change.is_too_deep for change in found)
    assert ImageChange("/app/sub", "changed", is_folder=True) in found


def test_files_with_holes_take_no_room_when_carried(local: Local, place: Path, works: Works, tmp_path: Path) -> None:
    works("true")
    with (place / "upper/hole").open("wb") as file:
        file.truncate(1 << 40)
    carry(root_of(local), place / "upper", tmp_path, lambda _: True)
    about = (tmp_path / "hole").stat()
    assert (about.st_size, about.st_blocks) == (1 << 40, 0)


def test_special_files_are_listed_and_not_carried(local: Local, place: Path, works: Works, tmp_path: Path) -> None:
    works("true")
    os.mkfifo(place / "upper/pipe")
    found = changes(root_of(local), place / "upper")
    assert found == [ImageChange("/pipe", "added", is_special=True)]
    assert carry(root_of(local), place / "upper", tmp_path, lambda _: True) == []


def test_files_keep_their_modes(works: Works) -> None:
    said = works("stat -c %a /tmp /app/tool /app/file; umask")
    assert said.output.startswith("1777\n755\n644\n")


def test_mount_points_are_not_removed_through_links_of_a_command(works: Works, place: Path, tmp_path: Path) -> None:
    (tmp_path / "own" / "point").mkdir(parents=True)
    seen = Mount(tmp_path, "/opt/a/point")
    works(f"mv /opt/a /opt/b && ln -s {tmp_path}/own /opt/a", mounts=[seen])

    assert (tmp_path / "own/point").is_dir()


def test_root_is_copied_where_the_kernel_refuses_to_mount_folders_over_each_other(
    local: Local, place: Path, tmp_path: Path
) -> None:
    image = local.images.unpacked("app")
    over = [tmp_path / f"{number:0200}" for number in range(40)]  # the kernel takes names of 4,096 bytes in all
    for place_over in over:
        (place_over / "app").mkdir(parents=True)
    (over[0] / "app/file").write_text("built\n")
    local.images.lent["built"] = replace(image, name="built", over=tuple(over))

    def run(line: str) -> str:
        wanted = Command(["sh", "-c", line], image="built", checkout="/app", in_image=True, limits=Limits(PATIENCE))
        return asyncio.run(local.run(wanted, place)).output

    assert run("cat file sub/deep; echo mine > own; rm tool") == "built\ntwo\n"
    assert run("cat own; ls tool 2>/dev/null; echo changed > file; cat file") == "mine\nchanged\n"
    found = changes(local.images.unpacked("built").layers, place / "upper")
    assert {change.path: change.kind for change in found} == {
        "/app/file": "changed",
        "/app/own": "added",
        "/app/tool": "removed",
    }
    assert (over[0] / "app/file").read_text() == "built\n"
