"""The sandbox `docker`, for kernels without Landlock and other systems: one long-lived container a judge.

The judge stays outside with its tests; in the container candidates are forked, one after the other,
from a warm interpreter of the image. Nothing of this machine is mounted there, and its code comes in
by stdin. When that ends, also because the judge was killed, so does the container, and is removed.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from functools import partial
from typing import Self

from koderz.errors import KoderzError, Unreachable
from koderz.sandbox import ROOM_MB, DockerOptions, Opening
from koderz.sandbox.contained import RemoteSandbox
from koderz.sandbox.judge.launch import ENVIRONMENT, Premises
from koderz.sandbox.judge.remote import BOOT
from koderz.sandbox.linux import isolation

LABEL = "koderz=sandbox"  # docker ps --filter label=koderz=sandbox
ANSWER_SECONDS = 10.0
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
    limits = ["--memory", f"{memory_mb}m", "--memory-swap", f"{memory_mb}m", "--pids-limit", "256"]
    cut_off = ["--network", "none", "--ipc", "none", "--read-only", "--tmpfs", _SCRATCH]
    powerless = ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", _NOBODY]
    environment = [
        part for name, value in ENVIRONMENT.items() if name != "PATH" for part in ("--env", f"{name}={value}")
    ]
    run = [shutil.which("docker") or "docker", "run", "--rm", "--interactive", "--init"]
    unseen = ["--pull", "never", "--log-driver", "none", "--label", LABEL]
    inside = ["--workdir", "/", "--entrypoint", "python", image, "-s", "-P", "-B", "-S", "-X", "utf8", "-c", BOOT]
    return [*run, *unseen, *limits, *cut_off, *powerless, *environment, *inside]


async def daemon_version() -> str:
    """The daemon's version. Raises Unreachable, which says what is missing."""
    if shutil.which("docker") is None:
        raise Unreachable("--sandbox docker: there is no docker command here; is Docker installed?")
    version = await _asked("version", "--format", "{{.Server.Version}}")
    if version.returncode:
        why = (version.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise Unreachable(f"--sandbox docker: its daemon doesn't answer: {why}")
    return version.stdout.strip()


async def server_version(image: str) -> str:
    """The daemon's version, if it has `image`. Raises Unreachable, which says what is missing."""
    version = await daemon_version()
    if (await _asked("image", "inspect", "--format", "{{.Id}}", "--", image)).returncode:
        raise Unreachable(f"--sandbox docker: the image {image} isn't here; get it with: docker pull {image}")
    return version


async def _asked(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["docker", *arguments]
    run = partial(subprocess.run, command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    try:
        return await asyncio.to_thread(run)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer in {ANSWER_SECONDS:.0f} s")
    except OSError as error:
        raise Unreachable(f"--sandbox docker: docker can't be started ({error.strerror})") from None
