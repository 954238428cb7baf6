"""The surroundings that LiveCodeBench's own harness gives a program, made anew in the candidate's process.

The text of this module is loaded into that process beside the program, so it imports nothing of koderz. What it
returns is the program's word and no more: expected outputs are the judge's, and never come here.

Where a program sees something else than a real process, that is on purpose; docs/code/reference.md lists it.
"""

from __future__ import annotations

import _sitebuiltins
import ast
import builtins
import io
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

RECURSION_LIMIT = 50_000
_BODY = "wrapped_function"
_CLASS = "class Solution"
_STARRED = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json "
    "builtins typing"
)
_PLAIN = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json"
)
_ABSENT = ("ipdb", "joblib", "resource", "psutil", "tkinter")
_WITHOUT = {
    "os": "kill system putenv remove removedirs rmdir fchdir setuid fork forkpty killpg rename renames truncate "
    "replace unlink fchmod fchown chmod chown chroot lchflags lchmod lchown getcwd chdir",
    "shutil": "rmtree move chown",
    "subprocess": "Popen",
}


def load(program: str, name: str, file: str) -> Callable[..., Any]:
    """The function that the judge calls: the one of that name, or without a name a run of the program on a text.

    Raises what loading the program raises, or LookupError where the harness would find nothing to call.
    """
    # What the harness takes from the interpreter, and what the interpreter has from `site`.
    builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)")
    builtins.quit = builtins.help = None  # type: ignore[assignment]
    for module, names in _WITHOUT.items():
        if module == "os" or module in program:  # to import the others takes longer than most programs
            for each in names.split():
                setattr(__import__(module), each, None)
    sys.modules.update(dict.fromkeys(_ABSENT))  # type: ignore[arg-type]
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 it stays open
    return _function(program, name, file) if name else _script(program, file)


def _namespace() -> dict[str, Any]:
    module = ModuleType("tmp_sol", "")
    lines = [f"from {each} import *" for each in _STARRED.split()] + [f"import {each}" for each in _PLAIN.split()]
    exec("\n".join(lines), module.__dict__)  # noqa: S102 the names that programs find without importing them
    sys.setrecursionlimit(RECURSION_LIMIT)
    return module.__dict__


def _parsed(program: str, file: str) -> ast.Module:
    tree = ast.parse(program, file)
    for each in tree.body:
        if isinstance(each, ast.ImportFrom) and each.module == "__future__":  # it doesn't stand first there
            at = (file, each.lineno, each.col_offset + 1, None)
            raise SyntaxError("from __future__ imports must occur at the beginning of the file", at)
    return tree


def _function(program: str, name: str, file: str) -> Callable[..., Any]:
    code = compile(_parsed(program, file), file, "exec", dont_inherit=True)
    namespace = _namespace()
    exec(code, namespace)  # noqa: S102 to run it is what this process is for
    found = getattr(_instance(namespace), name) if _CLASS in program else namespace.get(name)
    if found is None:
        raise LookupError(f"the program defines no {name}")

    def call(*arguments: Any) -> Any:
        value = found(*arguments)
        return list(value) if isinstance(value, tuple) else value

    return call


def _instance(namespace: dict[str, Any]) -> Any:
    if "Solution" not in namespace:
        raise LookupError("the program defines no Solution")
    return namespace["Solution"]()


def _script(program: str, file: str) -> Callable[[str], str]:
    """The program as the body of a function, with its imports before it."""
    tree = _parsed(program, file)
    match tree.body:
        case [*before, ast.If(test, block)] if ast.unparse(test) == "__name__ == '__main__'":
            tree.body = [*before, *block]
    imports = [each for each in tree.body if isinstance(each, (ast.Import, ast.ImportFrom))]
    others = [each for each in tree.body if not isinstance(each, (ast.Import, ast.ImportFrom))]
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    body = ast.FunctionDef(name=_BODY, args=nothing, body=others, decorator_list=[])
    whole = ast.fix_missing_locations(ast.Module([*imports, body], type_ignores=[]))
    if not others:
        raise SyntaxError("the program does nothing", (file, 1, 1, None))
    text = ast.unparse(whole)
    code = compile(whole, file, "exec", dont_inherit=True)
    namespace = _namespace()
    exec(code, namespace)  # noqa: S102 as above
    if _CLASS in text:
        _instance(namespace)
    run = namespace[_BODY]
    return lambda text: _printed(run, text)


def _printed(run: Callable[[], object], text: str) -> str:
    """The text that the program prints on one test."""
    stdin, stdout, opened = sys.stdin, sys.stdout, builtins.open
    sys.stdout = taken = io.StringIO()
    taken.close = lambda _: 1  # type: ignore[method-assign, assignment, misc]
    lines = iter(text.split("\n"))
    stdin.read = lambda *_: text  # type: ignore[method-assign]
    stdin.readlines = lambda *_: text.split("\n")  # type: ignore[method-assign]
    stdin.readline = lambda *_: next(lines)  # type: ignore[method-assign]
    sys.stdin, builtins.open = _TextInput(text), _opener(text)
    try:
        run()
    except SystemExit:
        pass
    finally:
        sys.stdin, sys.stdout, builtins.open = stdin, stdout, opened
        for name in ("read", "readlines", "readline"):
            vars(stdin).pop(name, None)
    return taken.getvalue()


def _opener(text: str) -> Callable[..., Any]:
    """`builtins.open` of a test, for the few programs that call it by that name."""

    def opened(*arguments: Any, **keywords: Any) -> Any:
        from unittest.mock import mock_open

        return mock_open(read_data=text)(*arguments, **keywords)

    return opened


class _TextInput:
    """`sys.stdin` of a test: no iterator, and read from the beginning each time."""

    def __init__(self, text: str) -> None:
        self._text, self._lines = text, io.StringIO(text)
        self.buffer = _BytesInput(text.encode())

    def read(self, *_: Any) -> str:
        return self._text

    def readline(self, *arguments: Any) -> str:
        return self._lines.readline(*arguments)

    def readlines(self, *_: Any) -> list[str]:
        return self._text.split("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lines, name)


class _BytesInput:
    """Its `buffer`: the first line for ever."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, *_: Any) -> bytes:
        return self._data

    def readline(self, *_: Any) -> bytes:
        return self._data.split(b"\n")[0] + b"\n"
