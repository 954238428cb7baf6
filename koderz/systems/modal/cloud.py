"""Modal's SDK as koderz uses it, with errors as one line that names the command to fix them, and the doctor's check."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from koderz.errors import Fault, KoderzError, Unreachable
from koderz.settings.installation import dependency_command
from koderz.systems.modal.names import Names, is_configured, names_of
from koderz.types import Finding

if TYPE_CHECKING:
    import modal


FUNCTION = "run_experiment"
DEPLOY = "koderz modal deploy"
MOUNT = "/results"  # where containers have the volume
ABOUT = "koderz.json"  # on the volume: what was deployed
REACH_SECONDS = 10.0


class MissingError(Unreachable):
    """Modal has no object of this name."""


class LostCallError(Exception):
    """A submitted call will have no result: its worker died, it was cancelled, or it is too old."""


class Cloud:
    """The deployed app as seen by the driver. Methods raise KoderzError, and Unreachable if something is missing."""

    def __init__(
        self,
        names: Names,
        *,
        gpu: str | None = None,
        max_containers: int | None = None,
        max_inputs: int | None = None,
    ) -> None:
        """`max_inputs`: experiments at once in one container, if not the number that was deployed."""
        self.names = names
        self._options = {"gpu": gpu, "max_containers": max_containers}
        self._max_inputs = max_inputs
        self._found: modal.Function[Any, Any, Any] | None = None

    async def about(self) -> dict[str, Any]:
        """The description of the deployment: koderz' version, source digest, secret."""
        await require_access()
        with spoken(f"the volume {self.names.volume}"):
            data = await read_file(self.names.volume, ABOUT)
        try:
            found = orjson.loads(data or b"")
        except orjson.JSONDecodeError:
            found = None
        app = found.get("app") if isinstance(found, dict) else None
        if app != self.names.app:
            whose = f"belongs to the app {app}" if app else "isn't koderz'"
            raise Unreachable(
                f"Modal's volume {self.names.volume} {whose}, not the app {self.names.app}; "
                f"run: {DEPLOY}, or name another by KODERZ_MODAL_VOLUME"
            )
        return dict(found)

    async def look_up(self) -> modal.Function[Any, Any, Any]:
        """The function that runs experiments."""
        import modal

        if self._found is None:
            options: dict[str, Any] = {
                name: value for name, value in self._options.items() if value is not None
            }
            with spoken(f"the app {self.names.app}"):
                function = modal.Function.from_name(self.names.app, FUNCTION)
                await function.hydrate.aio()
                function = function.with_options(**options) if options else function
                self._found = (
                    function.with_concurrency(max_inputs=self._max_inputs)
                    if self._max_inputs
                    else function
                )
        return self._found

    async def spawn(self, submission: dict[str, Any]) -> tuple[str, str]:
        """Submits one experiment; returns the call's id and the address of its page."""
        function = await self.look_up()
        with spoken(f"the app {self.names.app}"):
            call = await function.spawn.aio(submission)
        return call.object_id, page_of(call.object_id)

    async def result(self, call_id: str, timeout: float) -> dict[str, Any] | None:  # noqa: ASYNC109 the server waits
        """The call's return value; None if there is none after so many seconds. Raises LostCallError."""
        import modal
        from modal import exception

        try:
            with spoken(f"the call {call_id}", lost=True):
                found: dict[str, Any] = await modal.FunctionCall.from_id(call_id).get.aio(
                    timeout=timeout
                )
                return found
        except TimeoutError:  # the builtin one, which no exception of Modal's is
            return None
        except (exception.RemoteError, exception.TimeoutError, exception.InternalFailure) as error:
            raise LostCallError(_line(error)) from error
        except KoderzError:
            raise
        except Exception as error:
            # whatever a container failed with is raised here, as if it had happened here
            raise LostCallError(f"{type(error).__name__}: {_line(error)}") from error

    async def load(self) -> tuple[int, int]:
        """The numbers of the function's containers and of calls that wait for one, over all runs."""
        function = await self.look_up()
        with spoken(f"the app {self.names.app}"):
            stats = await function.get_current_stats.aio()
        return stats.num_total_runners, stats.backlog

    async def cancel(self, call_id: str) -> None:
        import modal

        with spoken(f"the call {call_id}"):
            await modal.FunctionCall.from_id(call_id).cancel.aio()


def page_of(call_id: str) -> str:
    """The address of the page with a call's logs and container."""
    return f"https://modal.com/id/{call_id}"


async def list_files(volume: str, folder: str) -> list[str]:
    """The paths of a folder's files on a volume; empty if there is no such folder."""
    import modal

    try:
        return [
            entry.path
            async for entry in modal.Volume.from_name(volume).iterdir.aio(folder, recursive=False)
        ]
    except FileNotFoundError:
        return []


async def require_access() -> None:
    """Raises Unreachable without a token, and without a network at once, while the SDK would try for a minute."""
    import modal
    from modal.config import config

    names = {name for name, value in config.to_dict().items() if value}
    if modal.is_local() and not names & {"token_id", "oauth_refresh_token"}:
        raise Unreachable(
            "there is no token of Modal's here; run: modal setup, or modal token new, "
            "or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
        )
    if {"https_proxy", "all_proxy"} & {*map(str.lower, os.environ)}:
        return
    failures = []
    for server in config["server_url"].split(","):  # any of them will do
        failure = await _failure(server.strip())
        if not failure:
            return
        failures.append(failure)
    raise Unreachable(f"{failures[0]}; is there a network?")


async def _failure(url: str) -> str:
    """The reason why a server can't be reached; empty if it can."""
    server = urlsplit(url)
    port = server.port or {"http": 80, "https": 443}.get(server.scheme)
    if port is None:
        return ""
    try:
        async with asyncio.timeout(REACH_SECONDS):
            _, connection = await asyncio.open_connection(server.hostname, port)
    except TimeoutError:
        return f"Modal doesn't answer at {server.netloc}"
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else _line(error)
        return f"Modal can't be reached at {server.netloc} ({reason})"
    connection.close()
    return ""


async def has_app(app: str) -> bool:
    """Whether the app is deployed. Raises Unreachable without a network or a valid token."""
    await require_access()
    try:
        await Cloud(Names(app)).look_up()
    except MissingError:
        return False
    return True


async def read_file(volume: str, path: str) -> bytes | None:
    """The content of a file on a volume; None if there is none."""
    import modal

    try:
        return b"".join(
            [block async for block in modal.Volume.from_name(volume).read_file.aio(path)]
        )
    except FileNotFoundError:
        return None


async def write_file(volume: str, path: str, data: bytes) -> None:
    """Writes a file on a volume, replacing an existing one."""
    import io

    import modal

    async with modal.Volume.from_name(volume).batch_upload.aio(force=True) as batch:
        batch.put_file(io.BytesIO(data), f"/{path}")


@contextmanager
def spoken(
    what: str, *, lost: bool = False, offline: str = "what was submitted goes on there"
) -> Iterator[None]:
    """Turns errors of Modal's client into one line about `what`. With `lost`, errors of the call itself pass through.

    `offline` ends the line if Modal can't be reached.
    """
    from modal import exception

    passing = (
        (exception.RemoteError, exception.TimeoutError, exception.InternalFailure) if lost else ()
    )
    try:
        yield
    except (TimeoutError, *passing):
        raise
    except exception.NotFoundError as error:
        if lost:
            raise LostCallError(f"Modal knows nothing of {what}") from error
        raise MissingError(
            f"Modal has no {what.removeprefix('the ')} ({_line(error)}); run: {DEPLOY}"
        ) from error
    except exception.AuthError as error:
        raise Unreachable(f"Modal doesn't know you ({_line(error)}); run: modal setup") from error
    except exception.PermissionDeniedError as error:
        raise Unreachable(
            f"Modal doesn't let you use {what} ({_line(error)}); name your own by KODERZ_MODAL_*"
        ) from error
    except (exception.ConnectionError, OSError) as error:
        raise Unreachable(f"Modal can't be reached ({_line(error)}); {offline}") from error
    except exception.InvalidError as error:
        raise KoderzError(f"Modal refuses {what}: {_line(error)}") from error
    except exception.Error as error:
        raise Unreachable(f"Modal failed at {what}: {_line(error)}") from error


@asynccontextmanager
async def stored() -> AsyncIterator[None]:
    """In a container, turns a failure to store into a fault of the experiment."""
    try:
        with spoken("the run's store"):
            yield
    except KoderzError as error:
        raise Fault(str(error), cause="unreachable") from error


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


async def check_modal(environ: Mapping[str, str]) -> Sequence[Finding]:
    """Checks that `--engine modal` and `--sandbox modal` would work, without creating or starting anything."""
    optional = "only --engine modal and --sandbox modal need it"
    if not is_configured(environ):
        return [Finding("modal", "missing", "no token here", f"{optional}: modal setup")]
    try:
        app = names_of(environ).app
        if not await has_app(app):
            told = f"--sandbox modal; no app {app} for --engine modal"
            return [Finding("modal", "ok", told, "koderz modal deploy")]
    except KoderzError as error:
        return [Finding("modal", "missing", str(error), optional)]
    except ImportError:
        return [
            Finding("modal", "missing", "a token without Modal's SDK", dependency_command("modal"))
        ]
    return [Finding("modal", "ok", f"--sandbox modal, and the app {app} for --engine modal")]
