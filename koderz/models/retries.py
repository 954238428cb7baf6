"""Asking again: exponential back-off with jitter, or as long as the server says."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from koderz.models.faults import Retryable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tenacity import RetryCallState

    from koderz.models.pool import Service

T = TypeVar("T")

_LONGEST_BACKOFF = 60.0  # seconds


async def retrying(attempt: Callable[[], Awaitable[T]], service: Service, max_retries: int) -> tuple[T, int]:
    """What `attempt` returns, and after how many retries; raises the last Retryable when they are used up.

    The first attempt is made outside of the machinery, which costs
    it a tenth of its CPU and is needed for few; its failure is then the machinery's first.
    """
    try:
        return await attempt(), 0
    except Retryable as problem:
        first = problem
    from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential_jitter

    def is_over(state: RetryCallState) -> bool:
        most = _problem(state).most_retries
        return state.attempt_number > (max_retries if most is None else min(most, max_retries))

    retries = -1

    async def again() -> tuple[T, int]:
        nonlocal retries
        retries += 1
        if not retries:
            raise first
        return await attempt(), retries

    backoff = service.endpoint.backoff
    exponential = wait_exponential_jitter(multiplier=backoff, max=_LONGEST_BACKOFF, jitter=backoff)
    machinery = AsyncRetrying(
        retry=retry_if_exception_type(Retryable),
        stop=is_over,
        wait=lambda state: _problem(state).retry_after or exponential(state),
        sleep=service.limiter.rest,
        reraise=True,
    )
    return await machinery(again)


def _problem(state: RetryCallState) -> Retryable:
    assert state.outcome is not None
    return cast("Retryable", state.outcome.exception())
