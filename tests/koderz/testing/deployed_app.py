"""The app that the tests of the loopback Modal deploy; it is copied into a folder of its own before."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import modal

app = modal.App("probe")
image = (
    modal.Image.debian_slim()
    .env({"FLAVOUR": "plain"})
    .uv_pip_install("orjson==3.11")
    .add_local_python_source("koderz_tracker")
)
results = modal.Volume.from_name("results", create_if_missing=True)
notes = modal.Dict.from_name("notes", create_if_missing=True)


@app.function(
    image=image,
    gpu="H100:2",
    volumes={"/results": results},
    secrets=[modal.Secret.from_name("keys")],
    timeout=120,
    retries=0,
    max_containers=2,
)
def look_around(name: str) -> dict[str, Any]:
    Path("/results", name).write_text(f"written by {name}")
    results.commit()
    notes[name] = {"pid": os.getpid()}
    modules = {}
    for module in ("koderz_tracker", "koderz"):
        try:
            modules[module] = str(__import__(module).__file__)
        except ImportError:
            modules[module] = "missing"
    environment = {key: os.environ.get(key) for key in ("KEY", "FLAVOUR", "KODERZ_UNRELATED")}
    return {"environment": environment, "folder": str(Path.cwd()), "path": sys.path, "modules": modules}


@app.function(max_containers=1)
@modal.concurrent(max_inputs=20)
async def wait(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


@app.function(max_containers=1)
async def wait_noted(key: str, seconds: float) -> int:
    """How often this was begun."""
    begun = (await notes.get.aio(key, 0)) + 1
    await notes.put.aio(key, begun)
    if begun == 1:
        await asyncio.sleep(seconds)
    return int(begun)


@app.function()
def size_of(data: bytes) -> bytes:
    return data + b"!"


@app.function(retries=modal.Retries(max_retries=2, initial_delay=0.0))
def fail(key: str) -> None:
    notes[key] = notes.get(key, 0) + 1
    raise ValueError(f"no luck with {key}")


@app.function(timeout=1)
def too_long() -> None:
    import time

    time.sleep(60)


@app.function()
def count_to(number: int) -> Iterator[int]:
    yield from range(number)


@app.function()
def die() -> None:
    os._exit(3)


@app.function()
@modal.web_server(8000)
def serve() -> None:
    """Is never started here."""


@app.cls()
class Greeter:
    word: str = modal.parameter(default="hello")

    @modal.method()
    def greet(self, name: str) -> str:
        return f"{self.word} {name}"
