"""What a judge is told, by programs that tell it too much: it goes on, at once, with the next program."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from unittest.mock import AsyncMock

import pytest

from koderz.sandbox import Job, JobResult
from koderz.sandbox.judge import wire
from koderz.sandbox.judge.pool import Pool, Premises
from koderz.sandbox.judge.proxy import BROKEN, LostCandidate, Raised
from koderz.sandbox.linux import isolation
from tests.conftest import judges

TEST = "def check(candidate):\n    assert candidate(1, 2) == 3\n"
ANSWER = """
import json, os, struct, time
HUGE = b'{{"i":"0x' + b"f" * 1_000_000 + b'"}}'
def send(kind, body):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    for number in range(3, 16):
        data = memoryview(struct.pack("<cII", kind, 0, len(body)) + body)
        try:
            while data: data = data[os.write(number, data):]
        except OSError:
            pass
def alike(count): return [number * (2**61 - 1) for number in range(count)]
def add(x, y):
    {answer}
    time.sleep(9)
"""

ANSWERS = {
    "an infinite line number": """send(b"E", b'["E","ValueError","",[[1e999,"f"]]]')""",
    "a line number that is none": """send(b"E", b'["E","ValueError","",[[NaN,"f"]]]')""",
    "a huge line number": """send(b"E", b'["E","ValueError","",[[' + HUGE + b',"f"]]]')""",
    "a huge integer for a name": """send(b"E", b"[" + HUGE + b',"ValueError","",[]]')""",
    "a huge integer for a message": """send(b"E", b'["E","ValueError",' + HUGE + b",[]]")""",
    "a message of 16 MB": """send(b"E", ["E", "ValueError", "x" * 16_000_000, []])""",
    "a name of 16 MB": """send(b"E", ["E" * 16_000_000, "ValueError", "", []])""",
    "a million places": """send(b"E", ["E", "ValueError", "", [[1, "f"]] * 1_000_000])""",
    "places without end": """send(b"E", ["E", "ValueError", "", {"G": [[1, "f"]]}])""",
    "a report that is a set": """send(b"E", {"s": ["E", "ValueError", "", 1]})""",
    "prints of 16 MB": """send(b"O", "x" * 16_000_000)""",
    "prints that are a huge integer": """send(b"O", HUGE)""",
    "a description of 16 MB": """send(b"N", "x" * 16_000_000)""",
    "a description that is a huge integer": """send(b"N", HUGE)""",
    "a report of loading without end": """send(b"L", {"G": ["syntax"]})""",
    "a report of loading with a huge integer": """send(b"L", b'["syntax","E","E","",[[' + HUGE + b',"f"]]]')""",
    "a huge integer": """send(b"V", HUGE)""",
    "an integer too huge": """send(b"V", HUGE.replace(b"f", b"ffffffff"))""",
    "fractions of huge integers": """
    send(b"V", b"[" + b",".join([b'{"F":[' + HUGE + b"," + HUGE.replace(b"ff", b"e") + b"]}"] * 7) + b"]")""",
    "a set of one hash": """send(b"V", {"s": alike(100_000)})""",
    "a frozenset of one hash": """send(b"V", {"f": alike(100_000)})""",
    "a dict of one hash": """send(b"V", {"d": [[each, 0] for each in alike(100_000)]})""",
    "a counter of one hash": """send(b"V", {"C": [[each, 0] for each in alike(100_000)]})""",
    "keys of one hash": """send(b"V", {"k": alike(100_000)})""",
    "items of one hash": """send(b"V", {"m": [[each, 0] for each in alike(100_000)]})""",
    "tuples of one hash": """send(b"V", {"s": [{"t": [each]} for each in alike(100_000)]})""",
    "frames of no bytes": """os.write(3, bytes(400)); os.write(4, bytes(400))""",
}


def case(program: str, *, test: str = TEST, cpu: float = 5.0, wall: float = 20.0) -> Job:
    return Job(program, test, "add", timeout=cpu, memory_mb=512, wall=wall)


@pytest.fixture(scope="module")
def told(holds: frozenset[str]) -> dict[str, tuple[JobResult, bool]]:
    """What was found of each program that answers so, and whether the same judge went on after it."""
    if not isolation.contained(holds):
        pytest.skip("this machine contains nothing")

    async def all_of_them() -> dict[str, tuple[JobResult, bool]]:
        found = {}
        async with Pool(1, Premises(isolation.LAYERS, {})) as pool:
            for name, answer in ANSWERS.items():
                before = judges()
                found[name] = (await pool.run(case(ANSWER.format(answer=answer))), judges() == before)
        return found

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("name", ANSWERS)
def test_judge_outlasts_what_it_is_told(told: dict[str, tuple[JobResult, bool]], name: str) -> None:
    finding, went_on = told[name]
    assert finding.verdict in ("failed", "error"), finding
    assert went_on, finding
    assert len(finding.message) < 2500


@pytest.mark.slow
async def test_results_that_keep_the_tests_busy_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koderz.sandbox.judge.pool.GRACE_SECONDS", 2.0)
    colliding = "def add(x, y): return [n * (2**61 - 1) for n in range(300_000)]"
    test = "def check(candidate):\n    assert set(candidate(1, 2)) == {3}\n"

    async with Pool(1, Premises(isolation.LAYERS, {})) as pool:
        started = AsyncMock(wraps=pool._started)
        monkeypatch.setattr(pool, "_started", started)
        finding = await pool.run(case(colliding, test=test, wall=4.0))
        assert (finding.verdict, finding.cause, started.await_count) == ("error", "killed", 0)


def test_honest_sets_of_few_hashes_are_taken() -> None:
    powers = {2**n for n in range(3000)}
    assert wire.loads(wire.dumps(powers)) == powers
    assert wire.loads(wire.dumps(dict.fromkeys(powers))) == dict.fromkeys(powers)
    assert wire.loads(wire.dumps(Fraction(1 << 60_000, 3))) == Fraction(1 << 60_000, 3)


@pytest.mark.parametrize(
    "report", [None, [], ["E", "E", ""], ["E", "E", 1, []], ["E", "E", "", [[-1, "f"]]], ["E", "E", "", [3]]]
)
def test_report_that_is_malformed_is_broken(report: object) -> None:
    with pytest.raises(LostCandidate) as lost:
        Raised.read(report)
    assert lost.value.kind == BROKEN
