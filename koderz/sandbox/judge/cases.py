"""Tests of which each has a time limit of its own: the judge keeps it, whatever the program does to its own clock.

The tests get a callable that answers in one of two ways. `Calls` asks one candidate, as all other tests do.
`Processes` starts a candidate for each call: a plain process, with its argument as stdin.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from koderz.sandbox.judge import findings, wire
from koderz.sandbox.judge.findings import (
    LONG,
    Overdue,
    finding,
    of_exception,
    of_loss,
    of_timeout,
    within,
)
from koderz.sandbox.judge.forks import Ending, Zygote
from koderz.sandbox.judge.jobs import Job, JobResult
from koderz.sandbox.judge.proxy import LostCandidate, Proxy, Raised

OUTPUT_LIMIT = 16 << 20  # bytes of stdout that a process may write
_BUSY = 0.05  # of a wall limit: who had less of the processor meanwhile waits for something
_READ = 256 << 10


class CaseLostError(BaseException):
    """The candidate didn't answer a test, whose finding this is. Not an Exception, so that no test catches it."""

    def __init__(self, found: JobResult) -> None:
        super().__init__(found.cause)
        self.found = found


class Cases(ABC):
    """The candidate as tests see it that give each call a time limit."""

    def __init__(self, job: Job, zygote: Zygote, anew: Callable[[], None]) -> None:
        self.__name__ = job.entry_point or "program"
        self.job, self._zygote, self._anew = job, zygote, anew
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self.result: Any = None
        self.calls = 0
        self.cpu = 0.0  # seconds of all calls that have ended
        self._told = time.monotonic()

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        self.arguments, self.result = (arguments, {}), None
        if time.monotonic() - self._told > LONG:
            self._tell()
        self.result = self._answer(*arguments)
        return self.result

    @abstractmethod
    def end(self) -> None:
        """End what is left of the candidate."""

    @abstractmethod
    def _answer(self, *arguments: Any) -> Any:
        """The answer to one call. Raises CaseLostError if there is none."""

    def _tell(self) -> None:
        self._told = time.monotonic()
        self._anew()

    def _timed(self, run: Callable[[], object]) -> tuple[BaseException | None, float]:
        """The error that `run` raised, and the candidate's CPU seconds. A candidate that waits is overdue sooner."""
        before = latest = self._zygote.used()

        def goes_on() -> bool:
            nonlocal latest
            last, latest = latest, self._zygote.used()
            self._tell()
            return (
                latest - before < self.job.case_timeout and latest - last >= _BUSY * self.job.wall
            )

        error = within(self.job.wall, run, goes_on)
        return error, self._zygote.used() - before

    def _overdue(self, cpu: float, called: Callable[[], str]) -> JobResult:
        """The finding on a call that took so much CPU, or waited."""
        limit = self.job.case_timeout
        return of_timeout(
            self.job._replace(timeout=limit), Ending(0, cpu, overdue=cpu >= limit), called
        )

    def _lost(self, found: JobResult) -> CaseLostError:
        return CaseLostError(found._replace(message=f"test {self.calls}: {found.message}"))


class Calls(Cases):
    """One candidate that answers all calls."""

    def __init__(self, job: Job, zygote: Zygote, anew: Callable[[], None]) -> None:
        super().__init__(job, zygote, anew)
        self._connection = zygote.spawn(job.timeout, job.memory_mb << 20)
        self._proxy = Proxy(self._connection, self.__name__)
        self._proxy.greet(
            (
                job.program,
                job.entry_point,
                job.output_limit,
                job.case_timeout,
                "",
                "",
                job.harness,
                False,
            )
        )

    def end(self) -> None:
        """End the candidate, unless it is gone."""
        with self._connection:
            if self._ending is None:
                self._ending = self._zygote.end()
                self.cpu = self._ending.cpu

    _ending: Ending | None = None

    def _answer(self, *arguments: Any) -> Any:
        error, cpu = self._timed(lambda: self._proxy(*arguments))
        if error is None and cpu <= self.job.case_timeout:
            return self._proxy.result
        self.end()
        assert self._ending
        called = partial(findings.call, self)
        if error is None or isinstance(error, Overdue):
            raise self._lost(self._overdue(cpu, called))
        if isinstance(error, LostCandidate):
            limit = self.job._replace(call_timeout=self.job.case_timeout)
            raise self._lost(of_loss(limit, error, self._ending, called))
        raised = self._proxy.raised
        if raised and raised.error is error:
            raise self._lost(of_exception(self.job, raised, called))
        raise error


class Processes(Cases):
    """A process for each call."""

    def end(self) -> None:
        """Nothing is left after a call."""

    def _answer(self, *arguments: Any) -> Any:
        (text,) = arguments
        limit, memory = self.job.case_timeout, self.job.memory_mb << 20
        output = bytearray()
        with self._zygote.spawn(
            limit, memory, text.encode("utf-8", "surrogateescape")
        ) as connection:
            request = (self.job.program, "", 0, 0.0, "", "", "", True)
            proxy = Proxy(connection, self.__name__)
            proxy.greet(request)

            def read() -> None:
                while len(output) <= OUTPUT_LIMIT and (data := connection.recv(_READ)):
                    output.extend(data)

            error, cpu = self._timed(read)
            ending = self._zygote.end()
        self.cpu += ending.cpu
        return self._finding(bytes(output), error, ending, cpu)

    def _finding(
        self, output: bytes, error: BaseException | None, ending: Ending, cpu: float
    ) -> str:
        """The output as text, if the process ended well."""
        called = partial(findings.call, self)
        text, _, report = output.partition(wire.REPORTED)
        self.result = text[:OUTPUT_LIMIT].decode("utf-8", "replace")
        if isinstance(error, Overdue):
            raise self._lost(self._overdue(cpu, called))
        if error is not None and not isinstance(error, OSError):
            raise error
        if len(output) > OUTPUT_LIMIT:
            raise self._lost(
                finding(
                    "error",
                    "output",
                    lambda: f"{called()}\n  printed more than {OUTPUT_LIMIT} bytes",
                )
            )
        if ending.overdue:
            raise self._lost(self._overdue(self.job.case_timeout, called))
        if ending.status == 0:
            return output.decode("utf-8", "replace")
        if ending.status > 0 and (raised := _reported(report)):
            raise self._lost(of_exception(self.job, raised, called))
        raise self._lost(of_loss(self.job, LostCandidate(), ending, called))


def _reported(report: bytes) -> Raised | None:
    try:
        return Raised.read(wire.loads(report)) if report else None
    except (wire.NotPlainError, LostCandidate):
        return None
