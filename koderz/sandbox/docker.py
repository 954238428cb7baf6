"""The clients of containers, `docker` and `podman`: the options that hold every container, and calls of a client."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import dataclass

from koderz.errors import Fault, KoderzError, Unreachable
from koderz.sandbox.judge.remote import INTERPRETER, VARIABLES
from koderz.sandbox.process import reap

LABEL = "koderz=sandbox"  # docker ps --filter label=koderz=sandbox
ANSWER_SECONDS = 60.0
LOOK_SECONDS = 10.0
PASSED = ("DOCKER_*", "CONTAINER*", "DBUS_SESSION_BUS_ADDRESS", "HOME", "XDG_*")
"""The variables that a client may need to find its daemon or its storage; none of them gets into a container."""
_NOBODY = "65534:65534"
_SCRATCH = "/tmp:rw,noexec,nosuid,nodev,size=16m"  # noqa: S108 - the container's own


@dataclass(frozen=True, slots=True)
class ContainerClient:
    """A command that starts containers. podman takes the words of docker's."""

    name: str = "docker"
    version_format: str = "{{.Server.Version}}"  # as it prints the version of what runs containers

    @property
    def flag(self) -> str:
        """How users chose it."""
        return f"--sandbox {self.name}"

    @property
    def executable(self) -> str:
        """The command's path."""
        return shutil.which(self.name) or self.name

    @property
    def has_own_users(self) -> bool:
        """Whether users of containers are others than those of this machine, as of podman without root."""
        return self.name == "podman" and os.getuid() != 0

    def container(self, image: str, memory_mb: int) -> list[str]:
        """The command that starts a judge's container; `judge.remote` uses its stdin and stdout."""
        if not image or image.startswith("-"):
            raise KoderzError(f"--docker-image: {image!r} is no name of an image")
        cut_off = [
            "--ipc",
            "none",
            "--read-only",
            "--tmpfs",
            _SCRATCH,
            "--pull",
            "never",
            "--user",
            _NOBODY,
        ]
        environment = [word for variable in VARIABLES for word in ("--env", variable)]
        run = [
            self.executable,
            "run",
            "--rm",
            "--interactive",
            *bounds(LABEL, memory_mb, processes=256),
        ]
        program, *arguments = INTERPRETER
        return [
            *run,
            *cut_off,
            *environment,
            "--workdir",
            "/",
            "--entrypoint",
            program,
            image,
            *arguments,
        ]

    async def version(self) -> str:
        """The version of what runs containers. Raises Unreachable, which says what is missing."""
        if shutil.which(self.name) is None:
            raise Unreachable(
                f"{self.flag}: there is no {self.name} command here; is {self.name.title()} installed?"
            )
        status, output = await self._ended(
            "version", "--format", self.version_format, seconds=LOOK_SECONDS
        )
        if status:
            raise Unreachable(f"{self.flag}: its daemon doesn't answer: {output}")
        return output

    async def version_with(self, image: str) -> str:
        """The version, if the image is there. Raises Unreachable, which says what is missing."""
        version = await self.version()
        if not await self.succeeds(
            "image", "inspect", "--format", "{{.Id}}", "--", image, seconds=LOOK_SECONDS
        ):
            raise Unreachable(
                f"{self.flag}: the image {image} isn't here; get it with: {self.name} pull {image}"
            )
        return version

    async def output(self, *words: str, seconds: float = ANSWER_SECONDS) -> str:
        """The output of the client. Raises Fault with its own words where it fails."""
        status, text = await self._ended(*words, seconds=seconds)
        if status:
            what = words[2] if words[0] == "--config" else words[0]
            raise Fault(f"{self.name} {what}: {text[:500]}", cause="sandbox")
        return text

    async def succeeds(self, *words: str, seconds: float = ANSWER_SECONDS) -> bool:
        """Whether the client does that."""
        return not (await self._ended(*words, seconds=seconds))[0]

    async def _ended(self, *words: str, seconds: float) -> tuple[int, str]:
        """Exit code and output of the client; where it fails, the last line that it has to say."""
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *(self.executable, *words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
            )
        except OSError as error:
            raise Unreachable(
                f"{self.flag}: {self.name} can't be started ({error.strerror})"
            ) from None
        try:
            async with asyncio.timeout(seconds):
                output, complaints = (
                    part.decode(errors="replace").strip() for part in await process.communicate()
                )
        except TimeoutError:
            return 1, f"no answer in {seconds:.0f} s"
        finally:
            await reap(process)
        status = process.returncode or 0
        return status, output if not status else (
            (complaints or output).splitlines() or ["it gave no reason"]
        )[-1]


DOCKER, PODMAN = ContainerClient(), ContainerClient("podman", "{{.Client.Version}}")
CLIENTS = {client.name: client for client in (DOCKER, PODMAN)}


def bounds(label: str, memory_mb: int, *, processes: int, network: bool = False) -> list[str]:
    """Options of `docker run` that confine a container: its memory, processes, network and capabilities."""
    return [
        *("--init", "--log-driver", "none", "--label", label),
        *(() if network else ("--network", "none")),
        *(
            "--memory",
            f"{memory_mb}m",
            "--memory-swap",
            f"{memory_mb}m",
            "--pids-limit",
            str(processes),
        ),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    ]
