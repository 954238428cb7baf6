"""The Modal app of `koderz modal serve`: a vLLM server of one model, which costs nothing while idle."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict, dataclass

import modal

from koderz.systems.modal.names import SERVE_SECRET, SERVING, names_of

PORT = 8000
WEIGHTS = "/root/.cache/huggingface"
STARTUP = 1800  # seconds: the first start downloads the weights


@dataclass(frozen=True, slots=True)
class Serving:
    """The served model and its machine. It reaches the container in a variable of the image."""

    model: str = ""
    gpu: str = "H100"
    vllm: str = "vllm"
    idle: int = 300  # seconds without a request after which the server ends

    def command(self) -> list[str]:
        """The command of vLLM, which reads the key that clients need from VLLM_API_KEY."""
        count = self.gpu.partition(":")[2] or "1"
        options = ["--host", "0.0.0.0", "--port", str(PORT), "--tensor-parallel-size", count]  # noqa: S104
        return ["vllm", "serve", self.model, "--served-model-name", self.model, *options]


serving = Serving(**json.loads(os.environ.get(SERVING, "{}")))
image = (
    modal.Image.from_registry("nvidia/cuda:12.8.1-devel-ubuntu22.04", add_python="3.12")
    .entrypoint([])
    .uv_pip_install(serving.vllm, "huggingface_hub[hf_transfer]")
    .env({"HF_HUB_ENABLE_HF_TRANSFER": "1", SERVING: json.dumps(asdict(serving))})
    .add_local_python_source("koderz", "koderz_tracker", ignore=["**/__pycache__/**"])
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
