"""Checkouts and diffs of repositories that nobody trusts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import KoderzError
from koderz.sandbox.scratch import remove
from koderz.systems.workspaces import git
from koderz.systems.workspaces.git import DiffTooLargeError, GitError, Store

MB = 1 << 20


def _own_git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A repository of two commits, and the first of them. Nobody changes it, nor the stores."""
    folder = tmp_path_factory.mktemp("made") / "source"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg/code.py").write_text("one\n")
    (folder / "notes.txt").write_bytes(b"windows\r\n")
    (folder / ".gitattributes").write_text("*.txt text eol=lf\n*.py filter=evil\n")
    (folder / ".gitignore").write_text("*.log\n")
    _own_git(folder, "init", "-q")
    _own_git(folder, "add", "-A")
    _own_git(folder, "commit", "-qm", "first")
    first = _own_git(folder, "rev-parse", "HEAD")
    (folder / "pkg/code.py").write_text("the answer\n")
    _own_git(folder, "commit", "-qam", "later")
    return folder, first


@pytest.fixture(scope="module")
def store(source: tuple[Path, str]) -> Store:
    return asyncio.run(_stored(source, source[0].with_name("store")))


async def _stored(source: tuple[Path, str], folder: Path) -> Store:
    with git.tree_of(folder) as tree:
        await git.export(str(source[0]), source[1], tree)
        return await git.stored(tree, folder)


def _checkout(store: Store, folder: Path) -> Path:
    asyncio.run(store.checkout(folder))
    return folder


def _diff(store: Store, checkout: Path, limit: int = MB) -> str:
    return asyncio.run(store.diff(checkout, limit))


def test_history_is_one_commit_without_remote_or_later_object(store: Store, tmp_path: Path) -> None:
    checkout = _checkout(store, tmp_path / "checkout")
    assert (checkout / "pkg/code.py").read_text() == "one\n"
    assert _own_git(checkout, "log", "--format=%s %an %ad").count("\n") == 0
    assert _own_git(checkout, "remote") == ""
    assert "source" not in _own_git(checkout, "config", "--local", "--list")
    listed = _own_git(checkout, "cat-file", "--batch-all-objects", "--batch-check")
    blobs = [line.split()[0] for line in listed.splitlines() if " blob " in line]
    assert "the answer" not in "".join(_own_git(checkout, "cat-file", "-p", blob) for blob in blobs)
    assert _own_git(checkout, "fsck", "--lost-found", "--unreachable") == ""
    assert _own_git(checkout, "status", "--porcelain") == ""


def test_baseline_is_the_same_commit_each_time(source: tuple[Path, str], store: Store, tmp_path: Path) -> None:
    assert asyncio.run(_stored(source, tmp_path / "again")).commit == store.commit


def test_diff_has_new_and_binary_files_and_no_ignored_ones(store: Store, tmp_path: Path) -> None:
    checkout = _checkout(store, tmp_path / "checkout")
    (checkout / "pkg/code.py").write_text("two\n")
    (checkout / "new").write_bytes(bytes(range(256)))
    (checkout / "latin").write_bytes("é\n".encode("latin-1"))
    (checkout / "out.log").write_text("noise")
    diff = _diff(store, checkout)
    other = _checkout(store, tmp_path / "other")
    asyncio.run(git.apply(diff.encode(), other))
    assert (other / "pkg/code.py").read_text() == "two\n"
    assert (other / "new").read_bytes() == bytes(range(256))
    assert (other / "latin").read_bytes() == b"\xe9\n"
    assert not (other / "out.log").exists()
    assert _diff(store, other) == diff


def _hooks(checkout: Path, canary: Path) -> None:
    for name in ("pre-commit", "post-checkout", "post-index-change", "fsmonitor-watchman"):
        hook = checkout / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {canary}\n")
        hook.chmod(0o755)


def _configuration(checkout: Path, canary: Path) -> None:
    for name in ("core.fsmonitor", "filter.evil.clean", "diff.external", "core.sshCommand"):
        _own_git(checkout, "config", name, f"touch {canary}")
    (checkout / ".gitattributes").write_text("* filter=evil diff=evil\n")


def _no_repository(checkout: Path, canary: Path) -> None:
    (checkout / ".git").rename(checkout / "kept")
    (checkout / ".git").symlink_to("/etc")


def _nested(checkout: Path, canary: Path) -> None:
    (checkout / "inner").mkdir()
    _own_git(checkout / "inner", "init", "-q")
    _hooks(checkout / "inner", canary)
    (checkout / "inner/file").write_text("hidden?")


def _unreadable(checkout: Path, canary: Path) -> None:
    (checkout / "closed").write_text("closed")
    (checkout / "closed").chmod(0)


@pytest.mark.parametrize("spoil", [_hooks, _configuration, _no_repository, _nested, _unreadable])
def test_diff_trusts_nothing_of_the_checkout(store: Store, tmp_path: Path, spoil: Callable[[Path, Path], None]) -> None:
    checkout = _checkout(store, tmp_path / "checkout")
    spoil(checkout, tmp_path / "canary")
    (checkout / "pkg/code.py").write_text("two\n")
    diff = _diff(store, checkout)
    assert "+two" in diff
    assert not (tmp_path / "canary").exists()
    if spoil is _nested:
        assert "hidden?" in diff


def test_attributes_don_t_hide_what_was_changed(store: Store, tmp_path: Path) -> None:
    checkout = _checkout(store, tmp_path / "checkout")
    (checkout / ".gitattributes").write_text("*.py -diff ident\n*.txt text eol=crlf working-tree-encoding=UTF-16\n")
    (checkout / "notes.txt").write_bytes(b"plain\r\n")
    other = _checkout(store, tmp_path / "other")
    asyncio.run(git.apply(_diff(store, checkout).encode(), other))
    assert (other / "notes.txt").read_bytes() == b"plain\r\n"


def test_diff_that_is_too_large_is_cut(store: Store, tmp_path: Path) -> None:
    checkout = _checkout(store, tmp_path / "checkout")
    (checkout / "large").write_text("x\n" * MB)
    with pytest.raises(DiffTooLargeError) as caught:
        _diff(store, checkout)
    assert len(caught.value.diff) == MB


@pytest.mark.parametrize(
    "diff",
    [
        "--- a/../out\n+++ b/../out\n@@ -0,0 +1 @@\n+x\n",
        "--- /dev/null\n+++ b/.git/config\n@@ -0,0 +1 @@\n+x\n",
        "--- a/pkg/code.py\n+++ b/pkg/code.py\n@@ -1 +1 @@\n-other\n+x\n",
        (
            "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/tmp\n"
            "\\ No newline at end of file\n"
            "diff --git a/l/out b/l/out\nnew file mode 100644\n--- /dev/null\n+++ b/l/out\n"
            "@@ -0,0 +1 @@\n+x\n"
        ),
        "no diff",
    ],
    ids=["outside", "into .git", "other text", "through a link", "none at all"],
)
def test_diff_that_does_not_apply_changes_nothing(store: Store, tmp_path: Path, diff: str) -> None:
    checkout = _checkout(store, tmp_path / "checkout")
    with pytest.raises(GitError):
        asyncio.run(git.apply(diff.encode(), checkout))
    assert _diff(store, checkout) == ""
    assert not (tmp_path / "out").exists()


_TABBED = "--- a/pkg/code.py\n+++ b/pkg/code.py\n@@ -1 +1 @@\n-\tone\n+two\n"
_FUZZY = "--- a/lines\n+++ b/lines\n@@ -2,5 +2,5 @@\n 2\n other\n-4\n+four\n 5\n 6\n"
_TWICE = _FUZZY + "--- a/pkg/code.py\n+++ b/pkg/code.py\n@@ -1 +1 @@\n-other\n+two\n"
_LINK = (
    "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/tmp\n"
    "\\ No newline at end of file\n"
)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Store:
    tree = tmp_path_factory.mktemp("made") / "tree"
    (tree / "pkg").mkdir(parents=True)
    (tree / "pkg/code.py").write_text("    one\n")
    (tree / "lines").write_text("".join(f"{line}\n" for line in range(1, 9)))
    (tree / "link").symlink_to("pkg/code.py")
    return asyncio.run(git.stored(tree, tree.with_name("lines.git")))


@pytest.mark.parametrize(
    ("diff", "way", "path", "becomes"),
    [
        (_FUZZY.replace("other", "3"), 0, "lines", "1\n2\n3\nfour\n5\n6\n7\n8\n"),
        (_FUZZY.replace("other", "3").strip(), 0, "lines", "1\n2\n3\nfour\n5\n6\n7\n8\n"),
        (_TABBED, 1, "pkg/code.py", "two\n"),
        (_FUZZY, 2, "lines", "1\n2\n3\nfour\n5\n6\n7\n8\n"),
    ],
    ids=["exact", "without its last end of line", "other white space", "other context"],
)
def test_diff_may_fit_loosely(lines: Store, tmp_path: Path, diff: str, way: int, path: str, becomes: str) -> None:
    checkout = tmp_path / "checkout"
    assert asyncio.run(lines.patched(checkout, diff.encode())) == git.WAYS[way]
    assert (checkout / path).read_text() == becomes
    assert _own_git(checkout, "status", "--porcelain") == f"M {path}"
    assert [each.name for each in sorted(checkout.iterdir())] == [".git", "lines", "link", "pkg"]


@pytest.mark.parametrize(
    "diff",
    [
        _TWICE,
        _LINK,
        _LINK.replace("l\n", "x\n") + _TWICE,
        " " + _LINK.replace("\n", "\n ").rstrip(" "),
        "--- a/link\n+++ b/link\n@@ -1 +1 @@\n-    one\n+x\n",
        "--- a/../out\n+++ b/../out\n@@ -0,0 +1 @@\n+x\n",
        "--- /dev/null\n+++ b/.git/config\n@@ -0,0 +1 @@\n+x\n",
        "--- a/.git/config\n+++ b/.git/config\n@@ -1,1 +1,2 @@\n [core]\n+x\n",
        "--- /dev/null\n+++ b/pkg/.git/hooks/post-checkout\n@@ -0,0 +1 @@\n+x\n",
        "--- lines\n+++ lines\n1d\n!touch {folder}/out\n.\n",
    ],
    ids=[
        *("half of it", "a link", "a link by patch", "indented", "through a link", "outside", "new .git"),
        *(".git/config", "nested .git", "a script for ed"),
    ],
)
def test_diff_that_does_not_fit_even_loosely_leaves_nothing(lines: Store, tmp_path: Path, diff: str) -> None:
    checkout = tmp_path / "checkout"
    with pytest.raises(GitError):
        asyncio.run(lines.patched(checkout, diff.replace("{folder}", str(tmp_path)).encode()))
    assert not [*checkout.iterdir()]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("word", ["copy from", "rename from", "rename old"])
@pytest.mark.parametrize(
    "source", ["../secret", "{folder}/secret", ".git/config", "pkg/../../secret", '"\\056\\056/secret"', "out/secret"]
)
def test_diff_takes_no_file_from_elsewhere(tmp_path: Path, word: str, source: str) -> None:
    (tmp_path / "secret").write_text("a key\n")
    tree = tmp_path / "tree"
    (tree / "pkg").mkdir(parents=True)
    (tree / "out").symlink_to(tmp_path)
    store = asyncio.run(git.stored(tree, tmp_path / "own.git"))
    source = source.format(folder=tmp_path)
    to = word.replace("from", "to").replace("old", "new")
    diff = f"diff --git a/{source} b/copy\nsimilarity index 100%\n{word} {source}\n{to} copy\n".encode()
    checkout = tmp_path / "checkout"
    with pytest.raises(GitError):
        asyncio.run(store.patched(checkout, diff))
    asyncio.run(store.checkout(checkout))
    with pytest.raises(GitError):
        asyncio.run(git.apply(diff, checkout))
    assert not (checkout / "copy").exists()
    assert (tmp_path / "secret").exists()


def test_diff_may_copy_rename_remove_and_hold_any_bytes(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    before = {"ä b.py": b"one\ntwo\nthree\n", "crlf.txt": b"one\r\ntwo\r\n", "old.bin": bytes(range(256))}
    for name, content in before.items():
        (tree / name).write_bytes(content)
    store = asyncio.run(git.stored(tree, tmp_path / "own.git"))
    changed = _checkout(store, tmp_path / "changed")
    (changed / "ä b.py").rename(changed / "ö.py")
    (changed / "crlf.txt").write_bytes(b"one\r\nzwei\r\n")
    (changed / "crlf.txt").chmod(0o755)
    (changed / "old.bin").unlink()
    (changed / "new.bin").write_bytes(bytes(range(255, -1, -1)))
    _own_git(changed, "add", "-A")
    diff = subprocess.run(
        ["git", "diff", "--cached", "--binary", "-M", "-C"], cwd=changed, check=True, capture_output=True
    ).stdout
    assert b"rename from" in diff
    checkout = tmp_path / "checkout"
    assert asyncio.run(store.patched(checkout, diff)) == git.WAYS[0]
    found = {each.name: each.read_bytes() for each in checkout.iterdir() if each.is_file()}
    assert found == {each.name: each.read_bytes() for each in changed.iterdir() if each.is_file()}
    assert (checkout / "crlf.txt").stat().st_mode & 0o111


def test_files_are_never_written_through_links(tmp_path: Path) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    tree.mkdir()
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (tree / "tests").symlink_to(outside)
    (tree / "link").symlink_to(outside / "kept")
    git.write(tree, "tests/kept", b"new")
    git.write(tree, "link", b"new")
    assert (outside / "kept").read_text() == "kept"
    assert (tree / "tests/kept").read_text() == (tree / "link").read_text() == "new"


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", ".git/config", "a/.git/hooks/x"])
def test_paths_do_not_lead_out(tmp_path: Path, path: str) -> None:
    with pytest.raises(KoderzError, match="leads out"):
        git.write(tmp_path, path, b"")


@pytest.mark.parametrize("source", ["ssh://host/x", "ext::sh -c touch% /tmp/x", "git://host/x", "-x", "http://host/x"])
def test_foreign_protocols_are_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(GitError):
        asyncio.run(git.export(source, "HEAD", tmp_path))


def test_part_of_a_repository_can_be_taken(source: tuple[Path, str], tmp_path: Path) -> None:
    below, only = tmp_path / "below", tmp_path / "only"
    below.mkdir()
    only.mkdir()
    asyncio.run(git.export(str(source[0]), source[1][:10], below, subdir="pkg"))
    asyncio.run(git.export(f"file://{source[0]}", source[1], only, paths=["pkg"]))
    assert [path.name for path in below.iterdir()] == ["code.py"]
    assert [path.name for path in only.iterdir()] == ["pkg"]


@pytest.mark.parametrize("back", ["", "^", "~1"])
def test_commit_by_its_whole_hash_is_fetched_alone(source: tuple[Path, str], tmp_path: Path, back: str) -> None:
    repository, first = Path(shutil.copytree(source[0], tmp_path / "own")), source[1]
    commit = f"{_own_git(repository, 'rev-parse', 'HEAD')}{back}" if back else first
    (repository / "other.py").write_text("other = True\n")
    _own_git(repository, "add", "-A")
    _own_git(repository, "commit", "-qm", "other")
    blob = _own_git(repository, "rev-parse", "HEAD:other.py")
    (repository / ".git/objects" / blob[:2] / blob[2:]).unlink()  # so that not all can be fetched
    tree = tmp_path / "tree"
    tree.mkdir()
    asyncio.run(git.export(f"file://{repository}", commit, tree))
    assert (tree / "pkg/code.py").read_text() == "one\n"


def test_restore_puts_back_files_links_or_nothing(tmp_path: Path) -> None:
    secret, before, tree = tmp_path / "secret", tmp_path / "before", tmp_path / "tree"
    for folder in (secret, before, tree, before / "real", tree / "tests"):
        folder.mkdir()
    (secret / "key").write_text("sk-hostile")
    (before / "file").write_text("as it was")
    (before / "link").symlink_to(secret / "key")
    (before / "tests").symlink_to(secret)
    for name in ("file", "link", "new", "tests/key"):
        (tree / name).write_text("changed")
    for name in ("file", "link", "new", "tests/key"):
        git.restore(tree, name, before)
    assert (tree / "file").read_text() == "as it was"
    assert (tree / "link").readlink() == secret / "key"
    assert (tree / "tests").readlink() == secret
    assert not (tree / "new").exists()
    with pytest.raises(KoderzError, match="leads out"):
        git.restore(tree, "../file", before)


_GIT_NAMES = [
    *("git~1", "GIT~1", ".git ", ".git.", ".git . ", ".GIT", ".Git", ".git::$INDEX_ALLOCATION", ".git:x"),
    *(".git\\x", "a\\.git\\config", ".g\u200cit", "\ufeff.git"),
]


@pytest.mark.parametrize("below", ["", "pkg/"])
@pytest.mark.parametrize("name", _GIT_NAMES)
@pytest.mark.parametrize("is_folder", [True, False], ids=["folder", "file"])
def test_name_that_git_refuses_is_removed_from_the_diff(
    store: Store, tmp_path: Path, name: str, below: str, is_folder: bool
) -> None:
    checkout = _checkout(store, tmp_path / "checkout")
    place = checkout / below / name
    if is_folder:
        place.mkdir()
    (place / "config" if is_folder else place).write_text("x")
    (checkout / "pkg/more.py").write_text("more\n")
    change = asyncio.run(store.change(checkout, MB))
    assert "+more\n" in change.diff
    assert "config" not in change.diff
    assert [line.rpartition(": ")[2] for line in change.removed] == ["git takes it for a repository's own"]
    asyncio.run(git.apply(change.diff.encode(), _checkout(store, tmp_path / "other")))


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as own, contextlib.chdir(path.parent):
        own.bind(path.name)


@pytest.mark.parametrize("make", [os.mkfifo, _socket], ids=["fifo", "socket"])
@pytest.mark.parametrize(
    ("path", "reported"), [("pkg/code.py", True), (".gitattributes", True), ("sub/.gitignore", True), ("s.sock", False)]
)
def test_special_file_is_removed_and_reported(
    store: Store, tmp_path: Path, make: Callable[[Path], None], path: str, reported: bool
) -> None:
    checkout = _checkout(store, tmp_path / "checkout")
    (checkout / "sub").mkdir()
    (checkout / "sub/new").write_text("new\n")
    (checkout / path).unlink(missing_ok=True)
    make(checkout / path)
    change = asyncio.run(store.change(checkout, MB))
    assert ("deleted file" in change.diff) == (path in ("pkg/code.py", ".gitattributes"))
    assert "+new\n" in change.diff
    assert [*change.removed] == [f"{path}: neither a file, a folder nor a link"] * reported


@pytest.mark.parametrize("target", ["../.git", "/", "nowhere"])
def test_link_named_like_a_repository_hides_nothing(store: Store, tmp_path: Path, target: str) -> None:
    checkout = _checkout(store, tmp_path / "checkout")
    (checkout / "sub").mkdir()
    (checkout / "sub/new").write_text("new\n")
    (checkout / "sub/.git").symlink_to(target)
    change = asyncio.run(store.change(checkout, MB))
    assert "+new\n" in change.diff
    assert change.removed == ["sub/.git: git takes it for a repository's own"]
    assert (checkout / ".git/HEAD").exists()


@pytest.mark.parametrize("name", [".gitmodules", ".GITMODULES", "gitmod~1"])
def test_link_in_the_place_of_settings_is_removed(store: Store, tmp_path: Path, name: str) -> None:
    checkout = _checkout(store, tmp_path / "checkout")
    (checkout / name).symlink_to("/etc/passwd")
    change = asyncio.run(store.change(checkout, MB))
    assert change.diff == ""
    assert change.removed == [f"{name}: git takes no link for it"]


def test_worktree_or_clone_within_loses_its_git_alone(store: Store, tmp_path: Path) -> None:
    checkout = _checkout(store, tmp_path / "checkout")
    for name in ("clone", "deep/er"):
        (checkout / name).mkdir(parents=True)
        (checkout / name / "new").write_text(f"{name}\n")
    _own_git(checkout / "clone", "init", "-q")
    (checkout / "deep/er/.git").write_text("gitdir: /nowhere\n")
    change = asyncio.run(store.change(checkout, MB))
    assert [*change.removed] == []
    assert "+clone\n" in change.diff
    assert "+deep/er\n" in change.diff


@pytest.mark.parametrize("where", ["new", "pkg/code.py"])
def test_file_that_is_too_large_is_not_read_by_git(
    store: Store, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sparse file takes no disk, and a minute of git's time. Ignored ones don't count."""
    checkout = _checkout(store, tmp_path / "checkout")
    with (checkout / "sparse.log").open("wb") as file:
        file.truncate(1 << 30)
    assert asyncio.run(store.change(checkout, MB)).diff == ""
    with (checkout / where).open("wb") as file:
        file.truncate(1 << 30)
    asked = list[str]()
    real = git._git

    async def _git(*words: str, **more: Any) -> bytes:
        asked.append(words[0])
        return await real(*words, **more)

    monkeypatch.setattr(git, "_git", _git)
    with pytest.raises(DiffTooLargeError):
        asyncio.run(store.change(checkout, MB))
    assert "update-index" not in asked


def test_files_above_the_limit_are_not_read_by_git(store: Store, tmp_path: Path) -> None:
    checkout = _checkout(store, tmp_path / "checkout")
    for number in range(50):
        (checkout / f"empty{number}").touch()
    with pytest.raises(DiffTooLargeError):
        asyncio.run(store.change(checkout, 4096))
    assert asyncio.run(store.change(checkout, MB)).diff.count("new file mode") == 50


@pytest.mark.slow
def test_folders_deeper_than_any_path_are_removed(store: Store, tmp_path: Path) -> None:
    checkout = _checkout(store, tmp_path / "checkout")
    (checkout / "new").write_text("new\n")
    (checkout / "locked").mkdir()
    (checkout / "locked/git~1").touch()
    (checkout / "locked").chmod(0)
    deep = os.open(checkout, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    change = asyncio.run(store.change(checkout, MB))
    assert "+new\n" in change.diff
    assert [line.rpartition(": ")[2] for line in change.removed] == ["too deep", "git takes it for a repository's own"]
    remove(checkout)
    assert not checkout.exists()
