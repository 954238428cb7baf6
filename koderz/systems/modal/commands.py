"""`koderz modal`: deploys and manages koderz on Modal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from koderz.cli.console import print_json, say
from koderz.cli.flags import Json
from koderz.cli.groups import PanelCommand, new_group

app = new_group(
    "Deploy koderz on Modal, whose containers run experiments for --engine modal.",
    examples=["koderz modal deploy", "koderz modal status"],
)


@app.command(cls=PanelCommand)
def deploy(
    json: Json = False,
    secret: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The secret that holds the models' keys. Default: llm-api-keys."
        ),
    ] = None,
) -> None:
    """Deploy this koderz, or update what is deployed. Runs in progress continue.

    Examples:
        koderz modal deploy
    """
    from koderz.systems.modal.admin import deploy as deploy_app

    if secret:
        os.environ["KODERZ_MODAL_SECRET"] = secret  # the app's own module reads it
    found = _done(deploy_app(), json=json)
    if found:
        say(f"deployed koderz {found.koderz} ({found.digest}) as the app {found.app}")
        say(f"keys from the secret {found.secret}, results on the volume {found.volume}")
        say(
            f"then: koderz benchmark 0 10 --model openai/gpt-6-luna --engine modal\n{found.url}".rstrip()
        )


@app.command(cls=PanelCommand)
def status(json: Json = False) -> None:
    """Show what is deployed.

    Examples:
        koderz modal status
    """
    from koderz.systems.modal.admin import status as look

    if found := _done(look(), json=json):
        state = (
            "the same as here"
            if found.matches
            else "not the source that is here; run: koderz modal deploy"
        )
        say(f"app      {found.app}: koderz {found.koderz} ({found.digest}), {state}")
        say(f"volume   {found.volume}")
        say(f"secret   {found.secret}")
        say(f"running  {found.running} containers, {found.waiting} experiments waiting")


@app.command(cls=PanelCommand)
def serve(
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", metavar="MODEL", help="The name of the model at Hugging Face."
        ),
    ],
    gpu: Annotated[str, typer.Option(metavar="TYPE", help="TYPE or TYPE:COUNT.")] = "H100",
    vllm: Annotated[
        str, typer.Option(metavar="REQUIREMENT", help="The vLLM to install, such as vllm==0.11.0.")
    ] = "vllm",
    idle: Annotated[
        int,
        typer.Option(metavar="SECONDS", help="Time without a request after which it stops.", min=2),
    ] = 300,
    json: Json = False,
) -> None:
    """Serve a model by vLLM. It starts with the first request, and costs nothing while nobody asks.

    Examples:
        koderz modal serve --model Qwen/Qwen2.5-Coder-7B-Instruct --gpu L4
    """
    from koderz.systems.modal.admin import serve as deploy_server

    if found := _done(deploy_server(model, gpu, vllm, idle), json=json):
        say(
            f"serving {found.model} on {found.gpu}, ${found.cost_per_second:.6f} a second while it runs, at {found.url}"
        )
        say("its key is VLLM_API_KEY of the secret koderz-serve; with that in the environment:")
        say(
            f"koderz benchmark 0 164 --local-model openai/{found.model} --base-url {found.url} "
            "--api-key-env VLLM_API_KEY"
        )


@app.command(cls=PanelCommand)
def stop(json: Json = False) -> None:
    """Stop the apps. Experiments in them end and can be resumed; the volume stays.

    Examples:
        koderz modal stop
    """
    from koderz.systems.modal.admin import stop as take_away

    for name in _done(take_away(), json=json) or []:
        say(f"stopped {name}")


def _done(work: Coroutine[Any, Any, Any], *, json: bool) -> Any:
    """The result of the work; None if it was printed as JSON."""
    result = asyncio.run(work)
    if not json:
        return result
    print_json(result)
    return None
