"""Gathers a run's calls into batches, and answers each of them by its result.

A batch is sent once no experiment under way can go on without an answer, or it is full. Its calls have ids that a
replay comes to again, so that whoever takes the run up is answered by what was sent before.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

from msgspec.structs import replace

from koderz.errors import RunStopped
from koderz.models.batches import BatchLines
from koderz.models.dispatch import LOST, Dispatcher, SentBatch
from koderz.models.wire import encode
from koderz_tracker.outline import ENDED, FREED, LineOfBatch, lines_of
from koderz_tracker.records import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence

    from koderz.models.batches import BatchApi
    from koderz.models.faults import Response
    from koderz.models.names import ModelName

_QUIET = 0.2  # seconds in which nothing may happen before a batch goes that isn't full


class CallInBatch:
    """A call that is answered in a batch. Its tries have the custom ids NAME-1, NAME-2, …"""

    def __init__(self, gatherer: Gatherer, name: str) -> None:
        self.name = name
        self.dollars = 0.0  # that it is likely to cost
        self.tries = 0
        self.source: dict[str, str] | None = None  # the batch and the custom id of its answer
        self.is_live = False  # whether it has to be asked live after all
        self._gatherer = gatherer

    async def answer(
        self, api: BatchApi, model: ModelName, path: str, request: Mapping[str, Any]
    ) -> Response | None:
        """The response to a request in a batch; None if it has to be asked live. Raises Fault."""
        response = await self._gatherer.answer(self, _Group(api, model, path), request)
        self.is_live = response is None
        return response

    async def sleep(self, seconds: float) -> None:
        """Waits before another try, which in a batch comes with the next one, whenever that is."""
        await asyncio.sleep(seconds if self.is_live else 0)


IN_BATCH: ContextVar[CallInBatch | None] = ContextVar("in_batch", default=None)
"""The call that a model is being asked for, if it is to be answered in a batch."""


class _Group(NamedTuple):
    """The things that the calls of one batch have in common."""

    api: BatchApi
    model: ModelName
    path: str


class _Draft:
    """The calls of a batch that isn't sent yet. Their lines are made again then, since many wait at once."""

    def __init__(self) -> None:
        self.lines: dict[str, LineOfBatch] = {}
        self.futures: list[asyncio.Future[Response | None]] = []
        self.made: list[Callable[[], bytes]] = []
        self.size = 0  # bytes, with a line end each
        self.digest = hashlib.blake2b(digest_size=16)


class _Work:
    """Something that goes on in an experiment besides calls in batches, such as a judge."""

    waiting = 0  # calls in batches that it waits for itself


_WORK: ContextVar[_Work | None] = ContextVar("work", default=None)


class Gatherer:
    """The batches of one session. An async context manager; batches go on at the provider when it is left."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        past: Sequence[Batch] = (),
        answered: Collection[str] = (),
        apis: Mapping[str, BatchApi] = MappingProxyType({}),
        asks_again: bool = False,
    ) -> None:
        """`past`: the batches on record; `answered`: the custom ids of calls on record; `apis`: by model.

        `asks_again`: whether refused requests are made again.
        """
        self._apis = apis
        self._dispatcher = dispatcher
        self._answered, self._asks_again = answered, asks_again
        self._of_call: dict[str, SentBatch] = {}  # by custom id
        self._drafts: dict[_Group, _Draft] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = self._busy = self._events = 0
        self._waiting: Counter[str] = Counter()  # calls by experiment
        self._changed = asyncio.Event()
        self._owed: dict[str, float] = {}  # by the names of calls
        for about in past:
            if about.state in FREED:
                self._dispatcher.freed.add(about.id)
                continue
            lines = {
                each.custom_id: each for each in lines_of(about) if each.custom_id not in answered
            }
            self._keep(SentBatch(replace(about, lines=""), lines))
            # Of a batch that is over, only replies are paid for, and these are on record but for the last ones.
            if about.state not in ENDED or about.done > about.count - len(lines):
                self._owed |= {
                    name.rpartition("-")[0]: line.dollars for name, line in lines.items()
                }
        self.owed = sum(self._owed.values())  # US dollars that calls under way are likely to cost

    async def __aenter__(self) -> Self:
        self._start(self._gather())
        for batch in [] if self._dispatcher.buys else self._dispatcher.batches:
            if batch.about.state not in ENDED and batch.about.model in self._apis:
                batch.following = self._start(
                    self._dispatcher.carry(batch, self._apis[batch.about.model])
                )
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def waits(self) -> str:
        """A text for the screen on the batches that are waited for; empty without any."""
        open_ = [
            batch.about
            for batch in self._dispatcher.batches
            if not batch.is_over and batch.following
        ]
        if not open_:
            return ""
        calls, done = (
            sum(each.count for each in open_),
            sum(each.done + each.failed for each in open_),
        )
        count = len(open_)
        batches = f"{count} batch{'es' * (count != 1)}"
        return f"waits for {batches} of {calls:,} calls" + (f", {done:,} done" if done else "")

    @property
    def rests(self) -> bool:
        """Whether everything under way waits for batches that were sent."""
        return self._is_blocked and not self._drafts

    # What experiments do

    @contextmanager
    def experiment(self) -> Iterator[None]:
        """A block in which an experiment is under way."""
        self._under_way += 1
        self._touch()
        try:
            yield
        finally:
            self._under_way -= 1
            self._touch()

    @contextmanager
    def working(self) -> Iterator[None]:
        """A block in which an experiment goes on, whatever calls it waits for besides."""
        token = _WORK.set(_Work())
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            _WORK.reset(token)
            self._touch()

    def call(self, experiment_id: str, key: str) -> CallInBatch:
        """The call of an experiment whose record has this key."""
        digest = hashlib.blake2b(key.encode(), digest_size=10).hexdigest()
        return CallInBatch(self, f"{experiment_id}-{digest}")

    def is_owed(self, experiment_id: str, key: str) -> bool:
        """Whether a batch of an earlier session has the call, so that its answer is paid for."""
        return self.call(experiment_id, key).name in self._owed

    def owes(self, call: CallInBatch) -> float | None:
        """The US dollars that a call of an earlier session counts with already; None for one that wasn't sent then."""
        return self._owed.pop(call.name, None)

    @contextmanager
    def waiting(self, experiment_id: str) -> Iterator[None]:
        """A block in which an experiment waits for an answer in a batch, or for money to ask."""
        work = _WORK.get()
        if work:
            self._busy -= not work.waiting
            work.waiting += 1
        self._waiting[experiment_id] += 1
        self._touch()
        try:
            yield
        finally:
            self._waiting[experiment_id] -= 1
            if not self._waiting[experiment_id]:
                del self._waiting[experiment_id]
            if work:
                work.waiting -= 1
                self._busy += not work.waiting
            self._touch()

    async def answer(
        self, call: CallInBatch, group: _Group, request: Mapping[str, Any]
    ) -> Response | None:
        """See `CallInBatch.answer`. What was answered to a call of an earlier session is answered again.

        Of its errors only a refusal of the very same request is; after any other the next try is made, which costs
        nothing twice, since errors cost nothing.
        """
        digest = hashlib.blake2b(encode(request), digest_size=4).hexdigest()
        while True:
            call.tries += 1
            custom_id = f"{call.name}-{call.tries}"
            if custom_id in self._answered:
                continue
            old = self._of_call.get(custom_id)
            if old is None:
                if not self._dispatcher.buys:
                    await self._cancelled()
                response = await self._queued(
                    group, LineOfBatch(custom_id, digest, call.dollars), request
                )
            else:
                old.following = old.following or self._start(self._dispatcher.carry(old, group.api))
                response = await old.expect(custom_id)
            batch = self._of_call.pop(custom_id)
            if response is LOST:
                call.tries -= 1
            elif response is None:
                return None
            elif (
                old is None
                or response.status == 200
                or (
                    not self._asks_again
                    and (response.status in (400, 422) and old.lines[custom_id].digest == digest)
                )
            ):
                call.source = {"id": batch.about.id, "custom_id": custom_id}
                return response

    # Sending

    async def _cancelled(self) -> NoReturn:
        await asyncio.sleep(_QUIET)
        await asyncio.gather(
            *(batch.following for batch in self._dispatcher.batches if batch.following)
        )
        raise RunStopped(
            "cancelled: what its batches had done is on record, and nothing more was sent"
        )

    def _queued(
        self, group: _Group, about: LineOfBatch, request: Mapping[str, Any]
    ) -> asyncio.Future[Response | None]:
        line = _line(group, about.custom_id, request)
        draft = self._drafts.get(group)
        if draft and (
            len(draft.made) >= group.api.most_lines
            or draft.size + len(line) >= group.api.most_bytes
        ):
            self._send(group)
        draft = self._drafts.setdefault(group, _Draft())
        future: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()
        draft.lines[about.custom_id] = about
        draft.futures.append(future)
        draft.made.append(partial(_line, group, about.custom_id, request))
        draft.size += len(line) + 1
        draft.digest.update(line)
        self._touch()
        return future

    def _touch(self) -> None:
        self._events += 1
        self._changed.set()

    @property
    def _is_blocked(self) -> bool:
        """Whether no experiment can go on without an answer from a batch."""
        return self._busy == 0 and 0 < self._under_way <= len(self._waiting)

    async def _gather(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._is_blocked and self._drafts:
                events = self._events
                await asyncio.sleep(_QUIET)
                if events == self._events:
                    for group in [*self._drafts]:
                        self._send(group)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _keep(self, batch: SentBatch) -> SentBatch:
        self._dispatcher.batches.append(batch)
        self._of_call.update(dict.fromkeys(batch.lines, batch))
        return batch

    def _send(self, group: _Group) -> None:
        """Sends what is queued, in the background."""
        draft = self._drafts.pop(group)
        about = Batch(
            name=draft.digest.hexdigest(),
            state="sending",
            provider=group.model.provider,
            model=str(group.model),
            count=len(draft.made),
        )
        batch = self._keep(SentBatch(about, draft.lines))
        for custom_id, future in zip(draft.lines, draft.futures, strict=True):
            batch.expect(custom_id, future)
        lines = BatchLines(draft.made, draft.size)
        batch.following = self._start(self._dispatcher.carry(batch, group.api, group.path, lines))


def _line(group: _Group, custom_id: str, request: Mapping[str, Any]) -> bytes:
    return group.api.line(custom_id, group.path, encode(request))
