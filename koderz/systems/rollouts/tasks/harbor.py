"""A reader of tasks in Harbor's format: a folder with task.toml, instructions, an environment, a solution and tests."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from koderz.errors import KoderzError
from koderz.sandbox.workspace import Image
from koderz.systems.rollouts.additions import Addition, server_name
from koderz.systems.rollouts.dockerfiles.recipes import Recipe, read_dockerfile
from koderz.systems.rollouts.task import (
    Artifact,
    CollectHook,
    Healthcheck,
    Need,
    Network,
    RequestedResources,
    Rollout,
    Rubric,
    Stage,
    Verifier,
)
from koderz.systems.rollouts.tasks.compose import (
    HARBOR_SERVICES,
    ComposeService,
    needs_of,
    read_compose,
    with_service,
)
from koderz.systems.rollouts.tasks.task_toml import (
    AgentTable,
    ArtifactTable,
    EnvironmentTable,
    HealthcheckTable,
    StepTable,
    TaskTable,
    VerifierTable,
    artifact_of,
    megabytes,
    read_task_toml,
)
from koderz.systems.workspaces.folders import files_below

_COMPOSE = "docker-compose.yaml"
_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_ROOT = (None, 0, "0", "root")
_USUAL_SECONDS = 1800.0
_ANYWHERE = "no sandbox of koderz has"


def read_harbor_task(folder: Path, variables: Mapping[str, str]) -> Rollout:
    """The task in a folder. `variables` of this machine are those that it may take its own from.

    What not every sandbox can honour is in its `needs`. Raises KoderzError naming the file and what is wrong with it.
    """
    where = folder / "task.toml"
    table, ignored = read_task_toml(where, text_of(where))
    reader = _Reader(folder, table, variables, ignored=[f"{where.name}: {key}" for key in ignored])
    return replace(reader.read(), ignored_keys=tuple(reader.ignored))


def text_of(path: Path) -> str:
    """The text of a task's file. Raises KoderzError."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise KoderzError(f"{path} is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise KoderzError(f"{path} can't be read: {error}") from None


def existing(*folders: Path) -> tuple[Path, ...]:
    """The folders that are there."""
    return tuple(folder for folder in folders if folder.is_dir())


def own_script(*paths: Path) -> Path | None:
    """The first script that is there."""
    return next((path for path in paths if path.is_file()), None)


@dataclass(slots=True)
class _Reader:
    """The parts of one task, as they are read."""

    folder: Path
    table: TaskTable
    variables: Mapping[str, str]
    needs: list[Need] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)  # keys that nothing reads

    def read(self) -> Rollout:
        table, environment = self.table, self.table.environment
        recipe = self._recipe(self.folder / "environment", environment, "environment")
        name = table.task.name if table.task else self.folder.name
        self._note_agent(table.agent, "agent")
        task = Rollout(
            folder=self.folder,
            format="harbor",
            id=name,
            title=name,
            instructions="" if table.steps else text_of(self.folder / "instruction.md"),
            rubrics=(Rubric("reward", "the verifier's reward"),),
            environment={
                **recipe.environment,
                **self._variables(environment.env, "environment.env"),
            },
            workdir=environment.workdir or recipe.workdir,
            context=self.folder / "environment" if (self.folder / "environment").is_dir() else None,
            steps=recipe.steps,
            refused=recipe.refused,
            agent_seconds=table.agent.timeout_sec or _USUAL_SECONDS,
            test_seconds=table.verifier.timeout_sec,
            image_name=recipe.image,
            workdir_of_image=recipe.is_assumed and not environment.workdir,
            base_image=recipe.base,
            stated=recipe.stated,
            network=_network(table.agent) or _network(environment) or _public(environment),
            asked=_asked(environment, recipe),
            mounted=recipe.mounted,
            services=recipe.services,
            healthcheck=_healthcheck(environment.healthcheck),
            artifacts=self._artifacts(table.artifacts, "artifacts"),
            verifier=self._verifier(table.verifier, None),
            solution=self.folder / "solution/solve.sh",
            solution_environment=self._variables(table.solution.env, "solution.env"),
            rewards_of=table.multi_step_reward_strategy or "mean",
            has_tree_of_image=True,
            states_network=True,
            publishes=True,
            metadata=table.metadata,
            additions=tuple(_additions(environment)),
        )
        stages = tuple(self._stage(step, task) for step in table.steps or ())
        if (self.folder / "trajectory.json").exists():
            self._need(
                "trajectory.json",
                "an agent that goes on from another's trajectory, which none of koderz' does",
            )
        instructions = stages[0].task.instructions if stages else task.instructions
        return replace(task, stages=stages, instructions=instructions, needs=tuple(self.needs))

    def _stage(self, step: StepTable, task: Rollout) -> Stage:
        folder, name = self.folder / "steps" / step.name, f"steps.{step.name}"
        self._note_agent(step.agent, f"{name}.agent")
        if (folder / "trajectory.json").exists():
            self._need(
                f"steps/{step.name}/trajectory.json",
                "an agent that goes on from another's trajectory",
            )
        least = step.min_reward
        own = replace(
            task,
            id=f"{task.id}/{step.name}",
            instructions=text_of(folder / "instruction.md"),
            agent_seconds=step.agent.timeout_sec or task.agent_seconds,
            test_seconds=step.verifier.timeout_sec,
            network=_network(step.agent) or task.network,
            healthcheck=_healthcheck(step.healthcheck),
            artifacts=(*task.artifacts, *self._artifacts(step.artifacts, f"{name}.artifacts")),
            verifier=self._verifier(step.verifier, step),
            solution=folder / "solution/solve.sh",
        )
        upload = folder / "workdir"
        limits: Mapping[str, float] = {}
        if isinstance(least, Mapping):
            limits = least
        elif least is not None:
            limits = {"reward": least}
        return Stage(step.name, own, upload if upload.is_dir() else None, limits)

    def _verifier(self, table: VerifierTable, step: StepTable | None) -> Verifier:
        """The verifier of the task, or of one of its steps, which takes from the task's what it doesn't say itself."""
        top, tests = self.table.verifier, self.folder / "tests"
        own_tests = self.folder / "steps" / step.name / "tests" if step else tests
        name = f"steps.{step.name}.verifier" if step else "verifier"
        folders = (tests, own_tests) if step else (tests,)
        self._note_agent(table, name)
        env = {**top.env, **table.env}
        found = Verifier(
            script=own_script(own_tests / "test.sh", tests / "test.sh"),
            tests=existing(*folders),
            environment=self._variables(env, f"{name}.env"),
            network=_network(table) or _network(top),
            collect=self._hooks(top, "verifier") + (self._hooks(table, name) if step else ()),
        )
        if (table.mode or top.mode or "shared") == "shared":
            return found
        environment = table.environment or top.environment
        candidates = [
            (table.environment, own_tests, name),
            *([(top.environment, tests, "verifier")] if step else []),
        ]
        for own, folder, where in candidates:
            is_built = (folder / "Dockerfile").is_file() or (folder / _COMPOSE).is_file()
            if is_built or (own and own.docker_image):
                recipe = self._recipe(
                    folder, own or EnvironmentTable(), f"{where}.environment", tests=True
                )
                return self._separate(
                    found,
                    environment,
                    recipe,
                    Image(folder, digest_below(folder), environment=recipe.stated),
                    f"{name}.environment",
                )
        return self._separate(found, environment, None, None, f"{name}.environment")

    def _separate(
        self,
        found: Verifier,
        table: EnvironmentTable | None,
        recipe: Recipe | None,
        built: Image | None,
        where: str,
    ) -> Verifier:
        """The verifier on a machine of its own, of its own image or of the agent's."""
        if table and recipe is None:
            self._note_machine(table, where)
        table = table or (self.table.environment if recipe is None else EnvironmentTable())
        found = replace(
            found,
            is_separate=True,
            network=found.network or _network(table) or _public(table),
            asked=_asked(table, recipe),
            healthcheck=_healthcheck(table.healthcheck),
            workdir=table.workdir or (recipe.workdir if recipe else ""),
        )
        if recipe is None:
            own = (
                self._variables(table.env, f"{where}.env")
                if table is not self.table.environment
                else {}
            )
            return replace(found, environment={**own, **found.environment})
        own = {**recipe.environment, **self._variables(table.env, f"{where}.env")}
        return replace(
            found,
            environment={**own, **found.environment},
            image=recipe.image or built,
            steps=recipe.steps,
            refused=recipe.refused,
            installs=recipe.installs,
            programs=recipe.programs,
            workdir_of_image=bool(recipe.image) and recipe.is_assumed and not table.workdir,
        )

    def _recipe(
        self, folder: Path, table: EnvironmentTable, where: str, *, tests: bool = False
    ) -> Recipe:
        """The way to a machine: its image, or the lines that the host's userland can follow in its place."""
        self._note_machine(table, where)
        dockerfile, compose = folder / "Dockerfile", folder / _COMPOSE
        if not (table.docker_image or compose.is_file() or dockerfile.is_file()):
            raise KoderzError(
                f"{dockerfile} is missing; write it, or name {where}.docker_image in task.toml"
            )
        service = (
            read_compose(compose, self.variables, HARBOR_SERVICES)
            if compose.is_file()
            else ComposeService()
        )
        if dockerfile.is_file():
            recipe = read_dockerfile(dockerfile, tests=tests, workdir=service.workdir)
        else:
            recipe = Recipe(service.workdir or "/app", is_assumed=not service.workdir)
        if table.docker_image:  # which Harbor takes rather than the Dockerfile's
            recipe = replace(recipe, stated={})
        if compose.is_file():
            recipe = with_service(recipe, service)
            if tests and service.beside:
                service.lacks.append(
                    (f"services.{', '.join(service.beside.services)}", "an agent's environment")
                )
            self.needs += needs_of(compose, service)
            self.ignored += [f"{compose.name}: {key}" for key in service.ignored]
        if image := table.docker_image or recipe.image:
            return replace(recipe, image=image, refused="")
        return recipe

    def _note_machine(self, table: EnvironmentTable, where: str) -> None:
        """Notes what few machines, or none, can give."""
        if table.os != "linux":
            self._need(f'{where}.os = "{table.os}"', f"a Windows machine, which {_ANYWHERE}")
        if table.tpu:
            self._need(f'{where}.tpu = "{table.tpu.type}"', f"TPUs, which {_ANYWHERE}")
        if table.gpus:
            self._need(f"{where}.gpus = {table.gpus}", "--sandbox modal", "modal")
        if table.docker_image:
            need = Need(
                f'{self.folder / "task.toml"}: {where}.docker_image = "{table.docker_image}"',
                "--sandbox docker, or --images DIR with that image",
                IMAGED,
                table.docker_image,
            )
            self.needs.append(need)

    def _note_agent(self, table: AgentTable | VerifierTable, where: str) -> None:
        if table.user not in _ROOT:
            self._need(f'{where}.user = "{table.user}"', f"several users, which {_ANYWHERE}")

    def _need(self, what: str, machine: str, *sandboxes: str) -> None:
        name = "" if what.endswith(".json") else "task.toml: "
        self.needs.append(Need(f"{self.folder}/{name}{what}", machine, sandboxes))

    def _variables(self, env: Mapping[str, str], where: str) -> dict[str, str]:
        """The variables, with `${NAME}` and `${NAME:-default}` taken from those of this machine that are allowed."""
        found = {}
        for key, value in env.items():
            if template := _TEMPLATE.fullmatch(value):
                name, default = template.groups()
                if name not in self.variables and default is None:
                    self._need(
                        f'{where}.{key} = "{value}"', f"--env {name}, and {name} in the environment"
                    )
                value = self.variables.get(name, default or "")
            found[key] = value
        return found

    def _artifacts(
        self, entries: Sequence[str | ArtifactTable], where: str
    ) -> tuple[Artifact, ...]:
        found = []
        for each in map(artifact_of, entries):
            if each.service not in (None, "main"):
                self._need(
                    f'{where}.service = "{each.service}"', f"several services, which {_ANYWHERE}"
                )
            found.append(Artifact(each.source, each.destination or "", each.exclude))
        return tuple(found)

    def _hooks(self, table: VerifierTable, where: str) -> tuple[CollectHook, ...]:
        for hook in table.collect:
            if hook.service != "main":
                self._need(
                    f'{where}.collect.service = "{hook.service}"',
                    f"several services, which {_ANYWHERE}",
                )
            if hook.user not in _ROOT:
                self._need(
                    f'{where}.collect.user = "{hook.user}"', f"several users, which {_ANYWHERE}"
                )
        return tuple(CollectHook(hook.command, hook.timeout_sec) for hook in table.collect)


IMAGED = ("docker", "podman", "modal")
"""The sandboxes that fetch or build images."""


def digest_below(folder: Path) -> str:
    """A digest of all files of a folder, of which an image is made."""
    digest = hashlib.sha256()
    for path, source in sorted(files_below(folder).items()):
        digest.update(f"{path}\0".encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _additions(table: EnvironmentTable) -> Iterator[Addition]:
    """The skills in the agent's image, and the servers that the task has it started with or connected to."""
    if folder := table.skills_dir:
        yield Addition(
            "skill", PurePosixPath(folder).name, folder.rstrip("/"), _digest(folder), inside=True
        )
    for each in table.mcp_servers:
        server: dict[str, Any] = {"command": each.command, "args": [*each.args]}
        if each.transport != "stdio":
            kind = "sse" if each.transport == "sse" else "http"
            server = {
                "type": kind,
                "url": each.url,
                **({"headers": dict(each.headers)} if each.headers else {}),
            }
        yield Addition("mcp", server_name(each.name), "", _digest(server), server, inside=True)


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _network(table: AgentTable | VerifierTable | EnvironmentTable) -> Network | None:
    """The network that a table states; None if it states none."""
    if table.network_mode is None:
        return None
    return Network(table.network_mode, table.allowed_hosts or ())


def _public(table: EnvironmentTable) -> Network:
    """The network of an environment that states none, but for what older files say."""
    return Network("no-network") if table.allow_internet is False else Network()


def _asked(table: EnvironmentTable, recipe: Recipe | None) -> RequestedResources:
    """The resources of a machine, by its compose file where its table is silent."""
    besides = recipe.asked if recipe else RequestedResources()
    kinds = table.gpu_types or ()
    gpus = f"{kinds[0]}:{table.gpus}" if kinds and table.gpus else str(table.gpus or "")
    memory, storage = (
        megabytes(table.memory_mb, table.memory),
        megabytes(table.storage_mb, table.storage),
    )
    return RequestedResources(
        table.cpus or besides.cpus, memory or besides.memory_mb, storage, gpus
    )


def _healthcheck(table: HealthcheckTable | None) -> Healthcheck | None:
    if table is None:
        return None
    periods = (
        table.interval_sec,
        table.timeout_sec,
        table.start_period_sec,
        table.start_interval_sec,
    )
    return Healthcheck(table.command, *periods, table.retries)


def hosts_of(network: Network) -> Iterator[str]:
    """The hosts that an allowlist allows, in lower case."""
    yield from (host.strip().lower().rstrip(".") for host in network.allowed_hosts)
