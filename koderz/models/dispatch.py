"""Sends one batch, or finds it again at its provider, follows it to its end, and answers its calls.

Before a batch is sent its line in the journal is durable, in the state `sending`. Whoever finds such a line later looks
for the batch at the provider, and its calls are sent again only where it isn't there.
"""

from __future__ import annotations

import asyncio
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from koderz.errors import FatalFault, Fault, RunStopped
from koderz.models.faults import Gone, Refused, Response, Retryable
from koderz.models.wire import encode
from koderz_tracker.records import Batch, now

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from koderz.models.batches import BatchApi, BatchLines, BatchStatus
    from koderz.settings.requests import BatchOptions
    from koderz_tracker.outline import LineOfBatch

T = TypeVar("T")

LOST = Response(0, b"")
"""The answer to the calls of a batch that never arrived at its provider."""

_TRIES = 6  # of sending a batch, and of asking about one
_READS = 3  # of its results
# seconds after which a batch that was being sent when a process died is in its provider's list
_SURE = 30.0
_SLOWEST, _SLOWER = 300.0, 1.2  # seconds between two looks at most, and their growth
_UNBILLED = ("expired", "cancelled")  # of OpenAI's: calls without a result were not made
# results at once: what their calls and verdicts hold is to be recorded before more come
_DELIVERED = 200
_CANCELLATION = 10  # looks at a batch that was cancelled until it is left alone


class _LateError(Fault):
    """A batch isn't over in time."""


class SentBatch:
    """A batch that is being sent, was sent, or has ended. The answer None means: to be asked live."""

    def __init__(self, about: Batch, lines: Mapping[str, LineOfBatch]) -> None:
        self.about, self.lines = about, lines
        self.following: asyncio.Task[None] | None = None
        self.is_late = False  # not there in time, so that what isn't answered is asked live
        self.is_over = False
        self._futures: dict[str, asyncio.Future[Response | None]] = {}
        self._answers: dict[str, Response | None] = {}  # that nobody waited for
        # once it is over, what the calls get that have no result
        self._rest: Response | Exception | None = None

    def expect(
        self, custom_id: str, future: asyncio.Future[Response | None] | None = None
    ) -> asyncio.Future[Response | None]:
        """The answer to a call, which may be there already."""
        future = future or asyncio.get_running_loop().create_future()
        if custom_id in self._answers:
            future.set_result(self._answers.pop(custom_id))
        elif self.is_over:
            _settle(future, self._rest)
        else:
            self._futures[custom_id] = future
        return future

    def deliver(self, custom_id: str, response: Response) -> None:
        """Answers a call."""
        answer = None if self.is_late and response.status != 200 else response
        future = self._futures.pop(custom_id, None)
        if future is None:
            self._answers[custom_id] = answer
        else:
            _settle(future, answer)

    def finish(self, rest: Response | Exception | None) -> None:
        """Answers all calls that are left."""
        self.is_over, self._rest = True, rest
        for future in self._futures.values():
            _settle(future, rest)
        self._futures.clear()


class Dispatcher:
    """Sends and follows the batches of one session."""

    def __init__(
        self,
        options: BatchOptions,
        run: str,
        record: Callable[..., Awaitable[None]],
        say: Callable[[str], None],
        *,
        buys: bool = True,
    ) -> None:
        """`buys`: whether more is sent, else what is under way is cancelled."""
        self.batches: list[SentBatch] = []
        self.freed: set[str] = set()  # ids of batches whose calls are sent again
        self.buys = buys
        self._options, self._run, self._record, self._say = options, run, record, say

    async def carry(
        self, batch: SentBatch, api: BatchApi, path: str = "", lines: BatchLines | None = None
    ) -> None:
        """Sends a batch of lines, or takes one of an earlier session up, and answers its calls by its results."""
        try:
            if lines:
                status: BatchStatus | None = await self._dispatched(batch, api, path, lines)
                lines = None  # which holds the requests, and is needed no more
            elif batch.about.id:
                status = await self._patiently(partial(api.look, batch.about.id))
            else:
                status = await self._found(batch, api)
                if status is None:
                    # it may be on its way to the list
                    await asyncio.sleep(min(self._options.poll, _SURE))
                    status = await self._found(batch, api)
            if status is None:
                await self._note(batch, "lost")
                batch.finish(LOST)
                return
            await self._noted(batch, status)
            if not self.buys and not status.is_over:
                await self._patiently(partial(api.cancel, status.id))
            try:
                status = await self._ended(api, status, batch)
            except _LateError:
                status = await self._called_off(batch, api, status)
            await self._collect(batch, api, status)
        except Exception as error:  # noqa: BLE001 which is that of every call in it
            batch.finish(error)

    async def _dispatched(
        self, batch: SentBatch, api: BatchApi, path: str, lines: BatchLines
    ) -> BatchStatus:
        """The status of a batch that has arrived at its provider."""
        about = batch.about
        seen = await self._patiently(api.latest)
        newest = seen[0].id if seen else ""
        written = "".join(
            f"{name} {digest} {dollars:.9g}\n" for name, digest, dollars in batch.lines.values()
        )
        await self._record(replace(about, newest=newest, lines=written))
        batch.about = replace(about, newest=newest)
        # A copy of the run's folder may have sent the very same calls from another machine.
        for status in seen:
            if (
                status.name == about.name
                and status.state != "failed"
                and status.id not in self.freed
            ):
                return status
        problem: Exception | None = None
        for attempt in range(_TRIES):
            try:
                status = await api.send(about.name, path, lines)
                if status.id:
                    self._tell(batch)
                    return status
            except Retryable as error:
                problem = error
                await asyncio.sleep(error.retry_after or 0)
            except FatalFault:
                raise
            except (Refused, Fault) as error:
                await self._note(batch, "failed", reason=str(error))
                raise _refusal(about, str(error)) from None
            await asyncio.sleep(min(self._options.poll, _SURE) * min(1.0, attempt / 2 + 0.5))
            if found := await self._found(batch, api):  # it had arrived all the same
                return found
        raise Fault(f"{about.model}: a batch can't be sent: {problem}", cause="unreachable")

    def _tell(self, batch: SentBatch) -> None:
        dollars = sum(line.dollars for line in batch.lines.values())
        price = f"at most ${dollars:.2f} instead of ${2 * dollars:.2f} and " if dollars else ""
        self._say(
            f"batch: {batch.about.count:,} call{'s' * (batch.about.count != 1)} in 1 batch; {price}up to 24 h; "
            f"you may leave: koderz benchmark resume {self._run}"
        )

    async def _found(self, batch: SentBatch, api: BatchApi) -> BatchStatus | None:
        """The batch at its provider, by its name; where names aren't kept, by its size and the ids of its results."""
        ours = self.freed | {each.about.id for each in self.batches}
        others = []
        for status in await self._patiently(partial(api.since, batch.about.newest)):
            if status.id in ours:
                continue
            if status.name == batch.about.name:
                return status
            others.append(status)
        if any(status.name for status in others):  # so names are kept here
            return None
        for status in others:
            if status.calls not in (0, batch.about.count):
                continue
            ended = await self._ended(api, status)
            async for custom_id, _ in api.results(ended):
                if custom_id in batch.lines:
                    return ended
                break
        return None

    # Results

    async def _ended(
        self, api: BatchApi, status: BatchStatus, batch: SentBatch | None = None
    ) -> BatchStatus:
        """The last status of a batch. Raises _LateError if it isn't over in time."""
        seconds, waited = self._options.poll, 0.0
        while not status.is_over:
            if waited >= self._options.batch_wait:
                raise _LateError(
                    f"the batch {status.id} hasn't ended within --batch-wait", cause="unreachable"
                )
            seconds = min(seconds, self._options.batch_wait - waited)
            await asyncio.sleep(seconds)
            waited += seconds
            try:
                latest = await api.look(status.id)
            except Retryable as error:  # the batch goes on whether its provider can be asked or not
                self._say(f"a batch can't be looked at for now: {error}")
                continue
            is_same, status = latest == status, latest
            if batch:
                await self._noted(batch, status)
            seconds = (
                min(seconds * _SLOWER, max(_SLOWEST, self._options.poll))
                if is_same
                else self._options.poll
            )
        return status

    async def _called_off(
        self, batch: SentBatch, api: BatchApi, status: BatchStatus
    ) -> BatchStatus:
        """The status of a batch that took too long: it is cancelled where its calls are to be asked live."""
        if self._options.batch_fallback == "fault":
            raise Fault(
                f"{batch.about.model}: the batch {status.id} hasn't ended within {self._options.batch_wait:g} s "
                f"(--batch-wait); its calls go on there, and koderz benchmark retry {self._run} looks again",
                cause="unreachable",
            )
        batch.is_late = True
        await self._patiently(partial(api.cancel, status.id))
        for _ in range(_CANCELLATION):
            status = await self._patiently(partial(api.look, status.id))
            await self._noted(batch, status)
            if status.is_over:
                return status
            await asyncio.sleep(self._options.poll)
        self._say(
            f"the batch {status.id} doesn't end although it was cancelled: its calls may be paid twice"
        )
        return status

    async def _collect(self, batch: SentBatch, api: BatchApi, status: BatchStatus) -> None:
        """Answers the calls of a batch that is over."""
        if status.state == "failed":
            batch.finish(_refusal(batch.about, status.reason))
            return
        left = {*batch.lines}
        problem, is_gone = (
            "",
            not status.results and status.state not in _UNBILLED and not batch.is_late,
        )
        for attempt in range(0 if is_gone else _READS):
            await asyncio.sleep(min(self._options.poll, 5.0) * attempt)
            try:
                async for custom_id, response in api.results(status):
                    if custom_id in left:
                        left.discard(custom_id)
                        batch.deliver(custom_id, response)
                        if len(left) % _DELIVERED == 0:
                            # over once what was recorded meanwhile is durable
                            await self._record()
            except Gone:
                is_gone = True
                break
            except Retryable as error:
                problem = f": {error}"
            if not left or status.state in _UNBILLED or batch.is_late:
                break
        if is_gone:
            await self._note(batch, "gone")
            self.freed.add(status.id)
            problem = " any more; retrying sends its calls again"
        if not left or status.state in _UNBILLED or batch.is_late:
            unanswered = (
                None
                if batch.is_late
                else Response(408, encode({"error": {"message": "not made in its batch"}}))
            )
            batch.finish(unanswered)
            return
        what = f"the batch {status.id} has no result of {len(left):,} of {batch.about.count:,} calls{problem}"
        batch.finish(Fault(f"{batch.about.model}: {what}", cause="unreachable"))

    async def _noted(self, batch: SentBatch, status: BatchStatus) -> None:
        """Records what has changed."""
        about = batch.about
        if (about.id, about.state, about.done, about.failed) != (
            status.id,
            status.state,
            status.done,
            status.failed,
        ):
            await self._note(
                batch,
                status.state,
                id=status.id,
                done=status.done,
                failed=status.failed,
                reason=status.reason,
            )

    async def _note(self, batch: SentBatch, state: str, **fields: Any) -> None:
        batch.about = replace(batch.about, state=state, time=now(), **fields)
        await self._record(replace(batch.about, newest=""))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer of a provider, which is asked again while it is away or busy. Raises Fault."""
        for attempt in range(_TRIES):
            try:
                return await ask()
            except Retryable as error:
                problem = error
                await asyncio.sleep(
                    error.retry_after or self._options.poll * min(1.0, attempt / 2 + 0.1)
                )
            except Refused as error:
                raise Fault(str(error), cause="rejected") from None
        raise Fault(f"{problem}", cause="unreachable")


def _settle(future: asyncio.Future[Response | None], answer: Response | Exception | None) -> None:
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(copy(answer))  # each is raised by itself
    else:
        future.set_result(answer)


def _refusal(about: Batch, reason: str) -> RunStopped:
    return RunStopped(
        f"{about.model}: a batch was refused: {reason or 'nobody says why'}; nothing of it was paid for"
    )
