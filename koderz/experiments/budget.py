"""The cost caps of a run and of each experiment, and estimates of a call's cost, learned from earlier calls."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from koderz.errors import Fault, RunStopped
from koderz_tracker.messages import is_picture

if TYPE_CHECKING:
    from koderz.models import Price
    from koderz.types import Completion, Message

ESTIMATED = "tokens estimated"
"""The mark in a call's `adapted` if its server didn't count tokens; guesses are not learned from."""

# Usual tokens of a character: of prose in ASCII; more for each digit and mark; more for each byte of UTF-8 beyond one.
_A_CHARACTER, _A_MARK, _A_BYTE = 0.28, 0.5, 0.4
_A_MESSAGE, _A_PICTURE = 8, 1500
_CAUTION = 2.0  # times the usual, before anything of that model and script has come back
_SPREAD = 0.3  # of the greatest rate seen, after one call; less by the root of how many there were
# times what is expected, beside others and after one call; less by how many there were
_DOUBT = 3.0
_SAMPLED = 200  # characters of a request by which its script is known
_SHARES = 4  # parts of one by which shares of characters are told apart
_BLOCKS = (
    0x80, 0x370, 0x400, 0x530, 0x590, 0x600, 0x700, 0x900, 0xE00, 0x1000, 0x1100, 0x1200, 0x1E00, 0x2000, 0x3040,
    0x3100, 0xA000, 0xAC00, 0xD800, 0xF900, 0x10000,
)  # fmt: skip

Script = tuple[int, int, int]
"""A text's script: the main block beyond ASCII, the share of its characters, and that of digits and marks."""


class CallSize(NamedTuple):
    """The properties of a call that its cost depends on."""

    tokens: float  # as they usually are
    script: Script
    longest: int  # tokens of a reply, as asked


@dataclass(eq=False, slots=True)
class Estimate:
    """The possible cost of a call under way or waiting, in US dollars; updated as other calls come back."""

    likely: float  # at most, by all that is known
    doubtful: float  # what is reckoned with beside other calls, before enough has come back

    @classmethod
    def of(cls, dollars: float) -> Estimate:
        """An estimate of a known cost."""
        return cls(dollars, dollars)


class Gauge:
    """The costs of one model's calls, as far as those that have come back show."""

    def __init__(self, price: Price) -> None:
        self._price = price
        self._calls = 0
        self._rates: dict[Script, float] = {}  # the greatest seen, as a share of usual tokens
        self._seen: Counter[Script] = Counter()
        self._overrun = 1.0  # the longest reply billed, as a share of the longest asked for
        self._surcharge = 1.0  # the highest bill, as a share of what its tokens cost by the price
        self._open: dict[Estimate, CallSize] = {}

    def estimate(self, request: CallSize) -> Estimate:
        """The estimated cost of a call, kept up to date until `close`."""
        estimate = Estimate.of(0.0)
        self._open[estimate] = request
        self._revise(estimate, request)
        return estimate

    def close(self, estimate: Estimate) -> None:
        """Stops updating the estimate of a call that has come back, or won't."""
        self._open.pop(estimate, None)

    def learn(self, request: CallSize, completion: Completion) -> None:
        """Updates every estimate by a call that has come back."""
        if ESTIMATED in completion.adapted:
            return
        self._calls += 1
        if request.tokens:
            rate = completion.tokens_in / request.tokens
            self._seen[request.script] += 1
            self._rates[request.script] = max(rate, self._rates.get(request.script, 0.0))
        if request.longest:
            self._overrun = max(self._overrun, completion.tokens_out / request.longest)
        reckoned = self._price.cost(completion.tokens_in, completion.tokens_out)
        if reckoned:
            self._surcharge = max(self._surcharge, completion.cost / reckoned)
        for estimate, each in self._open.items():
            self._revise(estimate, each)

    def _revise(self, estimate: Estimate, request: CallSize) -> None:
        rate = _CAUTION
        if seen := self._seen[request.script]:
            rate = self._rates[request.script] * (1 + _SPREAD / math.sqrt(seen))
        tokens_out = request.longest * self._overrun
        estimate.likely = self._price.cost(request.tokens * rate, tokens_out) * self._surcharge
        estimate.doubtful = estimate.likely * (1 + _DOUBT / max(1, self._calls))


def request_of(messages: Sequence[Message], longest: int) -> CallSize:
    """The properties of a call with these messages that its cost depends on."""
    texts, pictures = [], 0
    for text in _texts(messages):
        if is_picture(text):
            pictures += 1
        else:
            texts.append(text)
    characters = sum(map(len, texts))
    more = sum(
        len(text.encode("utf-8", "surrogatepass")) - len(text)
        for text in texts
        if not text.isascii()
    )
    script, marks = _script(texts, characters)
    tokens = _A_CHARACTER * characters + _A_MARK * marks * characters + _A_BYTE * more
    return CallSize(
        tokens + _A_MESSAGE * (1 + len(messages)) + _A_PICTURE * pictures, script, longest
    )


def _script(texts: Sequence[str], characters: int) -> tuple[Script, float]:
    """The script of the texts, from a regular sample of their characters, and the share of digits and marks."""
    step = max(1, characters // _SAMPLED)
    taken = "".join([text[step // 2 % len(text) :: step] for text in texts if text])
    blocks: dict[int, int] = defaultdict(int)
    marks = foreign = 0
    for char in taken:
        if char > "\x7f":
            foreign += 1
            blocks[bisect_right(_BLOCKS, ord(char))] += 1
        elif not (char.isalpha() or char == " "):
            marks += 1
    all_of_them = max(1, len(taken))
    shares = round(_SHARES * foreign / all_of_them), round(_SHARES * marks / all_of_them)
    block = max(blocks, key=blocks.__getitem__) if shares[0] else 0
    return (block, *shares), marks / all_of_them


def _texts(value: Any) -> Iterator[str]:
    """Every text in messages, names included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if name != "role":
                if name != "content":
                    yield name
                yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif value is not None:
        yield str(value)


class CapReached(RunStopped):
    """The next call could cost more than is left of the run's cap. The run stops, and resumes with a higher cap."""

    cause = "cost_cap"


class ExperimentCapReached(Fault):
    """The next call of an experiment could cost more than is left of the experiment's cap. The run goes on."""

    cause = "cost_cap"


class Budget:
    """The cap, the spending so far, and the calls under way of a run or an experiment, in US dollars."""

    def __init__(
        self, cap: float | None, spent: float = 0.0, *, of_experiment: bool = False
    ) -> None:
        self.cap = cap
        self.spent = spent
        self.held = 0.0  # US dollars that calls in batches are likely to cost
        self._of_experiment = of_experiment
        self._under_way: set[Estimate] = set()
        self._freed = asyncio.Condition()
        self._door, self._room = asyncio.Lock(), asyncio.Event()  # of calls in batches
        self._in_batches = 0

    @asynccontextmanager
    async def call(self, estimate: Estimate) -> AsyncIterator[None]:
        """Reserves `estimate` during one call. Raises CapReached or ExperimentCapReached if it would exceed the cap.

        Calls under way are reckoned at their estimates, which are generous, and more so while little has come back
        to learn from: a call that doesn't fit beside them waits for what they really cost, and is refused only if it
        doesn't fit then, alone and by what is likely.
        """
        if self.cap is not None:
            await self._reserve(estimate, self.cap)
        try:
            yield
        finally:
            if self.cap is not None:
                await asyncio.shield(self._release(estimate))

    @asynccontextmanager
    async def call_in_batch(self, dollars: float, *, is_held: bool) -> AsyncIterator[None]:
        """Holds the likely cost of a call in a batch. Raises as `call` does where it doesn't fit by itself.

        `is_held`: whether it was sent in an earlier session, and counts already. Thousands of them wait at once, so
        they are reckoned by one sum and come in one after the other. One that doesn't fit beside those under way waits
        for their real costs, and so goes into a later batch.
        """
        if not is_held:
            async with self._door:
                while self.cap is not None and self.spent + self.held + dollars > self.cap:
                    if not self._in_batches:
                        raise self._reached(self.cap, dollars)
                    self._room.clear()
                    await self._room.wait()
                self.held += dollars
        self._in_batches += 1
        try:
            yield
        finally:
            self._in_batches -= 1
            self.held = max(0.0, self.held - dollars)
            self._room.set()

    def paid(self, cost: float) -> None:
        self.spent += cost

    async def _reserve(self, estimate: Estimate, cap: float) -> None:
        async with self._freed:
            while not self._fits(estimate, cap):
                if not self._under_way:
                    raise self._reached(cap, estimate.likely)
                await self._freed.wait()
            self._under_way.add(estimate)

    def _fits(self, estimate: Estimate, cap: float) -> bool:
        if not self._under_way:
            return self.spent + self.held + estimate.likely <= cap
        return (
            self.spent
            + self.held
            + math.fsum(each.doubtful for each in (*self._under_way, estimate))
            <= cap
        )

    def _reached(self, cap: float, estimate: float) -> Fault:
        state = (
            f"is reached: ${self.spent:.4f} is spent, and the next call could cost ${estimate:.4f}"
        )
        if self._of_experiment:
            return ExperimentCapReached(
                f"the cost cap of ${cap:g} an experiment {state}; retry with a higher --max-experiment-cost"
            )
        return CapReached(f"the cost cap of ${cap:g} {state}; resume with a higher --max-cost")

    async def _release(self, estimate: Estimate) -> None:
        async with self._freed:
            self._under_way.discard(estimate)
            self._freed.notify_all()
