"""The names of koderz' objects on Modal, the sizes of its machines, and their prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from koderz.errors import KoderzError
from koderz.sandbox import ROOM_MB
from koderz.settings.options import option
from koderz.settings.paths import home_folder
from koderz.settings.trust import SPENDS

CPU_CORES, MEMORY_MB = 1.0, 2048  # of a container that performs experiments
SANDBOXES = 2  # of a container, in which its experiments' programs are judged
SANDBOX_CORES = 1.0
INPUTS = 50  # experiments at once in one container
SERVE_SECRET = "koderz-serve"  # noqa: S105 the name of one; it holds VLLM_API_KEY
SERVING = "KODERZ_SERVING"  # the variable that says what is served, as JSON
TIMEOUT = 24 * 3600  # seconds that one experiment may take; the most that Modal allows

_CORE, _GIB = 0.0000131, 0.00000222  # US dollars a second
_DEARER = 3.0  # times as much costs the same in a sandbox
_GPUS: Mapping[str, float] = {  # US dollars a second, list prices of 2026
    "T4": 0.000164,
    "L4": 0.000222,
    "A10": 0.000306,
    "A10G": 0.000306,
    "L40S": 0.000542,
    "A100": 0.000583,
    "A100-40GB": 0.000583,
    "A100-80GB": 0.000694,
    "H100": 0.001097,
    "H100!": 0.001097,
    "H200": 0.001261,
    "B200": 0.001736,
}


@dataclass(frozen=True, slots=True)
class ModalOptions:
    """The options of the engine `modal`: the kind and number of its containers."""

    gpu: str | None = option(
        None, "Modal: GPU of each container, such as L4, H100 or H100:2.", "TYPE", risk=SPENDS
    )
    max_containers: int | None = option(
        None,
        "Modal: maximum number of containers.",
        "N",
        bounds=(1, 10_000),
        risk=SPENDS,
        changeable=True,
    )


class Names(NamedTuple):
    """The names of objects on Modal, changed by `KODERZ_MODAL_APP`, `_VOLUME` and `_SECRET`."""

    app: str = "koderz"
    volume: str = "koderz-results"
    secret: str = "llm-api-keys"  # noqa: S105 the name of one

    @property
    def server(self) -> str:
        """The app that serves a model."""
        return f"{self.app}-serve"

    def store(self, run: str) -> str:
        """The Dict of one run."""
        return f"{self.app}-{run}"


def names_of(environ: Mapping[str, str]) -> Names:
    values = {name: environ.get(f"KODERZ_MODAL_{name.upper()}") for name in Names._fields}
    return Names(**{name: value for name, value in values.items() if value})


def is_configured(environ: Mapping[str, str]) -> bool:
    """Whether the user has set up Modal."""
    config = Path(environ.get("MODAL_CONFIG_PATH") or home_folder() / ".modal.toml")
    return bool(environ.get("MODAL_TOKEN_ID")) or config.is_file()


def require_apart(sandbox: str) -> None:
    """Raises KoderzError for a sandbox in which programs would run in the function's own container, beside the keys."""
    if sandbox in ("contained", "docker", "local", "podman", "uncontained"):
        raise KoderzError(
            f"--sandbox {sandbox}: Modal's functions hold keys, so no program runs in them; "
            "leave --sandbox out, since --engine modal always judges in --sandbox modal"
        )


def cost_per_second(
    gpu: str | None, *, sandboxes: int | None = None, sandbox_mb: int = 1024
) -> float:
    """The price of one container with its sandboxes in US dollars a second, all counted from its start.

    `gpu` is `TYPE` or `TYPE:COUNT`, `sandbox_mb` the memory of a candidate. KoderzError for an unknown GPU.
    """
    judging = (sandboxes or SANDBOXES) * sandbox_cost(sandbox_mb + ROOM_MB)
    return _machine_cost(CPU_CORES, MEMORY_MB) + judging + (gpu_cost(gpu) if gpu else 0.0)


def sandbox_cost(memory_mb: int, cores: float = SANDBOX_CORES) -> float:
    """The price of a sandbox in US dollars a second."""
    return _DEARER * _machine_cost(cores, memory_mb)


def _machine_cost(cores: float, memory_mb: int) -> float:
    return cores * _CORE + memory_mb / 1024 * _GIB


def gpu_cost(gpu: str) -> float:
    """The price of a GPU alone in US dollars a second."""
    kind, _, count = gpu.partition(":")
    if kind.upper() not in _GPUS or (count and not (count.isdigit() and 1 <= int(count) <= 8)):
        raise KoderzError(
            f"--gpu {gpu}: Modal has no such GPU; it has {', '.join(_GPUS)}, each as TYPE or TYPE:COUNT"
        )
    return _GPUS[kind.upper()] * int(count or 1)
