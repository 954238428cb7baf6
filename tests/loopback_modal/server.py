"""The server: a loopback Modal for tests, and what a test may ask of it and do to it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from grpclib import GRPCError, Status

from tests.loopback_modal.functions import Deployed
from tests.loopback_modal.plane import Plane
from tests.loopback_modal.sandboxes import Sandboxed
from tests.loopback_modal.service import CONTAINER_HEADER, Weather

if TYPE_CHECKING:
    import modal

T = TypeVar("T")


class ModalServer:
    """Modal's control plane on 127.0.0.1, enough of it that an app can be deployed, called and watched.

        with ModalServer(secrets={"llm-api-keys": {"OPENAI_API_KEY": "x"}}) as server:
            subprocess.run(["modal", "deploy", "app.py"], env=os.environ | server.environment)

    Inputs run in Modal's own container entrypoint, in fresh interpreters that see the mounted files, the volumes and
    the installed packages, and not the working tree; at most `max_containers` of a function at once. `secrets` are
    there from the start; a volume in `foreign_volumes` is somebody else's. `tokens` are the token ids let in (all
    when empty). What it knows is kept in `folder`, so that a server started on the same folder goes on where an
    earlier one ended; without, in a folder of its own that goes away with it.

    A context manager, sync or async, which can be entered again: `stop` and `start` are what a machine does that
    goes away and comes back. It runs in a thread of its own.
    """

    def __init__(
        self,
        *,
        folder: Path | None = None,
        secrets: Mapping[str, Mapping[str, str]] | None = None,
        foreign_volumes: frozenset[str] | set[str] = frozenset(),
        tokens: frozenset[str] | set[str] = frozenset(),
        max_containers: int = 4,
        latency: float = 0.0,
        port: int = 0,
    ) -> None:
        self._kept, self._folder, self._port = folder, folder, port
        self._secrets, self._foreign = dict(secrets or {}), set(foreign_volumes)
        self._tokens, self._most = frozenset(tokens), max_containers
        self.weather = Weather(latency=latency)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._plane: Plane | None = None

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`, once the server is entered."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which Modal's SDK and command talk to this server, and to nothing else."""
        return {
            "MODAL_SERVER_URL": self.url,
            "MODAL_TOKEN_ID": next(iter(self._tokens), "ak-loopback"),
            "MODAL_TOKEN_SECRET": "as-loopback",
            "MODAL_CONFIG_PATH": "/dev/null",
            "MODAL_ENVIRONMENT": "main",
        }

    def client(self) -> modal.Client:
        """A client of Modal's SDK that is connected here, whatever the environment says; to be entered or closed."""
        from modal.client import Client
        from modal_proto import api_pb2

        token = self.environment["MODAL_TOKEN_ID"], self.environment["MODAL_TOKEN_SECRET"]
        return Client(self.url, api_pb2.CLIENT_TYPE_CLIENT, token)

    # its life

    def start(self) -> None:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="koderz-modal-"))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loopback Modal", daemon=True)
        self._thread.start()
        self._plane = Plane(self._folder, self._most, self.weather, self._admit)
        self._port = self._wait(self._plane.start(self._port))
        self._plane.volumes.foreign |= self._foreign
        for name, variables in self._secrets.items():
            self.put_secret(name, variables)

    def stop(self) -> None:
        """Goes away, containers and all; what it knows stays in its folder."""
        if self._loop is None or self._thread is None or self._plane is None:
            return
        self._wait(_stop(self._plane))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._kept is None and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    # what was asked of it

    @property
    def counts(self) -> Counter[str]:
        """How often each of Modal's calls was made."""
        return self._here.service.counts

    @property
    def missing(self) -> Counter[str]:
        """Calls it was asked for and doesn't have."""
        return self._here.service.missing

    @property
    def functions(self) -> dict[str, Deployed]:
        """The functions as they were last deployed, by name."""
        return self._do(self._by_name)

    def variants(self, function: str) -> list[Deployed]:
        """What a function became by options that callers gave it, such as another GPU, in that order."""
        return [one for one in self._do(self._here.functions.varied) if one.name.startswith(f"{function}@")]

    def dockerfile(self, function: str) -> list[str]:
        """The lines of the function's image, from its base up."""
        return self._do(lambda: self._here.images.dockerfile(self._by_name()[function].asked.image_id))

    def mounted(self, function: str) -> dict[str, str]:
        """The files the function sees: path in the container, and digest (SHA-256)."""
        return self._do(lambda: self._here.mounted(self._by_name()[function]))

    def containers(self, function: str = "") -> list[str]:
        """The ids of those that live."""
        function_id = self.functions[function].id if function else ""
        return self._do(lambda: self._here.containers.ids(function_id))

    @property
    def sandboxes(self) -> list[Sandboxed]:
        """All sandboxes that were ever created, as they were asked for."""
        return self._do(self._here.sandboxes.asked)

    @property
    def registry_logins(self) -> list[dict[str, str]]:
        """By what images were pulled that aren't public."""
        return self._do(lambda: [self._here.vault.environment([each]) for each in self._here.images.secrets()])

    def log(self, container: str) -> str:
        """What a container printed so far, also once it is gone."""
        path = self._here.starting.log(container)
        return path.read_text(errors="replace") if path.exists() else ""

    def volume(self, name: str) -> Path:
        """The folder that holds a volume's files. Raises KeyError where there is no such volume."""
        return self._do(lambda: self._here.volumes.named(name))

    # what goes on and goes wrong

    def put_secret(self, name: str, variables: Mapping[str, str]) -> None:
        self._do(lambda: self._here.vault.put(name, variables))

    def preempt(self, id_: str) -> None:
        """Kills a container, or all that work for a call; what they were at is run again in new ones.

        Also kills a sandbox, which nothing takes the place of.
        """
        self._do(lambda: self._here.preempt(id_))

    def kill(self, container: str) -> None:
        """Ends a container as one that dies by itself does: what it was at fails, unless it has retries left."""
        self._do(lambda: self._here.containers.kill(container))

    def expire(self, call: str) -> None:
        """Forgets the outputs of a call, as Modal does after 7 days."""
        self._do(lambda: self._here.calls.expire(call))

    def disconnect(self) -> None:
        """Cuts every connection that is open now; new ones are taken."""
        self._do(self._here.disconnect)

    # how it does it

    @property
    def _here(self) -> Plane:
        if self._plane is None:
            raise RuntimeError("the loopback Modal isn't started")
        return self._plane

    def _wait(self, work: Any) -> Any:
        assert self._loop is not None, "the loopback Modal isn't started"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _by_name(self) -> dict[str, Deployed]:
        return {one.name: one for one in self._here.functions.deployed()}

    def _do(self, work: Callable[[], T]) -> T:
        """Does something in the server's own thread, where all its state is touched."""

        async def done() -> T:
            return work()

        result: T = self._wait(done())
        return result

    def _admit(self, metadata: Mapping[str, Any]) -> str:
        container = str(metadata.get(CONTAINER_HEADER, ""))
        token = metadata.get("x-modal-token-id", "")
        if not container and (self.weather.refuse_token or not token or (self._tokens and token not in self._tokens)):
            raise GRPCError(Status.UNAUTHENTICATED, "Token ID not found")
        return container


async def _stop(plane: Plane) -> None:
    await plane.stop()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.sleep(0.01)  # transports close a turn after they were told to
