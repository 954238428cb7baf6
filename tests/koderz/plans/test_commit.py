from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from koderz.plans.commit import commit_of


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    done = subprocess.run(["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of two files and a link, with a commit."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "a.txt").write_text("one\n")
    (folder / "ümlaut name.txt").write_text("two\n")
    (folder / "link").symlink_to("a.txt")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def modified(folder: Path) -> None:
    (folder / "ümlaut name.txt").write_text("three\n")


def modified_in_its_size(folder: Path) -> None:
    (folder / "a.txt").write_text("eno\n")
    os.utime(folder / "a.txt", (1, 1))


def staged(folder: Path) -> None:
    (folder / "new.txt").write_text("new\n")
    git(folder, "add", "new.txt")


def deleted(folder: Path) -> None:
    (folder / "a.txt").unlink()


def linked_elsewhere(folder: Path) -> None:
    (folder / "link").unlink()
    (folder / "link").symlink_to("b.txt")


def made_a_pipe(folder: Path) -> None:
    deleted(folder)
    os.mkfifo(folder / "a.txt")


@pytest.mark.parametrize("change", [modified, modified_in_its_size, staged, deleted, linked_elsewhere, made_a_pipe])
def test_changed_files_are_told(repository: Path, change: Callable[[Path], None]) -> None:
    assert commit_of(repository) == (git(repository, "rev-parse", "HEAD"), False)
    change(repository)
    assert commit_of(repository) == (git(repository, "rev-parse", "HEAD"), True)


def test_touched_and_untracked_files_change_nothing(repository: Path) -> None:
    os.utime(repository / "a.txt", (1, 1))
    (repository / "untracked.txt").write_text("")
    below = repository / "below"
    below.mkdir()
    assert commit_of(below) == (git(repository, "rev-parse", "HEAD"), False)


def test_no_commit_is_none(tmp_path: Path) -> None:
    assert commit_of(tmp_path / "missing") == commit_of(tmp_path) == (None, False)
    git(tmp_path, "init", "-q")
    assert commit_of(tmp_path) == (None, False)


def monitor(folder: Path, run: str) -> None:
    git(folder, "config", "core.fsmonitor", run)


def included(folder: Path, run: str) -> None:
    (folder / "more").write_text(f'[core]\n\tfsmonitor = "{run}"\n')
    git(folder, "config", "include.path", str(folder / "more"))


def hook(folder: Path, run: str) -> None:
    (folder / "hooks").mkdir()
    for name in ("post-index-change", "post-checkout", "reference-transaction"):
        (folder / "hooks" / name).write_text(f"#!/bin/sh\n{run}\n")
        (folder / "hooks" / name).chmod(0o755)
    git(folder, "config", "core.hooksPath", "hooks")


def content_filter(folder: Path, run: str) -> None:
    (folder / ".git/info/attributes").write_text("* filter=x diff=x\n")
    for name in ("filter.x.clean", "filter.x.process", "diff.x.textconv", "diff.x.command", "diff.external"):
        git(folder, "config", name, run)


def promised(folder: Path, run: str) -> None:
    """Objects that a remote promises, which is a program."""
    for path in folder.glob(".git/objects/??/*"):
        if git(folder, "cat-file", "-t", path.parent.name + path.name) == "tree":
            path.unlink()
    git(folder, "config", "extensions.partialClone", "away")
    git(folder, "config", "core.repositoryFormatVersion", "1")
    git(folder, "config", "remote.away.url", f"ext::sh -c '{run}'")
    git(folder, "config", "remote.away.promisor", "true")
    git(folder, "config", "protocol.ext.allow", "always")


@pytest.mark.parametrize("attack", [monitor, included, hook, content_filter, promised])
def test_programs_that_a_repository_names_are_not_run(
    repository: Path, tmp_path: Path, attack: Callable[[Path, str], None]
) -> None:
    commit, hit = git(repository, "rev-parse", "HEAD"), tmp_path / "hit"
    attack(repository, f"touch {hit}; false")
    os.utime(repository / "a.txt", (1, 1))

    assert commit_of(repository)[0] == commit

    assert not hit.exists()
    subprocess.run(["git", "-C", str(repository), "status"], capture_output=True, check=False)
    if attack is not promised:  # `status` asks for no tree here
        assert hit.exists() or attack is hook, "the attack would do nothing to anybody"


def test_programs_of_a_bare_repository_in_a_tree_are_not_run(repository: Path, tmp_path: Path) -> None:
    """A clone can carry a bare repository as files, which Git finds where it is started in their folder."""
    inner, hit = tmp_path / "clone", tmp_path / "hit"
    (repository / ".git").rename(inner)
    (tmp_path / "tree").mkdir()
    for name, value in (("bare", "false"), ("worktree", "../tree"), ("fsmonitor", f"touch {hit}; false")):
        subprocess.run(["git", "config", "--file", str(inner / "config"), f"core.{name}", value], check=True)

    commit_of(inner)

    assert not hit.exists()
    subprocess.run(["git", "-C", str(inner), "status"], capture_output=True, check=False)
    assert hit.exists(), "the attack would do nothing to anybody"
