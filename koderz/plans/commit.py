"""The commit of the working folder, read without running anything that the folder's repository names.

A repository's configuration can name programs: file system monitors, hooks, filters, helpers of remotes. `git status`
runs them, and a folder that came from elsewhere brings its repository along. So no command here looks at the files of
the work tree, and what has changed in them is told from the index.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
from pathlib import Path

_SECONDS = 5.0
_LARGEST = 1 << 26  # bytes of a touched file that is read
_SETTINGS = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "safe.bareRepository=explicit")
_ENVIRONMENT = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
_ENTRY = re.compile(
    rb"(\d+) ([0-9a-f]+) (\d)\t([^\0]+)\0\s*ctime: \d+:\d+\s*mtime: (\d+):(\d+)[^\0]*?size: (\d+)\t[^\n]*\n"
)
"""A line of `git ls-files --stage --debug -z`: mode, blob, stage, path, seconds, nanoseconds, bytes."""


def commit_of(folder: Path) -> tuple[str | None, bool]:
    """The commit that is checked out in a folder, and whether tracked files differ from it.

    None and False without Git or a repository, or where Git doesn't answer within 5 seconds. A file that was touched
    and that a filter of Git's changes, such as one with other line ends, counts as differing.
    """
    try:
        told = os.fsdecode(_git(folder, "rev-parse", "--show-toplevel", "HEAD^0")).removesuffix(
            "\n"
        )
    except (OSError, subprocess.SubprocessError):
        return None, False
    place, _, commit = told.rpartition("\n")
    top = Path(place)
    try:
        staged = _git(
            folder,
            "diff-index",
            "--cached",
            "--raw",
            "--no-ext-diff",
            "--ignore-submodules=all",
            "HEAD",
        )
        entries = _ENTRY.findall(_git(top, "ls-files", "--stage", "--debug", "-z"))
    except (OSError, subprocess.SubprocessError):
        return commit, False
    return commit, bool(staged) or any(_differs(top, *entry) for entry in entries)


def _git(folder: Path, *words: str) -> bytes:
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    command = ["git", "--no-pager", *settings, *words]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_SECONDS,
        check=True,
    ).stdout


def _differs(
    top: Path,
    mode: bytes,
    blob: bytes,
    stage: bytes,
    path: bytes,
    seconds: bytes,
    nanoseconds: bytes,
    size: bytes,
) -> bool:
    """Whether a tracked file isn't what the index says: by its size and time, else by its content."""
    if mode == b"160000":  # a submodule
        return False
    if stage != b"0":  # a conflict
        return True
    file = top / os.fsdecode(path)
    try:
        found = file.lstat()
        if (found.st_size, found.st_mtime_ns) == (
            int(size),
            int(seconds) * 10**9 + int(nanoseconds),
        ):
            return False
        if stat.S_ISLNK(found.st_mode):
            content = os.fsencode(os.readlink(file))  # noqa: PTH115 a Path would lose a leading "./"
        elif stat.S_ISREG(found.st_mode) and found.st_size <= _LARGEST:
            content = file.read_bytes()
        else:
            return True
    except OSError:
        return True
    digest = hashlib.sha1 if len(blob) == 40 else hashlib.sha256  # the two that Git has for objects
    return digest(b"blob %d\0%b" % (len(content), content)).hexdigest().encode() != blob
