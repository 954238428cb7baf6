"""The pytest plugin, in a pytest of its own, on a model server of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from koderz.testing import ModelServer
from koderz.testing.wire import Request
from tests.conftest import PATIENCE
from tests.forks import forks

TESTS = """
import pytest

@pytest.mark.koderz(suite="qa", dataset="faq.jsonl", model="openai/m", samples=3, threshold=0.67)
def test_faq(koderz_result):
    assert koderz_result.cost == 0
    assert koderz_result.samples == len(koderz_result.results) == 3
"""
ASKS = """
import pytest

@pytest.mark.koderz(model="openai/m")
@pytest.mark.parametrize("n", [1, 2])
async def test_sum(koderz_ask, n):
    reply = await koderz_ask([{"role": "user", "content": f"What is {n} + {n}?"}])
    assert reply.text == "2", "no two"
"""


class Ran(dict[str, str]):
    """What became of each test, by its name; what pytest printed; the server's requests, by question."""

    said: str
    code: int | None
    asked: Counter[str]


@pytest.fixture
def ran(tmp_path: Path) -> Callable[..., Ran]:
    """Runs pytest in a folder with six questions, of which the model answers q5 wrongly and q4 once of three times."""
    rows = [{"id": f"q{n}", "input": f"What is {n} + {n}?", "target": str(2 * n)} for n in range(6)]
    (tmp_path / "faq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = {name: value for name, value in os.environ.items() if not name.startswith(("KODERZ_", "PYTEST_"))}

    async def go(arguments: tuple[str, ...], **about: Any) -> Ran:
        seen: Counter[int] = Counter()

        def reply(request: Request) -> str:
            n = int(re.findall(r"What is (\d+)", str(request.messages[-1]["content"]))[-1])
            seen[n] += 1
            return "13" if n == 5 or (n == 4 and seen[n] > 1) else str(2 * n)

        async with ModelServer(reply, models=("m",), **about) as server:
            environ = names | {
                "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "sk-test", "KODERZ_SINKS": "json",
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "XDG_STATE_HOME": str(tmp_path / "state"),
                "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2]),
            }  # fmt: skip
            command = ("pytest", "-p", "koderz.pytest_plugin", "--junitxml", "junit.xml", "-vrA", *arguments)
            process = forks().start(command, tmp_path, environ)
            said = await asyncio.to_thread(process.communicate, PATIENCE)
        found = Ran()
        found.said, found.code = "".join(said), process.returncode
        found.asked = Counter(str(request.messages[-1]["content"])[:14] for request in server.requests)
        if (tmp_path / "junit.xml").exists():
            for case in ElementTree.parse(tmp_path / "junit.xml").iter("testcase"):
                kinds = [each.tag for each in case if each.tag in ("failure", "error", "skipped")]
                found[case.get("name", "")] = "".join(kinds) or "passed"
        return found

    def call(*arguments: str, text: str = TESTS, **server: Any) -> Ran:
        (tmp_path / "test_it.py").write_text(text)
        return asyncio.run(go(arguments, **server))

    return call


def runs(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((tmp_path / "benchmark_results").glob("*.json"))]


QUESTIONS = [f"What is {n} + {n}?" for n in range(6)]
SEEN = {f"test_faq[q{n}]": "failure" if n > 3 else "passed" for n in range(6)}


@pytest.mark.parametrize("workers", [(), ("-p", "xdist.plugin", "-n", "2")])
def test_items_are_the_tasks_of_one_run(ran: Callable[..., Ran], tmp_path: Path, workers: tuple[str, ...]) -> None:
    done = ran(*workers)

    assert dict(done) == SEEN, done.said
    assert done.code == 1
    assert done.asked == dict.fromkeys(QUESTIONS, 3)  # each task is asked once a sample, whoever needs it
    (run,) = runs(tmp_path)
    assert run["config"]["tags"] == ["pytest"]
    for text in ("q5: 0 of 3 samples passed, of which 0.67 have to", "reply: 13", "read: 13", "expected: 10"):
        assert text in done.said
    assert f"koderz benchmark show {run['run_id']} --problem q5 --sample 0" in done.said
    assert f'name="koderz_run" value="{run["run_id"]}"' in (tmp_path / "junit.xml").read_text()


def test_items_that_are_left_out_are_not_asked(ran: Callable[..., Ran], tmp_path: Path) -> None:
    done = ran("-k", "q1 or q5")
    assert dict(done) == {"test_faq[q1]": "passed", "test_faq[q5]": "failure"}, done.said
    assert done.asked == {QUESTIONS[1]: 3, QUESTIONS[5]: 3}
    done = ran("--lf")
    assert dict(done) == {"test_faq[q5]": "failure"}, done.said
    assert done.asked == {QUESTIONS[5]: 3}
    done = ran("-x")
    assert [*done.values()] == ["passed"] * 4 + ["failure"], done.said


def test_options_change_the_marks(ran: Callable[..., Ran], tmp_path: Path) -> None:
    done = ran("--koderz-off", text=TESTS + ASKS.partition("import pytest")[2])
    assert {*done.values()} == {"skipped"}, done.said
    assert (done.code, done.asked, runs(tmp_path)) == (0, {}, [])
    done = ran("--koderz-model", "simulated", "-k", "q1")
    assert [run["simulated"] for run in runs(tmp_path)] == [True], done.said
    assert done.asked == {}


def test_reuse_asks_nothing_twice(ran: Callable[..., Ran], tmp_path: Path) -> None:
    for chosen, options in (("q1 or q2", ()), ("q2 or q3", ("--koderz-reuse",))):
        ran("--koderz-model", "simulated", "-k", chosen, *options)
    first, second = sorted(runs(tmp_path), key=lambda run: str(run["end_time"]))
    assert first["summary"].get("reused_calls", 0) == 0
    assert second["summary"]["reused_calls"] == 3  # those of q2


def test_max_cost_is_of_the_session(ran: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "koderz.toml").write_text('[prices]\n"openai/m" = { input = 1000000, output = 1000000 }\n')
    text = TESTS.replace("assert koderz_result.cost == 0", "assert koderz_result.cost > 0")
    second = text.partition("import pytest")[2].replace("test_faq", "test_more").replace("samples=3", "samples=2")
    done = ran("--koderz-max-cost", "60", text=text + second)
    assert "error" in done.values(), done.said
    assert "was not asked: " in done.said or "is spent" in done.said
    assert sum(run["paid"]["total"] for run in runs(tmp_path)) < 200  # of 1,500


def test_fault_is_an_error(ran: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "koderz.toml").write_text("max-retries = 0\n")
    done = ran("-k", "q1", faults={"400": 1.0})
    assert dict(done) == {"test_faq[q1]": "error"}, done.said
    assert "3 of 3 samples ended in a fault" in done.said or "koderz: " in done.said
    done = ran("-k", "test_sum and 1", text=ASKS, faults={"400": 1.0})
    assert dict(done) == {"test_sum[1]": "error"}, done.said


def test_test_may_ask_itself(ran: Callable[..., Ran], tmp_path: Path) -> None:
    done = ran(text=ASKS)
    assert dict(done) == {"test_sum[1]": "passed", "test_sum[2]": "failure"}, done.said
    assert "AssertionError: no two" in done.said
    assert done.asked == {QUESTIONS[1]: 1, QUESTIONS[2]: 1}
    journals = [path.read_text() for path in (tmp_path / "benchmark_results").glob("*/journal.jsonl")]
    (first,) = (text for text in journals if "test_it.py::test_sum[1]" in text)
    assert len(journals) == 2
    lines = [json.loads(line) for line in first.splitlines()]
    assert [line["kind"] for line in lines] == ["plan", "call", "experiment", "finished"]
    assert "async def test_sum" in json.dumps(lines[0])  # its source


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TESTS.replace('"faq.jsonl"', '"none.jsonl"'), "none.jsonl"),
        (TESTS.replace("samples=3", "sample=3"), "sample"),
        (TESTS.replace("0.67", "67"), "a threshold from 0 to 1"),
        (TESTS.replace('(suite="qa"', '(3, suite="qa"'), "takes keyword arguments"),
        (ASKS.replace("async def", "def").replace("await ", ""), "is written with async def"),
        ("import pytest\n@pytest.mark.koderz()\ndef test_x(): pass\n", "takes koderz_result or koderz_ask"),
        ("def test_x(koderz_result): pass\n", "koderz_result is for tests with the mark koderz"),
    ],
)
def test_what_is_wrong_is_said_without_a_traceback(ran: Callable[..., Ran], text: str, says: str) -> None:
    done = ran(text=text)
    assert says in done.said
    assert "koderz/pytest_plugin.py" not in done.said
    assert done.code in (1, 2, 4)


def test_plugin_loads_nothing_that_a_suite_without_the_mark_does_not_need(tmp_path: Path) -> None:
    """Of koderz, the package and the plugin: what takes 20 ms or more is what these would import."""
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_x():\n"
        "    assert {name for name in sys.modules if name.startswith('koderz')} <= {\n"
        "        'koderz', 'koderz._version', 'koderz.settings', 'koderz.settings.moved', 'koderz.pytest_plugin'}\n"
        "    assert not {'asyncio', 'httpx', 'orjson', 'msgspec', 'filelock', 'numpy'} & {*sys.modules}\n"
    )
    code = "import sys, pytest; sys.exit(pytest.main(['-q', '-p', 'koderz.pytest_plugin', 'test_it.py']))"
    names = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(Path(__file__).parents[2])}

    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=names, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_plugin_is_an_entry_point() -> None:
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"koderz": "koderz.pytest_plugin"}
