"""Test scripts of GSO and ISO-Bench as legs: timed from outside, compared beside base's code."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from koderz.errors import Fault
from koderz.sandbox.linux import kernel
from koderz.sandbox.workspace import Command
from koderz.solvers.definition import ExclusiveHandle
from koderz.systems.patches.machines import Machine
from koderz.systems.patches.measuring.legs import GUEST
from koderz.systems.patches.measuring.scripts import Scripts, drawn_for
from koderz.systems.patches.measuring.verdicts import Block, Finding, Leg, Rule, found
from koderz.systems.patches.sources import tasks_of
from koderz.systems.patches.tasks import PerfTask
from koderz.systems.patches.trees import Fitted
from koderz.systems.workspaces.local import Counter, Local
from tests.koderz.systems.patches import rows
from tests.koderz.systems.patches.rows import FAST, PATCHES, SLOW

pytestmark = pytest.mark.slow


@asynccontextmanager
async def _anywhere() -> AsyncIterator[int | None]:
    yield None


def _task(folder: Path, kind: str, script: str = "") -> PerfTask:
    row = rows.made(folder)[kind]
    if script:
        row["tests" if kind == "gso" else "efficiency_test"] = [script]
    (task,) = tasks_of(rows.written(folder, row))
    return task


def _legs(
    task: PerfTask, local: Local, folder: Path, exclusive: ExclusiveHandle = _anywhere, **modules: str
) -> dict[str, Leg]:
    """A block of trees that hold one module each."""
    trees = {}
    for leg, text in {"base": SLOW, **modules}.items():
        trees[leg] = folder / leg
        trees[leg].mkdir()
        (trees[leg] / "tallies.py").write_text(text)
    return asyncio.run(Scripts(task, local, 60).block(trees, {"test_0": 1}, "seed", exclusive))


def _eightfold(module: str) -> str:
    """The module, whose slow work is done eight times, so that it takes much longer than Python takes to start.

    The same process takes up to twice the CPU where others keep the core's other half, its caches or its clock busy.
    """
    return module.replace("for rest in range(7)]", "for rest in 8 * [*range(7)]][:7]")


def test_gso_script_is_timed_in_its_experiment(local: Local, tmp_path: Path) -> None:
    legs = _legs(_task(tmp_path, "gso"), local, tmp_path, base=_eightfold(SLOW), agent=FAST)
    assert not [leg.wrong for leg in legs.values() if leg.wrong]
    base, agent = legs["base"], legs["agent"]
    assert 0 < base.work["test_0"].total < base.cpu
    assert base.work["test_0"].cpu > 2 * agent.work["test_0"].cpu


def test_result_may_be_stored_by_keywords_and_a_path(local: Local, tmp_path: Path) -> None:
    stored = 'store_result(result, f"{prefix}_result.json")'
    script = rows.GSO_SCRIPT.replace(stored, 'store_result(filename=Path(f"{prefix}_result.json"), result=result)')
    task = _task(tmp_path, "gso", f"from pathlib import Path\n{script}")
    legs = _legs(task, local, tmp_path, again=FAST, agent=PATCHES["wrong"])
    assert not legs["again"].wrong
    assert "another tally" in legs["agent"].wrong


def test_gso_script_with_two_main_programs_counts_all_calls(local: Local, tmp_path: Path) -> None:
    once = 'if __name__ == "__main__":\n    main()\n'
    first_is_slow = rows.GSO_SCRIPT.replace("def setup():", "asked = []\n\n\ndef setup():").replace(
        '    return {"tally"',
        '    asked.append(1)\n    [tally(numbers) for _ in range(4 * (len(asked) == 1))]\n    return {"tally"',
    )
    legs = _legs(_task(tmp_path, "gso", first_is_slow + once), local, tmp_path, agent=FAST)
    assert not legs["agent"].wrong
    timing = legs["base"].work["test_0"]
    assert timing.cpu == pytest.approx(timing.total / 2)
    assert legs["base"].cpu > timing.total


_REQUESTS = """class Response:
    def json(self):
        import json

        return json.loads(self._content)


class Session:
    def request(self, method, url):
        raise AssertionError("there is no network")


def get(url):
    return Session().request("get", url)
"""
_FETCHING = {
    "urllib": "import urllib.request\n\n    return json.load(urllib.request.urlopen('https://data.example/n'))",
    "requests": "import requests\n\n    return requests.get('https://data.example/n').json()",
}


@pytest.mark.parametrize("way", [*_FETCHING])
@pytest.mark.parametrize("kept", [True, False])
def test_downloads_of_a_script_are_the_stored_ones(local: Local, tmp_path: Path, way: str, kept: bool) -> None:
    kept_in = tmp_path / "kept"
    kept_in.mkdir()
    name = hashlib.sha256(b"https://data.example/n").hexdigest()
    if kept:
        (kept_in / name).write_text(json.dumps([*range(200_000)]))
    start, end = rows.GSO_SCRIPT.split("    return [(7919 * number) % 1000003 for number in range(400_000)]")
    task = _task(tmp_path, "gso", f"{start}    {_FETCHING[way]}{end}")
    (tmp_path / "base").mkdir()
    for module, text in {"tallies": SLOW, "requests": _REQUESTS}.items():
        (tmp_path / f"base/{module}.py").write_text(text)
    backend = Fitted(local, Machine(downloads=str(kept_in)))
    scripts = Scripts(task, backend, 60)
    (leg,) = asyncio.run(scripts.block({"base": tmp_path / "base"}, {"test_0": 1}, "seed", _anywhere)).values()
    assert bool(leg.wrong) is not kept
    if not kept:
        assert f"to fetch https://data.example/n: keep what it answers in the file {name} of `downloads`" in leg.wrong


def test_downloads_are_read_in_all_ways_of_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("requests")
    monkeypatch.syspath_prepend(GUEST)
    downloads = importlib.import_module("downloads")
    monkeypatch.setattr(downloads, "FOLDERS", (str(tmp_path),))
    url = "https://data.example/n"
    (tmp_path / hashlib.sha256(url.encode()).hexdigest()).write_bytes(b"[1, 2]")
    response = downloads.requested(None, "get", url)
    response.raise_for_status()
    assert (response.json(), response.text, response.content) == ([1, 2], "[1, 2]", b"[1, 2]")
    assert b"".join(response.iter_content(4)) == b"[1, 2]"
    assert response.raw.read() == b"[1, 2]"
    assert downloads.opened(url).read() == b"[1, 2]"


class _Asked(Local):
    """Runs nothing, and keeps what it was asked for."""

    def started(self, command: Command, place: Path) -> NoReturn:
        self.command = command
        raise Fault("nothing runs here")


def test_memory_limit_of_published_scripts_is_higher(tmp_path: Path) -> None:
    asked = _Asked()
    with pytest.raises(Fault, match="nothing runs here"):
        asyncio.run(Scripts(_task(tmp_path, "gso"), asked, 60).sized(tmp_path, "seed", _anywhere))
    assert asked.command.limits.memory_mb == 16_384


def test_scripts_run_once_where_all_together_take_long_enough(local: Local, tmp_path: Path) -> None:
    row = rows.made(tmp_path)["gso"]
    row["tests"] = 8 * row["tests"]
    (task,) = tasks_of(rows.written(tmp_path, row))
    (tmp_path / "base").mkdir()
    (tmp_path / "base/tallies.py").write_text(SLOW)
    counts = asyncio.run(Scripts(task, local, 60).sized(tmp_path / "base", "seed", _anywhere))
    assert counts == {f"test_{number}": 1 for number in range(8)}


def test_iso_bench_calls_count_but_for_the_first(local: Local, tmp_path: Path) -> None:
    legs = _legs(_task(tmp_path, "iso"), local, tmp_path, agent=FAST)
    assert not legs["agent"].wrong
    timing = legs["base"].work["test_0"]
    assert timing.total == pytest.approx(5 * timing.cpu, rel=0.9)


@pytest.fixture(scope="module")
def failing(local: Local, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Leg]:
    """The legs of patches that fail, and of one that looks for what is expected."""
    folder = tmp_path_factory.mktemp("failing")
    kinds = ("wrong", "raises", "clock", "window", "expected")
    return _legs(_task(folder, "gso"), local, folder, _anywhere, **{kind: PATCHES[kind] for kind in kinds})


@pytest.mark.parametrize(
    ("kind", "said", "hack"),
    [
        ("wrong", "AssertionError: another tally", ""),
        ("raises", "ValueError: no tally", ""),
        ("clock", "it says that its experiment took 0.0 s; seen from outside it was", "timer"),
        ("window", "it calls `experiment` 2 times, base 1 times", ""),
        ("expected", "", ""),
    ],
)
def test_patch_errors_are_told(failing: dict[str, Leg], kind: str, said: str, hack: str) -> None:
    leg = failing[kind]
    assert said in leg.wrong
    assert bool(leg.wrong) == bool(said)
    assert leg.hack == hack


@pytest.mark.parametrize("kind", ["import", "exit"])
def test_work_moved_out_of_the_experiment_is_in_the_legs_cpu(local: Local, tmp_path: Path, kind: str) -> None:
    task = _task(tmp_path, "gso")
    legs = _legs(task, local, tmp_path, base=_eightfold(SLOW), agent=_eightfold(PATCHES[kind]))
    base, agent = legs["base"], legs["agent"]
    assert not agent.wrong
    assert agent.work["test_0"].cpu < base.work["test_0"].cpu / 2
    beside, usual = (leg.cpu - leg.work["test_0"].total for leg in (agent, base))
    assert beside > usual + base.work["test_0"].total / 4


@pytest.fixture(scope="module")
def counted() -> None:
    """Skips where the kernel lets nobody count the CPU of processes below."""
    try:
        os.close(kernel.count_cpu())
    except OSError as error:
        pytest.skip(str(error))


def _on_one_core(local: Local, folder: Path, **modules: str) -> dict[str, Leg]:
    """A block of trees that hold one module each, on the last core."""

    @asynccontextmanager
    async def exclusive() -> AsyncIterator[int | None]:
        yield max(os.sched_getaffinity(0))

    legs = _legs(_task(folder, "gso"), local, folder, exclusive, **modules)
    assert not [leg.wrong for leg in legs.values() if leg.wrong]
    return legs


def _found(legs: dict[str, Leg]) -> Finding:
    """What seven such blocks come to, without what else is at work on the core, which one block doesn't tell."""
    bare = {name: replace(leg, work={"test_0": replace(leg.work["test_0"], busy=0.0)}) for name, leg in legs.items()}
    return found([Block(bare)] * 7, "agent", Rule())


@pytest.fixture(scope="module")
def hiding(counted: None, local: Local, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Leg]:
    """The legs of all modules that hide work."""
    return _on_one_core(local, tmp_path_factory.mktemp("hiding"), again=SLOW, human=FAST, **rows.HIDDEN)


@pytest.mark.parametrize("name", rows.HIDDEN)
def test_work_of_processes_that_nobody_waits_for_counts(hiding: dict[str, Leg], name: str) -> None:
    legs = {"agent": hiding[name], **{leg: hiding[leg] for leg in ("base", "again", "human")}}
    finding = _found(legs)
    assert finding.opt == "not", finding
    assert legs["agent"].work["test_0"].total > legs["base"].work["test_0"].total / 2


@pytest.mark.parametrize("name", rows.UNCOUNTED)
def test_hidden_work_is_seen_on_its_core_where_nothing_counts_it(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(Counter, "read", lambda _: 0)
    legs = _on_one_core(local, tmp_path, base=_eightfold(SLOW), agent=_eightfold(rows.UNCOUNTED[name]))
    base, agent = (legs[leg].work["test_0"] for leg in ("base", "agent"))
    assert max(agent.busy, agent.total) > base.total / 4


@pytest.fixture(scope="module")
def sharing(local: Local, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Leg]:
    """The legs of all modules that share work."""
    slow = f"{SLOW.replace('tally', 'once')}\n\ndef tally(numbers):\n    return [once(numbers) for _ in range(8)][0]\n"
    return _on_one_core(local, tmp_path_factory.mktemp("sharing"), base=slow, again=slow, **rows.SHARING)


@pytest.mark.parametrize("name", rows.SHARING)
def test_honest_patch_of_several_processes_hides_nothing(sharing: dict[str, Leg], name: str) -> None:
    legs = {leg: sharing[leg] for leg in ("base", "again")}
    finding = _found({**legs, "human": sharing[name], "agent": sharing[name]})
    assert finding.hack == "", finding
    assert finding.speedups["base"].value > 1.5


def _table(name: str) -> str:
    """A patch with the answers to the published seed's input."""
    rng = random.Random(42)
    numbers = [rng.randrange(1000003) for _ in range(400_000)]
    known = [sum(number % 7 == rest for number in numbers) for rest in range(7)]
    return f"KNOWN, FIRST = {known}, {numbers[:3]}\n\n\n{rows.TABLES[name]}"


@pytest.mark.parametrize(("name", "said"), [("nothing else", "another tally"), ("the rest as before", "")])
def test_table_of_a_seeds_answers_gains_nothing_on_others(local: Local, tmp_path: Path, name: str, said: str) -> None:
    task = _task(tmp_path, "gso", rows.SEEDED_SCRIPT)
    trees = {leg: tmp_path / leg for leg in ("base", "again", "human", "agent")}
    for leg, text in {"base": SLOW, "again": SLOW, "human": FAST, "agent": _table(name)}.items():
        trees[leg].mkdir()
        (trees[leg] / "tallies.py").write_text(text)
    scripts = Scripts(task, local, 60)
    counts = asyncio.run(scripts.sized(trees["base"], "exp_1", _anywhere))
    assert counts.keys() == {"test_0", drawn_for("test_0")}
    counts["test_0"] = 1
    first, second = (asyncio.run(scripts.block(trees, counts, f"exp_1/block/{n}", _anywhere)) for n in (1, 2))
    assert not first["agent"].wrong
    assert first["agent"].work["test_0"].cpu < first["base"].work["test_0"].cpu / 4
    assert not [second[leg].wrong for leg in ("base", "again", "human") if second[leg].wrong]
    assert said in second["agent"].wrong
    if not said:
        assert found([Block(second)] * 7, "agent", Rule()).opt == "not"


def test_seeds_that_base_does_not_work_with_stay_as_they_are(local: Local, tmp_path: Path) -> None:
    needing = rows.SEEDED_SCRIPT.replace(
        "random.seed(42)\n", "seed = 42\n    assert seed == 42\n    random.seed(seed)\n"
    )
    (tmp_path / "tallies.py").write_text(FAST)
    scripts = Scripts(_task(tmp_path, "gso", needing), local, 60)
    assert asyncio.run(scripts.sized(tmp_path, "exp_1", _anywhere)).keys() == {"test_0"}


_PICKLED = rows.GSO_SCRIPT.replace("json.dump(result, file)", "pickle.dump(result, file)").replace(
    "json.load(file)", "pickle.load(file)"
)
_PICKLED = (
    _PICKLED.replace("import json\n", "import pickle\n")
    .replace('"w"', '"wb"')
    .replace("open(filename)", 'open(filename, "rb")')
)
_FORGED = """import os
import pickle


class Forged:
    def __reduce__(self):
        return os._exit, (0,)


dump = pickle.dump
pickle.dump = lambda result, file: dump(Forged(), file)
"""


def test_result_is_unpickled_with_the_classes_of_base_alone(local: Local, tmp_path: Path) -> None:
    wrong = FAST.replace("+= 1", "+= 2")
    legs = _legs(_task(tmp_path, "gso", _PICKLED), local, tmp_path, again=FAST, human=wrong, agent=_FORGED + FAST)
    assert not legs["again"].wrong
    assert "another tally" in legs["human"].wrong
    assert "_exit, which base's doesn't" in legs["agent"].wrong


def test_links_to_what_base_stored_are_no_results(local: Local, tmp_path: Path) -> None:
    linking = "import json\nimport os\n\nEXPECTED = '/opt/koderz/expected/base_test_0_result.json'\n" + FAST.replace(
        "    found =",
        "    json.dump = lambda result, file: (os.unlink(file.name), os.symlink(EXPECTED, file.name))\n    found =",
    ).replace("+= 1", "+= 2")
    leg = _legs(_task(tmp_path, "gso"), local, tmp_path, agent=linking)["agent"]
    assert "its result can't be read: FileNotFoundError" in leg.wrong


_LAZY = """class Lazy:
    def __init__(self, numbers):
        self.numbers = numbers

    def __iter__(self):
        return iter([sum(1 for number in self.numbers if number % 7 == rest) for rest in range(7)])


def tally(numbers):
    return Lazy(numbers)
"""


@pytest.mark.parametrize("number", [1, 3])
def test_result_made_lazily_is_made_after_its_call(local: Local, tmp_path: Path, number: int) -> None:
    script = rows.GSO_SCRIPT.replace("number=1)", f"number={number})")
    script = script.replace('{"tally": tuple(tally(numbers))}', '{"tally": tally(numbers)}')
    script = script.replace("json.dump(result, file)", 'json.dump({"tally": list(result["tally"])}, file)')
    script = script.replace('tuple(reference["tally"]) == current["tally"]', "reference == current")
    task = _task(tmp_path, "gso", script)
    for block in "abc":  # of the seven of a run: a busy machine may hide it in one
        (tmp_path / block).mkdir()
        legs = _legs(task, local, tmp_path / block, again=SLOW, human=FAST, agent=_LAZY)
        assert not [leg.wrong for leg in legs.values() if leg.wrong]
        finding = found([Block(legs)] * 7, "agent", Rule())
        if (finding.opt, finding.hack) == ("not", "moved"):
            break
    else:
        pytest.fail(f"{finding}")


def test_base_that_stores_nothing_is_a_fault(local: Local, tmp_path: Path) -> None:
    task = _task(tmp_path, "gso", rows.GSO_SCRIPT.replace("if reference:", "if False:"))
    (tmp_path / "tallies.py").write_text(SLOW)
    with pytest.raises(Fault, match="stores no result"):
        asyncio.run(Scripts(task, local, 60).sized(tmp_path, "seed", _anywhere))
