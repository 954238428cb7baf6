"""What koderz' things are called on Modal, and what its machines cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from koderz.errors import KoderzError

CPU_CORES, MEMORY_MB = 1.0, 2048  # of a container that performs experiments
INPUTS = 50  # experiments at once in one container
SERVE_SECRET = "koderz-serve"  # noqa: S105 the name of one; it holds VLLM_API_KEY
TIMEOUT = 24 * 3600  # seconds that one experiment may take; the most that Modal allows

_CORE, _GIB = 0.0000131, 0.00000222  # US dollars a second
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
class Names:
    """Where things are on Modal. `KODERZ_MODAL_APP`, `_VOLUME` and `_SECRET` say otherwise."""

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
    given = {name: environ[f"KODERZ_MODAL_{name.upper()}"] for name in Names.__slots__ if _said(environ, name)}
    return Names(**given)


def is_configured(environ: Mapping[str, str]) -> bool:
    """Whether the user has anything to do with Modal."""
    config = Path(environ.get("MODAL_CONFIG_PATH") or Path.home() / ".modal.toml")
    return bool(environ.get("MODAL_TOKEN_ID")) or config.is_file()


def _said(environ: Mapping[str, str], name: str) -> bool:
    return bool(environ.get(f"KODERZ_MODAL_{name.upper()}"))


def cost_per_second(gpu: str | None) -> float:
    """US dollars a second of one container, with this GPU (`TYPE` or `TYPE:COUNT`). KoderzError for an unknown one."""
    own = CPU_CORES * _CORE + MEMORY_MB / 1024 * _GIB
    return own + (gpu_cost(gpu) if gpu else 0.0)


def gpu_cost(gpu: str) -> float:
    """US dollars a second of a GPU alone."""
    kind, _, count = gpu.partition(":")
    if kind.upper() not in _GPUS or (count and not (count.isdigit() and 1 <= int(count) <= 8)):
        raise KoderzError(f"--gpu {gpu}: Modal has no such GPU; it has {', '.join(_GPUS)}, each as TYPE or TYPE:COUNT")
    return _GPUS[kind.upper()] * int(count or 1)
