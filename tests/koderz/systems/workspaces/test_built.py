"""Environments that are kept once they are built."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from koderz.systems.workspaces import built
from koderz.systems.workspaces.images import UnpackedImage


def sealed(root: Path) -> None:
    """Builds an environment without lines over an image whose root is there."""
    with built.building("one") as draft:
        assert draft
        built.seal("one", draft, [], UnpackedImage("base", "sha256:base", Path("/"), "/work", {}, "", root))


def test_environment_whose_image_is_gone_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(built, "cache_folder", lambda: tmp_path / "cache")
    root = tmp_path / "root"
    root.mkdir()
    sealed(root)
    found = built.find_built("one")
    assert found
    assert found.root == root
    with built.building("one") as draft:
        assert draft is None

    root.rmdir()
    assert built.find_built("one") is None
    sealed(tmp_path)

    assert built.find_built("one")


def test_image_of_this_machine_lies_in_the_cache_of_the_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = []
    for name in ("a", "b"):
        monkeypatch.setattr(built, "cache_folder", lambda name=name: tmp_path / name)
        roots.append(built.host_image().root)

    assert [root.is_relative_to(tmp_path / name) for root, name in zip(roots, "ab", strict=True)] == [True, True]


def test_image_of_this_machine_is_made_whole_by_several_tasks_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(built, "cache_folder", lambda: tmp_path / "alone")
    alone = built.host_image().root
    monkeypatch.setattr(built, "cache_folder", lambda: tmp_path / "cache")
    with ThreadPoolExecutor(4) as pool:
        roots = {image.root for image in pool.map(lambda _: built.host_image(), range(4))}

    (root,) = roots
    assert [*root.parent.iterdir()] == [root]
    assert content(root) == content(alone)


def content(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
