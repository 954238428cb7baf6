"""Servers and commands of a tree: started, ready, loaded, stopped, and what goes wrong with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from koderz.systems.patches.measuring.services import AGREEMENT, CLAIMED, Services
from koderz.systems.patches.measuring.verdicts import Leg
from koderz.systems.patches.sources import mini_tasks
from koderz.systems.patches.tasks import PerfTask, Service
from koderz.systems.workspaces.local import Local

_SERVE = ("python3", "server.py", "{port}")
_LOAD = ("--num-prompts", "4", "--random-input-len", "5", "--random-output-len", "6")
_COUNTED = "setattr(sys, 'count', getattr(sys, 'count', 0) + 1) or sys.count"
_COMMAND = """
import json, pathlib, sys, time
begun = time.perf_counter()
time.sleep(0.05)
taken = time.perf_counter() - begun
told = {"elapsed_time": taken, "num_requests": 4, "total_num_tokens": 100, "tokens_per_second": 100 / taken}
pathlib.Path(sys.argv[1]).write_text(json.dumps(told))
"""


@asynccontextmanager
async def _alone() -> AsyncIterator[int | None]:
    yield None


def _legs(task: PerfTask, local: Local, *, seconds: float = 60.0, **trees: Path) -> dict[str, Leg]:
    return dict(asyncio.run(Services(task, local, seconds).block(trees, {}, "seed", _alone)))


def _server(folder: Path, change: tuple[str, str] = ("", ""), module: str = "server.py") -> Path:
    folder.mkdir()
    (mini,) = (task for task in mini_tasks() if task.kind == "serving")
    for name in ("server.py", "generation.py"):
        (folder / name).write_text(mini.files[name].replace(*change) if name == module else mini.files[name])
    return folder


def _task(*argv: str) -> PerfTask:
    return PerfTask("t", "0" * 40, service=Service(argv or _SERVE, _LOAD), kind="serving")


def test_servers_are_loaded_from_outside_of_their_network(local: Local, tmp_path: Path) -> None:
    slow, fast = _server(tmp_path / "slow"), _server(tmp_path / "fast", ("0.02", "0.001"), "generation.py")
    legs = _legs(_task(), local, base=slow, agent=fast)
    assert [leg.wrong for leg in legs.values()] == ["", ""]
    base, agent = (leg.figures for leg in legs.values())
    assert base["completed"] == 4
    assert base["total_output_tokens"] == 24
    assert base["mean_tpot_ms"] > 0
    assert agent["mean_tpot_ms"] < base["mean_tpot_ms"]
    assert (base[AGREEMENT], agent[AGREEMENT]) == (1.0, 1.0)
    assert legs["base"].cpu > 0
    assert legs["base"].wall > 0.2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "change"),
    [
        ("generation.py", ("digest()[0]", "digest()[1]")),
        ("server.py", ('"completion_tokens": count', '"completion_tokens": 10 * count')),
        ("server.py", ('asked["prompt"], count', f'asked["prompt"] * ({_COUNTED} <= 20), count')),
    ],
    ids=["other words", "claims tokens", "lazy under load"],
)
def test_answers_are_held_against_those_of_base(
    local: Local, tmp_path: Path, module: str, change: tuple[str, str]
) -> None:
    patched = _server(tmp_path / "patched", change, module)
    assert _legs(_task(), local, base=_server(tmp_path / "base"), agent=patched)["agent"].figures[AGREEMENT] < 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("import json", "import nothing_of_the_kind"), "the server ended: exit code 1; it said: Traceback"),
        (("def do_GET", "def do_NOTHING"), "timeout: a server takes longer than 2 s"),
        (('"/v1/completions"', '"/other"'), "24 requests failed, the first with: HTTP 404"),
        (("count = asked", 'print("\\33[31mno\\a"); 1 / 0; count = asked'), "no"),
    ],
    ids=["ends", "isn't ready", "refuses", "breaks"],
)
def test_server_that_fails_says_why_and_keeps_its_log(
    local: Local, tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    seconds = 2.0 if "timeout" in said else 60.0
    (leg,) = _legs(_task(), local, seconds=seconds, agent=_server(tmp_path / "tree", change)).values()
    assert said in leg.wrong
    assert all(each.isprintable() or each == "\n" for each in leg.log + leg.wrong)
    assert len(leg.log) <= 20_000


def test_server_that_prints_without_end_is_bounded(local: Local, tmp_path: Path) -> None:
    change = ("class Handler", "for _ in range(200000):\n    print('x' * 100)\n1 / 0\n\n\nclass Handler")
    (leg,) = _legs(_task(), local, agent=_server(tmp_path / "tree", change)).values()
    assert "exit code 1" in leg.wrong
    assert "ZeroDivisionError" in leg.log
    assert len(leg.log) <= 20_000


def _commanded(local: Local, tmp_path: Path, code: str, *, metric: str = "") -> Leg:
    (tmp_path / "bench.py").write_text(code)
    service = Service(("python3", "bench.py", "{output}"), metric=metric)
    task = PerfTask("t", "0" * 40, service=service, kind="throughput")
    return _legs(task, local, base=tmp_path)["base"]


def test_figures_of_a_command_are_those_of_its_leg(local: Local, tmp_path: Path) -> None:
    leg = _commanded(local, tmp_path, _COMMAND)
    assert not leg.wrong
    assert leg.figures["tokens_per_second"] == pytest.approx(100 / leg.figures["elapsed_time"])
    assert leg.figures[CLAIMED] == leg.figures["elapsed_time"]
    assert leg.wall > leg.figures[CLAIMED]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", "exit code 1"),
        ("", "its figures can't be read"),
        ("import sys; open(sys.argv[1], 'w').write('[]')", "they are no object"),
        ("import os, sys; os.symlink('/etc/passwd', sys.argv[1])", "no file of at most"),
        ("import sys; open(sys.argv[1], 'w').write('{\"elapsed_time\": NaN}')", "have no tokens_per_second"),
    ],
)
def test_command_without_figures_says_why(local: Local, tmp_path: Path, code: str, said: str) -> None:
    assert said in _commanded(local, tmp_path, code).wrong
