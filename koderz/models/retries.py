"""Asking again: exponential back-off with jitter, or as long as the server says."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from koderz.models.faults import Retryable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenacity import RetryCallState

T = TypeVar("T")

_LONGEST_BACKOFF = 60.0  # seconds


async def retrying(
    attempt: Callable[[], Awaitable[T]], *, max_retries: int, backoff: float, sleep: Callable[[float], Awaitable[None]]
) -> tuple[T, int]:
    """What `attempt` returns, and after how many retries; raises the last Retryable when they are used up.

    `backoff` is the first wait in seconds. The first attempt is made outside of the machinery, which costs
    it a tenth of its CPU and is needed for few; its failure is then the machinery's first.
    """
    try:
        return await attempt(), 0
    except Retryable as problem:
        if max_retries <= 0:
            raise
        first = problem
    return await _again(attempt, first, max_retries, backoff, sleep)


async def _again(
    attempt: Callable[[], Awaitable[T]],
    first: Retryable,
    max_retries: int,
    backoff: float,
    sleep: Callable[[float], Awaitable[None]],
) -> tuple[T, int]:
    from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential_jitter

    exponential = wait_exponential_jitter(multiplier=backoff, max=_LONGEST_BACKOFF, jitter=backoff)
    tries = 0

    async def made() -> tuple[T, int]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise first
        return await attempt(), tries - 1

    machinery = AsyncRetrying(
        retry=retry_if_exception_type(Retryable),
        stop=lambda state: state.attempt_number > _patience(state, max_retries),
        wait=lambda state: _problem(state).retry_after or exponential(state),
        sleep=sleep,
        reraise=True,
    )
    return await machinery(made)


def _patience(state: RetryCallState, max_retries: int) -> int:
    most = _problem(state).most_retries
    return max_retries if most is None else min(most, max_retries)


def _problem(state: RetryCallState) -> Retryable:
    problem = state.outcome.exception() if state.outcome else None
    assert isinstance(problem, Retryable)  # tenacity asks only after one
    return problem
