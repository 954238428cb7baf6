"""One candidate before its tests: what they make of it, and why."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from koderz.sandbox.judge import candidate, explain, wire
from koderz.sandbox.judge.forks import Ending, Zygote
from koderz.sandbox.judge.jobs import FAULT, Job, JobResult
from koderz.sandbox.judge.proxy import BROKEN, NOT_PROXIABLE, TOO_LARGE, LostCandidate, Proxy, Raised
from koderz.sandbox.judge.shares import TALLY, PartTally, WholeTally
from koderz.sandbox.judge.suite_tests import BrokenTestsError, SuiteTests, prepared

if TYPE_CHECKING:
    from koderz.types import VerdictWord

LONG = 1.0  # seconds for tests to load
BUSY = 0.05  # of a wall limit; a candidate that had more of the processor meanwhile isn't waiting, but slowed down
_LEAST_CPU = 0.01  # seconds that a candidate counts for, which may be one of thousands
EXPLAINING_SECONDS = 2.0  # that a message may take to be put together


class Overdue(BaseException):
    """The wall clock has run out. Not an Exception, so that tests don't catch it by chance."""


def hold(job: Job, zygote: Zygote, loaded: Callable[[], None]) -> JobResult:
    """Judges one candidate. EOFError when the zygote is gone.

    `loaded` is called where the wall clock starts anew: once tests have taken long to load, and again and again for a
    candidate that is busy, until its CPU is used up.
    """
    began = time.monotonic()
    try:
        tests = prepared(job.test, job.context, job.entry_point, graded=job.graded)
        held = _held_in_process(job, zygote) if tests.in_process else _held_by_proxy(job, tests, zygote, loaded)
    except BrokenTestsError as error:
        return JobResult("error", FAULT, str(error))
    return held._replace(wall=time.monotonic() - began)


def _held_by_proxy(
    job: Job, tests: SuiteTests, zygote: Zygote, loaded: Callable[[], None], *, foresees: bool = True
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
    return _graded(found, job, tests, tally, proxy, zygote, loaded) if tally and found.cause != FAULT else found


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
    return patience.within(lambda: tests.load(namespace)) or patience.within(lambda: tests.check(namespace, proxy))


def _signs(proxy: Proxy, found: JobResult) -> list[str]:
    """Signs of tampering, none of which proves any."""
    lost = proxy.lost.kind if proxy.lost else None
    refusal = proxy.raised and isinstance(proxy.raised.error, PermissionError)
    signs = {
        "exit": lost == b"" and found.verdict != "timeout",
        "channel": proxy.strays or lost in (BROKEN, TOO_LARGE) or (lost == wire.UNLOADED and found.cause == "killed"),
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
    if found.verdict != "passed" and tally.number and not (proxy.lost and proxy.lost.kind == wire.UNLOADED):
        skipped = proxy.calls if found.verdict == "timeout" else 0
        passed = min(_passed(job, tests, tally.number, skipped, zygote, loaded), tally.number - 1)
    return found._replace(tests_passed=passed if tally.number else None, tests=tally.number or None)


def _passed(job: Job, tests: SuiteTests, number: int, skipped: int, zygote: Zygote, loaded: Callable[[], None]) -> int:
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
        return _within(self._wall, run, self._starts_anew)

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
    call = partial(explain.call, proxy)
    if isinstance(error, Overdue):
        return _timeout(job, ending, call)
    if proxy.lost:
        return _lost(job, proxy.lost, ending, call)
    if error is None and proxy.calls:
        tests.learn(proxy.made or [])
        return JobResult("passed")
    if not proxy.calls:
        why = f"failed first: {error!r}" if error else "call nothing"
        return JobResult("error", FAULT, f"the tests never called {proxy.__name__}: they {why}"[:500])
    if proxy.raised and error is proxy.raised.error:
        return _raised(job, proxy.raised, call)
    if isinstance(error, AssertionError):
        return _finding("failed", "assertion", lambda: explain.assertion(error, proxy, tests))
    if isinstance(error, MemoryError):
        return _finding("error", "memory", lambda: f"{call()}\n  the result left the tests no memory")
    return _finding(
        "failed",
        f"exception:{type(error).__name__}",
        lambda: f"{call()}\n  returned  {explain.shown(proxy.result)}\n  the tests: {error!r}"[:1000],
    )


def _finding(verdict: VerdictWord, cause: str, explained: Callable[[], str]) -> JobResult:
    """The finding and its reason, or `output` if the candidate sent more than a reason can hold."""
    message = ["what it returned can't be shown"]
    _within(EXPLAINING_SECONDS, lambda: message.append(explained()))
    return JobResult(verdict, cause, message[-1])


def _lost(job: Job, lost: LostCandidate, ending: Ending, call: Callable[[], str]) -> JobResult:
    match lost.kind:
        case wire.UNLOADED:
            return _unloaded(job, lost.payload)
        case wire.PRINTED:
            return _finding("error", "output", lambda: f"{call()}\n  printed more than {job.output_limit} bytes")
        case kind if kind == TOO_LARGE:
            return _finding("error", "output", lambda: f"{call()}\n  returned more than can be taken")
        case wire.UNPLAIN if isinstance(lost.payload, str):
            what = f"{lost.payload[:200]}, which isn't plain data"
            return _finding("failed", "assertion", lambda: f"{call()}\n  returned  {what}")
        case b"":
            return _vanished(job, ending, call)
    return _finding("error", "killed", lambda: f"{call()}\n  answered with what isn't a value")


def _vanished(job: Job, ending: Ending, call: Callable[[], str]) -> JobResult:
    if ending.overdue or ending.status == -signal.SIGXCPU:
        return _timeout(job, ending, call)
    if ending.status == -signal.SIGPROF and job.call_timeout:
        return _running(job.call_timeout, call)
    if ending.status == -signal.SIGKILL:
        how = "gave no answer and hung up"
    elif ending.status < 0:
        how = f"crashed: {signal.Signals(-ending.status).name}"
    else:
        how = f"ended its process with status {ending.status}"
    return _finding("error", "killed", lambda: f"{call()}\n  {how}")


def _timeout(job: Job, ending: Ending, call: Callable[[], str]) -> JobResult:
    if ending.overdue or ending.cpu >= job.timeout:
        return _running(job.timeout, call)
    return _finding("timeout", "wall", lambda: f"{call()}\n  was still waiting after {job.wall:.3g} s")


def _running(seconds: float, call: Callable[[], str]) -> JobResult:
    return _finding("timeout", "cpu", lambda: f"{call()}\n  was still running after {seconds:.3g} s of CPU")


def _unloaded(job: Job, payload: Any) -> JobResult:
    try:
        cause, *report = payload if isinstance(payload, list) else [None]
        raised = Raised.read(report)
    except (LostCandidate, ValueError):
        return JobResult("error", "killed", "the program sent nonsense while it was loaded")
    if cause == "syntax":
        return _finding("error", "syntax", lambda: _explained(job, raised))
    if cause == "no_entry_point":
        return JobResult("error", "no_entry_point", f"the program doesn't define {job.entry_point}")
    return _raised(job, raised, str)


def _raised(job: Job, raised: Raised, call: Callable[[], str]) -> JobResult:
    cause = "memory" if raised.name == "MemoryError" else f"exception:{raised.name}"
    return _finding("error", cause, lambda: _explained(job, raised, call()))


def _explained(job: Job, raised: Raised, call: str = "") -> str:
    return explain.exception(raised, job.program.splitlines(), job.line_offset, call)


def _held_in_process(job: Job, zygote: Zygote) -> JobResult:
    """Tests and candidate in one contained process: for suites that no proxy can serve, and said so."""
    token = os.urandom(16).hex()
    with zygote.spawn(job.timeout, job.memory_mb << 20) as connection:
        proxy = Proxy(connection, job.entry_point)
        proxy.greet((job.program, job.entry_point, job.output_limit, 0.0, job.test, token))
        error = _within(job.wall, proxy)
        ending = zygote.end()
    finding = _in_process_finding(job, proxy, token, error, ending)
    return finding._replace(cpu=ending.cpu, isolation="in-process")


def _in_process_finding(job: Job, proxy: Proxy, token: str, error: BaseException | None, ending: Ending) -> JobResult:
    if isinstance(error, Overdue):
        return _timeout(job, ending, lambda: job.entry_point)
    if proxy.lost and proxy.lost.kind == wire.PRINTED:
        return JobResult("error", "output", f"printed more than {job.output_limit} bytes")
    if proxy.lost:
        return _lost(job, proxy.lost, ending, lambda: job.entry_point)
    if (raised := proxy.raised) and raised.name == "AssertionError":
        return _finding("failed", "assertion", lambda: _explained(job, raised))
    if raised:
        return _raised(job, raised, str)
    return JobResult("passed") if proxy.result == token else JobResult("error", "killed", "a forged answer")


def _within(
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
        signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)  # again and again, for tests that catch it
        run()
    except BaseException as error:  # noqa: BLE001 - whatever ends the tests is their finding
        raised = error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return overdue if late else raised
