"""Legs: processes that are timed from outside, and can't change what is believed of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from koderz.errors import Fault
from koderz.systems.patches.measuring.legs import Call, LegOutputs, Legs, Workloads, referee
from koderz.systems.patches.tasks import Needs, PerfTask
from koderz.systems.workspaces.local import Local
from tests.koderz.systems.patches.conftest import SLOW, WORKLOAD


@asynccontextmanager
async def _anywhere() -> AsyncIterator[int | None]:
    yield None


def _ran(
    task: PerfTask, local: Local, folder: Path, module: str, *, calls: int = 3, seconds: float = 60.0
) -> LegOutputs:
    (folder / "sums.py").write_text(module)
    given = [Call("sums", b"20000")] * calls
    return asyncio.run(Legs(task, local, seconds).run(folder, given, None))


def test_leg_makes_its_calls_and_leaves_out_the_first(task: PerfTask, local: Local, tmp_path: Path) -> None:
    ran = _ran(task, local, tmp_path, SLOW)
    assert ran.outputs == [b"199990000"] * 3
    assert not ran.leg.wrong
    timing = ran.leg.work["sums"]
    assert 0 < timing.cpu <= timing.total < ran.leg.cpu
    assert timing.total == pytest.approx(2 * timing.cpu, rel=0.9)


def test_clocks_of_the_process_itself_change_nothing(task: PerfTask, local: Local, tmp_path: Path) -> None:
    stopped = "import time\nfor each in ('perf_counter', 'process_time', 'time'):\n    setattr(time, each, lambda: 0)\n"
    (honest, cheating) = (_ran(task, local, tmp_path, text + SLOW, calls=9).leg for text in ("", stopped))
    assert cheating.work["sums"].cpu == pytest.approx(honest.work["sums"].cpu, rel=0.9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("def total(n):\n    raise ValueError('no')\n", "ValueError: no"),
        ("def total(n):\n    import os\n    os._exit(0)\n", "exit code 0"),
        ("def total(n):\n    import os\n    return os.fork()\n", "Operation not permitted"),
        ("def total(n):\n    open(__file__ + 'x', 'w')\n", "Read-only file system"),
        ("def total(n):\n    return object()\n", "not JSON serializable"),
        ("def total(n):\n    import os\n    os.write(3, b'\\xff' * 100)\n    os._exit(0)\n", "larger than"),
        ("def total(n):\n    while True:\n        pass\n", "timeout"),
        ("import nothing_of_the_kind\n", "ModuleNotFoundError"),
        ("def total(n):\n    import socket\n    socket.create_connection(('1.1.1.1', 53), 5)\n", "unreachable"),
    ],
    ids=["raises", "exits", "forks", "writes", "unwritable", "forges", "hangs", "import", "network"],
)
def test_leg_failure_is_told(task: PerfTask, local: Local, tmp_path: Path, module: str, said: str) -> None:
    ran = _ran(task, local, tmp_path, module, seconds=3.0 if said == "timeout" else 60.0)
    assert said in ran.leg.wrong


@pytest.mark.slow
def test_time_of_allowed_processes_counts(task: PerfTask, local: Local, tmp_path: Path) -> None:
    forking = (
        "import os, time\n\n\ndef total(n):\n    if not os.fork():\n        end = time.process_time() + 0.3\n"
        "        while time.process_time() < end:\n            pass\n        os._exit(0)\n    os.wait()\n    return n\n"
    )
    ran = _ran(replace(task, needs=Needs(processes=True)), local, tmp_path, forking, calls=2)
    assert not ran.leg.wrong
    assert ran.leg.work["sums"].cpu >= 0.2


def test_inputs_and_comparisons_have_their_own_process(local: Local) -> None:
    async def asked() -> list[bool]:
        async with referee({"sums": WORKLOAD}, local, 60.0) as judge:
            call = await judge.inputs("sums", "seed", 1)
            assert call == await judge.inputs("sums", "seed", 1)
            assert call != await judge.inputs("sums", "other", 1)
            same = [(b"1.0", b"1.0000000001"), (b"1.0", b"1"), (b"7", b"7.0"), (b"[NaN]", b"[ NaN ]")]
            others = [(b"1.0", b"1.00001"), (b"[1]", b"[true]"), (b"1", b"no JSON"), (b"1000", b"1000.00000001")]
            others += [(b"NaN", b"1.0"), (b"1.0", b"NaN"), (b"Infinity", b"1e308"), (b"10", b"Infinity")]
            return [await judge.same(call, *pair) for pair in (*same, *others)]

    assert asyncio.run(asked()) == [True] * 4 + [False] * 8


def test_workload_may_define_equality(local: Local) -> None:
    async def asked() -> bool:
        own = WORKLOAD + "\n\ndef equal(expected, got, x):\n    return sorted(expected) == sorted(got)\n"
        async with referee({"sums": own}, local, 60.0) as judge:
            return await judge.same(Call("sums", b"1"), b"[1, 2]", b"[2, 1]")

    assert asyncio.run(asked())


def test_output_that_cannot_be_compared_is_wrong(local: Local) -> None:
    async def asked() -> list[bool]:
        own = WORKLOAD + "\n\ndef equal(expected, got, x):\n    return sorted(expected) == sorted(got)\n"
        async with referee({"sums": own}, local, 60.0) as judge:
            outputs = (b"1", b"[1, null]", b"[" * 90000, b" " * 70000 + b"[2, 1]", b"9" * 5000, b"[2, 1]")
            return [await judge.same(Call("sums", b"1"), b"[1, 2]", output) for output in outputs]

    assert asyncio.run(asked()) == [False] * 5 + [True]


def test_workload_that_fails_is_a_fault(local: Local) -> None:
    async def asked() -> None:
        async with referee({"sums": "def inputs(rng, i):\n    1 / 0\n"}, local, 60.0) as judge:
            await judge.inputs("sums", "seed", 1)

    with pytest.raises(Fault, match="ZeroDivisionError"):
        asyncio.run(asked())


@pytest.mark.parametrize("inputs", ["rng.randrange(12)", "7"], ids=["few", "always the same"])
def test_inputs_are_never_used_twice(task: PerfTask, local: Local, tmp_path: Path, inputs: str) -> None:
    workload = (
        f"def inputs(rng, i):\n    return {inputs}\n\n\ndef call(x):\n    import sums\n    return sums.total(x)\n"
    )
    remembering = "seen = []\n\n\ndef total(n):\n    assert n not in seen\n    seen.append(n)\n    return n\n"
    (tmp_path / "sums.py").write_text(remembering)
    work = Workloads(replace(task, workloads={"sums": workload}), local, 60)
    block = work.block({"base": tmp_path}, {"sums": 9}, "seed", _anywhere)
    if inputs == "7":
        with pytest.raises(Fault, match="only 1 different inputs"):
            asyncio.run(block)
    else:
        assert not asyncio.run(block)["base"].wrong


_ENDLESS_FOR_OTHERS = """
def inputs(rng, i):
    return 1


def equal(expected, got, x):
    while got != expected:
        try:
            pass
        except Exception:
            pass
    return True
"""
_ENDLESS = _ENDLESS_FOR_OTHERS.replace("got != expected", "True")
_DEAF = _ENDLESS.replace("except Exception", "except BaseException").replace(
    "            pass\n", "            while True:\n                pass\n", 1
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "said"),
    [(_ENDLESS_FOR_OTHERS, ""), (_ENDLESS, "`equal` takes longer than"), (_DEAF, "takes longer than 2 s")],
    ids=["of what is wrong", "of anything", "deaf"],
)
def test_comparison_that_never_ends_is_wrong_or_a_fault(local: Local, source: str, said: str) -> None:
    async def same() -> bool:
        async with referee({"sums": source}, local, 2.0) as judge:
            call = await judge.inputs("sums", "seed", 0)
            return await judge.same(call, b"1", b"2")

    if not said:
        assert not asyncio.run(same())
        return
    with pytest.raises(Fault, match=said):
        asyncio.run(same())
