"""LiveCodeBench: its published rows, its official verdicts, and programs that try to get round them."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Fault, KoderzError
from koderz.suites.suite import JudgeContext, SuiteSource
from koderz.systems.code.livecodebench.part import PROCESS
from koderz.systems.code.livecodebench.suite import LiveCodeBench, program_in
from koderz.systems.code.options import LiveCodeBenchOptions
from koderz.types import FeedbackKind, Reply, Verdict
from tests.koderz.suites.rows import JUDGES, complaint, written

SCORED = [json.loads(line) for line in Path(__file__).with_name("livecodebench_scored.jsonl").read_text().splitlines()]
ROWS = [each["row"] for each in SCORED if "row" in each]
PROGRAMS = [each["program"] for each in SCORED if "program" in each]

SUM = "sum_11"
READ = "import sys\nd = sys.stdin.read().split()\n"
RIGHT = READ + "print(sum(map(int, d[1:])))\n"


def packed(tests: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def stdin_row(*tests: tuple[str, str], **more: Any) -> dict[str, Any]:
    """A row whose first test is public, and the others private."""
    public, *private = ({"input": given, "output": wanted, "testtype": "stdin"} for given, wanted in tests)
    return {**ROWS[0], "public_test_cases": json.dumps([public]), "private_test_cases": packed(private), **more}


def functional_row(name: str, *tests: tuple[str, str]) -> dict[str, Any]:
    cases = [{"input": given, "output": wanted, "testtype": "functional"} for given, wanted in tests]
    return {
        **ROWS[2],
        "metadata": json.dumps({"func_name": name}),
        "public_test_cases": json.dumps(cases),
        "private_test_cases": "[]",
    }


def suite_of(folder: Path, *rows: Mapping[str, Any], **options: Any) -> LiveCodeBench:
    path = written(folder / "test.jsonl", *rows)
    return LiveCodeBench.load(SuiteSource(path, LiveCodeBenchOptions(**options)))


def verdicts(suite: LiveCodeBench, *programs: str, task: int = 0, feedback: FeedbackKind = "tests") -> list[Verdict]:
    async def judge(sandbox: Any) -> list[Verdict]:
        limits = LiveCodeBenchOptions(feedback=feedback).limits(suite.limits)
        context = JudgeContext(sandbox, limits)
        return await asyncio.gather(*(suite.judge_program(suite.tasks[task], each, context) for each in programs))

    return JUDGES.run(judge)


def words(found: Sequence[Verdict]) -> list[str]:
    return [each.cause or each.verdict for each in found]


def test_livecodebench_meets_official_verdicts(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, *ROWS)
    places = {task.id: number for number, task in enumerate(suite.tasks)}
    for place, row in enumerate(ROWS):
        held = [each for each in PROGRAMS if places[each["question_id"]] == place]
        found = verdicts(suite, *(each["code"] for each in held), task=place)
        for each, verdict in zip(held, found, strict=True):
            claims = each["style"] == "always-equal"  # the one way in which koderz differs on purpose
            assert verdict.passed == (each["passed"] and not claims), (row["question_id"], each["style"], verdict)


def test_livecodebench_judges_failed_programs_as_processes(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, *ROWS)
    refused = [
        "import sys\nn, *rest = [line for line in sys.stdin]\nprint(sum(map(int, ' '.join(rest).split())))",
        "print(sum(map(int, open(0).read().split()[1:])))",
        "import os\nprint(sum(map(int, os.read(0, os.fstat(0).st_size).split()[1:])))",
        READ + "sys.stdout.buffer.write(str(sum(map(int, d[1:]))).encode())",
        READ + "print(sum(map(int, d[1:])))\nquit()",
        READ + "import os\nos.write(1, str(sum(map(int, d[1:]))).encode())\nos._exit(0)",
        READ + "import atexit\natexit.register(lambda: print(sum(map(int, d[1:]))))",
        READ + "out = open(1, 'w', closefd=False)\nout.write(str(sum(map(int, d[1:]))))",
        READ + "import threading, time\ndef late():\n    time.sleep(0.05)\n    print(sum(map(int, d[1:])))\n"
        "threading.Thread(target=late).start()",
        "from sys import stdin\nprint(sum(map(int, ' '.join(stdin).split()[1:])))",
    ]
    wrong = ["print(1)", RIGHT + "raise ValueError", RIGHT + "import os\nos._exit(3)", "import sys\nsys.stdout.close()"]
    found = verdicts(suite, *refused, *wrong)
    assert [each.facts.get("passed_as_process") for each in found] == [True] * len(refused) + [False] * len(wrong)
    assert words(verdicts(suite, RIGHT + "sys.exit(1)")) == ["passed"]
    assert not any("passed_as_process" in each.facts for each in verdicts(suite, "def twice(n): return 0", task=2))


def test_livecodebench_by_process_is_the_verdict_where_asked(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, *ROWS, io="process")
    found = verdicts(
        suite,
        RIGHT + "quit()",
        RIGHT + "exit(2)",
        RIGHT + "1 / 0",
        "import sys\nprint(sys.stdin.read(",
        "print('x' * (17 << 20))",
        RIGHT + "__name__ == '__main__' or print('no')",
    )
    assert words(found) == [
        "passed",
        "killed",
        "exception:ZeroDivisionError",
        "exception:SyntaxError",
        "output",
        "passed",
    ]
    assert "line 4, in <module>: 1 / 0" in found[2].detail
    assert all(not each.facts for each in found)
    assert verdicts(suite, "class Solution:\n    def twice(self, n): return [2 * x for x in n]", task=2)[0].passed


@pytest.mark.parametrize(
    "program",
    [
        "class Same(str):\n    def __eq__(self, other): return True\nprint(Same('x'))",
        "import builtins, sys\nsys.modules['decimal'] = None\nbuiltins.str.__eq__ = lambda *_: True",
        "import gc\nfor each in gc.get_objects():\n    if type(each) is dict and 'DATA' in each: print(each['DATA'])",
        (
            "import sys\nframe = sys._getframe()\nwhile frame.f_back: frame = frame.f_back\n"
            "print([v for v in frame.f_globals.values()])"
        ),
        (
            "import os\nfor number in range(3, 64):\n    try: os.write(number, "
            "b'V' + bytes(4) + b'\\5' + bytes(3) + b'\"454\"')\n"
            "    except OSError: pass"
        ),
        "import sys, os\nprint(open('/proc/self/environ').read(), sys.argv)",
        "print('\\0koderz: raised\\0[]')",
        "import signal, os\nos.abort()",
        "import os\nos.closerange(0, 64)",
        "import ctypes\nctypes.string_at(0)",
        "raise SystemExit",
        "import sys\nsys.stdout.getvalue = lambda: '454'",
        "yield 454",
    ],
)
def test_livecodebench_verdict_cannot_be_forged(tmp_path: Path, program: str) -> None:
    (found,) = verdicts(suite_of(tmp_path, *ROWS), program)
    assert not found.passed
    assert not found.facts["passed_as_process"]


def test_livecodebench_values_have_no_say_in_their_equality(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, functional_row("f", ("1", "[1, 2]"), ("2", "[1, 2]")))
    found = verdicts(
        suite,
        "def f(n):\n    class E:\n        def __eq__(self, other): return True\n    return E()",
        "class E(list):\n    def __eq__(self, other): return True\ndef f(n): return E()",
        "class M(type):\n    def __eq__(self, other): return True\nclass E(metaclass=M): pass\ndef f(n): return E",
        "def f(n):\n    class E:\n        __class__ = list\n    return E()",
        "class E(list): pass\ndef f(n): return E([1, 2])",
        "def f(n): return (1, 2.0)",
        "def f(n): return [True, 2]",
    )
    assert [each.passed for each in found] == [False] * 4 + [True] * 3


def test_livecodebench_compares_lines_and_decimals(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, stdin_row(("", "1 2.50\nabc\n")))
    right = ["print('1 2.5\\nabc')", "print(' 1.0   25e-1 \\r\\nabc\\n\\n')"]
    wrong = ["print('1 2.5 abc')", "print('1 2.5\\n\\nabc')", "print('1 2.51\\nabc')", "print('1 2,5\\nabc')", "pass"]
    assert [each.passed for each in verdicts(suite, *right, *wrong)] == [True] * 2 + [False] * 5


def test_livecodebench_gives_readline_as_the_harness(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, stdin_row(("a\n\nb\n", "['a', '', 'b', '', 'end']")))
    by_name = (
        "from sys import stdin\nseen = []\ntry:\n    while 1: seen.append(stdin.readline())\nexcept StopIteration:\n"
    )
    assert verdicts(suite, by_name + "    seen.append('end')\nprint(seen)")[0].passed
    suite = suite_of(tmp_path, stdin_row(("a\n\nb\n", "['a\\n', '\\n', 'b\\n', '', '']")))
    by_module = "import sys\nprint([sys.stdin.readline() for _ in range(5)])"
    assert verdicts(suite, by_module)[0].passed


def test_livecodebench_state_lives_from_test_to_test(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, stdin_row(("", "1"), ("", "2"), ("", "3")))
    counting = "import builtins\nbuiltins.n = getattr(builtins, 'n', 0) + 1\nprint(builtins.n)"
    (found,) = verdicts(suite, counting)
    assert found.passed


@pytest.mark.slow
def test_livecodebench_time_limit_holds_for_each_test(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, *ROWS, test_timeout=0.5)
    found = verdicts(
        suite,
        "while True: pass",
        "import signal\nsignal.setitimer(signal.ITIMER_PROF, 0)\nsignal.signal(signal.SIGPROF, signal.SIG_IGN)\n"
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import time\ntime.sleep(1000)",
    )
    assert words(found) == ["cpu", "cpu", "wall"]
    assert not any(each.facts["passed_as_process"] for each in found)
    many = suite_of(tmp_path, stdin_row(*[("", "1")] * 4), test_timeout=1)
    slow = "import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass\nprint(1)"
    assert words(verdicts(many, slow)) == ["passed"]  # 2.4 s of all, 0.6 s of each


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("```python\na\n```", "a"),
        ("```\na\n```\ntext\n```python\nb\nc\n```\nend", "b\nc"),
        ("```a\nb\n```\n```", ""),
        ("no fence\n```python\na", ""),
        ("", ""),
        ("x ``` y\ncode\nz ```` w", "code"),
    ],
)
def test_livecodebench_takes_the_program_between_the_last_fences(reply: str, program: str) -> None:
    assert program_in(reply) == program


def test_livecodebench_says_why_a_reply_has_no_program(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, *ROWS)

    async def judge(sandbox: Any) -> list[str]:
        context = JudgeContext(sandbox, suite.limits)
        replies = [Reply(1, "no"), Reply(1, "```python\na", finish_reason="length"), Reply(1, f"```\n{RIGHT}\n```")]
        return words([await suite.judge(suite.tasks[0], each, context) for each in replies])

    assert JUDGES.run(judge) == ["no_code", "length", "passed"]


def test_livecodebench_feedback_hides_private_tests(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, stdin_row(("1", "1"), ("secret", "hidden")))
    (shown,) = verdicts(suite, "print(2)", feedback="examples")
    assert "instead of '1'" in shown.feedback
    (passed,) = verdicts(suite, "print(1)", feedback="examples")
    assert "passes the examples" in passed.feedback
    assert "hidden" not in passed.feedback
    assert verdicts(suite, "print(1)", feedback="none")[0].feedback == "The program doesn't pass its tests."


def test_livecodebench_takes_contests_by_date(tmp_path: Path) -> None:
    assert [task.id for task in suite_of(tmp_path, *ROWS).tasks] == ["sum_11", "lines_11", "twice_11"]
    assert [task.id for task in suite_of(tmp_path, *ROWS, since="2024-06-02").tasks] == ["lines_11"]
    assert [task.id for task in suite_of(tmp_path, *ROWS, until="2024-06-01").tasks] == ["sum_11", "twice_11"]
    assert [task.id for task in suite_of(tmp_path, *ROWS, release="v3").tasks] == ["sum_11", "twice_11"]
    assert len(suite_of(tmp_path, *ROWS, release="v6").tasks) == 3
    with pytest.raises(KoderzError, match="since 2026-01-01; its contests are from 2024-06-01 to 2025-02-01"):
        suite_of(tmp_path, *ROWS, since="2026-01-01")


def test_livecodebench_says_that_contamination_is_not_excluded(tmp_path: Path) -> None:
    assert "contamination isn't excluded" in " ".join(suite_of(tmp_path, *ROWS).notices)
    assert not suite_of(tmp_path, *ROWS, since="2024-01-01").notices
    assert "published with 612 tasks; 2 of this" in " ".join(suite_of(tmp_path, *ROWS, release="v3").notices)


def test_livecodebench_reads_a_folder_and_packed_files(tmp_path: Path) -> None:
    import gzip

    written(tmp_path / "test.jsonl", ROWS[0])
    (tmp_path / "test2.jsonl.gz").write_bytes(gzip.compress(f"\n{json.dumps(ROWS[1])}\n".encode()))
    written(tmp_path / "other.jsonl", {"a": 1})
    suite = LiveCodeBench.load(SuiteSource(tmp_path))
    assert [task.id for task in suite.tasks] == ["sum_11", "lines_11"]
    assert suite.tasks[1].payload.cases().public == 2
    assert len(suite.tasks[1].payload.cases().inputs) == 5


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("/nowhere/evil"),)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(_Evil()))).decode()}, "may only hold text"),
        ({"private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(["a"]))).decode()}, "may only hold text"),
        (
            {"private_test_cases": base64.b64encode(zlib.compress(pickle.dumps("no"))).decode()},
            "pickled string of JSON",
        ),
        ({"private_test_cases": base64.b64encode(b"abc").decode()}, "neither JSON nor base64 of zlib"),
        ({"private_test_cases": packed([])[:-12]}, "cut off"),
        ({"private_test_cases": "§"}, "holds something else|neither JSON"),
        ({"private_test_cases": 5}, "has to be text"),
        ({"private_test_cases": None}, "is missing"),
        ({"public_test_cases": "[]", "private_test_cases": "[]"}, "it has no tests"),
        ({"public_test_cases": "{}"}, "has to be a list of tests"),
        ({"public_test_cases": '[{"input": "1", "output": "2"}]'}, "has no 'testtype'"),
        ({"public_test_cases": '[{"input": "1", "output": 2, "testtype": "stdin"}]'}, "isn't text of the kind"),
        ({"public_test_cases": '["a"]'}, "isn't an object"),
        ({"public_test_cases": '[{"input": "\\ud800", "output": "", "testtype": "stdin"}]'}, "surrogate"),
        ({"metadata": '{"func_name": "f"}'}, "its tests are stdin, and 'metadata' names a function"),
        ({"metadata": '{"func_name": "f()"}'}, "names no function"),
        ({"metadata": "{"}, "isn't JSON"),
        ({"contest_date": "soon"}, "is no date"),
        ({"question_id": ""}, "'question_id' has to be"),
    ],
)
def test_livecodebench_refuses_hostile_rows(tmp_path: Path, change: Mapping[str, Any], reason: str) -> None:
    import re

    said = complaint(
        lambda path: LiveCodeBench.load(SuiteSource(path)),
        written(tmp_path / "a.jsonl", ROWS[1], {**ROWS[0], **change}),
    )
    assert re.search(reason, said)
    assert f"{tmp_path / 'a.jsonl'}, line 2: " in said
    assert not Path("/nowhere/evil").exists()


def test_livecodebench_refuses_files_that_are_no_rows(tmp_path: Path) -> None:
    def load(path: Path) -> object:
        return LiveCodeBench.load(SuiteSource(path))

    assert "there twice" in complaint(load, written(tmp_path / "b.jsonl", ROWS[0], ROWS[0]))
    assert "holds no task" in complaint(load, written(tmp_path / "c.jsonl"))
    (tmp_path / "folder").mkdir()
    assert "no test*.jsonl" in complaint(load, tmp_path / "folder")


def test_livecodebench_notices_a_row_that_has_changed(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, *ROWS)
    suite_of(tmp_path, {**ROWS[0], "question_content": "Another."}, *ROWS[1:])
    with pytest.raises(Fault, match="line 1: the row has changed"):
        verdicts(suite, RIGHT)


def test_livecodebench_tests_that_cannot_be_read_pass_nobody(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, functional_row("f", ("not json", "1")))
    (found,) = verdicts(suite, "def f(n): return 1")
    assert (found.verdict, found.cause) == ("failed", "assertion")
    assert "no answer passes" in found.detail


def test_livecodebench_counts_programs_that_pass_as_processes() -> None:
    class Result:
        def __init__(self, **facts: Any) -> None:
            self.facts = facts

    results: Any = [Result(passed_as_process=True), Result(passed_as_process=False), Result()]
    plan: Any = None
    assert PROCESS.of_arm(plan, "zero-shot", results) == {"passed_as_process": 1}
    assert PROCESS.of_arm(plan, "zero-shot", results[2:]) == {}


def test_livecodebench_runs_no_process_where_a_sandbox_has_none(tmp_path: Path) -> None:
    options = LiveCodeBenchOptions(io="process")

    with pytest.raises(KoderzError, match="--io process needs --sandbox contained"):
        LiveCodeBench("here", [], options, sandbox="docker")
