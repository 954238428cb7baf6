"""Cells of a session: their options, their results, and their calls of models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from koderz.errors import Fault
from koderz.settings.options import option
from koderz.settings.trust import SENDS

Kind = Literal["wasm", "native"]

SECRET_HEADER = "X-Session-Secret"  # noqa: S105 its name
TIMEOUT = 30.0  # seconds a cell may take of its own, unless it is told otherwise
MEMORY_MB = 512  # of a session
TOKEN_VARIABLE = "KODERZ_WASM_TOKEN"  # noqa: S105 its name
OUTPUT_LIMIT = 1 << 20  # bytes that a cell may print


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options for the place where a solver's code runs. A solver's own options inherit from this class."""

    session: Literal["wasm", "native"] | None = option(
        None,
        "Where code runs: wasm, or native: contained processes. Default: wasm, else native.",
        "KIND",
    )
    wasm_url: str | None = option(
        None,
        "A WASM manager to run code at, instead of koderz' own workers.",
        "URL",
        risk=SENDS,
        is_address=True,
    )
    wasm_token: str | None = option(
        None,
        f"The manager's token, which is on no record. Better in the variable {TOKEN_VARIABLE}, where a resumed run "
        "looks for it: options stand in the list of processes.",
        "T",
        is_secret=True,
        reader="manager",
    )
    wasm_timeout: float = option(
        TIMEOUT,
        "Time that a cell of code may take; waiting for models doesn't count.",
        "SECONDS",
        bounds=(0.1, 3600),
    )
    pool_size: int | None = option(
        None,
        "Maximum cells of code that execute at once, those that wait for models not counted; as many sessions are made "
        "ahead. Default: any number of cells, and no sessions ahead.",
        "N",
        bounds=(1, 1000),
    )


class SubCall(NamedTuple):
    """A call of a model by a cell."""

    name: str  # llm_query or rlm_query
    prompts: tuple[str, ...]
    model: str | None


Answering = Callable[[SubCall], Awaitable[Sequence[str]]]
"""Answers a sub-call with a text for each prompt. An error that it raises stops the cell."""


async def answers_to(
    call: SubCall, answer: Answering | None, executing: asyncio.Semaphore
) -> list[str]:
    """A text for each prompt of a sub-call; meanwhile the cell's slot among those `executing` is free.

    An error as text where no model can be asked.
    """
    if answer is None:
        return ["Error: no model can be asked from here"] * len(call.prompts)
    executing.release()
    try:
        return [str(text) for text in await answer(call)]
    finally:
        await executing.acquire()


@dataclass(frozen=True, slots=True)
class CellResult:
    """The result of one cell."""

    stdout: str = ""
    stderr: str = ""  # what it wrote there, and the traceback of what it raised
    error: str | None = None  # `TYPE: message`
    # variables; those that are large as `<type, size>`
    locals: Mapping[str, Any] = field(default_factory=dict)
    final_answer: str | None = None  # answer["content"], where answer["ready"] is True
    seconds: float = 0.0  # that it took, rebuilding included, waiting for models not
    calls: int = 0  # prompts that models answered for it
    truncated: bool = False  # it printed more than is kept
    # why it didn't come to its end: deadline, crash; its session is as it was before it
    stopped: str = ""


class SessionBusyError(Fault):
    """Another cell of the session is running."""

    cause = "sandbox"


class SessionFullError(Fault):
    """A session or manager has no room for a value or another session."""

    cause = "sandbox"


class SessionLostError(Fault):
    """The session is gone, or can't be rebuilt."""

    cause = "sandbox"
