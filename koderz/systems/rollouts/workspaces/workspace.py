"""The workspace of one experiment, in which an agent works."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from koderz.errors import Fault, KoderzError
from koderz.sandbox.once import Once
from koderz.sandbox.workspace import Backend, Command, Launch, Mount
from koderz.settings.schema import Settings
from koderz.systems.rollouts.additions import Addition
from koderz.systems.rollouts.environments.trees import prepared, shown
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.task import Healthcheck, Rollout, Stage
from koderz.systems.rollouts.workspaces.afresh import Terms, Work
from koderz.systems.rollouts.workspaces.artifacts import (
    Collected,
    collect,
    destinations_of,
    lay,
    published,
    travels,
)
from koderz.systems.rollouts.workspaces.machines import require_healthy
from koderz.systems.workspaces import git
from koderz.systems.workspaces.folders import TREE, files_below, new_path
from koderz.systems.workspaces.images import ImageStore
from koderz.systems.workspaces.local import Local
from koderz.systems.workspaces.opening import open_workspaces

if TYPE_CHECKING:
    from koderz.systems.rollouts.agents.servers import Servers, Tool
    from koderz.systems.rollouts.swebench.judging import InstanceJudge

_LEAST_FREE = 64 << 20  # bytes of disk below which git fails by no doing of an agent's
_LARGEST_EDIT = 64 << 20  # bytes
_VERSION = re.compile(r"\d+\.\d+(?:[.+-]?\w+)*")
_VERSION_SECONDS = 60.0
_SETUP_SECONDS = 600.0
_SHOWN = 16_000  # characters of a command's output that an agent is told


def _seen(folders: Iterable[str]) -> list[Mount]:
    """Files and folders of this machine that a command sees in their own places."""
    return [Mount(Path(folder), folder) for folder in folders]


def _shown(output: str, status: int, cause: str) -> dict[str, Any]:
    """The result of what an agent did, `whole` beside an output that is cut."""
    if len(output) <= _SHOWN:
        return {"output": output, "status": status, "cause": cause}
    half = _SHOWN // 2
    cut = f"{output[:half]}\n[…]\n{output[-half:]}"
    return {"output": cut, "status": status, "cause": cause, "whole": output}


@dataclass(slots=True)
class Stores:
    """The repositories of tasks, each prepared once."""

    # by name; empty: the run's
    backends: dict[str, Backend] = field(default_factory=lambda: {"": Local()})
    _made: dict[str, asyncio.Task[git.Store]] = field(default_factory=dict)
    # of agents, by sandbox and command
    versions: dict[tuple[str, ...], str] = field(default_factory=dict)
    # terms on which tasks are graded, by digest and sandbox
    terms: Once[Terms] = field(default_factory=Once)
    # they remember how instances are judged there
    judges: dict[Backend, InstanceJudge] = field(default_factory=dict)

    def backend_of(self, task: Rollout) -> Backend:
        """The backend that runs the task's commands."""
        return self.backends[task.sandbox if task.sandbox in self.backends else ""]

    async def of(self, task: Rollout) -> git.Store:
        """The repository of a task. Raises Fault if it can't be prepared."""
        digest = task.whole or task.digest
        making = self._made.get(digest)
        if making is None or (making.done() and (making.cancelled() or making.exception())):
            folder = new_path(f"store-{digest}")
            making = self._made[digest] = asyncio.create_task(
                prepared(task, folder, self.backend_of(task))
            )
        return await asyncio.shield(making)


async def at_once(_name: str, make: Any, **_: object) -> Any:
    """`once` where nothing is recorded."""
    return await make()


def open_backend(sandbox: str, settings: Settings, images: ImageStore) -> Backend:
    """The backend of a sandbox, which takes images from `images` where it has no daemon. It isn't entered yet.

    Raises KoderzError for an unknown sandbox, and as its `open_workspaces`.
    """
    backend = open_workspaces(sandbox, settings)
    if isinstance(backend, Local):
        backend.images = images
    return backend


class Workspace:
    """A checkout in which an agent works. Its actions are recorded, and repeated only if necessary.

    In a replay every command is answered from the record; the commands run once something new is asked for, in a fresh
    checkout and in their order.
    """

    def __init__(
        self,
        task: Rollout,
        stores: Stores,
        place: Path,
        once: Any,
        own: RolloutsOptions,
        reused: Callable[[], int] = int,
    ) -> None:
        self._task, self._stores, self._place, self._once = task, stores, place, once
        self._whole = task  # of which the task may be a step by now
        self._store: git.Store | None = None
        self._reused = reused  # how many replies were on record
        self._limits = task.limits(task.agent_seconds, own.agent_memory)
        self._most = (task.max_diff_mb or own.max_diff_mb) << 20
        self._seconds = task.agent_seconds
        self._begun, self._step = False, ""  # whether a step was begun; the one that is worked on
        self._before_step = 0.0  # seconds of those before it
        # the numbers of MCP servers, of each work of an agent
        self.servers: list[Mapping[str, Any]] = []
        self._served = AsyncExitStack()  # by which the MCP servers of koderz' own agent end
        self._mcp: Servers
        self._tools: Mapping[str, Tool]
        self._pending: list[Callable[[], Awaitable[Any]]] = []
        self.message = ""  # the agent's last one
        self._removed: tuple[str, ...] = ()  # files, so that its diff could be taken
        self.collected = Collected()  # its artifacts
        # the task and the diff with which an agent has ended its work
        self._left: tuple[str, str] | None = None
        self._began, self._before = time.monotonic(), 0.0

    @property
    def workdir(self) -> str:
        """The path of the checkout as commands see it."""
        return self._task.workdir

    @property
    def seconds_left(self) -> float:
        """The seconds that the agent has left, counting those used before a resume."""
        return self._seconds - (self._elapsed() - self._before_step)

    @property
    def additions(self) -> Sequence[Addition]:
        """The skills, servers and texts that the agent is given beyond its task."""
        return self._whole.additions

    async def shell(self, line: str, seconds: float = 600.0) -> dict[str, Any]:
        """Runs a line in bash in the checkout: `{command, output, status, cause}`, and `whole` if `output` is cut.

        `cause` is the limit it was ended for.
        """
        return await self._done(
            "shell", lambda: self._run(["bash", "-c", line], seconds), command=line
        )

    async def agent(self, launch: Callable[[], Launch]) -> dict[str, Any]:
        """Runs an agent in the checkout until its time is up; its result holds all that it prints."""
        ended = await self._done("agent", lambda: self._agent(launch()))
        if "mcp" in ended:
            self.servers.append(ended["mcp"]["servers"])
        return ended

    @asynccontextmanager
    async def tools(self) -> AsyncIterator[Mapping[str, Mapping[str, Any]]]:
        """The tools of its MCP servers, as functions that a model is offered, by name; they can be called meanwhile.

        Raises Fault for a server that doesn't list them.
        """
        if not any(each.kind == "mcp" for each in self.additions):
            yield {}
            return
        async with self._served:
            yield (await self._done("tools", self._begin_servers))["tools"]
            recorded = await self._done("servers", self._end_servers)
        self.servers.append(recorded["mcp"]["servers"])

    async def call(
        self, tool: str, arguments: Mapping[str, Any], seconds: float = 600.0
    ) -> dict[str, Any]:
        """Calls a tool of an MCP server: as `shell`, with the status 1 for an error."""

        async def called() -> dict[str, Any]:
            try:
                async with asyncio.timeout(max(1.0, min(seconds, self.seconds_left))):
                    text, is_error = await self._tools[tool].call(arguments)
            except TimeoutError:
                return _shown("", 1, "timeout")
            return _shown(text, int(is_error), "")

        return await self._done("call", called, tool=tool, arguments=arguments)

    async def _begin_servers(self) -> dict[str, Any]:
        # with a server of HTTP, which few runs need
        from koderz.systems.rollouts.agents.servers import Servers

        self._mcp, backend = Servers(self.additions), self._stores.backend_of(self._task)
        if backend.name == "modal" and any(
            each.kind == "mcp" and not each.is_apart for each in self.additions
        ):
            raise Fault(
                "koderz' own agent has no MCP servers beside it on Modal: use another sandbox",
                cause="mcp",
            )
        wanted = self._command(
            [], _seen(self._mcp.folders), max(1.0, self.seconds_left), {}, home=True
        )
        began = time.monotonic()
        calling = self._mcp.called(backend.run, wanted, self._place / TREE[0])
        self._tools = await self._served.enter_async_context(calling)
        self._began += time.monotonic() - began  # which is none of the agent's time
        return {"tools": {name: tool.described(name) for name, tool in self._tools.items()}}

    async def _end_servers(self) -> dict[str, Any]:
        await self._served.aclose()
        return {"mcp": self._mcp.record()}

    async def edit(self, path: str, old: str, new: str) -> dict[str, Any]:
        """Replaces the only occurrence of `old` in a file; with no `old`, writes the file. `{output, status}`."""
        return await self._done(
            "edit", lambda: self._edit(path, old, new), path=path, old=old, new=new
        )

    async def solve(self) -> dict[str, Any]:
        """Applies the task's own solution. Raises Fault if there is none."""
        return await self._done("solve", self._solve)

    async def begin(self, stage: Stage) -> dict[str, Any]:
        """Begins a step: lays its files into the checkout, runs their setup.sh, and waits until it is healthy.

        `{wrong}`: why it can't be begun, which may be the agent's doing in an earlier step. Raises Fault in the first.
        """
        self._task, self._seconds = stage.task, stage.task.agent_seconds
        self._step = stage.name
        begun = await self._done("begin", lambda: self._begin(stage), step=stage.name)
        self._before_step = self._elapsed()
        if begun["wrong"] and not self._begun:
            raise Fault(begun["wrong"], cause=begun["cause"])
        self._begun = True
        return begun

    async def _collect(self) -> None:
        """Runs the hooks of the task, and collects its artifacts."""
        if not travels(self._task):
            return

        async def collected() -> dict[str, Any]:
            found = await collect(self._task, self._place, self._stores.backend_of(self._task))
            return {**found.recorded(), "destinations": destinations_of(self._task)}

        step = {"step": self._step} if self._step else {}
        found = await self._done("artifacts", collected, **step)
        self.collected = Collected.of_record(found)

    async def diff(self) -> dict[str, Any]:
        """The changes: `{diff, too_large}`, the paths `removed` to take it, and an `error` if it can't be taken.

        A diff that is too large is cut. Artifacts are collected before it is taken.
        """
        await self._collect()
        found = await self._done("diff", self._diff)
        self._removed = tuple(found.get("removed", ()))
        return found

    def work(self, task: Rollout, diff: str) -> Work:
        """The work that ended with that diff; with the place only once, and if the agent ended there."""
        place = None
        if self._left == (task.digest, diff):
            place, self._left = self._place, None
        return Work(diff, place, self.collected, self._removed, self.message)

    async def unrecorded_diff(self) -> dict[str, Any] | None:
        """The changes so far; None if nothing was done beyond what is on record."""
        return await self._diff() if self._store else None

    async def _done(
        self, name: str, act: Callable[[], Awaitable[dict[str, Any]]], **asked: Any
    ) -> dict[str, Any]:
        task, seconds = self._task, self._seconds

        async def again_live() -> None:
            now = self._task, self._seconds
            self._task, self._seconds = task, seconds
            await act()
            self._task, self._seconds = now

        async def live() -> dict[str, Any]:
            await self._open()
            return {**asked, **await act(), "elapsed": self._elapsed()}

        def again(recorded: dict[str, Any]) -> None:
            self._began, self._before = time.monotonic(), float(recorded["elapsed"])
            self._pending.append(again_live)

        found: dict[str, Any] = await self._once(name, live, rerun=again)
        return found

    async def _open(self) -> None:
        """Makes the checkout, and repeats the recorded actions in it."""
        if self._store is None:
            self._store = await self._stores.of(self._task)
            await self._store.checkout(self._place / "checkout")
            if check := self._whole.healthcheck:
                await self._require_healthy(check, self._whole)
        pending, self._pending = self._pending, []
        for act in pending:
            await act()

    def _elapsed(self) -> float:
        return self._before + time.monotonic() - self._began

    async def _run(
        self,
        argv: list[str],
        seconds: float,
        *mounts: Mount,
        own: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, Any]:
        limit = max(1.0, min(seconds, self.seconds_left))
        wanted = self._command(argv, mounts, seconds=limit, own=own)
        ended = await self._stores.backend_of(self._task).run(wanted, self._place)
        return _shown(ended.output, ended.status, ended.cause)

    def _command(
        self,
        argv: Sequence[str],
        mounts: Sequence[Mount],
        seconds: float,
        own: Mapping[str, str],
        **more: Any,
    ) -> Command:
        """A command of the agent's."""
        return Command(
            argv,
            {**self._task.environment, **own},
            [*mounts, *_seen(self._task.agent_mounts), *self._published, *self._added],
            checkout=self._task.workdir,
            image=self._task.image,
            limits=replace(self._limits, seconds=seconds),
            network=self._task.is_online,
            services=self._task.services,
            allowed_hosts=self._task.allowed_hosts,
            **more,
        )

    async def _begin(self, stage: Stage) -> dict[str, Any]:
        """Prepares a step: `{wrong, cause}`."""
        checkout = self._place / "checkout"
        for path, file in files_below(stage.upload).items() if stage.upload else ():
            lay(file, checkout / path, checkout)
        if stage.upload and (stage.upload / "setup.sh").is_file():
            wanted = self._preparing(stage.task, "bash", "setup.sh")
            done = await self._stores.backend_of(stage.task).run(wanted, self._place)
            if done.status:
                why = done.output.strip().splitlines()[-1:] or [
                    done.cause or f"exit code {done.status}"
                ]
                return {
                    "wrong": f"setup.sh of the step {stage.name} fails: {why[0][:200]}",
                    "cause": "setup",
                }
        try:
            if stage.task.healthcheck:
                await self._require_healthy(stage.task.healthcheck, stage.task)
        except Fault as fault:
            return {"wrong": str(fault), "cause": fault.cause}
        return {"wrong": "", "cause": ""}

    def _preparing(self, task: Rollout, *argv: str) -> Command:
        """A command that is none of the agent's."""
        return Command(
            argv,
            task.environment,
            published(self._place, self._stores.backend_of(task)),
            checkout=task.workdir,
            image=task.image,
            limits=replace(self._limits, seconds=_SETUP_SECONDS),
            network=task.is_online,
            services=task.services,
        )

    async def _require_healthy(self, check: Healthcheck, task: Rollout) -> None:
        backend = self._stores.backend_of(task)
        await require_healthy(check, self._preparing(task), self._place, backend, task.id)

    async def _version(self, launch: Launch) -> str:
        """The version that the agent's command reports, asked once per machine; empty if it reports none."""
        backend = self._stores.backend_of(self._task)
        key = (backend.name, self._task.image_digest, *launch.version)
        if launch.version and key not in self._stores.versions:
            asked = Command(
                launch.version,
                {**self._task.environment, **launch.environment},
                _seen(launch.folders),
                checkout=self._task.workdir,
                image=self._task.image,
                read_only=True,
                home=True,
                limits=replace(self._limits, seconds=_VERSION_SECONDS),
            )
            ended = await backend.run(asked, self._place)
            found = _VERSION.search(ended.output) if ended.status == 0 else None
            self._stores.versions[key] = found[0] if found else ""
        return self._stores.versions.get(key, "")

    async def _agent(self, launch: Launch) -> dict[str, Any]:
        version = await self._version(launch)
        wanted = self._command(
            launch.argv,
            _seen(launch.folders),
            max(1.0, self.seconds_left),
            launch.environment,
            home=True,
            bridge=launch.bridge.serve,
        )
        run = self._stores.backend_of(self._task).run
        async with launch.bridge as bridge:
            began = time.monotonic()
            await bridge.begin(
                run, replace(wanted, environment=self._task.environment), self._place
            )
            self._began += time.monotonic() - began  # which is none of the agent's time
            ended = await bridge.beside(run(wanted, self._place))
        about = {"reused": self._reused(), "version": version, **bridge.record()}
        return {"output": ended.output, "status": ended.status, "cause": ended.cause, **about}

    @property
    def _published(self) -> Sequence[Mount]:
        """The folder that always travels, as commands see it; none for a task without one."""
        return (
            published(self._place, self._stores.backend_of(self._task))
            if self._task.publishes
            else []
        )

    @property
    def _added(self) -> Sequence[Mount]:
        """The additions that are files of this machine, as commands see them."""
        return [
            Mount(Path(each.path), each.mounted.path)
            for each in self.additions
            if each.path and not each.inside
        ]

    async def _edit(self, path: str, old: str, new: str) -> dict[str, Any]:
        checkout = self._place / "checkout"
        try:
            here = checkout / git.inner_path(path)
            if any(
                each.is_symlink() for each in (here, *here.parents) if each.is_relative_to(checkout)
            ):
                raise KoderzError(f"{path} is, or lies behind, a symbolic link")
            if (
                old
                and here.exists()
                and not (here.is_file() and here.stat().st_size <= _LARGEST_EDIT)
            ):
                raise KoderzError(f"{path} is no file, or too large to be edited")
            text = here.read_text() if old else ""
            if old and text.count(old) != 1:
                raise KoderzError(
                    f"{path} has {text.count(old)} places that read so; there has to be one"
                )
            mode = here.is_file() and bool(here.stat().st_mode & 0o100)
            git.write(
                checkout, path, (text.replace(old, new) if old else new).encode(), executable=mode
            )
        except (KoderzError, OSError, UnicodeError) as error:
            return {
                "output": str(error).replace(str(checkout), self._task.workdir),
                "status": 1,
                "cause": "",
            }
        return {"output": f"{path} is written", "status": 0, "cause": ""}

    async def _solve(self) -> dict[str, Any]:
        checkout = self._place / "checkout"
        if human := self._task.solution_diff:
            if not human.is_file():
                raise Fault(f"{self._task.id} has no solution: {human} is missing", cause="data")
            await git.apply(human.read_bytes(), checkout)
            return {"output": "", "status": 0, "cause": ""}
        if instance := self._task.instance:
            await git.apply(instance.patch.encode(), checkout)
            return {"output": "", "status": 0, "cause": ""}
        script = self._task.solution
        if script is None or not script.is_file():
            missing = f": {script} is missing" if script else ""
            raise Fault(f"{self._task.id} has no solution{missing}", cause="data")
        found = await shown([script.parent], self._place / "solution")
        own = self._task.solution_environment
        return await self._run(
            ["bash", f"/solution/{script.name}"],
            self._seconds,
            Mount(found or script.parent, "/solution"),
            own=own,
        )

    async def _diff(self) -> dict[str, Any]:
        assert self._store
        try:
            change = await self._store.change(self._place / "checkout", self._most)
        except git.DiffTooLargeError as error:
            return {"diff": error.diff, "too_large": True}
        except (git.GitError, OSError) as error:
            if shutil.disk_usage(self._place).free < _LEAST_FREE:
                raise Fault(
                    f"the disk below {self._place} is full: {error}", cause="sandbox"
                ) from error
            return {"diff": "", "too_large": False, "error": str(error)}
        if self._task.verifier:
            self._left = (self._task.digest, change.diff)
        removed = {"removed": change.removed} if change.removed else {}
        return {"diff": change.diff, "too_large": False, **removed}
