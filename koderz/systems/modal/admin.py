"""Deploys koderz on Modal, inspects the deployment, and removes it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

import modal
import orjson

from koderz._version import __version__
from koderz.engines.portable import source_digest
from koderz.errors import KoderzError, Unreachable
from koderz.systems.modal.cloud import (
    ABOUT,
    Cloud,
    MissingError,
    require_access,
    spoken,
    write_file,
)
from koderz.systems.modal.names import SERVE_SECRET, SERVING, gpu_cost, names_of

_KEYS = "OPENAI_API_KEY=… ANTHROPIC_API_KEY=…"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment of koderz on Modal."""

    app: str
    volume: str
    secret: str
    koderz: str  # the version that is deployed; empty where none is
    digest: str  # of its source
    matches: bool  # whether that is the source here
    running: int = 0  # containers
    waiting: int = 0  # calls
    url: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """A served model."""

    model: str
    gpu: str
    cost_per_second: float  # US dollars, while it runs
    url: str  # what `--base-url` takes


async def deploy() -> Deployment:
    """Deploys the app and its volume, with a description of them. Raises Unreachable and KoderzError."""
    names = names_of(os.environ)
    await require_access()
    await _require_secret(names.secret, _KEYS)
    with spoken(f"the app {names.app}"):
        from koderz.systems.modal.app import app

        await app.deploy.aio()
        await describe()
        url = f"https://modal.com/id/{app.app_id}" if app.app_id else ""
    return Deployment(*names, __version__, source_digest(), matches=True, url=url)


async def describe() -> None:
    """Writes a description of this koderz, which is being deployed, to the volume."""
    names = names_of(os.environ)
    about = {
        "app": names.app,
        "secret": names.secret,
        "koderz": __version__,
        "digest": source_digest(),
    }
    await write_file(names.volume, ABOUT, orjson.dumps(about))


async def status() -> Deployment:
    """The present deployment. Raises Unreachable if there is none."""
    cloud = Cloud(names_of(os.environ))
    await require_access()
    await cloud.look_up()
    about = await cloud.about()
    await _require_secret(cloud.names.secret, _KEYS)
    running, waiting = await cloud.load()
    deployed, digest = str(about.get("koderz")), str(about.get("digest"))
    return Deployment(*cloud.names, deployed, digest, digest == source_digest(), running, waiting)


async def serve(model: str, gpu: str, vllm: str, idle: int) -> Served:
    """Deploys a server of `model`, which starts with the first request and ends after `idle` seconds without one."""
    names = names_of(os.environ)
    rate = gpu_cost(gpu)
    await require_access()
    await _require_secret(SERVE_SECRET, "VLLM_API_KEY=…")
    serving = {"model": model, "gpu": gpu, "vllm": vllm, "idle": idle}
    os.environ[SERVING] = orjson.dumps(serving).decode()  # the app reads it
    with spoken(f"the app {names.server}"):
        from koderz.systems.modal.serve import app

        await app.deploy.aio()
        url = await modal.Function.from_name(names.server, "serve").get_web_url.aio()
    return Served(model, gpu, rate, f"{url}/v1")


async def stop() -> list[str]:
    """Stops the apps; files on the volume stay. Returns their names. Raises KoderzError if there is none."""
    names = names_of(os.environ)
    stopped: list[str] = []
    await require_access()
    for name in (names.app, names.server):
        with suppress(MissingError), spoken(f"the app {name}"):
            app = await modal.App.lookup.aio(name)
            await app.stop.aio()
            stopped.append(name)
    if not stopped:
        raise KoderzError(
            f"nothing of koderz runs on Modal: there is no app {names.app} and no {names.server}"
        )
    return stopped


async def _require_secret(name: str, keys: str) -> None:
    try:
        with spoken(f"the secret {name}"):
            await modal.Secret.from_name(name).hydrate.aio()
    except MissingError:
        raise Unreachable(
            f"Modal has no secret {name}; run: modal secret create {name} {keys}"
        ) from None
