"""One candidate before its tests: what they make of it, and why."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from koderz.sandbox.judge import candidate, findings, wire
from koderz.sandbox.judge.cases import Calls, CaseLostError, Cases, Processes
from koderz.sandbox.judge.findings import (
    LONG,
    Overdue,
    explained,
    finding,
    of_exception,
    of_loss,
    of_timeout,
    within,
)
from koderz.sandbox.judge.forks import Ending, Zygote
from koderz.sandbox.judge.jobs import FAULT, Job, JobResult
from koderz.sandbox.judge.proxy import BROKEN, NOT_PROXIABLE, TOO_LARGE, Proxy
from koderz.sandbox.judge.suite_tests import (
    TALLY,
    BrokenTestsError,
    PartTally,
    SuiteTests,
    WholeTally,
    prepared,
)

# of a wall limit; a candidate that had more of the processor meanwhile isn't waiting, but slowed down
BUSY = 0.05
_LEAST_CPU = 0.01  # seconds that a candidate counts for, which may be one of thousands


def hold(job: Job, zygote: Zygote, loaded: Callable[[], None]) -> JobResult:
    """Judges one candidate. EOFError when the zygote is gone.

    `loaded` is called where the wall clock starts anew: once tests have taken long to load, and again and again for a
    candidate that is busy, until its CPU is used up.
    """
    began = time.monotonic()
    try:
        tests = prepared(job.test, job.context, job.entry_point, graded=job.graded)
        if tests.in_process:
            held = _held_in_process(job, zygote)
        elif job.case_timeout:
            held = _held_by_case(job, tests, zygote, loaded)
        else:
            held = _held_by_proxy(job, tests, zygote, loaded)
    except BrokenTestsError as error:
        return JobResult("error", FAULT, str(error))
    return held._replace(wall=time.monotonic() - began)


def _held_by_proxy(
    job: Job,
    tests: SuiteTests,
    zygote: Zygote,
    loaded: Callable[[], None],
    *,
    foresees: bool = True,
) -> JobResult:
    """Tests here, candidate there."""
    tally = PartTally(tests.parts.number) if tests.parts else None
    with zygote.spawn(job.timeout, job.memory_mb << 20) as connection:
        proxy = Proxy(connection, job.entry_point or "program", foresees=foresees and not tally)
        proxy.greet(_greeting(job), tests.learnt)
        error = _run(job, tests, proxy, _Patience(job.wall, zygote, loaded), tally)
        proxy.finish()
        ending = zygote.end()
    if proxy.lost and proxy.lost.kind == NOT_PROXIABLE:
        return _held_in_process(job, zygote)
    vanished = isinstance(error, Overdue) or (proxy.lost and not proxy.lost.kind)
    if vanished and proxy.foresaw and (proxy.astray or proxy.calls > candidate.EAGER):
        # Answers gathered before the end were not sent, or others were due: only asking one by one tells where it was.
        return _held_by_proxy(job, tests, zygote, loaded, foresees=False)
    found = _proxied_finding(job, tests, proxy, error, ending)
    found = found._replace(cpu=ending.cpu, tampering=_signs(proxy, found))
    return (
        _graded(found, job, tests, tally, proxy, zygote, loaded)
        if tally and found.cause != FAULT
        else found
    )


def _greeting(job: Job) -> tuple[Any, ...]:
    return job.program, job.entry_point, job.output_limit, job.call_timeout


def _run(
    job: Job, tests: SuiteTests, proxy: Proxy, patience: _Patience, tally: PartTally | None
) -> BaseException | None:
    """The error that the tests ended with."""
    random.seed(0)  # tests that draw their inputs draw the same for everyone
    namespace = tests.namespace(job.entry_point, proxy)
    if tally:
        namespace[TALLY] = tally
    # What they do before they call the candidate takes nothing from its time.
    return patience.within(lambda: tests.load(namespace)) or patience.within(
        lambda: tests.check(namespace, proxy)
    )


def _signs(proxy: Proxy, found: JobResult) -> list[str]:
    """Signs of tampering, none of which proves any."""
    lost = proxy.lost.kind if proxy.lost else None
    refusal = proxy.raised and isinstance(proxy.raised.error, PermissionError)
    signs = {
        "exit": lost == b"" and found.verdict != "timeout",
        "channel": proxy.strays
        or lost in (BROKEN, TOO_LARGE)
        or (lost == wire.UNLOADED and found.cause == "killed"),
        "refused": proxy.refused or bool(refusal),
    }
    return [name for name, is_there in signs.items() if is_there]


def _graded(
    found: JobResult,
    job: Job,
    tests: SuiteTests,
    tally: PartTally,
    proxy: Proxy,
    zygote: Zygote,
    loaded: Callable[[], None],
) -> JobResult:
    """The finding with the number of tests passed. One that fails runs again, to its limits, past each failure.

    A test whose candidate ends is failed, and the next has a new one. The call on which time ran out isn't made again.
    """
    passed = tally.passed
    if (
        found.verdict != "passed"
        and tally.number
        and not (proxy.lost and proxy.lost.kind == wire.UNLOADED)
    ):
        skipped = proxy.calls if found.verdict == "timeout" else 0
        passed = min(_passed(job, tests, tally.number, skipped, zygote, loaded), tally.number - 1)
    return found._replace(tests_passed=passed if tally.number else None, tests=tally.number or None)


def _passed(
    job: Job,
    tests: SuiteTests,
    number: int,
    skipped: int,
    zygote: Zygote,
    loaded: Callable[[], None],
) -> int:
    left = job.timeout
    connection = zygote.spawn(left, job.memory_mb << 20)
    proxy = Proxy(connection, job.entry_point or "program", foresees=False)
    proxy.skipped = skipped

    def goes_on(error: BaseException) -> bool:
        nonlocal left, connection
        if isinstance(error, Overdue):
            return False
        if proxy.lost:
            left -= max(zygote.end().cpu, _LEAST_CPU)
            connection.close()
            if left <= 0:
                connection = zygote.spawn(_LEAST_CPU, job.memory_mb << 20)  # to be ended
                return False
            connection = zygote.spawn(left, job.memory_mb << 20)
            proxy.renew(connection)
            proxy.greet(_greeting(job))
        return True

    tally = WholeTally(number, goes_on)
    proxy.greet(_greeting(job))
    _run(job, tests, proxy, _Patience(job.wall, zygote, loaded), tally)
    zygote.end()
    connection.close()
    return tally.passed


def _held_by_case(
    job: Job, tests: SuiteTests, zygote: Zygote, loaded: Callable[[], None]
) -> JobResult:
    """As `_held_by_proxy`, with a time limit for each call."""
    cases: Cases = (Processes if job.as_process else Calls)(job, zygote, loaded)
    error: BaseException | None = None
    try:
        namespace = tests.namespace(job.entry_point, cases)
        tests.load(namespace)
        namespace["DATA"] = job.data
        tests.check(namespace, cases)
    except (Exception, CaseLostError) as raised:  # noqa: BLE001 - whatever ends the tests is their finding
        error = raised
    finally:
        cases.end()
    return _case_finding(tests, cases, error)._replace(cpu=cases.cpu)


def _case_finding(tests: SuiteTests, cases: Cases, error: BaseException | None) -> JobResult:
    if isinstance(error, CaseLostError):
        return error.found
    if isinstance(error, AssertionError):
        if not cases.calls:
            return JobResult("failed", "assertion", str(error))
        return finding("failed", "assertion", lambda: findings.assertion(error, cases, tests))
    if error is None and cases.calls:
        return JobResult("passed")
    if isinstance(error, MemoryError):
        return JobResult("error", "memory", "the result left the tests no memory")
    raise BrokenTestsError(
        f"the tests failed: {error!r}"[:500] if error else "the tests call nothing"
    )


class _Patience:
    """The wall clock of one candidate."""

    def __init__(self, wall: float, zygote: Zygote, anew: Callable[[], None]) -> None:
        self._wall, self._zygote, self._anew = wall, zygote, anew
        self._used = 0.0
        self._began = time.monotonic()

    def within(self, run: Callable[[], object]) -> BaseException | None:
        """The error that one part of the tests raised; each part has the whole time limit."""
        if time.monotonic() - self._began > LONG:
            self._anew()
        return within(self._wall, run, self._starts_anew)

    def _starts_anew(self) -> bool:
        before, used = self._used, self._zygote.used()
        if used - before < BUSY * self._wall:
            return False
        self._used = used
        self._anew()
        return True


def _proxied_finding(
    job: Job, tests: SuiteTests, proxy: Proxy, error: BaseException | None, ending: Ending
) -> JobResult:
    call = partial(findings.call, proxy)
    if isinstance(error, Overdue):
        return of_timeout(job, ending, call)
    if proxy.lost:
        return of_loss(job, proxy.lost, ending, call)
    if error is None and proxy.calls:
        tests.learn(proxy.made or [])
        return JobResult("passed")
    if not proxy.calls:
        why = f"failed first: {error!r}" if error else "call nothing"
        return JobResult(
            "error", FAULT, f"the tests never called {proxy.__name__}: they {why}"[:500]
        )
    if proxy.raised and error is proxy.raised.error:
        return of_exception(job, proxy.raised, call)
    if isinstance(error, AssertionError):
        return finding("failed", "assertion", lambda: findings.assertion(error, proxy, tests))
    if isinstance(error, MemoryError):
        return finding(
            "error", "memory", lambda: f"{call()}\n  the result left the tests no memory"
        )
    return finding(
        "failed",
        f"exception:{type(error).__name__}",
        lambda: f"{call()}\n  returned  {findings.shown(proxy.result)}\n  the tests: {error!r}"[
            :1000
        ],
    )


def _held_in_process(job: Job, zygote: Zygote) -> JobResult:
    """Tests and candidate in one contained process: for suites that no proxy can serve, and said so."""
    token = os.urandom(16).hex()
    with zygote.spawn(job.timeout, job.memory_mb << 20) as connection:
        proxy = Proxy(connection, job.entry_point)
        proxy.greet((job.program, job.entry_point, job.output_limit, 0.0, job.test, token))
        error = within(job.wall, proxy)
        ending = zygote.end()
    finding = _in_process_finding(job, proxy, token, error, ending)
    return finding._replace(cpu=ending.cpu, isolation="in-process")


def _in_process_finding(
    job: Job, proxy: Proxy, token: str, error: BaseException | None, ending: Ending
) -> JobResult:
    if isinstance(error, Overdue):
        return of_timeout(job, ending, lambda: job.entry_point)
    if proxy.lost and proxy.lost.kind == wire.PRINTED:
        return JobResult("error", "output", f"printed more than {job.output_limit} bytes")
    if proxy.lost:
        return of_loss(job, proxy.lost, ending, lambda: job.entry_point)
    if (raised := proxy.raised) and raised.name == "AssertionError":
        return finding("failed", "assertion", lambda: explained(job, raised))
    if raised:
        return of_exception(job, raised, str)
    return (
        JobResult("passed")
        if proxy.result == token
        else JobResult("error", "killed", "a forged answer")
    )
