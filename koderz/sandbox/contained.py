"""The default sandbox on Linux: verdicts that no candidate can forge, contained without root or Docker.

A judge process holds the tests; candidates are forked from a warm interpreter that has never seen
them, and are asked for results, which come back as plain data. `passed` means that the tests returned
and had called the candidate.
"""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
from collections.abc import Collection, Iterable, Sequence
from typing import ClassVar, Self

from koderz.errors import Fault, KoderzError, Unreachable
from koderz.sandbox import ROOM_MB, DockerOptions, Job, JobResult, Opening, Sandbox
from koderz.sandbox.judge.jobs import FAULT
from koderz.sandbox.judge.pool import Pool, Premises
from koderz.sandbox.linux import isolation
from koderz.sandbox.once import Once

NEAR = 0.2  # of the limit: a verdict this close to it is reached again, alone, before it counts
WALL_FACTOR, WALL_EXTRA = 5.0, 1.0  # wall limit in CPU limits, and in seconds: a back-stop


class ContainedSandbox(Sandbox):
    """Judges with `judges` warm workers.

    `packages` names what candidates may import beyond the standard library. `speed` scales every
    limit of CPU, for a machine slower than the one they were meant for; see `calibration`. `uncontained` lets programs
    run where the kernel holds nothing back; without it that is Unreachable. `premises` stand in for layers and
    packages where candidates run in a container. `wall_extra` is how many seconds a candidate may be kept waiting
    beyond what its CPU takes.
    """

    name = "contained"
    is_calibrated = True

    @classmethod
    def open(cls, wanted: Opening) -> ContainedSandbox:
        """The sandbox, with so many judges."""
        return cls(judges=wanted.judges, uncontained=wanted.uncontained, yields=wanted.yields)

    def __init__(
        self,
        *,
        judges: int,
        packages: Sequence[str] = (),
        layers: Sequence[str] = isolation.LAYERS,
        uncontained: bool = False,
        speed: float = 1.0,
        premises: Premises | None = None,
        wall_extra: float = WALL_EXTRA,
        yields: bool = False,
    ) -> None:
        self.isolation = ""
        self.speed = speed
        self._pool = Pool(
            judges, premises or Premises(layers, dict(_located(packages)), yields=yields)
        )
        self._wall_extra = wall_extra
        self._uncontained = uncontained
        self._once: Once[JobResult] = Once()

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        try:
            self.isolation = self._held_by(self._pool.layers)
        except Unreachable:
            await self._pool.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._once.cancel()
        await self._pool.__aexit__()

    def _held_by(self, layers: Collection[str]) -> str:
        """The isolation level. Raises Unreachable if it doesn't contain a program."""
        if not (self._uncontained or isolation.contained(layers)):
            raise Unreachable(
                "this machine has no Landlock and seccomp to contain other people's programs. Run them in containers "
                "with --sandbox docker; or with --sandbox uncontained, where they have your own rights, could read, "
                "send or delete what you can, and could forge verdicts"
            )
        return isolation.label(layers)

    async def judge(self, job: Job) -> JobResult:
        """Judges a job, an equal one only once. Raises Fault, see `Sandbox`."""
        digest = hashlib.blake2b(marshal.dumps(tuple(job), 2), digest_size=16).digest()
        return await self._once(digest, lambda: self.judge_anew(job))

    async def judge_anew(self, job: Job) -> JobResult:
        """Judges a job even if an equal one was judged before."""
        limit = job.timeout * self.speed
        found = await self._pool.run(self._limited(job, limit * (1 + NEAR)))
        if _is_near(found, limit):
            found = await self._pool.run_alone(self._limited(job, limit))
        if found.cause == FAULT:
            raise Fault(found.message, cause="sandbox")
        # halves of characters fit no journal
        message = found.message.encode("utf-8", "backslashreplace").decode()
        level = f"{self.isolation}, {found.isolation}" if found.isolation else self.isolation
        return found._replace(message=message, isolation=level)

    def _limited(self, job: Job, cpu: float) -> Job:
        case = job.case_timeout * self.speed
        wall = (case or cpu * WALL_FACTOR) + self._wall_extra
        return job._replace(
            timeout=cpu, wall=wall, call_timeout=job.call_timeout * self.speed, case_timeout=case
        )


class RemoteSandbox(ContainedSandbox):
    """Judges here, with candidates in containers or on other machines, which the isolation level names."""

    places: ClassVar[str]  # as users are told of them

    def _held_by(self, layers: Collection[str]) -> str:
        # without it, one candidate could answer in another's place
        if isolation.SECCOMP not in layers:
            raise Unreachable(
                f"--sandbox {self.name}: {self.places} refuse seccomp, which keeps candidates apart"
            )
        return self.name


class UncontainedSandbox(ContainedSandbox):
    """Judges here, with whatever layers the kernel has, be it none."""

    name = "uncontained"

    @classmethod
    def open(cls, wanted: Opening) -> UncontainedSandbox:
        """The sandbox."""
        return cls(judges=wanted.judges, uncontained=True, yields=wanted.yields)


class DockerSandbox(RemoteSandbox):
    """Judges on `judges` warm containers of `image`, which has to hold Python 3.11 or later as `python`.

    It is for where the kernel has no Landlock, or isn't Linux. The judge stays outside with its tests; in a container,
    which lives as long as its judge, candidates are forked, one after the other, from a warm interpreter of the image.
    Nothing of this machine is mounted there, and its code comes in by stdin. When that ends, also because the judge was
    killed, so does the container, and is removed. Entering raises Unreachable where Docker or the image is missing:
    nothing is ever pulled.
    """

    name = "docker"
    places = "the containers here"
    options = DockerOptions

    @classmethod
    def open(cls, wanted: Opening) -> DockerSandbox:
        """The sandbox, on the image of the options."""
        image = (wanted.options or DockerOptions()).docker_image
        return cls(judges=wanted.judges, image=image, memory_mb=wanted.memory_mb)

    def __init__(self, *, judges: int, image: str, memory_mb: int = 1024) -> None:
        from koderz.sandbox.docker import CLIENTS, PASSED  # whose interpreter no other judge needs

        self._client = CLIENTS[self.name]
        command = self._client.container(image, memory_mb + ROOM_MB)
        super().__init__(
            judges=judges, premises=Premises(isolation.LAYERS, {}, command, passed=PASSED)
        )
        self._image = image

    async def __aenter__(self) -> Self:
        await self._client.version_with(self._image)
        return await super().__aenter__()


class PodmanSandbox(DockerSandbox):
    """The same in containers of podman, which needs no daemon."""

    name = "podman"


def _is_near(found: JobResult, limit: float) -> bool:
    """Whether a verdict may be due to a slow machine: a candidate that also exceeded the longer limit is certain."""
    if found.cause == "cpu":
        return False
    return found.cpu >= limit * (1 - NEAR) or (found.cause == "wall" and found.cpu >= limit * NEAR)


def _located(packages: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Name and folder of each package, and of the shared libraries that wheels put beside it."""
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise KoderzError(f"the suite needs the package {name}, which isn't installed")
        yield name, spec.submodule_search_locations[0]
