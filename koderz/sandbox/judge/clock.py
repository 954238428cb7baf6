"""The wall clock of tests: what they raise, or that their time is up."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

LONG = 1.0  # seconds after which the pool is told that a judge is still at work


class Overdue(BaseException):
    """The wall clock has run out. Not an Exception, so that tests don't catch it by chance."""


def within(
    seconds: float, run: Callable[[], object], starts_anew: Callable[[], bool] = lambda: False
) -> BaseException | None:
    """Runs tests, for so long of wall time. What they raised; Overdue also if they caught it.

    `starts_anew` is asked when the time is up, and says whether they have as much again.
    """
    overdue = Overdue()
    late = is_asking = False

    def ring(_number: int, _frame: FrameType | None) -> None:
        nonlocal late, is_asking
        if is_asking:  # whose answer nobody else may take
            return
        is_asking = True
        goes_on = not late and starts_anew()
        is_asking = False
        if goes_on:
            signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
            return
        late = True
        raise overdue

    signal.signal(signal.SIGALRM, ring)
    raised: BaseException | None = None
    try:
        # again and again, for tests that catch it
        signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
        run()
    except BaseException as error:  # noqa: BLE001 - whatever ends the tests is their finding
        raised = error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return overdue if late else raised
