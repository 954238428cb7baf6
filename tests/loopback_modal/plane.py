"""All parts of the control plane put together, on one folder and two ports."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

from aiohttp import web
from grpclib import GRPCError, Status
from grpclib.config import Configuration
from grpclib.protocol import H2Protocol
from grpclib.server import Server
from modal_proto import api_grpc, task_command_router_grpc

from tests.loopback_modal.apps import Apps
from tests.loopback_modal.blobs import LARGEST, Blobs
from tests.loopback_modal.calls import Calls
from tests.loopback_modal.containers import Containers
from tests.loopback_modal.dicts import Dicts
from tests.loopback_modal.functions import Deployed, Functions
from tests.loopback_modal.images import Images
from tests.loopback_modal.inputs import Inputs
from tests.loopback_modal.router import Router
from tests.loopback_modal.sandboxes import Sandboxes
from tests.loopback_modal.service import Service, Weather
from tests.loopback_modal.starting import Starting
from tests.loopback_modal.store import Bells, Store
from tests.loopback_modal.streams import Streams
from tests.loopback_modal.variants import Variants
from tests.loopback_modal.vault import Vault
from tests.loopback_modal.volumes import Volumes
from tests.loopback_modal.work import Work

_WINDOW = 64 << 20  # bytes in flight, as the SDK has it


class Listener(Server):
    """grpclib's server, which ends requests but keeps connections; this one can hang up."""

    def __init__(self, services: Sequence[Service], config: Configuration) -> None:
        super().__init__(services, config=config)
        self._open: WeakSet[H2Protocol] = WeakSet()

    def hang_up(self) -> None:
        for protocol in list(self._open):
            protocol.processor.close("the server hangs up")

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        self._open.add(protocol)
        return protocol


class Plane:
    def __init__(self, folder: Path, most: int, weather: Weather, admit: Callable[[Mapping[str, Any]], str]) -> None:
        self._store, bells = Store(folder), Bells()
        self.blobs = Blobs(folder / "blobs")
        self.vault = Vault(self._store)
        self.volumes = Volumes(self._store, self.blobs)
        self.images = Images(self._store, self.blobs)
        self.functions = Functions(self._store)
        self.inputs = Inputs(self._store, bells)
        self.starting = Starting(self._store, self.images, self.vault, self.volumes)
        self.containers = Containers(self._store, self.inputs, bells, self.starting, most)
        self.calls = Calls(self._store, self.inputs, self.containers, bells)
        self.sandboxes = Sandboxes(self._store, self.starting, self.vault, bells)
        apps, dicts = Apps(self._store, self.containers), Dicts(self._store)
        subjects = [
            apps, dicts, self.functions, self.calls, self.containers, self.volumes, self.vault, self.images, self.blobs,
            self.sandboxes, Streams(self._store, bells), Variants(self._store),
            Work(self.containers, self.inputs, bells),
        ]  # fmt: skip
        self.service = Service(api_grpc.ModalClientBase, subjects, weather, admit)
        router = Router(self.sandboxes, bells)
        self._router = Service(task_command_router_grpc.TaskCommandRouterBase, [router], weather, _bearer)

    async def start(self, port: int) -> int:
        """Listens; returns the port."""
        config = Configuration(http2_connection_window_size=_WINDOW, http2_stream_window_size=_WINDOW)
        self._server = Listener([self.service, self._router], config=config)
        self.blobs.url = await self._start_http()
        listening = socket.create_server(("127.0.0.1", port), backlog=1024)
        await self._server.start(sock=listening)
        taken: int = listening.getsockname()[1]
        self.starting.url = f"http://127.0.0.1:{taken}"
        self.sandboxes.forget_the_dead()
        self.inputs.put_back_all()
        self.containers.resume()
        return taken

    async def stop(self) -> None:
        self._server.close()
        self._server.hang_up()
        await self.containers.close()
        await self.sandboxes.close()
        await self._server.wait_closed()
        await self._http.cleanup()
        self._store.close()

    def mounted(self, function: Deployed) -> dict[str, str]:
        return {path: digest for mount in function.mounts for path, digest in self.images.files(mount).items()}

    def preempt(self, id_: str) -> None:
        self.sandboxes.terminate(id_)
        containers = {id_} if id_.startswith("ta-") else {one.container for one in self.inputs.unfinished(id_)}
        for container in containers & set(self.containers.ids()):
            self.containers.preempt(container)

    def disconnect(self) -> None:
        self._server.hang_up()

    async def _start_http(self) -> str:
        app = web.Application(client_max_size=LARGEST)
        app.add_routes([*self.blobs.routes(), *self.volumes.routes()])
        self._http = web.AppRunner(app, access_log=None)
        await self._http.setup()
        site = web.TCPSite(self._http, "127.0.0.1", 0)
        await site.start()
        port = self._http.addresses[0][1]
        return f"http://127.0.0.1:{port}"


def _bearer(metadata: Mapping[str, Any]) -> str:
    if not str(metadata.get("authorization", "")).startswith("Bearer "):
        raise GRPCError(Status.UNAUTHENTICATED, "no token for the sandbox")
    return ""
