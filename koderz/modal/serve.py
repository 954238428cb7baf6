"""What `koderz modal serve` puts on Modal: a vLLM server of one model, which costs nothing while nobody asks."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import Self

import modal

from koderz.modal.names import SERVE_SECRET, names_of

PORT = 8000
WEIGHTS = "/root/.cache/huggingface"
STARTUP = 1800  # seconds: the first start downloads the weights


@dataclass(frozen=True, slots=True)
class Serving:
    """What is served. It travels to the container in the image's variables."""

    model: str
    gpu: str
    vllm: str
    idle: int  # seconds without a request after which the server ends

    @classmethod
    def of_environment(cls) -> Self:
        environ = os.environ
        return cls(
            environ.get("KODERZ_SERVE_MODEL", ""),
            environ.get("KODERZ_SERVE_GPU", "H100"),
            environ.get("KODERZ_SERVE_VLLM", "vllm"),
            int(environ.get("KODERZ_SERVE_IDLE", "300")),
        )

    def environment(self) -> dict[str, str]:
        """The variables from which `of_environment` makes this."""
        return {f"KODERZ_SERVE_{name.upper()}": str(getattr(self, name)) for name in self.__slots__}

    def command(self) -> list[str]:
        """vLLM reads the key that clients must have out of VLLM_API_KEY."""
        count = self.gpu.partition(":")[2] or "1"
        options = ["--host", "0.0.0.0", "--port", str(PORT), "--tensor-parallel-size", count]  # noqa: S104
        return ["vllm", "serve", self.model, "--served-model-name", self.model, *options]


serving = Serving.of_environment()
image = (
    modal.Image.from_registry("nvidia/cuda:12.8.1-devel-ubuntu22.04", add_python="3.12")
    .entrypoint([])
    .uv_pip_install(serving.vllm, "huggingface_hub[hf_transfer]")
    .env({"HF_HUB_ENABLE_HF_TRANSFER": "1", **serving.environment()})
    .add_local_python_source("koderz", "tracker", ignore=["**/__pycache__/**"])
)
app = modal.App(names_of(os.environ).server)


@app.function(
    image=image,
    gpu=serving.gpu,
    volumes={WEIGHTS: modal.Volume.from_name("koderz-weights", create_if_missing=True)},
    secrets=[modal.Secret.from_name(SERVE_SECRET, required_keys=["VLLM_API_KEY"])],
    scaledown_window=serving.idle,
    timeout=24 * 3600,
    min_containers=0,
    max_containers=1,
)
@modal.concurrent(max_inputs=100)
@modal.web_server(port=PORT, startup_timeout=STARTUP)
def serve() -> None:
    """Starts vLLM; Modal sends requests on once the port answers."""
    subprocess.Popen(serving.command())
