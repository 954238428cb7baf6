"""The sessions of one run or manager, and their workers.

A session has a log of what is done in it, by which it is rebuilt where its interpreter has died.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import secrets
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from koderz.errors import Fault, Unreachable
from koderz.systems.long_context.wasm.cells import (
    MEMORY_MB,
    OUTPUT_LIMIT,
    TIMEOUT,
    Answering,
    CellResult,
    Kind,
    SessionBusyError,
    SessionFullError,
    SessionLostError,
    SubCall,
    answers_to,
)
from koderz.systems.long_context.wasm.image import Say, ready_image
from koderz.systems.long_context.wasm.link import Event, Link, WorkerLostError, next_of

CHUNK = 4 << 20  # bytes of a variable that go at once
TRIES = 3  # of one cell, where its worker dies of something else
OVERTIME = 2.0  # of a cell's deadline, after which its worker is killed
BARE = 9_000_000  # bytes of an interpreter with nothing in it
# bytes of earlier values, of which copies are stored, before a session's log is given up
SUPERSEDED = 32 << 20
_GIVEN_UP = (
    f"its variables were set to more than {SUPERSEDED >> 20} MB of values that are no longer theirs"
)
LATE = 0.5  # seconds beyond that, for what isn't the cell's doing


class StoredCopy:
    """A file that is removed when no session needs it any more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        weakref.finalize(self, path.unlink, missing_ok=True)


class Variable(NamedTuple):
    """A variable set from outside. A path is that of a UTF-8 file, which stays where it is."""

    name: str
    source: str | Path
    kind: str  # text or json
    # of `source`, where the file lives only as long as it is needed here
    copy: StoredCopy | None = None


class CompletedCell(NamedTuple):
    """A cell that ran to its end."""

    code: str
    timeout: float
    answers: Sequence[Sequence[str]]  # to its sub-calls


@dataclass(slots=True)
class Running:
    """The state of a cell under way."""

    code: str
    timeout: float
    answers: list[Sequence[str]] = field(default_factory=list)
    printed: dict[str, list[bytes]] = field(default_factory=lambda: {"out": [], "err": []})
    truncated: bool = False
    calls: int = 0
    waited: float = 0.0  # seconds, for models

    def begin(self) -> None:
        """Forgets the prints of an earlier try."""
        self.printed, self.truncated = {"out": [], "err": []}, False

    def text(self, stream: str) -> str:
        return b"".join(self.printed[stream]).decode(errors="replace")


class Session:
    """A persistent namespace. It does one thing at a time; a second one raises SessionBusyError."""

    def __init__(self, name: str, pool: Pool, *, memory: int, seed: int) -> None:
        self.id = name
        self.memory = memory  # bytes it may take
        self.seed = seed
        self.cells = 0
        self.created = self.used = time.time()
        self._pool = pool
        self._log: list[Variable | CompletedCell] = []
        self._link: Link | None = None  # where its instance lives
        self._lives = 0
        self._is_busy = False
        self._is_lasting = True  # whether its log is whole, so that it can be rebuilt and forked

    @property
    def _instance(self) -> str:
        """The name of the present instance; an abandoned instance may still be ending."""
        return f"{self.id}/{self._lives}"

    @property
    def is_busy(self) -> bool:
        return self._is_busy

    @property
    def size(self) -> int:
        """The least bytes that the session takes: an interpreter, and the values put into it."""
        return BARE + sum(size_of(done.source) for done in self._log if isinstance(done, Variable))

    async def start(self) -> None:
        """Creates the instance, which otherwise happens on first use. Raises SessionLostError, or Fault."""
        async with self._alone():
            await self._alive()

    async def put(self, name: str, source: str | Path | StoredCopy, kind: str = "text") -> int:
        """Sets a variable; returns its size in bytes. Use `kind` `json` for a value that is no text.

        Raises SessionFullError for more than half of what the session may take, SessionLostError, or Fault.
        """
        copy = source if isinstance(source, StoredCopy) else None
        source = source.path if isinstance(source, StoredCopy) else source
        size = size_of(source)
        if size > self.memory // 2:
            raise SessionFullError(
                f"{name} takes {size:,} bytes, more than half of the session's {self.memory:,}"
            )
        async with self._alone():
            variable = Variable(name, source, kind, copy)
            await self._alive()
            if stopped := await self._put(variable):
                raise SessionFullError(f"{name} doesn't fit into the session: {stopped}")
            self._note(variable)
        return size

    def _note(self, done: Variable | CompletedCell) -> None:
        """Adds to the log, and drops values that no cell has seen. With too many of these, the log is given up."""
        if isinstance(done, Variable):
            unseen = len(self._log)
            while unseen and isinstance(self._log[unseen - 1], Variable):
                unseen -= 1
            self._log[unseen:] = [
                variable
                for variable in self._log[unseen:]
                if isinstance(variable, Variable) and variable.name != done.name
            ]
        if self._is_lasting:
            self._log.append(done)
        if _superseded(self._log) > SUPERSEDED:
            self._is_lasting, self._log = False, []

    async def get(self, name: str) -> str | None:
        """The text of a variable; None if there is none. Raises SessionFullError above 64 MB."""
        async with self._alone():
            await self._alive()
            head, data = await self._asked("get", name.encode())
            if "stopped" in head:
                raise SessionLostError(f"{name} can't be read: {head['error']}")
            if head.get("missing"):
                return None
            if head["cut"]:
                raise SessionFullError(f"{name} is larger than what can be read at once")
            return data.decode()

    async def run(
        self,
        code: str,
        answer: Answering | None = None,
        *,
        timeout: float = TIMEOUT,  # noqa: ASYNC109 the cell's, and counted otherwise
        only_calls: int | None = None,
    ) -> CellResult:
        """Runs a cell. `timeout`: seconds of its own, not counting those spent waiting for models.

        Without `answer` models are out of reach. `only_calls`: it is stopped where it would make one call more, as
        one is that was stopped before. Raises what `answer` raises, SessionBusyError, SessionLostError or Fault.
        """
        began = time.monotonic()
        running = Running(code, timeout)
        async with self._alone():
            self.cells += 1
            head = await self._tried(running, answer, only_calls)
            if "stopped" in head:
                self._leave()
            else:
                self._note(CompletedCell(code, timeout, running.answers))
        error = head.get("error") if "stopped" in head else head["found"]["error"]
        found = head.get("found", {})
        stderr = running.text("err")
        return CellResult(
            stdout=running.text("out"),
            stderr=stderr if not head.get("stopped") else f"{stderr}{error}\n",
            error=error,
            locals=found.get("locals", {}),
            final_answer=found.get("final_answer"),
            seconds=round(time.monotonic() - began - running.waited, 6),
            calls=running.calls,
            truncated=running.truncated,
            stopped=head.get("stopped", ""),
        )

    def fork(self, name: str = "") -> Session:
        """Another session with the same history."""
        if self._is_busy:
            raise SessionBusyError(f"session {self.id} is running a cell")
        if not self._is_lasting:
            raise SessionBusyError(f"session {self.id} can't be forked: {_GIVEN_UP}")
        other = self._pool.open(name, memory_mb=self.memory >> 20, seed=self.seed)
        other._log = [*self._log]
        return other

    async def close(self) -> None:
        """Closes the session, even while a cell runs, which is then stopped."""
        self._pool.sessions.pop(self.id, None)
        self._log = []
        await self._abandon()

    # How it is done

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        if self._is_busy:
            raise SessionBusyError(f"session {self.id} is running a cell")
        self._is_busy = True
        self.used = time.time()
        try:
            yield
        except WorkerLostError:
            self._leave()
            raise SessionLostError(f"the worker of session {self.id} has died") from None
        finally:
            self._is_busy = False
            self.used = time.time()

    async def _tried(
        self, running: Running, answer: Answering | None, only_calls: int | None
    ) -> dict[str, Any]:
        """The worker's final answer. A cell runs again if its worker died for another reason."""
        for _ in range(TRIES):
            try:
                await self._alive()
                running.begin()
                async with self._pool.executing:
                    return await self._performed(running, answer, only_calls)
            except WorkerLostError:
                self._leave()
            except BaseException:
                await self._abandon()
                raise
        return {"stopped": "crash", "error": "the process that it ran in died"}

    async def _performed(
        self,
        running: Running,
        answer: Answering | None,
        only_calls: int | None,
        output: int = OUTPUT_LIMIT,
    ) -> dict[str, Any]:
        assert self._link
        recorded = iter([*running.answers])  # on an earlier try
        began, waited = time.monotonic(), running.waited
        code = running.code.encode("utf-8", "backslashreplace")
        asking = self._link.asking(
            "run", self._instance, code, timeout=running.timeout, limit=output
        )
        async with asking as events:
            while True:
                own = time.monotonic() - began - (running.waited - waited)
                head, data = await self._within(events, running.timeout * OVERTIME + LATE - own)
                if head.get("event") == "print":
                    running.printed[head["stream"]].append(data)
                    running.truncated = running.truncated or head["truncated"]
                elif head.get("event") == "call":
                    if only_calls is not None and running.calls >= only_calls:
                        return {"stopped": "cut", "error": "it was stopped here before"}
                    call = SubCall(head["name"], tuple(head["prompts"]), head["model"])
                    await self._answer(call, running, recorded, answer)
                elif head.get("stopped") == "deadline":
                    return {
                        **head,
                        "error": f"TimeoutError: Request timed out: more than {running.timeout:g} s",
                    }
                else:
                    return head

    async def _within(self, events: asyncio.Queue[Event | None], seconds: float) -> Event:
        """The next event. A silent worker is killed, since it hangs in a call that no deadline can end."""
        assert self._link
        try:
            async with asyncio.timeout(seconds):
                return await next_of(events)
        except TimeoutError:
            await self._link.kill()
            return {"stopped": "deadline"}, b""

    async def _answer(
        self,
        call: SubCall,
        running: Running,
        given: Iterator[Sequence[str]],
        answer: Answering | None,
    ) -> None:
        texts = next(given, None)
        if texts is None:
            began = time.monotonic()
            texts = await answers_to(call, answer, self._pool.executing)
            running.waited += time.monotonic() - began
            running.answers.append(texts)
            running.calls += len(texts)
        assert self._link
        await self._link.send(
            {"op": "reply", "session": self._instance}, json.dumps(texts).encode()
        )

    async def _alive(self) -> None:
        """Creates the instance, and repeats the session's history in it. Raises SessionLostError."""
        if self._link and not self._link.is_lost:
            return
        self._leave()
        if not self._is_lasting:
            raise SessionLostError(f"session {self.id} can't be rebuilt: {_GIVEN_UP}")
        self._link = await self._pool.link()
        self._lives += 1
        head, _ = await self._asked("create", memory=self.memory, seed=self.seed)
        if "stopped" in head:
            self._leave()
            raise SessionLostError(
                f"Out of memory: session {self.id} can't be made: {head['error']}"
            )
        for done in self._log:
            stopped = (
                await self._put(done) if isinstance(done, Variable) else await self._ran_again(done)
            )
            if stopped:
                await self._abandon()
                raise SessionLostError(f"session {self.id} can't be rebuilt: {stopped}")

    async def _ran_again(self, done: CompletedCell) -> str:
        """The reason why a completed cell fails when repeated; empty if it succeeds."""
        again = Running(done.code, done.timeout * OVERTIME, [*done.answers])
        head = await self._performed(again, None, None, output=0)
        return str(head["error"]) if "stopped" in head else ""

    async def _put(self, put: Variable) -> str:
        """The error of setting a variable, or empty."""
        for operation, data in _steps(put):
            head, _ = await self._asked(operation, data)
            if "stopped" in head:
                self._leave()
                return str(head["error"])
        return ""

    async def _asked(self, operation: str, data: bytes = b"", **head: Any) -> Event:
        assert self._link
        return await self._link.ask(operation, self._instance, data, **head)

    async def _abandon(self) -> None:
        """Ends the instance, even if a cell runs in it."""
        if link := self._leave():
            with suppress(WorkerLostError):
                await asyncio.shield(
                    link.send({"op": "delete", "id": 0, "session": self._instance})
                )

    def _leave(self) -> Link | None:
        """Detaches from the instance; returns its worker."""
        link, self._link = self._link, None
        if link:
            link.sessions -= 1
        return link


class Pool:
    """Up to `workers` worker processes, each started when first needed, and replaced when it dies.

    Entering builds the image where it isn't there yet; `say` is told of that. It raises Unreachable where sessions of
    that kind can't be had. `at_once` cells execute at once, any number where it is None; those that wait for models
    don't count.
    """

    def __init__(
        self, kind: Kind, workers: int, *, at_once: int | None = None, say: Say = lambda _: None
    ) -> None:
        self.kind = kind
        self.image = ""  # digest of what sessions are made from
        self._say = say
        self._arguments: Sequence[str] = ()
        self._links: list[Link | None] = [None] * workers
        self._doors = [asyncio.Lock() for _ in range(workers)]
        self.executing = asyncio.Semaphore(at_once or 1_000_000)
        self.sessions: dict[str, Session] = {}

    async def __aenter__(self) -> Self:
        compiled = ""
        if self.kind == "wasm":
            image = await asyncio.to_thread(ready_image, self._say)
            self.image, compiled = image.digest, str(image.compiled)
        self._arguments = (self.kind, compiled)
        try:
            self._links[0] = await Link.start(self._arguments)
        except Fault as error:
            raise Unreachable(str(error)) from None
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sessions.clear()
        await asyncio.gather(*(link.kill() for link in self._links if link))

    def open(self, session_id: str = "", *, memory_mb: int = MEMORY_MB, seed: int = 0) -> Session:
        """A new session. It takes no room before its first use."""
        name = session_id or self.new_id()
        session = self.sessions[name] = Session(name, self, memory=memory_mb << 20, seed=seed)
        return session

    def new_id(self) -> str:
        names = (f"session-{secrets.token_hex(4)}" for _ in itertools.count())
        return next(name for name in names if name not in self.sessions)

    @property
    def processes(self) -> list[int]:
        """The process ids of the workers."""
        return [link.process.id for link in self._links if link and not link.is_lost]

    @property
    def memory(self) -> int:
        """The bytes of memory that the workers use, as far as known."""
        return sum(_resident(process) for process in self.processes)

    async def link(self) -> Link:
        """The worker with the fewest sessions. Raises Fault if none can be started."""
        counts = [link.sessions if link and not link.is_lost else 0 for link in self._links]
        place = counts.index(min(counts))
        async with self._doors[place]:
            found = self._links[place]
            if found is None or found.is_lost:
                if found:
                    await found.kill()
                found = self._links[place] = await Link.start(self._arguments)
            found.sessions += 1
            return found


def _superseded(log: Sequence[Variable | CompletedCell]) -> int:
    """The bytes of stored copies whose variables were set again later."""
    copies = [entry for entry in log if isinstance(entry, Variable) and entry.copy]
    last = {entry.name: entry.copy for entry in copies}
    earlier = {
        entry.copy.path for entry in copies if entry.copy and entry.copy is not last[entry.name]
    }
    return sum(map(size_of, earlier))


def size_of(source: str | Path) -> int:
    """The size in bytes; for a text, its number of characters, a lower bound."""
    return source.stat().st_size if isinstance(source, Path) else len(source)


def pieces(put: Variable) -> Iterator[bytes]:
    """The value of a variable in parts of valid UTF-8."""
    if isinstance(put.source, str):
        for start in range(0, len(put.source), CHUNK) or (0,):
            yield put.source[start : start + CHUNK].encode("utf-8", "backslashreplace")
        return
    with put.source.open(encoding="utf-8", newline="") as file:
        while part := file.read(CHUNK):
            yield part.encode()


def _steps(put: Variable) -> Iterator[tuple[str, bytes]]:
    """The requests that set a variable."""
    yield "begin", put.name.encode()
    yield from (("chunk", part) for part in pieces(put))
    yield "commit", put.kind.encode()


def _resident(process: int) -> int:
    file = Path(f"/proc/{process}/statm")
    try:
        return int(file.read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):  # it has just ended, or the system has no such file
        return 0
