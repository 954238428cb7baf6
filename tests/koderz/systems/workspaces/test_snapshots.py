"""Copies of folders as they are."""

from __future__ import annotations

import math
import os
import stat
from contextlib import closing
from io import BytesIO
from pathlib import Path

import pytest

from koderz.systems.workspaces import remote
from koderz.systems.workspaces.snapshots import SPECIAL, TOO_DEEP, Listing, changes, copy_tree

_FACTS = ("st_mode", "st_size", "st_mtime_ns", "st_nlink")


def _made(tree: Path) -> Path:
    (tree / "empty").mkdir(parents=True)
    (tree / "shut/in").mkdir(parents=True)
    (tree / "file").write_text("text")
    (tree / "file").chmod(0o4640)
    (tree / "twin").hardlink_to(tree / "file")
    (tree / "dead").symlink_to("../../nowhere")
    (tree / "out").symlink_to("/etc")
    with (tree / "sparse").open("wb") as file:
        file.truncate(64 << 20)
    (tree / "shut/in/none").write_text("closed")
    (tree / "shut/in/none").chmod(0)
    os.mkfifo(tree / "pipe")
    for number, path in enumerate(sorted(tree.rglob("*"), reverse=True)):
        os.utime(path, ns=(1, 1_000_000_000_000_000_001 + number), follow_symlinks=False)
    (tree / "shut").chmod(0o500)
    tree.chmod(0o711)
    os.utime(tree, ns=(1, 12_345_678_912))
    return tree


def _seen(tree: Path) -> dict[str, list[int]]:
    paths = [tree, *sorted(each for each in tree.rglob("*") if each.name != "pipe")]
    return {
        str(path.relative_to(tree)): [getattr(path.lstat(), name) for name in _FACTS[: 4 - path.is_dir()]]
        for path in paths
    }


def test_copy_has_all_that_a_folder_has(tmp_path: Path) -> None:
    tree, copy = _made(tmp_path / "tree"), tmp_path / "copy"
    before = _seen(tree)
    with closing(Listing.of(tree)) as listing:
        copy_tree(listing, copy)
        with closing(Listing.of(copy)) as again:
            assert changes(listing, again) == ([], [])
    assert _seen(copy) == _seen(tree) == before
    assert listing.aside == {"pipe": SPECIAL}
    assert (copy / "out").readlink() == Path("/etc")
    assert (copy / "sparse").stat().st_blocks < 64
    assert (copy / "file").samefile(copy / "twin")


def test_listing_opens_what_is_shut_and_closes_it_again(tmp_path: Path) -> None:
    tree = _made(tmp_path / "tree")
    listing = Listing.of(tree)
    assert (tree / "shut").stat().st_mode & stat.S_IRWXU == stat.S_IRWXU
    (tree / "shut/in/none").unlink()
    (tree / "shut/in/none").touch(0o644)
    listing.close()
    assert stat.S_IMODE((tree / "shut").stat().st_mode) == 0o500
    assert (tree / "shut/in/none").stat().st_mode & stat.S_IRUSR


def test_what_is_too_deep_is_put_aside(tmp_path: Path) -> None:
    deepest = tmp_path.joinpath("tree", *"d" * 210)
    deepest.mkdir(parents=True)
    listing = Listing.of(tmp_path / "tree")
    assert [*listing.aside.values()] == [TOO_DEEP]
    copy_tree(listing, tmp_path / "copy")
    assert len(listing.entries) == len([*(tmp_path / "copy").rglob("*")]) == 200


@pytest.mark.parametrize("change", ["content", "executable", "kind", "link"])
def test_change_is_seen_though_time_and_size_are_the_same(tmp_path: Path, change: str) -> None:
    tree = _made(tmp_path / "tree")
    before = Listing.of(tree)
    copy_tree(before, tmp_path / "copy")
    file = tmp_path / "copy" / ("dead" if change == "link" else "file")
    about = file.lstat()
    if change == "content":
        file.write_text("TEXT")
    elif change == "executable":
        file.chmod(0o755)
    else:
        file.unlink()
        file.symlink_to("../../elsewher" if change == "link" else "text")
    os.utime(file, ns=(1, about.st_mtime_ns), follow_symlinks=False)
    expected = {"content": ["file", "twin"], "executable": ["file", "twin"]}.get(change, [file.name])
    assert changes(before, Listing.of(tmp_path / "copy")) == (expected, [])


def test_archive_that_is_shipped_keeps_times(tmp_path: Path) -> None:
    tree, copy, packed = _made(tmp_path / "tree"), tmp_path / "copy", BytesIO()
    copy.mkdir()
    remote.pack([str(tree)], packed, math.inf)
    packed.seek(0)
    remote.unpack(packed, [str(copy)], 1 << 31)
    times = {path: facts[2] for path, facts in _seen(tree).items() if path != "."}
    assert {path: facts[2] for path, facts in _seen(copy).items() if path != "."} == times
