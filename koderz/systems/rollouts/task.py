"""A rollout's task, independent of the format in which it was written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from koderz.sandbox.workspace import Image, Limits, Services
from koderz.systems.workspaces.scripts import Script

if TYPE_CHECKING:
    from koderz.systems.rollouts.additions import Addition
    from koderz.systems.rollouts.dockerfiles import Build
    from koderz.systems.rollouts.swebench import Instance

Format = Literal["tb", "harbor", "terminal-bench", "swebench", "evals"]


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
class Network:
    """The network that a phase of a task asks for."""

    mode: Literal["public", "no-network", "allowlist"] = "public"
    allowed_hosts: tuple[str, ...] = ()  # hosts, `*.HOST`, addresses and CIDR ranges


@dataclass(frozen=True, slots=True)
class RequestedResources:
    """The resources that a task asks for. None: it asks for no amount of it."""

    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: str = ""  # as TYPE:COUNT, or COUNT where any type will do


@dataclass(frozen=True, slots=True)
class Healthcheck:
    """A command that is run until it ends with 0. Times are seconds."""

    command: str
    interval: float = 5.0
    seconds: float = 30.0  # of one time
    start_period: float = 0.0  # in which failures don't count
    start_interval: float = 5.0
    retries: int = 3  # failures in a row


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file or folder that travels from where the agent worked to a separate verifier, and is kept."""

    source: str  # a path there; a relative one begins in WORKDIR
    # below the folder of artifacts that is kept; empty: the source's own path
    destination: str = ""
    exclude: tuple[str, ...] = ()  # patterns of names, as of `tar --exclude`


PUBLISHED = Artifact("/logs/artifacts")
"""The folder that always travels."""


@dataclass(frozen=True, slots=True)
class CollectHook:
    """A command that is run where the agent worked, once it has ended and before artifacts are collected."""

    command: str
    seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Verifier:
    """The tests that a task brings along as a script of its own, and the environment in which they run."""

    # the task's own test script; None: it is in the verifier's image, or missing
    script: Path | None = None
    name: str = "tests/test.sh"  # of that script, from the task's folder
    is_apart: bool = False  # whether that script lies elsewhere than in /tests
    by_status: bool = False  # whether ending with 0 is what passes; else it writes rewards
    tests: tuple[Path, ...] = ()  # folders that are put into /tests, later ones over earlier ones
    # besides that of the machine it runs on
    environment: Mapping[str, str] = field(default_factory=dict)
    network: Network | None = None  # None: that of the machine
    collect: tuple[CollectHook, ...] = ()
    is_separate: bool = False  # whether it has a machine of its own, which gets the artifacts alone
    # of a separate one, which has /tests/test.sh itself; None: the agent's anew
    image: Image | str | None = None
    steps: tuple[Step, ...] = ()  # of a separate one's Dockerfile: what is copied to /tests
    refused: str = ""  # why only the image of that Dockerfile will do
    installs: tuple[str, ...] = ()  # the Python packages that it installs, as pip takes them
    programs: tuple[str, ...] = ()  # and its Debian packages
    workdir: str = ""  # of a separate one; empty: the agent's
    workdir_of_image: bool = False  # whether `workdir` stands in for that of its image
    made: Environment | None = None  # what its image is made of here
    asked: RequestedResources = field(default_factory=RequestedResources)  # of a separate one
    healthcheck: Healthcheck | None = None  # of a separate one

    @property
    def has_script(self) -> bool:
        """Whether there is a test script, if only in its image."""
        return bool(self.script or self.image)


@dataclass(frozen=True, slots=True)
class Need:
    """A part of a task that not every sandbox can honour."""

    where: str  # the file, and what it says there: `…/task.toml: environment.gpus = 2`
    machine: str  # the one that could, as it completes `… needs`
    sandboxes: tuple[str, ...] = ()  # that could
    image: str = ""  # the image by which others could, too


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment that the lines of a Dockerfile make without Docker."""

    name: str  # of the image that it is, once it is built
    build: Build
    bases: Mapping[str, str]  # the image, by its name in the Dockerfile, or this machine's programs
    notes: tuple[str, ...] = ()  # what is another than with Docker, a line each
    packages: Path | None = None
    is_online: bool = False  # whether lines may reach the network while they are followed
    layer_mb: int = 8192  # the most that a layer takes


@dataclass(frozen=True, slots=True)
class Stage:
    """One of the steps of a task, which an agent works on one after the other in one environment."""

    name: str
    # the task as it is in this step: its instructions, time, verifier, artifacts and solution
    task: Rollout
    # a folder whose files are laid into WORKDIR before; its setup.sh is run there
    upload: Path | None = None
    # below which no later step is begun
    min_reward: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SkillEval:
    """The part of a skill's eval that only its judge sees."""

    skill: str  # its name
    expected_output: str
    expectations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rollout:
    """A task as an agent gets it, with the parts known only to grading."""

    folder: Path
    format: Format  # for the record: the format's reader sets all that depends on it
    id: str
    title: str
    instructions: str
    repo: Repo = field(default_factory=Repo)
    # laid over the repository: a file, or its text
    files: Mapping[str, Path | str] = field(default_factory=dict)
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
    # folders and files of the host that the agent sees, read-only
    agent_mounts: tuple[str, ...] = ()
    # what its arm and the task itself give its agent
    additions: tuple[Addition, ...] = field(default=(), repr=False)
    max_diff_mb: int | None = None  # the largest diff that is graded; None: the run's
    test_seconds: float = 600.0  # of a task whose tests aren't scripts of pytest
    metrics: str = ""  # a command that prints metrics of the task's own
    details: Mapping[str, Any] = field(default_factory=dict)  # repo_info.json
    digest: str = ""
    # its digest before its entry's settings; empty: no entry names it
    base: str = field(default="", repr=False)
    image_digest: str = ""  # of what its image is made of
    sandbox: str = ""  # the backend that its entry names; empty: the run's
    # the digest of the task that it is a step of; empty: of none
    whole: str = field(default="", repr=False)
    base_image: str = field(default="", repr=False)  # that its Dockerfile begins with
    # by its ENV, which its image has already
    stated: Mapping[str, str] = field(default_factory=dict, repr=False)
    # of a published image; empty: that of the Dockerfile
    image_name: str = field(default="", repr=False)
    # whether `workdir` stands in for the image's own
    workdir_of_image: bool = field(default=False, repr=False)
    made: Environment | None = field(default=None, repr=False)  # what its image is made of here
    network: Network = field(default_factory=Network, repr=False)  # of the agent
    asked: RequestedResources = field(default_factory=RequestedResources, repr=False)
    healthcheck: Healthcheck | None = field(default=None, repr=False)  # before anybody works
    artifacts: tuple[Artifact, ...] = field(default=(), repr=False)  # besides PUBLISHED
    # None: its tests are scripts of pytest
    verifier: Verifier | None = field(default=None, repr=False)
    # its script, whose folder is shown at /solution
    solution: Path | None = field(default=None, repr=False)
    # the human's, where the solution is no script
    solution_diff: Path | None = field(default=None, repr=False)
    solution_environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    # empty: the task is one piece of work
    stages: tuple[Stage, ...] = field(default=(), repr=False)
    rewards_of: Literal["mean", "final"] = field(default="mean", repr=False)  # its stages
    needs: tuple[Need, ...] = field(default=(), repr=False)
    instance: Instance | None = field(default=None, repr=False)  # of SWE-bench
    # without scripts the role judge makes the verdict
    skill_eval: SkillEval | None = field(default=None, repr=False)
    # a folder of packages that its verifier may install
    wheels: str = field(default="", repr=False)
    # the id of the task that it is an impossible variant of
    canary_of: str = field(default="", repr=False)
    # before the run's own resources; None: it has none
    published: Rollout | None = field(default=None, repr=False)
    # of its Dockerfile's folder: tests and solutions
    hidden_files: tuple[str, ...] = field(default=(), repr=False)
    # whether its checkout has what its image has in WORKDIR
    has_tree_of_image: bool = field(default=False, repr=False)
    # whether its files can say which network it has
    states_network: bool = field(default=False, repr=False)
    publishes: bool = field(default=False, repr=False)  # whether PUBLISHED travels
    takes_overrides: bool = field(default=False, repr=False)
    # of its files, that nothing reads
    ignored_keys: tuple[str, ...] = field(default=(), repr=False)
    services: Services | None = field(default=None, repr=False)  # beside the agent's
    # of `context`, each with its place
    mounted: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    # of its file or row, by which it is clustered
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def source(self) -> str:
        """Its repository's URL, or path on this machine; empty if it has none."""
        url = self.repo.git_url
        return url if "://" in url or not url else os.path.join(os.path.abspath(self.folder), url)  # noqa: PTH100, PTH118

    @property
    def hidden(self) -> tuple[str, ...]:
        """The files in its folder that no agent may see and no image may include."""
        return (
            *self.hidden_files,
            *(script.content_file for script in self.scripts if script.content_file),
        )

    @property
    def image(self) -> Image | str | None:
        """The image that it names, else that of its Dockerfile."""
        if self.image_name:
            return self.image_name
        if self.context is None:
            return None
        return Image(self.context, self.image_digest, hidden=self.hidden, environment=self.stated)

    def limits(self, seconds: float, memory_mb: int | None = None) -> Limits:
        """The limits of a command of the task. `memory_mb`: where it asks for no amount."""
        usual, asked = Limits(), self.asked
        return Limits(
            seconds=seconds,
            cpus=asked.cpus or 0.0,
            memory_mb=asked.memory_mb or memory_mb or usual.memory_mb,
            disk_mb=asked.storage_mb or usual.disk_mb,
        )

    @property
    def is_online(self) -> bool:
        """Whether the run gives it the public network that it asks for."""
        return self.published is not None and self.network.mode == "public"

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """The hosts of its allowlist that the run lets it reach."""
        return (
            self.network.allowed_hosts
            if self.published is not None and self.network.mode == "allowlist"
            else ()
        )

    @property
    def verifying(self) -> Rollout:
        """The task with the network and resources of its verifier."""
        if self.verifier is None:
            return self
        network, own = self.verifier.network or self.network, self.verifier.is_separate
        return replace(self, network=network, asked=self.verifier.asked if own else self.asked)


def in_parts(task: Rollout, change: Callable[[Rollout], Rollout]) -> Rollout:
    """The task with a change made to it, and to it as it is in each of its steps."""
    stages = tuple(replace(stage, task=change(stage.task)) for stage in task.stages)
    return replace(change(task), stages=stages)


def with_digest(task: Rollout, digest: str) -> Rollout:
    """The task with a digest, of which those of its steps are made."""

    def of_step(stage: Stage) -> Stage:
        own = hashlib.sha256(f"{digest}\0{stage.name}".encode()).hexdigest()[:16]
        image = task.image_digest
        return replace(
            stage, task=replace(stage.task, digest=own, whole=digest, image_digest=image)
        )

    return replace(task, digest=digest, stages=tuple(map(of_step, task.stages)))
