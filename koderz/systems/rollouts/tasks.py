"""A rollout's task, independent of the format in which it was written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from koderz.sandbox.workspace import Image
from koderz.sandbox.workspace.scripts import Script

Format = Literal["tb", "harbor", "terminal-bench"]

SOLUTION = "overlay_files/diff.patch"
"""The path of the human's diff, below the folder of a task of the format tb."""

HIDDEN: Mapping[Format, tuple[str, ...]] = {
    "tb": ("tb_meta.json", "overrides.json", SOLUTION),
    "harbor": (),
    "terminal-bench": ("tests", "run-tests.sh", "solution.sh", "solution.yaml"),
}
"""Files of a Dockerfile's folder that no image includes, since agents would find them: tests and solutions."""

OWN_TESTS: Mapping[Format, str] = {"harbor": "tests/test.sh", "terminal-bench": "run-tests.sh"}
"""The test script in a task's folder, for formats without pytest scripts."""


@dataclass(frozen=True, slots=True)
class Repo:
    """The source of a task's files."""

    git_url: str = ""  # empty: there are none but those of the task's folder
    branch: str = ""
    start_commit_sha: str = ""
    end_commit_sha: str = ""  # the human's answer, which nobody is shown
    subdir: str = ""
    sparse_checkout: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rubric:
    """A criterion for scoring the work, with its weight."""

    id: str
    criterion: str = ""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """A line of a Dockerfile that is followed on the host's userland."""

    word: Literal["COPY", "RUN"]
    text: str  # of RUN: the command; of COPY: the target, from the checkout
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rollout:
    """A task as an agent gets it, with the parts known only to grading."""

    folder: Path
    format: Format
    id: str
    title: str
    instructions: str
    repo: Repo = field(default_factory=Repo)
    files: Mapping[str, Path | str] = field(default_factory=dict)  # laid over the repository: a file, or its text
    removed: tuple[str, ...] = ()  # names, `dir/` and globs
    injected: Mapping[str, str] = field(default_factory=dict)
    rubrics: tuple[Rubric, ...] = ()
    scripts: tuple[Script, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/workspace"  # where the checkout is seen
    context: Path | None = None  # of the Dockerfile, if there is one
    steps: tuple[Step, ...] = ()
    refused: str = ""  # why only the image of the Dockerfile will do
    agent_seconds: float = 1800.0
    agent_mounts: tuple[str, ...] = ()  # folders and files of the host that the agent sees, read-only
    max_diff_mb: int | None = None  # the largest diff that is graded; None: the run's
    test_seconds: float = 600.0  # of a task whose tests aren't scripts of pytest
    metrics: str = ""  # a command that prints metrics of the task's own
    details: Mapping[str, Any] = field(default_factory=dict)  # repo_info.json
    digest: str = ""
    base: str = field(default="", repr=False)  # its digest before its entry's settings; empty: no entry names it
    image_digest: str = ""  # of what its image is made of
    sandbox: str = ""  # the backend that its entry names; empty: the run's

    @property
    def source(self) -> str:
        """Its repository's URL, or path on this machine; empty if it has none."""
        url = self.repo.git_url
        return url if "://" in url or not url else os.path.join(os.path.abspath(self.folder), url)  # noqa: PTH100, PTH118

    @property
    def hidden(self) -> tuple[str, ...]:
        """The files in its folder that no agent may see and no image may include."""
        return (*HIDDEN[self.format], *(script.content_file for script in self.scripts if script.content_file))

    @property
    def image(self) -> Image | None:
        """The image of its Dockerfile."""
        return Image(self.context, self.image_digest, hidden=self.hidden) if self.context else None
