"""MBPP and MBPP+: a sentence and a few asserts, to be satisfied by one function.

`mbpp` takes every row of `mbpp.jsonl` or `sanitized-mbpp.json`, in its order; tasks 11 to 510 are what the paper
evaluates on. The asserts of `test_list` are shown to the model, as the paper does, and judge it;
`challenge_test_list` isn't used. Source: Austin et al., "Program synthesis with large language models" (2021).
`mbpp+` is EvalPlus' revision, with many more inputs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from koderz.suites.dataset import Row, cached_dataset
from koderz.suites.suite import Publication, SuiteSource
from koderz.systems.code.extraction.statements import (
    EVERYTHING,
    FUNCTIONS,
    IMPORTS,
    bound,
    descendants,
    free_names,
    needs,
    parse,
    statements,
    uses,
)
from koderz.systems.code.plus import LIMITS, MBPP_ORACLES, plus_test
from koderz.systems.code.programs import CodeSuite
from koderz.systems.code.tasks import CodeTask, as_python, program_task, read_tasks

_TYPED: Mapping[str, str] = {
    "[tuple(each) for each in call]": "2 116 132 143 222 261 273 394 399 421 424 429 470 560 579 596 616 630 726 740 "
    "744 809",
    "[[*map(tuple, each)] for each in call]": "63 64 70 94 120 237 272 299 400 409 417 438 473 614 780",
    "[[*map(tuple, call[0])], *call[1:]]": "75 413 444 753",
    "[tuple(call[0]), *call[1:]]": "250 307 405 446 617 720 763 808",
    "[call[0], tuple(call[1]), *call[2:]]": "106 750",
    "[tuple(map(tuple, each)) for each in call]": "259 401 445",
    "[as_tuples(each) for each in call]": "580 615 791",
    "[tuple(tuple(item) if isinstance(item, list) else item for item in call[0]), *call[1:]]": "278",
    "[{key: tuple(value) for key, value in call[0].items()}, *call[1:]]": "722",
    "[[set(item) if isinstance(item, list) and item else {} for item in call[0]]]": "115",
    "[float(call[0]), complex(call[1])]": "124",
    "[complex(call[0])]": "252",
}
"""Conversions of arguments of one `call` that JSON has no types for → the tasks of MBPP+.

These are the tasks that EvalPlus does it for (evalplus/data/mbpp.py, v0.3.1), and its leaderboard rests on that: the
asserts of 98, 104, 140 and 145 show tuples too, but there programs are called with lists.
"""

_RESTORED = {
    f"Mbpp/{number}": restored for restored, numbers in _TYPED.items() for number in numbers.split()
}


class Mbpp(CodeSuite):
    """MBPP as published by its authors, whole or sanitized."""

    publication = Publication.on_hub(
        "google-research-datasets/mbpp",
        "CC BY 4.0, see its card",
        files="full/test*",
        or_from="mbpp in github.com/google-research/google-research",
    )

    @classmethod
    def load(cls, source: SuiteSource) -> Mbpp:
        """Raises KoderzError where the file is missing, or naming the line of a malformed row."""
        path = source.dataset or cached_dataset("mbpp.jsonl", "sanitized-mbpp.json")
        if path is None:
            raise cls.publication.missing("mbpp")
        return cls("mbpp", str(path), read_tasks(path, _task, source.options), source.options)


class MbppPlus(CodeSuite):
    """MBPP+ as EvalPlus releases it, or in the form of its Hugging Face export."""

    publication = Publication(
        "Apache-2.0",
        "MbppPlus.jsonl.gz in the releases of github.com/evalplus/mbppplus_release",
        "gh release download v0.2.0 --repo evalplus/mbppplus_release --pattern MbppPlus.jsonl.gz",
        frozenset({"852c66c3b68038f1"}),  # v0.2.0
    )

    @classmethod
    def load(cls, source: SuiteSource) -> MbppPlus:
        """Raises KoderzError where the file is missing, or naming the line of a malformed row."""
        path = source.dataset or cached_dataset("MbppPlus.jsonl")
        if path is None:
            raise cls.publication.missing("mbpp+")
        return cls(
            "mbpp+",
            str(path),
            read_tasks(path, _plus_task, source.options),
            source.options,
            usual=LIMITS,
        )


def _task(row: Row) -> CodeTask:
    code = row.text("code").replace("\r\n", "\n")
    tree = as_python(row, "code", code)
    asserts = _asserts(row)
    entry_point = _entry_point(row, asserts, tree)
    setup = _setup(row, asserts, entry_point, tree)
    text = row.text("text") if "text" in row.fields else row.text("prompt")
    told = [
        text.strip(),
        "Your code should pass these tests:",
        "",
        *filter(None, [setup]),
        *asserts,
    ]
    # The candidate has the name that the asserts call, which may itself be `check`.
    head = f"{setup}\n\n\n" if setup else ""
    body = "".join(f"    {line}\n" for line in asserts)
    return program_task(
        row,
        task_id=_task_id(row),
        prompt=_docstring("\n".join(told)),
        entry_point=entry_point,
        test=f"{head}def check({entry_point}):\n{body}",
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
    restored = _RESTORED.get(_task_id(row), "call")
    test = plus_test(row, entry_point, reference, oracles=MBPP_ORACLES, restored=restored)
    if test is None:
        raise row.error(
            "neither 'base_input' nor a 'test' of the form that EvalPlus publishes is there"
        )
    return program_task(
        row,
        task_id=_task_id(row),
        prompt=prompt,
        entry_point=entry_point,
        test=test,
        reference=reference,
    )


def _task_id(row: Row) -> str:
    number = row.fields.get("task_id")
    return (
        f"Mbpp/{number}"
        if isinstance(number, int) and not isinstance(number, bool)
        else row.id("task_id")
    )


def _asserts(row: Row) -> list[str]:
    """The asserts of a row, each on one line."""
    lines = []
    for number, text in enumerate(row.texts("test_list"), 1):
        tree = as_python(row, f"test_list[{number}]", text.strip())
        lines += [text.strip()] if "\n" not in text.strip() else ast.unparse(tree).splitlines()
    if not any(line.startswith("assert") for line in lines):
        raise row.error("the field 'test_list' holds no assert")
    return lines


def _entry_point(row: Row, asserts: Iterable[str], code: ast.Module) -> str:
    """The reference's function that the asserts call; of several, functions before classes, and the last one."""
    called = uses(descendants(parse("\n".join(asserts)))).calls
    defining = [each for each in statements(code) if not isinstance(each.node, IMPORTS)]
    defining.sort(key=lambda each: isinstance(each.node, FUNCTIONS))
    for each in reversed(defining):
        if names := called & each.binds:
            return min(names)
    raise row.error("the asserts in 'test_list' call no function that the field 'code' defines")


def _setup(row: Row, asserts: Iterable[str], entry_point: str, code: ast.Module) -> str:
    """The code before the asserts: imports, the row's own code, and the parts of the reference that both need.

    The authors run all in one namespace, so a test may build its input of a class that only the answer is known
    to define. It is shown with the tests; no model could guess it.
    """
    own = (
        "\n".join([*row.texts("test_imports"), row.text("test_setup_code", "")])
        .replace("\r\n", "\n")
        .strip()
    )
    tests = [
        *statements(as_python(row, "test_setup_code", own)),
        *statements(parse("\n".join(asserts))),
    ]
    lendable = [each for each in statements(code) if entry_point not in each.binds]
    missing = free_names(tests) - {entry_point}
    known = bound(lendable)
    unknown = sorted(missing - known)
    if unknown and EVERYTHING not in known:
        raise row.error(f"its tests use {unknown[0]}, which nothing defines")
    needed = needs(lendable, {*missing, EVERYTHING}) if missing else set()
    lent = [ast.unparse(each.node) for each in lendable if each.binds & needed]
    return "\n".join([*lent, *filter(None, [own])])


def _docstring(text: str) -> str:
    """A text as a docstring that reads the same, raw if it has backslashes."""
    quotes = "'''" if '"""' in text else '"""'
    if quotes in text:
        return "\n".join(f"# {line}" for line in text.splitlines()) + "\n"
    raw = "r" if "\\" in text else ""
    return f"{raw}{quotes}\n{text}\n{quotes}\n"
