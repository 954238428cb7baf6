"""`koderz wasm`: the WASM image and the manager of sessions."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Any

import typer

from koderz.cli.console import print_json, say, warn
from koderz.cli.flags import Json
from koderz.cli.groups import PanelCommand, new_group

app = new_group(
    "Build the image that sessions of code run in, or serve such sessions over HTTP.",
    examples=["koderz wasm build", "koderz wasm serve --port 8080"],
)

Url = Annotated[
    str,
    typer.Option(
        "--wasm-url",
        metavar="URL",
        help="The manager's address.",
        envvar="WASM_MANAGER_SERVICE_URL",
    ),
]
Token = Annotated[
    str, typer.Option("--wasm-token", metavar="T", help="Its token.", envvar="KODERZ_WASM_TOKEN")
]


@app.command(cls=PanelCommand)
def build(json: Json = False) -> None:
    """Build the WASM image, where it isn't there yet: about a minute, once.

    Examples:
        koderz wasm build
    """
    from koderz.systems.long_context.wasm.image import ready_image

    image = ready_image(warn)
    if json:
        print_json({"image": str(image.compiled), "digest": image.digest})
    else:
        say(f"image {image.digest}: {image.compiled}")


@app.command(cls=PanelCommand)
def serve(
    host: Annotated[str, typer.Option(metavar="H", help="Address to bind.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", help="0 takes a free one.", min=0, max=65535)
    ] = 8080,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Worker processes. Default: one a core.", min=1, max=256),
    ] = None,
    max_sessions: Annotated[
        int,
        typer.Option(
            metavar="N", help="Sessions at once.", min=1, max=100_000, envvar="MAX_SESSIONS"
        ),
    ] = 32,
    session_ttl: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Time without a request after which one ends.",
            min=0.1,
            envvar="SESSION_TTL",
        ),
    ] = 3600,
    session_memory: Annotated[
        int, typer.Option(metavar="MB", help="Memory of a session.", min=32, max=4096)
    ] = 512,
    memory: Annotated[
        int, typer.Option(metavar="MB", help="Memory of all sessions together.", min=128)
    ] = 4096,
    token: Annotated[
        str,
        typer.Option(
            metavar="T",
            help="Token that requests have to bring. Prefer the variable: options stand in the list of processes.",
            envvar="KODERZ_WASM_TOKEN",
        ),
    ] = "",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A Host that requests may name; repeatable."),
    ] = None,
    open_: Annotated[
        bool, typer.Option("--open", help="Let everybody in who reaches the address.")
    ] = False,
) -> None:
    """Serve sessions over HTTP until Ctrl-C. The first line on standard output is the address.

    Examples:
        koderz wasm serve --port 8080
    """
    from koderz.systems.long_context.wasm.image import require_packages

    require_packages()
    from koderz.systems.long_context.wasm.manager import Address, ManagerLimits, ManagerOptions
    from koderz.systems.long_context.wasm.manager import serve as serve_sessions

    if token and token != os.environ.get("KODERZ_WASM_TOKEN"):
        warn(
            "note: every user of this machine can read --token in the list of processes; KODERZ_WASM_TOKEN is safer"
        )
    address = Address(host, port, token, open_, tuple(allow_host or ()))
    limits = ManagerLimits(max_sessions, session_ttl, session_memory, memory)
    quiet = os.environ.get("LOG_LEVEL", "").upper() in ("ERROR", "CRITICAL")
    serve_sessions(
        ManagerOptions(address, workers or 0, limits),
        environ=os.environ,
        tell=say,
        warn=(lambda _: None) if quiet else warn,
    )


@app.command(cls=PanelCommand)
def status(
    wasm_url: Url = "http://127.0.0.1:8080", wasm_token: Token = "", json: Json = False
) -> None:
    """Show a manager's health and its sessions. Exit code 4 where none answers.

    Examples:
        koderz wasm status --wasm-url http://127.0.0.1:8080
    """
    found = asyncio.run(_status(wasm_url, wasm_token))
    if json:
        print_json(found)
        return
    say(f"WASM manager on {wasm_url}: {found['status']}, koderz {found['version']}")
    for one in found["sessions"]:
        held = (
            f"{one['cells']} cells, {one['memory'] / 1e6:.1f} MB, idle {one['idle_seconds']:.0f} s"
        )
        say(f"  {one['id']}  {held}")
    if not found["sessions"]:
        say("  no sessions")


@app.command(cls=PanelCommand)
def stop() -> None:
    """Stop the manager that you serve on this machine.

    Examples:
        koderz wasm stop
    """
    from koderz.systems.long_context.wasm.manager import stop as stop_serving

    say(f"stopped the WASM manager on {stop_serving(os.environ)}")


async def _status(url: str, token: str) -> dict[str, Any]:
    from koderz.systems.long_context.wasm.client import RemotePool

    async with RemotePool(url, token) as pool:
        health, listed = await pool.get("/health"), await pool.get("/sessions?detail=1")
    return {**health, "sessions": listed["sessions"]}
