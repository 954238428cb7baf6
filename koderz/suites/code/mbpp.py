"""MBPP and MBPP+: a sentence and a few asserts, to be met by one function.

`mbpp` takes every row of `mbpp.jsonl` or `sanitized-mbpp.json`, in its order; tasks 11 to 510 are what the paper
evaluates on. The asserts of `test_list` are shown to the model, as the paper does, and judge it;
`challenge_test_list` isn't used. Source: Austin et al., "Program synthesis with large language models" (2021).
`mbpp+` is EvalPlus' revision, with many more inputs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

from koderz.suites.code.options import USUAL, CodeOptions
from koderz.suites.code.plus import LIMITS, MBPP_ORACLES, plus_test
from koderz.suites.code.programs import CodeSuite
from koderz.suites.code.tasks import (
    FUNCTIONS,
    CodeTask,
    as_python,
    bindings,
    free_names,
    parse,
    program_task,
    read_tasks,
)
from koderz.suites.dataset import Row, find_dataset

_IMPORTS = (ast.Import, ast.ImportFrom)

_TYPED: Mapping[str, str] = {
    "tuples": "2 116 132 143 222 261 273 394 399 421 424 429 470 560 579 596 616 630 726 740 744 809",
    "lists_of_tuples": "63 64 70 94 120 237 272 299 400 409 417 438 473 614 780",
    "first_list_of_tuples": "75 413 444 753",
    "first_tuple": "250 307 405 446 617 720 763 808",
    "second_tuple": "106 750",
    "tuples_of_tuples": "259 401 445",
    "tuples_at_every_depth": "580 615 791",
    "first_tuple_with_tuples": "278",
    "first_dict_of_tuples": "722",
    "list_of_sets": "115",
    "float_and_complex": "124",
    "complex_number": "252",
}
"""Functions of the module `oracle` → the tasks of MBPP+ whose inputs they give the types that JSON doesn't know.

These are the tasks that EvalPlus does it for (evalplus/data/mbpp.py, v0.3.1), and its leaderboard rests on that: the
asserts of 98, 104, 140 and 145 show tuples too, but there programs are called with lists.
"""

_RESTORED = {f"Mbpp/{number}": name for name, numbers in _TYPED.items() for number in numbers.split()}


def mbpp(dataset: Path | None, options: CodeOptions = USUAL) -> CodeSuite:
    """MBPP as published by its authors, whole or sanitized."""
    hint = "get mbpp.jsonl, or sanitized-mbpp.json, from the folder mbpp of github.com/google-research/google-research"
    path = find_dataset(dataset, "mbpp.jsonl", "sanitized-mbpp.json", hint=hint)
    return CodeSuite("mbpp", str(path), read_tasks(path, _task), given=options)


def mbpp_plus(dataset: Path | None, options: CodeOptions = USUAL) -> CodeSuite:
    """MBPP+ as EvalPlus releases it, or in the form of its Hugging Face export."""
    hint = "get MbppPlus.jsonl.gz from the releases of github.com/evalplus/mbppplus_release"
    path = find_dataset(dataset, "MbppPlus.jsonl", hint=hint)
    return CodeSuite("mbpp+", str(path), read_tasks(path, _plus_task), given=options, usual=LIMITS)


def _task(row: Row) -> CodeTask:
    code = row.text("code").replace("\r\n", "\n")
    tree = as_python(row, "code", code)
    asserts = _asserts(row)
    entry_point = _entry_point(row, asserts, tree)
    setup = _setup(row, asserts, entry_point, tree)
    text = row.text("text") if "text" in row.fields else row.text("prompt")
    told = [text.strip(), "Your code should pass these tests:", "", *filter(None, [setup]), *asserts]
    return program_task(
        row,
        task_id=_task_id(row),
        prompt=_docstring("\n".join(told)),
        entry_point=entry_point,
        test=_test(setup, asserts, entry_point),
        reference=code,
    )


def _plus_task(row: Row) -> CodeTask:
    exported = "code" in row.fields
    reference = row.text("code" if exported else "canonical_solution")
    if exported:
        asserts = _asserts(row)
        entry_point = _entry_point(row, asserts, as_python(row, "code", reference))
        prompt = _docstring(f"{row.text('prompt').strip()}\n{asserts[0]}")
    else:
        entry_point, prompt = row.text("entry_point"), row.text("prompt")
    restored = _RESTORED.get(_task_id(row), "as_json")
    test = plus_test(row, entry_point, reference, oracles=MBPP_ORACLES, restored=restored)
    if test is None:
        raise row.error("neither 'base_input' nor a 'test' of the form that EvalPlus publishes is there")
    return program_task(
        row, task_id=_task_id(row), prompt=prompt, entry_point=entry_point, test=test, reference=reference
    )


def _task_id(row: Row) -> str:
    number = row.fields.get("task_id")
    return f"Mbpp/{number}" if isinstance(number, int) and not isinstance(number, bool) else row.text("task_id")


def _asserts(row: Row) -> list[str]:
    """The tests, each on one line."""
    lines = []
    for number, text in enumerate(row.texts("test_list"), 1):
        tree = as_python(row, f"test_list[{number}]", text.strip())
        lines += [text.strip()] if "\n" not in text.strip() else ast.unparse(tree).splitlines()
    if not any(line.startswith("assert") for line in lines):
        raise row.error("the field 'test_list' holds no assert")
    return lines


def _entry_point(row: Row, asserts: Iterable[str], code: ast.Module) -> str:
    """What the asserts call of the reference; of several, functions before classes, and the last of them."""
    called = _called(parse("\n".join(asserts)))
    defined = [(name, node) for name, node in bindings(code).items() if not isinstance(node, _IMPORTS)]
    defined.sort(key=lambda each: isinstance(each[1], FUNCTIONS))
    for name, _ in reversed(defined):
        if name in called:
            return name
    raise row.error("the asserts in 'test_list' call no function that the field 'code' defines")


def _called(tree: ast.AST) -> set[str]:
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {function.id for function in calls if isinstance(function, ast.Name)}


def _setup(row: Row, asserts: Iterable[str], entry_point: str, code: ast.Module) -> str:
    """What comes before the asserts: imports, the row's own code, and what both lean on of the reference.

    The authors run all in one namespace, so a test may build its input of a class that only the answer is known
    to define. It is shown with the tests; no model could guess it.
    """
    own = "\n".join([*row.texts("test_imports"), row.text("test_setup_code", "")]).replace("\r\n", "\n").strip()
    tree = as_python(row, "test_setup_code", own)
    missing = free_names(tree, parse("\n".join(asserts))) - {entry_point}
    lendable = {name: statement for name, statement in bindings(code).items() if name != entry_point}
    return "\n".join([*_lent(row, missing, lendable), *filter(None, [own])])


def _lent(row: Row, missing: set[str], code: Mapping[str, ast.stmt]) -> list[str]:
    """The statements of the reference that define the names, and those that they need in turn."""
    stars = {name for name in code if name.endswith(".*")}
    unknown = sorted(missing - code.keys())
    if unknown and not stars:
        raise row.error(f"its tests use {unknown[0]}, which nothing defines")
    needed: set[str] = set()
    more = stars | missing if missing else set()
    while more := more & code.keys() - needed:
        needed |= more
        more = free_names(*(code[name] for name in more))
    return [*dict.fromkeys(ast.unparse(statement) for name, statement in code.items() if name in needed)]


def _test(setup: str, asserts: Iterable[str], entry_point: str) -> str:
    """The candidate goes by the name that the asserts call; it may itself be `check`."""
    head = f"{setup}\n\n\n" if setup else ""
    body = "".join(f"    {line}\n" for line in asserts)
    return f"{head}def check({entry_point}):\n{body}"


def _docstring(text: str) -> str:
    """A text as a docstring that reads as it is, raw where it has backslashes."""
    quotes = "'''" if '"""' in text else '"""'
    if quotes in text:
        return "\n".join(f"# {line}" for line in text.splitlines()) + "\n"
    raw = "r" if "\\" in text else ""
    return f"{raw}{quotes}\n{text}\n{quotes}\n"
