"""Clients of a judge's service, for the processes, threads and event loops of trainers.

`trl` makes rewards for the GRPOTrainer of TRL, which isn't imported here.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
import orjson

from koderz.errors import KoderzError, writable
from koderz.systems.rewards.scores import UNREACHABLE, Item, Score, failed

if TYPE_CHECKING:
    import httpx


TIMEOUT = 300.0  # seconds
_AT_ONCE = 1000  # items of a request
_BYTES = 16 << 20  # of a request, about
_PAUSES = (0.1, 5.0)  # seconds between tries, at least and at most
_RETRIED = (429, 503)

Asked = Item | tuple[str, str] | Mapping[str, Any]
"""An item, its task and reply, or its fields."""


class RefusedError(KoderzError):
    """The service refuses a request: 400, 401, 403, 404 or 413. It would each time."""

    def __init__(self, message: str, status: int, most_items: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.most_items = most_items  # of a request, if it has too many


@dataclass(frozen=True, slots=True)
class _Retry:
    """A request that may be made again, and why."""

    reason: str
    after: float = 0.0  # seconds


class _Target:
    """The address and token of a service, and how requests and answers are written."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, timeout: float = TIMEOUT
    ) -> None:
        """`url` and `token`: None for those in KODERZ_JUDGE_URL and KODERZ_JUDGE_TOKEN. `timeout`: of a request with
        its retries, in seconds. Raises KoderzError without an address."""
        found = url or os.environ.get("KODERZ_JUDGE_URL", "")
        if not found:
            raise KoderzError(
                "no judge is named; set KODERZ_JUDGE_URL to the address of koderz judge serve"
            )
        self.url = found.rstrip("/")
        self.timeout = timeout
        self._token = os.environ.get("KODERZ_JUDGE_TOKEN", "") if token is None else token

    def headers(self) -> dict[str, str]:
        bearer = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return {"Content-Type": "application/json", "Accept": "application/json", **bearer}

    def read(self, status: int, body: bytes, after: str | None) -> Any:
        """The answer, or a `_Retry`. Raises RefusedError."""
        if status < 300:
            return orjson.loads(body)
        try:
            found = orjson.loads(body)
            text, most = str(found["error"]), int(found.get("most_items", 0))
        except (ValueError, KeyError, TypeError):
            text, most = body[:200].decode(errors="replace"), 0
        if status in _RETRIED or status >= 500:
            return _Retry(f"{self.url} answers {status}: {text}", _seconds(after))
        raise RefusedError(f"{self.url} answers {status}: {text}", status, most)


class _Pauses:
    """Pauses between tries, until the time is up."""

    def __init__(self, timeout: float) -> None:
        self._end, self._pause = time.monotonic() + timeout, _PAUSES[0]

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    def next(self, retry: _Retry) -> float | None:
        """Seconds to wait before the next try; None if there is no time for one."""
        pause = max(retry.after, self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - so that clients don't agree
        self._pause = min(2 * self._pause, _PAUSES[1])
        return pause if pause < self.left else None


class Client(_Target):
    """A client for any number of threads. It works after a fork, and when it was pickled."""

    # by process: connections aren't shared with a fork
    _local: tuple[int, httpx.Client] | None = None
    _lock = threading.Lock()

    def score(self, task: str, reply: str, **fields: Any) -> Score:
        """The score of one reply. `fields`: others of `Item`, such as `graded` and `step`.

        If the service can't be reached within `timeout`, the score is the fault `unreachable`. Raises RefusedError.
        """
        return self.score_many([Item(task, reply, **fields)])[0]

    def score_many(self, items: Iterable[Asked], **fields: Any) -> list[Score]:
        """The scores of replies, in their order. `fields` are those of all of them. Errors as for `score`."""
        return [
            score
            for part in _batches(_item(each, fields) for each in items)
            for score in self._scores(part)
        ]

    def metrics(self, step: int | None = None) -> dict[str, Any]:
        """The figures of a step of the training; None: of all scores. Raises KoderzError if there is no answer."""
        found: dict[str, Any] = self._required(
            "/metrics" if step is None else f"/metrics?step={step}"
        )
        return found if step is not None else found["all"]

    def tasks(self) -> list[dict[str, str]]:
        """The suite, id and digest of each task that is judged. Raises KoderzError if there is no answer."""
        return [*self._required("/tasks")["tasks"]]

    def health(self) -> dict[str, Any]:
        """The service's description of itself. Raises KoderzError if there is no answer."""
        return dict(self._required("/health"))

    def _scores(self, items: Sequence[Item]) -> list[Score]:
        try:
            found = self._asked("POST", "/score_batch", _body(items))
        except RefusedError as error:
            return [score for part in _fewer(items, error) for score in self._scores(part)]
        return _unreachable(items, found) if isinstance(found, _Retry) else _read_scores(found)

    def _required(self, path: str) -> Any:
        found = self._asked("GET", path, None)
        if isinstance(found, _Retry):
            raise KoderzError(found.reason)
        return found

    def _asked(self, method: str, path: str, body: bytes | None) -> Any:
        pauses = _Pauses(self.timeout)
        while True:
            found = self._tried(method, path, body, pauses.left)
            if not isinstance(found, _Retry) or (pause := pauses.next(found)) is None:
                return found
            time.sleep(pause)

    def _tried(self, method: str, path: str, body: bytes | None, seconds: float) -> Any:
        from koderz.connections import CONNECT_SECONDS, httpx, told

        limits = httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))
        try:
            answer = self._client().request(
                method, self.url + path, content=body, headers=self.headers(), timeout=limits
            )
        except (httpx.TransportError, httpx.InvalidURL) as error:
            return _Retry(f"{self.url} can't be reached: {told(error)}")
        return self.read(answer.status_code, answer.content, answer.headers.get("Retry-After"))

    def _client(self) -> httpx.Client:
        from koderz.connections import certificates, httpx

        with self._lock:
            if self._local is None or self._local[0] != os.getpid():
                limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
                client = httpx.Client(verify=certificates(self.url), trust_env=False, limits=limits)
                weakref.finalize(self, client.close)
                self._local = os.getpid(), client
            return self._local[1]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}


class AsyncClient(_Target):
    """A client for event loops. As a context manager it keeps its connections open for the loop that entered it."""

    _client: httpx.AsyncClient | None = None

    async def score(self, task: str, reply: str, **fields: Any) -> Score:
        """The score of one reply, as by `Client.score`."""
        return (await self.score_many([Item(task, reply, **fields)]))[0]

    async def score_many(self, items: Iterable[Asked], **fields: Any) -> list[Score]:
        """The scores of replies, as by `Client.score_many`."""
        parts = _batches(_item(each, fields) for each in items)
        return [score for part in parts for score in await self._scores(part)]

    async def metrics(self, step: int | None = None) -> dict[str, Any]:
        """The figures of a step of the training; None: of all scores. Raises KoderzError if there is no answer."""
        found = await self._asked(
            "GET", "/metrics" if step is None else f"/metrics?step={step}", None
        )
        if isinstance(found, _Retry):
            raise KoderzError(found.reason)
        return dict(found if step is not None else found["all"])

    async def __aenter__(self) -> Self:
        self._client = self._opened()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        client, self._client = self._client, None
        if client:
            await client.aclose()

    async def _scores(self, items: Sequence[Item]) -> list[Score]:
        try:
            found = await self._asked("POST", "/score_batch", _body(items))
        except RefusedError as error:
            return [score for part in _fewer(items, error) for score in await self._scores(part)]
        return _unreachable(items, found) if isinstance(found, _Retry) else _read_scores(found)

    async def _asked(self, method: str, path: str, body: bytes | None) -> Any:
        if self._client:
            return await self._tried_again(self._client, method, path, body)
        async with self._opened() as client:
            return await self._tried_again(client, method, path, body)

    async def _tried_again(
        self, client: httpx.AsyncClient, method: str, path: str, body: bytes | None
    ) -> Any:
        pauses = _Pauses(self.timeout)
        while True:
            found = await self._tried(client, method, path, body, pauses.left)
            if not isinstance(found, _Retry) or (pause := pauses.next(found)) is None:
                return found
            await asyncio.sleep(pause)

    async def _tried(
        self, client: httpx.AsyncClient, method: str, path: str, body: bytes | None, seconds: float
    ) -> Any:
        from koderz.connections import httpx, told

        try:
            async with asyncio.timeout(seconds):
                answer = await client.request(
                    method, self.url + path, content=body, headers=self.headers()
                )
        except TimeoutError:
            return _Retry(f"{self.url} can't be reached: no answer within {seconds:g} s")
        except (httpx.TransportError, httpx.InvalidURL) as error:
            return _Retry(f"{self.url} can't be reached: {told(error)}")
        return self.read(answer.status_code, answer.content, answer.headers.get("Retry-After"))

    def _opened(self) -> httpx.AsyncClient:
        from koderz.connections import open_client

        return open_client(self.url)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_client"}


def _item(asked: Asked, fields: Mapping[str, Any]) -> Item:
    match asked:
        case Item():
            given = asdict(asked)
        case (task, reply):
            given = {"task": task, "reply": reply}
        case _:
            given = dict(asked)
    item = Item(**{**given, **fields})
    texts = {
        name: writable(value) for name, value in asdict(item).items() if isinstance(value, str)
    }
    return Item(**asdict(item) | texts)


def _batches(items: Iterable[Item]) -> Iterator[Sequence[Item]]:
    """The items in requests that are neither too many nor too large."""
    batch: list[Item] = []
    size = 0
    for item in items:
        length = len(orjson.dumps(item.reply))
        if batch and (len(batch) == _AT_ONCE or size + length > _BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += length
    if batch:
        yield batch


def _fewer(items: Sequence[Item], error: RefusedError) -> Iterator[Sequence[Item]]:
    """The items in requests of as many as the service takes, if that is why it refuses them; else raises the error."""
    if not error.most_items:
        raise error
    for at in range(0, len(items), error.most_items):
        yield items[at : at + error.most_items]


def _body(items: Sequence[Item]) -> bytes:
    wanted = [
        {name: value for name, value in asdict(item).items() if value not in ("", None)}
        for item in items
    ]
    return orjson.dumps({"items": [{"reply": "", **each} for each in wanted]})


def _read_scores(found: Any) -> list[Score]:
    return msgspec.convert(found["scores"], list[Score])


def _unreachable(items: Sequence[Item], retry: _Retry) -> list[Score]:
    return [failed(item, item.suite, "", UNREACHABLE, retry.reason) for item in items]


def _seconds(text: str | None) -> float:
    try:
        return min(60.0, max(0.0, float(text or 0)))
    except ValueError:
        return 0.0


def trl(
    column: str = "task_id", *, client: AsyncClient | None = None, **fields: Any
) -> Callable[..., Coroutine[Any, Any, list[float | None]]]:
    """A reward function for `reward_funcs`: the rewards of completions, None for a fault.

    `column`: the dataset's column with the task's id; `fields`: of `Item`, such as `graded=True`. It logs
    `tamper_rate`, `fault_rate`, and each completion's verdict. The judge is that of KODERZ_JUDGE_URL.
    """

    async def koderz_reward(completions: Sequence[Any], **given: Any) -> list[float | None]:
        items = [
            (task, reply_of(each)) for task, each in zip(given[column], completions, strict=True)
        ]
        state = given.get("trainer_state")
        scores = await (client or AsyncClient()).score_many(
            items, step=state and state.global_step, **fields
        )
        if log := given.get("log_metric"):
            counts = Counter(bool(score.fault) for score in scores)
            log(
                "tamper_rate", sum(bool(score.tampering) for score in scores) / (counts[False] or 1)
            )
            log("fault_rate", counts[True] / (len(scores) or 1))
        if log := given.get("log_extra"):
            log("verdict", [score.cause or score.verdict for score in scores])
        return [score.reward for score in scores]

    return koderz_reward


def reply_of(completion: Any) -> str:
    """The model's last answer in a completion: a text, or a list of messages with tools' between them."""
    if isinstance(completion, str):
        return completion
    answers = [message for message in completion if message.get("role") == "assistant"]
    content = answers[-1].get("content") if answers else ""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content or ""
