"""Agents that speak the Agent Client Protocol: any command, driven by the protocol's own library.

The agent's stdin and stdout are a connection to the bridge, the only thing that it can reach from its sandbox. It is
offered neither files nor a terminal, so that it uses its own tools, contained as any agent's.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from koderz._version import __version__
from koderz.errors import Fault, KoderzError
from koderz.sandbox.workspace import BRIDGE_PORT, Ended
from koderz.settings.installation import extra_command
from koderz.solvers.definition import AskHandle
from koderz.systems.rollouts.agents.adapters import (
    ACP,
    Dirs,
    Event,
    Package,
    bridged_codex,
    claude_code,
    codex,
    mini_swe_agent,
    parsed,
)
from koderz.systems.rollouts.agents.bridge import GRACE, Bridge

if TYPE_CHECKING:
    from koderz.systems.rollouts.additions import Addition

_PATH = "/acp"
_OPENING = 120.0  # seconds until there is a session
_LONGEST = 4 << 20  # bytes of a message
_KEPT = 1 << 20  # characters of the updates that are recorded
_AUTH_REQUIRED = -32000
# by the reason to stop
_FINISHES = {"max_tokens": "length", "max_turn_requests": "turns", "refusal": "refusal"}
# it is contained already
_CODEX = ("-c", 'sandbox_mode="danger-full-access"', "-c", 'approval_policy="never"')
_ENDED = '{"koderz": "ended"}'
_CHUNKS = {"agent_message_chunk": "message", "agent_thought_chunk": "reasoning"}
# HTTP/1.0 with a body without end: after its head, either side is the bare stream. The agent gets pipes, since asyncio
# takes a readable socket for a stdout that was closed. Once it has ended, koderz is told so until it hangs up: it would
# not read what was written last from a connection that is lost.
_CONNECT = f"""
exec 3<>/dev/tcp/127.0.0.1/{BRIDGE_PORT} || exit
printf 'POST {_PATH} HTTP/1.0\\r\\nAuthorization: Bearer %s\\r\\n' "$KODERZ_BRIDGE_TOKEN" >&3
printf 'Content-Length: 1152921504606846976\\r\\n\\r\\n' >&3
while IFS= read -r line <&3 && [ "$line" != $'\\r' ]; do :; done
"$@" < <(exec cat <&3 2>/dev/null) > >(exec cat >&3 2>/dev/null) 3>&-
status=$?
trap '' PIPE
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 $! 2>/dev/null || break; sleep 0.2; done
for _ in 1 2 3 4 5 6 7 8 9 10; do echo '{_ENDED}' >&3 2>/dev/null || break; sleep 0.2; done
exit $status
"""


class AcpAgent:
    """The adapter for an agent by its command line, see `Adapter`."""

    takes = frozenset({"mcp"})

    def __init__(self, command: str) -> None:
        """Raises KoderzError for no command line, and without the protocol's library."""
        try:
            import acp as _  # noqa: F401

            self._words = shlex.split(command)
        except ImportError:
            need = f"an agent {ACP}… needs the package agent-client-protocol"
            raise KoderzError(f"{need}; run: {extra_command('agents')}") from None
        except ValueError as error:
            raise KoderzError(f"--agent {ACP}{command}: no command line: {error}") from None
        if not self._words:
            raise KoderzError(f"--agent {ACP}COMMAND: name the command that starts the agent")
        self._arguments = [
            str(Path(each).absolute()) if Path(each).is_file() else each for each in self._words[1:]
        ]
        self.install = f"npm or pip, whichever has the command {self._words[0]}"

    def find(self) -> Package | None:
        """Its program, with the package or environment that it belongs to, and the files among its arguments."""
        files = [
            each for each in self._arguments if Path(each).is_absolute() and Path(each).is_file()
        ]
        if self._words[0] in ("python", "python3"):  # which every sandbox has a way of its own to
            return Package("python3", tuple(files))
        found = shutil.which(self._words[0])
        if found is None:
            return None
        place = Path(found).absolute()  # a link in an environment of Python has to stay one
        if (place.parents[1] / "pyvenv.cfg").is_file():
            python = (place.parent / "python").resolve()
            return Package(str(place), (str(place.parents[1]), str(python.parents[1]), *files))
        program, node = place.resolve(), shutil.which("node")
        packages = [str(folder) for folder in program.parents if folder.name == "node_modules"]
        own = [packages[-1] if packages else str(program)]
        if packages and node:
            own.append(str(Path(node).resolve()))
        return Package(str(program), (*own, *files))

    def command(
        self, prompt: str, model: str, dirs: Dirs
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        # Each agent reads the address of its model from a place of its own: these are all that are known.
        others = (claude_code, codex, mini_swe_agent)
        environment = {
            name: value
            for each in others
            for name, value in each.command(prompt, model, dirs)[1].items()
        }
        environment |= {"ANTHROPIC_MODEL": model, "OPENAI_MODEL": model}
        program = Path(dirs.program)
        # `env node` finds no other's
        node = shutil.which("node") if program.suffix in (".js", ".mjs") else None
        settings = [*bridged_codex(dirs.url), *_CODEX] if "codex-acp" in program.parts else []
        argv = [
            *([str(Path(node).resolve())] if node else []),
            dirs.program,
            *self._arguments,
            *settings,
        ]
        return ["bash", "-c", _CONNECT, "bash", *argv], environment

    def events(self, line: str) -> Iterator[Event]:
        said = parsed(line)
        kind = str(said.get("sessionUpdate"))
        if kind in _CHUNKS:
            yield Event(_CHUNKS[kind], _text(said))
        elif kind == "tool_call":
            yield Event(
                "tool", f"{said.get('title')} {orjson.dumps(said.get('rawInput')).decode()}"
            )
        elif "stopReason" in said:
            yield Event("error", str(said["error"])) if said.get("error") else Event("end")


def _text(update: Mapping[str, Any]) -> str:
    content = update.get("content")
    return str(content.get("text", "")) if isinstance(content, dict) else ""


def _joined(updates: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The updates, of which those that are pieces of one message are one."""
    for kind, alike in groupby(updates, lambda update: str(update.get("sessionUpdate"))):
        if kind in _CHUNKS:
            yield {
                "sessionUpdate": kind,
                "content": {"type": "text", "text": "".join(map(_text, alike))},
            }
        else:
            yield from alike


class AcpBridge(Bridge):
    """A bridge that also is the agent's client: it opens one session, and has it work on one prompt."""

    def __init__(
        self,
        prompt: str,
        workdir: str,
        ask: AskHandle,
        model: str,
        additions: Sequence[Addition] = (),
    ) -> None:
        super().__init__(ask, model, additions)
        self._prompt, self._workdir = prompt, workdir
        self._wire = _Wire()
        # of the agent; why it stopped; the words of its error
        self._version = self._stop = self._error = ""
        self._begun, self._permissions = False, 0

    async def beside(self, working: Awaitable[Any]) -> Any:
        """How the agent ended, with its updates as lines before what it printed. Raises Fault if it began nothing."""
        ended: Ended = await super().beside(self._conversing(working))
        self._error = self._error or self._wire.wrong
        if not self._begun:
            why = (
                self._error
                or ended.output.strip()[-300:]
                or ended.cause
                or f"exit code {ended.status}"
            )
            no_session = "it opens no session of the Agent Client Protocol"
            raise Fault(f"launch_failed: {no_session}: {why}", cause="launch_failed")
        if self._error and not self._calls:
            raise Fault(
                f"the agent ended with an error before its model had answered: {self._error}",
                cause="provider",
            )
        last = {"stopReason": self._stop, **({"error": self._error} if self._error else {})}
        lines = [orjson.dumps(each).decode() for each in (*_joined(self._wire.updates), last)]
        return replace(ended, output="\n".join([*lines, ended.output]))

    def record(self) -> dict[str, Any]:
        """Also `version`, as the agent says it, `stop_reason`, and the number of `permissions` that it was given."""
        own = {
            "version": self._version,
            "stop_reason": self._stop,
            "permissions": self._permissions,
        }
        known = super().record()
        return {**known, "finish": _FINISHES.get(self._stop, known["finish"]), **own}

    async def request_permission(self, options: Sequence[Any], **_: Any) -> Any:
        """Gives a permission once, where that can be chosen."""
        ids = {option.kind: option.option_id for option in options}
        chosen = ids.get("allow_once") or ids.get("allow_always")
        self._permissions += chosen is not None
        return {
            "outcome": {"outcome": "selected", "optionId": chosen}
            if chosen
            else {"outcome": "cancelled"}
        }

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        is_own = request.path == _PATH and self._may(request.headers)
        return await (self._wire.connect(request) if is_own else super()._handle(request))

    async def _conversing(self, working: Awaitable[Ended]) -> Ended:
        work, session = asyncio.ensure_future(working), asyncio.create_task(self._converse())
        try:
            await asyncio.wait([work, session], return_when=asyncio.FIRST_COMPLETED)
            await self._wire.close()  # its stdin ends; an agent that goes on all the same is ended
            await session
            await asyncio.wait([work], timeout=GRACE)
            return work.result() if work.done() else Ended(0, "")
        finally:
            await self._wire.close()
            work.cancel()
            await asyncio.wait([work, session])

    async def _converse(self) -> None:
        from acp import PROTOCOL_VERSION, RequestError, connect_to_agent, text_block
        from acp.schema import Implementation, NewSessionRequest

        agent: Any = connect_to_agent(self, self._wire)  # type: ignore[arg-type]
        servers = [_server(each) for each in self.additions if each.kind == "mcp"]
        own = Implementation(name="koderz", version=__version__)
        try:
            async with asyncio.timeout(_OPENING):
                about = await agent.initialize(protocol_version=PROTOCOL_VERSION, client_info=own)
                if about.protocol_version != PROTOCOL_VERSION:
                    self._error = (
                        f"it speaks version {about.protocol_version}, koderz {PROTOCOL_VERSION}"
                    )
                    return
                self._version = about.agent_info.version[:100] if about.agent_info else ""
                asked = NewSessionRequest.model_validate(
                    {"cwd": self._workdir, "mcpServers": servers}
                )
                session = await agent.new_session(cwd=asked.cwd, mcp_servers=asked.mcp_servers)
            self._begun = True
            prompted = await agent.prompt(
                session_id=session.session_id, prompt=[text_block(self._prompt)]
            )
            self._stop = prompted.stop_reason
        except RequestError as error:
            asks = "it asks for a login: " if error.code == _AUTH_REQUIRED else ""
            self._error = f"{asks}{error}{f' {error.data}' if error.data else ''}"[:500]
        except (TimeoutError, ValueError) as error:  # which says what isn't of the protocol
            self._error = (
                " ".join(str(error).split())[:300] or f"it gave no answer in {_OPENING:.0f} s"
            )
        except ConnectionError:  # it ended, which `beside` judges
            return
        finally:
            await agent.close()


def _server(addition: Addition) -> dict[str, Any]:
    """An MCP server as the protocol has it, whose tables are lists of pairs."""
    tables = {key: value for key, value in addition.server.items() if isinstance(value, Mapping)}
    pairs = {
        key: [{"name": name, "value": each} for name, each in value.items()]
        for key, value in tables.items()
    }
    usual = {"type": "http", "headers": []} if "url" in addition.server else {"args": [], "env": []}
    return {**usual, **addition.server, **pairs, "name": addition.bare_name}


class _Wire:
    """The messages between the protocol's library and an agent, as its `Transport` has them."""

    def __init__(self) -> None:
        self.updates: deque[dict[str, Any]] = deque()  # of its work, the latest
        self.wrong = ""  # why the connection was ended
        self._kept = 0  # characters of the updates
        self._messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(64)
        self._connected, self._is_over = asyncio.Event(), False
        self._request: web.Request | None = None
        self._response = web.StreamResponse()

    async def connect(self, request: web.Request) -> web.StreamResponse:
        """Carries the messages of the one connection that an agent makes, until either side ends it."""
        if self._request is not None or self._is_over:
            return web.Response(status=409, text="koderz: there is a session already")
        self._request = request
        await self._response.prepare(request)
        self._connected.set()
        waiting = b""
        try:
            async for piece in request.content.iter_any():
                *lines, waiting = (waiting + piece).split(b"\n")
                for message in filter(
                    None, (parsed(line.decode("utf-8", "replace")) for line in lines)
                ):
                    if "koderz" in message:
                        return self._response
                    if message.get("method") == "session/update":
                        # Not by the library, which knows the updates of one version alone and complains of others.
                        self._keep(message.get("params"))
                    elif isinstance(message.get("id"), int | str) and isinstance(
                        message.get("error", {}), dict
                    ):
                        await self._messages.put(message)
                if len(waiting) > _LONGEST:
                    self.wrong = f"it sends a message of more than {_LONGEST >> 20} MB"
                    break
        finally:
            await self.close()
        return self._response

    def _keep(self, params: Any) -> None:
        update = params.get("update") if isinstance(params, dict) else None
        if isinstance(update, dict):
            self.updates.append(update)
            self._kept += len(orjson.dumps(update))
        while self._kept > _KEPT:
            self._kept -= len(orjson.dumps(self.updates.popleft()))

    async def send(self, message: dict[str, Any]) -> None:
        """Sends a message. Raises ConnectionError once the agent has ended."""
        await self._connected.wait()
        if self._is_over:
            raise ConnectionError("the agent has ended")
        await self._response.write(orjson.dumps(message) + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end."""
        return None if self._is_over and self._messages.empty() else await self._messages.get()

    async def close(self) -> None:
        """Ends the connection: the agent's stdin ends, and nobody waits for it any more."""
        self._is_over = True
        self._connected.set()
        with suppress(asyncio.QueueFull):  # else who receives finds that it is over
            self._messages.put_nowait(None)
        if self._request is not None and self._request.transport is not None:
            self._request.transport.close()
