"""Docker: its client, what holds every container, and the sandbox `docker`, one long-lived container a judge.

That sandbox is for where the kernel has no Landlock, or isn't Linux. The judge stays outside with its tests; in the
container candidates are forked, one after the other, from a warm interpreter of the image. Nothing of this machine is
mounted there, and its code comes in by stdin. When that ends, also because the judge was killed, so does the container,
and is removed.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import Self

from koderz.errors import Fault, KoderzError, Unreachable
from koderz.sandbox import ROOM_MB, DockerOptions, Opening
from koderz.sandbox.contained import RemoteSandbox
from koderz.sandbox.judge.pool import Premises
from koderz.sandbox.judge.remote import INTERPRETER, VARIABLES
from koderz.sandbox.linux import isolation

LABEL = "koderz=sandbox"  # docker ps --filter label=koderz=sandbox
ANSWER_SECONDS = 60.0
_LOOK_SECONDS = 10.0
_PASSED = ("DOCKER_*", "HOME", "XDG_RUNTIME_DIR")  # where the daemon is; none of it gets into a container
_NOBODY = "65534:65534"
_SCRATCH = "/tmp:rw,noexec,nosuid,nodev,size=16m"  # noqa: S108 - the container's own


def opened(wanted: Opening) -> DockerSandbox:
    image = (wanted.options or DockerOptions()).docker_image
    return DockerSandbox(judges=wanted.judges, image=image, memory_mb=wanted.memory_mb)


class DockerSandbox(RemoteSandbox):
    """Judges on `judges` warm containers of `image`, which has to hold Python 3.11 or later as `python`.

    Entering raises Unreachable where Docker or the image is missing: nothing is ever pulled.
    """

    name = "docker"
    places = "the containers here"

    def __init__(self, *, judges: int, image: str, memory_mb: int = 1024) -> None:
        command = container(image, memory_mb + ROOM_MB)
        super().__init__(judges=judges, premises=Premises(isolation.LAYERS, {}, command, passed=_PASSED))
        self._image = image

    async def __aenter__(self) -> Self:
        await server_version(self._image)
        return await super().__aenter__()


def container(image: str, memory_mb: int) -> list[str]:
    """The command that starts a container; `judge.remote` uses its stdin and stdout."""
    if not image or image.startswith("-"):
        raise KoderzError(f"--docker-image: {image!r} is no name of an image")
    cut_off = ["--ipc", "none", "--read-only", "--tmpfs", _SCRATCH, "--pull", "never", "--user", _NOBODY]
    environment = [word for variable in VARIABLES for word in ("--env", variable)]
    run = [executable(), "run", "--rm", "--interactive", *bounds(LABEL, memory_mb, processes=256)]
    program, *arguments = INTERPRETER
    return [*run, *cut_off, *environment, "--workdir", "/", "--entrypoint", program, image, *arguments]


def bounds(label: str, memory_mb: int, *, processes: int, network: bool = False) -> list[str]:
    """The options of `docker run` that hold every container: no capabilities, no more memory or processes."""
    return [
        *("--init", "--log-driver", "none", "--label", label),
        *(() if network else ("--network", "none")),
        *("--memory", f"{memory_mb}m", "--memory-swap", f"{memory_mb}m", "--pids-limit", str(processes)),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    ]


def executable() -> str:
    """The docker command."""
    return shutil.which("docker") or "docker"


async def daemon_version() -> str:
    """The daemon's version. Raises Unreachable, which says what is missing."""
    if shutil.which("docker") is None:
        raise Unreachable("--sandbox docker: there is no docker command here; is Docker installed?")
    status, said = await _ended("version", "--format", "{{.Server.Version}}", seconds=_LOOK_SECONDS)
    if status:
        raise Unreachable(f"--sandbox docker: its daemon doesn't answer: {said}")
    return said


async def server_version(image: str) -> str:
    """The daemon's version, if it has `image`. Raises Unreachable, which says what is missing."""
    version = await daemon_version()
    if not await succeeds("image", "inspect", "--format", "{{.Id}}", "--", image, seconds=_LOOK_SECONDS):
        raise Unreachable(f"--sandbox docker: the image {image} isn't here; get it with: docker pull {image}")
    return version


async def said(*words: str, seconds: float = ANSWER_SECONDS) -> str:
    """The output of docker. Raises Fault with its own words where it fails."""
    status, text = await _ended(*words, seconds=seconds)
    if status:
        raise Fault(f"docker {words[2] if words[0] == '--config' else words[0]}: {text[:500]}", cause="sandbox")
    return text


async def succeeds(*words: str, seconds: float = ANSWER_SECONDS) -> bool:
    """Whether docker does that."""
    return not (await _ended(*words, seconds=seconds))[0]


async def _ended(*words: str, seconds: float) -> tuple[int, str]:
    """Exit code and output of docker; where it fails, the last line that it has to say."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *(executable(), *words), stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
    except OSError as error:
        raise Unreachable(f"--sandbox docker: docker can't be started ({error.strerror})") from None
    try:
        async with asyncio.timeout(seconds):
            output, complaints = (part.decode(errors="replace").strip() for part in await process.communicate())
    except TimeoutError:
        return 1, f"no answer in {seconds:.0f} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    status = process.returncode or 0
    return status, output if not status else ((complaints or output).splitlines() or ["it gave no reason"])[-1]
