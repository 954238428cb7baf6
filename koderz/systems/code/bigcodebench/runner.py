"""Runs a solution with its unittest cases in one process, and says what failed.

It is run as a script in the interpreter that holds a task's libraries, contained. What it reports comes from the
solution's own process, so a solution could forge it: such verdicts are labelled in-process.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import os
import sys
import time
import traceback
import types
import unittest
from typing import Any

_MODULE = "__test__"
_SHOWN = 1500  # characters of a message


class _NoInput(io.StringIO):
    """The stream that a solution writes to, and can't read from."""

    def read(self, *_: Any) -> str:
        raise OSError

    readline = readlines = read  # type: ignore[assignment]

    def readable(self) -> bool:
        return False


def main(path: str) -> None:
    """Runs the task in the file `path`, and prints what became of it as the last line."""
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 pathlib would be loaded for this alone
        task = json.load(file)
    os.unlink(path)  # noqa: PTH108 as above
    descriptor = os.dup(1)
    os.environ.update(
        TZ="UTC", OMP_NUM_THREADS="1", TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0"
    )
    time.tzset()
    builtins.exit = builtins.quit = None  # type: ignore[assignment]
    found = _tested(task["program"], task["test"])
    os.write(descriptor, f"\n{task['token']}{json.dumps(found)}\n".encode())
    os._exit(0)


def _tested(program: str, test: str) -> dict[str, Any]:
    """How many cases ran, and of each that didn't pass its name, kind and message."""
    module = types.ModuleType(_MODULE)
    module.__dict__.update(__file__=f"{_MODULE}.py", sys=sys, os=os, environ=os.environ)
    module.__dict__["__builtins__"] = builtins
    result = unittest.TestResult()
    stream = _NoInput()
    sys.stdin = stream
    try:
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            exec(compile(f"{program}\n{test}", f"{_MODULE}.py", "exec"), module.__dict__)  # noqa: S102 what it is for
            sys.modules[_MODULE] = module
            unittest.TestLoader().loadTestsFromTestCase(module.__dict__["TestCases"]).run(result)
    except BaseException as error:  # noqa: BLE001 whatever ends the tests is told
        told = "".join(traceback.format_exception_only(type(error), error)).strip()
        return {"ran": 0, "failed": [["", type(error).__name__, told[-_SHOWN:]]]}
    failed = [
        [case.id().split(".")[-1], "AssertionError", text[-_SHOWN:]]
        for case, text in result.failures
    ]
    failed += [
        [case.id().split(".")[-1], _kind(text), text[-_SHOWN:]] for case, text in result.errors
    ]
    return {"ran": result.testsRun, "failed": failed}


def _kind(text: str) -> str:
    """The type of the exception in the last line of a traceback that names one."""
    for line in reversed(text.strip().split("\n")):
        name = line.split(":")[0].split(".")[-1].strip()
        if name.isidentifier() and not line.startswith(" "):
            return name
    return "Exception"


if __name__ == "__main__":
    main(sys.argv[1])
