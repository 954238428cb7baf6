"""Runs one candidate against its tests, in an interpreter that was started for it alone.

Standard library only: it is run as a script by `python -I -S`, with a job as JSON on standard input
and the descriptor for its report as its argument. A report counts only if it carries the job's token,
which nothing prints: an exit status, or an "ok" on the output, says nothing.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from typing import Any

PROGRAM, TESTS = "<answer>", "<tests>"


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    report = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")
    _detach_input()
    _limit(job)
    found = {"token": job["token"], **_judge(job)}
    sys.stdout.flush()
    json.dump(found, report)
    report.flush()
    os._exit(0)  # past what the candidate registered to run at exit


def _detach_input() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _limit(job: dict[str, Any]) -> None:
    seconds = int(job["timeout"]) + 1
    memory = int(job["memory_mb"]) << 20
    limits = [("CPU", seconds, seconds + 1), ("FSIZE", 0, 0), ("CORE", 0, 0), ("NOFILE", 64, 64)]
    if sys.platform != "darwin":  # where an address space can't be limited
        limits.append(("AS", memory, memory))
    for name, soft, hard in limits:
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (soft, hard))


def _judge(job: dict[str, Any]) -> dict[str, str]:
    program: dict[str, Any] = {"__name__": "answer"}
    calls: list[tuple[str, str]] = []
    try:
        exec(compile(job["program"], PROGRAM, "exec"), program)
        candidate = program.get(job["entry_point"])
        if not callable(candidate):
            return {
                "verdict": "error",
                "cause": "no_entry_point",
                "message": f"{job['entry_point']} isn't defined",
            }
        tests: dict[str, Any] = {"__name__": "tests"}
        exec(compile(job["context"], "<task>", "exec"), tests) if job["context"] else None
        exec(compile(job["test"], TESTS, "exec"), tests)
        tests["check"](_recorded(candidate, job["entry_point"], calls))
    except AssertionError as error:
        return _assertion(error, job, calls)
    except SyntaxError as error:
        where = f"line {(error.lineno or 0) - job['line_offset']}"
        return {
            "verdict": "error",
            "cause": "syntax",
            "message": f"{type(error).__name__}: {error.msg} ({where})",
        }
    except MemoryError:
        return {
            "verdict": "error",
            "cause": "memory",
            "message": f"MemoryError: more than {job['memory_mb']} MB",
        }
    except BaseException as error:
        return _exception(error, job, calls)
    if not calls:
        return {"verdict": "failed", "cause": "assertion", "message": "the tests never called the function"}
    return {"verdict": "passed", "cause": "", "message": ""}


def _recorded(candidate: Callable[..., Any], name: str, calls: list[tuple[str, str]]) -> Callable[..., Any]:
    """The candidate, noting its last call and result for the message of a failed assertion."""

    def call(*args: Any, **kwargs: Any) -> Any:
        shown = [*map(_short, args), *(f"{key}={_short(value)}" for key, value in kwargs.items())]
        calls[:] = [(f"{name}({', '.join(shown)})", "")]
        result = candidate(*args, **kwargs)
        calls[:] = [(calls[0][0], _short(result))]
        return result

    return call


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:
        return f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return text if len(text) <= 300 else f"{text[:200]}…{text[-80:]}"


def _assertion(error: AssertionError, job: dict[str, Any], calls: list[tuple[str, str]]) -> dict[str, str]:
    lines = [f"AssertionError: {error}".rstrip(": ")]
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == TESTS and frame.lineno and "check" in frame.name:
            lines.insert(0, _statement(job["test"], frame.lineno))
    lines += [f"{call} returned {result}" for call, result in calls if result]
    return {"verdict": "failed", "cause": "assertion", "message": "\n".join(lines)}


def _statement(test: str, line: int) -> str:
    rows = test.splitlines()
    return rows[line - 1].strip()[:600] if 0 < line <= len(rows) else ""


def _exception(error: BaseException, job: dict[str, Any], calls: list[tuple[str, str]]) -> dict[str, str]:
    shown = []
    rows = job["program"].splitlines()
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == PROGRAM and frame.lineno and frame.lineno <= len(rows):
            number = frame.lineno - job["line_offset"]
            shown.append(f"  line {number}, in {frame.name}\n    {rows[frame.lineno - 1].strip()}")
    called = [f"in the call {call}" for call, result in calls if not result]
    kind = type(error).__name__
    try:
        said = f"{kind}: {error}"
    except Exception:
        said = kind
    return {
        "verdict": "error",
        "cause": f"exception:{kind}",
        "message": "\n".join([*called, *shown[-6:], said]),
    }


if __name__ == "__main__":
    main()
