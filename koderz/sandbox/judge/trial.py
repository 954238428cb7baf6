"""One candidate before its tests: what they make of it, and why."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from koderz.sandbox.judge import candidate, explain, wire
from koderz.sandbox.judge.cases import Case, Finding
from koderz.sandbox.judge.forks import Ending, Forks
from koderz.sandbox.judge.proxy import NOT_PROXIABLE, TOO_LARGE, Lost, Proxy, Raised
from koderz.sandbox.judge.suite_tests import BrokenTestsError, SuiteTests, prepared

LONG = 1.0  # seconds for tests to load
BUSY = 0.05  # of a wall limit; a candidate that had more of the processor meanwhile isn't waiting, but slowed down
EXPLAINING_SECONDS = 2.0  # that a message may take to be put together


class Overdue(BaseException):
    """The wall clock has run out. Not an Exception, so that tests don't catch it by chance."""


def hold(case: Case, zygote: Forks, loaded: Callable[[], None] = lambda: None) -> Finding:
    """Judges one candidate. EOFError when the zygote is gone.

    `loaded` is called where the wall clock starts anew: once tests have taken long to load, and again and again for a
    candidate that is busy, until its CPU is used up.
    """
    began = time.monotonic()
    try:
        tests = prepared(case.test, case.context, case.entry_point)
        held = _held_in_process(case, zygote) if tests.in_process else _held_by_proxy(case, tests, zygote, loaded)
    except BrokenTestsError as error:
        return Finding("error", fault=str(error))
    return held._replace(wall=time.monotonic() - began)


def _held_by_proxy(
    case: Case, tests: SuiteTests, zygote: Forks, loaded: Callable[[], None], *, foresees: bool = True
) -> Finding:
    """Tests here, candidate there."""
    with zygote.spawn(case.cpu, case.memory) as connection:
        proxy = Proxy(connection, case.entry_point or "program", foresees=foresees)
        proxy.greet((case.program, case.entry_point, case.output_limit, case.call), tests.learnt)
        random.seed(0)  # tests that draw their inputs draw the same for everyone
        error = _tested(case, tests, proxy, _Patience(case.wall, zygote, loaded))
        ending = zygote.end()
    if proxy.lost and proxy.lost.kind == NOT_PROXIABLE:
        return _held_in_process(case, zygote)
    vanished = isinstance(error, Overdue) or (proxy.lost and not proxy.lost.kind)
    if vanished and proxy.foresaw and (proxy.astray or proxy.calls > candidate.EAGER):
        # Answers gathered before the end were not sent, or others were due: only asking one by one tells where it was.
        return _held_by_proxy(case, tests, zygote, loaded, foresees=False)
    return _proxied_finding(case, tests, proxy, error, ending)._replace(cpu=ending.cpu)


class _Patience:
    """The wall clock of one candidate."""

    def __init__(self, wall: float, zygote: Forks, anew: Callable[[], None]) -> None:
        self._wall, self._zygote, self._anew = wall, zygote, anew
        self._used = 0.0
        self._began = time.monotonic()

    def within(self, run: Callable[[], object]) -> BaseException | None:
        """What a part of the tests raised, which has the whole limit to itself."""
        if time.monotonic() - self._began > LONG:
            self._anew()
        return _within(self._wall, run, self._starts_anew)

    def _starts_anew(self) -> bool:
        before, used = self._used, self._zygote.used()
        if used is None or used - before < BUSY * self._wall:
            return False
        self._used = used
        self._anew()
        return True


def _tested(case: Case, tests: SuiteTests, proxy: Proxy, patience: _Patience) -> BaseException | None:
    """What the tests raised. What they do before they call the candidate takes nothing from its time."""
    namespace = tests.namespace(case.entry_point, proxy)
    if error := patience.within(lambda: tests.load(namespace)):
        return error
    return patience.within(lambda: tests.check(namespace, proxy))


def _proxied_finding(
    case: Case, tests: SuiteTests, proxy: Proxy, error: BaseException | None, ending: Ending
) -> Finding:
    call = partial(explain.call, proxy)
    if isinstance(error, Overdue):
        return _timeout(case, ending, call)
    if proxy.lost:
        return _lost(case, proxy.lost, ending, call)
    if error is None and proxy.calls:
        tests.learn(proxy.made or [])
        return Finding("passed")
    if not proxy.calls:
        why = f"failed first: {error!r}" if error else "call nothing"
        return Finding("error", fault=f"the tests never called {proxy.__name__}: they {why}"[:500])
    if proxy.raised and error is proxy.raised.error:
        return _raised(case, proxy.raised, call)
    if isinstance(error, AssertionError):
        return _finding("failed", "assertion", lambda: explain.assertion(error, proxy, tests))
    if isinstance(error, MemoryError):
        return _finding("error", "memory", lambda: f"{call()}\n  the result left the tests no memory")
    return _finding(
        "failed",
        f"exception:{type(error).__name__}",
        lambda: f"{call()}\n  returned  {explain.shown(proxy.result)}\n  the tests: {error!r}"[:1000],
    )


def _finding(verdict: str, cause: str, explained: Callable[[], str]) -> Finding:
    """What was found, and why: unless what the candidate sent is too much to be told of."""
    message = ["what it returned can't be shown"]
    _within(EXPLAINING_SECONDS, lambda: message.append(explained()))
    return Finding(verdict, cause, message[-1])


def _lost(case: Case, lost: Lost, ending: Ending, call: Callable[[], str]) -> Finding:
    match lost.kind:
        case wire.UNLOADED:
            return _unloaded(case, lost.payload)
        case wire.PRINTED:
            return _finding("error", "output", lambda: f"{call()}\n  printed more than {case.output_limit} bytes")
        case kind if kind == TOO_LARGE:
            return _finding("error", "output", lambda: f"{call()}\n  returned more than can be taken")
        case wire.UNPLAIN if isinstance(lost.payload, str):
            what = f"{lost.payload[:200]}, which isn't plain data"
            return _finding("failed", "assertion", lambda: f"{call()}\n  returned  {what}")
        case b"":
            return _vanished(case, ending, call)
    return _finding("error", "killed", lambda: f"{call()}\n  answered with what isn't a value")


def _vanished(case: Case, ending: Ending, call: Callable[[], str]) -> Finding:
    if ending.overdue or ending.status == -signal.SIGXCPU:
        return _timeout(case, ending, call)
    if ending.status == -signal.SIGPROF and case.call:
        return _running(case.call, call)
    if ending.status == -signal.SIGKILL:
        how = "gave no answer and hung up"
    elif ending.status < 0:
        how = f"crashed: {signal.Signals(-ending.status).name}"
    else:
        how = f"ended its process with status {ending.status}"
    return _finding("error", "killed", lambda: f"{call()}\n  {how}")


def _timeout(case: Case, ending: Ending, call: Callable[[], str]) -> Finding:
    if ending.overdue or ending.cpu >= case.cpu:
        return _running(case.cpu, call)
    return _finding("timeout", "wall", lambda: f"{call()}\n  was still waiting after {case.wall:.3g} s")


def _running(seconds: float, call: Callable[[], str]) -> Finding:
    return _finding("timeout", "cpu", lambda: f"{call()}\n  was still running after {seconds:.3g} s of CPU")


def _unloaded(case: Case, payload: Any) -> Finding:
    try:
        cause, *report = payload if isinstance(payload, list) else [None]
        raised = Raised.read(report)
    except (Lost, ValueError):
        return Finding("error", "killed", "the program sent nonsense while it was loaded")
    if cause == "syntax":
        return _finding("error", "syntax", lambda: _explained(case, raised))
    if cause == "no_entry_point":
        return Finding("error", "no_entry_point", f"the program doesn't define {case.entry_point}")
    return _raised(case, raised, str)


def _raised(case: Case, raised: Raised, call: Callable[[], str]) -> Finding:
    cause = "memory" if raised.name == "MemoryError" else f"exception:{raised.name}"
    return _finding("error", cause, lambda: _explained(case, raised, call()))


def _explained(case: Case, raised: Raised, call: str = "") -> str:
    return explain.exception(raised, case.program.splitlines(), case.line_offset, call)


def _held_in_process(case: Case, zygote: Forks) -> Finding:
    """Tests and candidate in one contained process: for suites that no proxy can serve, and said so."""
    token = os.urandom(16)
    with zygote.spawn(case.cpu, case.memory) as connection:
        proxy = Proxy(connection, case.entry_point)
        proxy.greet((case.program, case.entry_point, case.output_limit, 0.0, case.test, token))
        answers: list[tuple[bytes, bytes]] = []
        error = _within(case.wall, lambda: answers.append(proxy.receive()))
        ending = zygote.end()
    finding = _in_process_finding(case, answers, token, error, ending)
    return finding._replace(cpu=ending.cpu, in_process=True)


def _in_process_finding(
    case: Case, answers: list[tuple[bytes, bytes]], token: bytes, error: BaseException | None, ending: Ending
) -> Finding:
    if isinstance(error, Overdue):
        return _timeout(case, ending, lambda: case.entry_point)
    if not answers:
        return _vanished(case, ending, lambda: case.entry_point)
    ((kind, payload),) = answers
    if kind == wire.HELD:
        return Finding("passed") if payload == token else Finding("error", "killed", "a forged answer")
    if kind == wire.PRINTED:
        return Finding("error", "output", f"printed more than {case.output_limit} bytes")
    try:
        value = wire.loads(payload)
        if kind == wire.UNLOADED:
            return _unloaded(case, value)
        raised = Raised.read(value)
    except (wire.NotPlainError, Lost):
        return Finding("error", "killed", "a broken answer")
    if raised.name == "AssertionError":
        return _finding("failed", "assertion", lambda: _explained(case, raised))
    return _raised(case, raised, str)


def _within(
    seconds: float, run: Callable[[], object], starts_anew: Callable[[], bool] = lambda: False
) -> BaseException | None:
    """Runs tests, for so long of wall time. What they raised; Overdue also if they caught it.

    `starts_anew` is asked when the time is up, and says whether they have as much again.
    """
    overdue = Overdue()
    late = False

    def ring(_number: int, _frame: FrameType | None) -> None:
        nonlocal late
        if not late and starts_anew():
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
