"""Findings on a candidate, explained in sentences: a call that went wrong, no answer, or time that is up."""

from __future__ import annotations

import ast
import itertools
import reprlib
import signal
import textwrap
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from koderz.sandbox.judge import suite_tests, wire
from koderz.sandbox.judge.forks import Ending
from koderz.sandbox.judge.jobs import Job, JobResult
from koderz.sandbox.judge.proxy import TOO_LARGE, LostCandidate, Raised

if TYPE_CHECKING:
    from koderz.types import VerdictWord


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


MESSAGE_LIMIT = 2000  # characters


class Asked(Protocol):
    """The callable that stands for the candidate, with its latest call and what that returned."""

    __name__: str
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    result: Any


_VALUE_LIMIT = 400
_EXPECTED_NAMES = ("expected", "exp", "want", "result")


def assertion(error: BaseException, proxy: Asked, tests: suite_tests.SuiteTests) -> str:
    """Call, result and expectation of the assertion that failed; nothing of the others."""
    lines = [call(proxy), f"  returned  {shown(proxy.result)}"]
    found = _failing_assert(error.__traceback__, tests.lines)
    if found is None:
        return "\n".join([*lines, f"  failed    {str(error)[:_VALUE_LIMIT]}"])
    statement, frame = found
    expected = _expected(statement, frame, proxy)
    if expected is not None:
        return "\n".join([*lines, f"  expected  {expected}"])
    return "\n".join([*lines, f"  failed    assert {_clipped(ast.unparse(statement.test))}"])


def exception(raised: Raised, program: Sequence[str], offset: int, called: str) -> str:
    """An exception of the candidate's, where it came from, and the call that led to it."""
    lines = [f"{raised.name}: {raised.message}" if raised.message else raised.name]
    if called:
        lines.append(f"  in {called}")
    for (line, function), repeated in itertools.groupby(raised.places):
        source = program[line - 1].strip() if 0 < line <= len(program) else ""
        where = f"line {line - offset}" if line > offset else "in the prompt's part"
        again = ", again and again" if len([*repeated]) > 1 else ""
        lines.append(f"  {where}, in {function}: {source}{again}")
    return "\n".join(lines)[:MESSAGE_LIMIT]


def call(proxy: Asked) -> str:
    """The latest call, as it would be written."""
    arguments, keywords = proxy.arguments
    parts = [shown(value) for value in arguments]
    parts += [f"{name}={shown(value)}" for name, value in keywords.items()]
    return _clipped(f"{proxy.__name__}({', '.join(parts)})")


def shown(value: Any) -> str:
    """A value's repr, cut to what a reader can use and a machine can make at once."""
    try:
        return _clipped(_SHORT.repr(value))
    except (ValueError, RecursionError):
        return f"<{type(value).__name__} too large to show>"


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 8
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _SHORT.maxfrozenset = _SHORT.maxdict = (
    _SHORT.maxdeque
) = 60
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = _VALUE_LIMIT


def _clipped(text: str) -> str:
    return text if len(text) <= _VALUE_LIMIT else f"{text[: _VALUE_LIMIT - 12]} … {text[-9:]}"


def _failing_assert(
    trace: TracebackType | None, lines: Sequence[str]
) -> tuple[ast.Assert, FrameType] | None:
    """The innermost assert statement of the tests that the exception came through."""
    found = None
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == suite_tests.FILE:
            first, last, *_ = [*code.co_positions()][trace.tb_lasti // 2]
            statement = _parsed(lines[(first or 1) - 1 : last or first])
            found = (statement, trace.tb_frame) if statement else found
        trace = trace.tb_next
    return found


def _parsed(lines: Sequence[str]) -> ast.Assert | None:
    try:
        (statement,) = ast.parse(textwrap.dedent("\n".join(lines))).body
    except (SyntaxError, ValueError):
        return None
    return statement if isinstance(statement, ast.Assert) else None


def _expected(statement: ast.Assert, frame: FrameType, proxy: Asked) -> str | None:
    """The side of an `==` that the candidate has no part in; or a helper's argument of that name."""
    test = statement.test
    if (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], (ast.Eq, ast.Is))
        and len(test.ops) == 1
    ):
        for side, other in ((test.comparators[0], test.left), (test.left, test.comparators[0])):
            if _mentions(other, frame, proxy) and not _mentions(side, frame, proxy):
                return _evaluated(side, frame)
    for local in _EXPECTED_NAMES:
        if local in frame.f_locals:
            return shown(frame.f_locals[local])
    if _mentions(test, frame, proxy) and isinstance(test, ast.Call):
        return "a true value"
    return None


def _mentions(node: ast.AST, frame: FrameType, proxy: Asked) -> bool:
    names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    return any(frame.f_locals.get(name, frame.f_globals.get(name)) is proxy for name in names)


def _evaluated(node: ast.expr, frame: FrameType) -> str | None:
    """Safe to do again: it is the suite's own expression, and it has just been evaluated."""
    code = compile(ast.Expression(node), suite_tests.FILE, "eval")
    try:
        return shown(eval(code, frame.f_globals, frame.f_locals))  # noqa: S307 - as said
    except (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError):
        return None


EXPLAINING_SECONDS = 2.0  # that a message may take to be put together


def finding(verdict: VerdictWord, cause: str, explain_it: Callable[[], str]) -> JobResult:
    """The finding and its reason, or `output` if the candidate sent more than a reason can hold."""
    message = ["what it returned can't be shown"]
    within(EXPLAINING_SECONDS, lambda: message.append(explain_it()))
    return JobResult(verdict, cause, message[-1])


def of_loss(job: Job, lost: LostCandidate, ending: Ending, call: Callable[[], str]) -> JobResult:
    """The finding on a candidate that is lost; `call` puts the latest call into words."""
    match lost.kind:
        case wire.UNLOADED:
            return _unloaded(job, lost.payload)
        case wire.PRINTED:
            return finding(
                "error", "output", lambda: f"{call()}\n  printed more than {job.output_limit} bytes"
            )
        case kind if kind == TOO_LARGE:
            return finding(
                "error", "output", lambda: f"{call()}\n  returned more than can be taken"
            )
        case wire.UNPLAIN if isinstance(lost.payload, str):
            what = f"{lost.payload[:200]}, which isn't plain data"
            return finding("failed", "assertion", lambda: f"{call()}\n  returned  {what}")
        case b"":
            return _vanished(job, ending, call)
    return finding("error", "killed", lambda: f"{call()}\n  answered with what isn't a value")


def _vanished(job: Job, ending: Ending, call: Callable[[], str]) -> JobResult:
    if ending.overdue or ending.status == -signal.SIGXCPU:
        return of_timeout(job, ending, call)
    if ending.status == -signal.SIGPROF and job.call_timeout:
        return _running(job.call_timeout, call)
    if ending.status == -signal.SIGKILL:
        how = "gave no answer and hung up"
    elif ending.status < 0:
        how = f"crashed: {signal.Signals(-ending.status).name}"
    else:
        how = f"ended its process with status {ending.status}"
    return finding("error", "killed", lambda: f"{call()}\n  {how}")


def of_timeout(job: Job, ending: Ending, call: Callable[[], str]) -> JobResult:
    """The finding on a candidate whose time is up."""
    if ending.overdue or ending.cpu >= job.timeout:
        return _running(job.timeout, call)
    return finding(
        "timeout", "wall", lambda: f"{call()}\n  was still waiting after {job.wall:.3g} s"
    )


def _running(seconds: float, call: Callable[[], str]) -> JobResult:
    return finding(
        "timeout", "cpu", lambda: f"{call()}\n  was still running after {seconds:.3g} s of CPU"
    )


def _unloaded(job: Job, payload: Any) -> JobResult:
    try:
        cause, *report = payload if isinstance(payload, list) else [None]
        raised = Raised.read(report)
    except (LostCandidate, ValueError):
        return JobResult("error", "killed", "the program sent nonsense while it was loaded")
    if cause == "syntax":
        return finding("error", "syntax", lambda: explained(job, raised))
    if cause == "no_entry_point":
        return JobResult("error", "no_entry_point", f"the program doesn't define {job.entry_point}")
    return of_exception(job, raised, str)


def of_exception(job: Job, raised: Raised, call: Callable[[], str]) -> JobResult:
    """The finding on an exception of the candidate's."""
    cause = "memory" if raised.name == "MemoryError" else f"exception:{raised.name}"
    return finding("error", cause, lambda: explained(job, raised, call()))


def explained(job: Job, raised: Raised, call: str = "") -> str:
    """The exception and where it came from, in words."""
    return exception(raised, job.program.splitlines(), job.line_offset, call)
