"""Summaries of every suite, scorer and judge, as koderz writes them and its own reader takes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import koderz as library
from koderz.suites import SUITES
from koderz.systems.questions.options import SCORERS
from tests.conftest import Shell
from tests.koderz.systems.code import test_bigcodebench as bigcodebench
from tests.koderz.systems.code import test_livecodebench as livecodebench
from tests.koderz.systems.code import test_mbpp as mbpp
from tests.koderz.systems.code import test_plus as plus
from tests.koderz.systems.patches import rows as patches
from tests.koderz.systems.questions.sets import ROWS, write_rows

JUDGED = ("--judge-model", "simulated")
QUESTIONS = ("--role", "judge=simulated")

Arguments = tuple[object, ...]


def of_rows(*rows: Mapping[str, Any], more: Arguments = (), name: str = "rows.jsonl") -> Callable[[Path], Arguments]:
    def arguments(folder: Path) -> Arguments:
        write_rows(folder / name, *rows)
        return ("--dataset", name, *more)

    return arguments


def of_patches(kind: str) -> Callable[[Path], Arguments]:
    def arguments(folder: Path) -> Arguments:
        row = patches.made(folder)[kind]
        patch = {"instance_id": row["instance_id"], "model_patch": patches.patch(patches.PATCHES["no-op"])}
        write_rows(folder / "patches.jsonl", {**patch, "model_name_or_path": "m"})
        write_rows(folder / "rows.jsonl", row)
        return ("--dataset", "rows.jsonl", "--predictions", "patches.jsonl", "--max-blocks", 3, *JUDGED)

    return arguments


SEARCH = ("--train-items", 10, "--validation-items", 10, "--test-items", 10, "--budget-calls", 30)
PASSES = bigcodebench.row(0, bigcodebench.PLAIN, "    return {each: value.count(each) for each in value}\n")
REAL = {"id": "x", "context_window_text": "t", "question": "q", "answer": "3"}
OWN: Mapping[str, Callable[[Path], Arguments]] = {
    "humaneval": lambda folder: (),
    "humaneval+": of_rows(plus.RELEASED),
    "mbpp": of_rows(mbpp.WHOLE),
    "mbpp+": of_rows(mbpp.RELEASED),
    "livecodebench": of_rows(livecodebench.ROWS[0]),
    "bigcodebench": of_rows(PASSES),
    "ruler": lambda folder: ("--context-lengths", "1K"),
    "oolong": lambda folder: ("--context-lengths", "1K"),
    "oolong-real": of_rows(REAL),
    "oolong-pairs": of_rows({"id": 1, "context": "t", "question": "q", "answer": [[1, 2]]}),
    "browsecomp-plus": lambda folder: JUDGED,
    "datasets": lambda folder: ("--solver", "none", *SEARCH),
    "rollouts": lambda folder: JUDGED,
    "koderz-perf-mini": lambda folder: ("--max-blocks", 3, *JUDGED),
    "gso": of_patches("gso"),
    "iso": of_patches("iso"),
    "serving": lambda folder: (),  # without a server, so that its summary holds a fault
}
"""The arguments that have a run of a suite's smallest task; questions have their rows in `ROWS`."""

MEASURED = {"koderz-perf-mini", "gso", "iso", "rollouts"}
NOT_HERE = {
    "completion",  # one experiment of a library call, which has a journal and no summary
    "koderz-perf-pypi",  # koderz-perf-mini with packages of an index, which tests can't ask
}


def read_back(koderz: Shell, suite: str, *arguments: object) -> dict[str, Any]:
    """The summary of a run, which is read as it was written, and compared with itself."""
    sinks = ("--no-sink", "mlflow", "--no-sink", "memory")
    model = ("--model", "simulated", "--limit", 1, "--quiet", *sinks)
    koderz("benchmark", "--suite", suite, *arguments, *model, code=(0, 3))
    (path,) = koderz.results.glob("*.json")
    written: dict[str, Any] = json.loads(path.read_text())
    read = library.load_summary(path)

    assert read.judge == written["judge"]
    assert read.planned == written["planned"]
    assert [len(arm.results) for arm in read.arms.values()] == [len(of_arm) for of_arm in _results(written)]
    if read.results:
        assert library.compare(path, path, allow_simulated=True).pairs == 1
    return written


def _results(written: Mapping[str, Any]) -> list[list[Any]]:
    arms = written.get("arms") or {name: written[name] for name in ("zero_shot", "iterative") if name in written}
    return [arm["results"] for arm in arms.values()] or [written["results"]]


def test_every_suite_is_read_back_here() -> None:
    assert {*SUITES} == {*OWN} | {*ROWS} | {"qa"} | NOT_HERE


@pytest.mark.parametrize(
    "suite", [pytest.param(name, marks=[pytest.mark.slow] if name in MEASURED else []) for name in OWN]
)
def test_summaries_of_every_suite_are_read_back(koderz: Shell, suite: str) -> None:
    arguments = OWN[suite](koderz.folder)
    written = read_back(koderz, suite, *arguments)
    assert written["config"]["suite"] == suite


@pytest.mark.parametrize("kind", [*ROWS, *(f"qa {name}" for name in (*SCORERS, "near.py:near"))])
def test_summaries_of_questions_are_read_back_by_every_scorer(koderz: Shell, kind: str) -> None:
    suite, _, scorer = kind.partition(" ")
    choices = {"choices": ["1", "4"], "target": "4"} if scorer in ("choice", "label") else {}
    given = ROWS.get(suite, {"input": "What is 2 + 2?", "target": "4", **choices})
    (koderz.folder / "near.py").write_text("def near(item, reply):\n    return {'score': 0.5, 'answer': reply}\n")
    name = "rows.csv" if suite in ("gpqa", "simpleqa", "aime") else "rows.jsonl"
    more: Arguments = ("--scorer", scorer) if scorer else ()
    more += ("--pattern", "(.)") if scorer == "regex" else ()
    more += ("--judge-draws", 3) if scorer == "judge" else ()
    is_judged = scorer == "judge" or suite == "simpleqa"

    written = read_back(koderz, suite, *of_rows(given, more=more, name=name)(koderz.folder), *is_judged * QUESTIONS)

    assert bool(written["judge"]) == is_judged
    assert len(written["results"]) == 1


OF_ONES_OWN = """
from koderz.extend import Suite, Task, Verdict


class Own(Suite):
    name, source, scorer = "own", "here", "equals"
    judge_record = {record}
    tasks = (Task({id}, "Say a.", needs=frozenset(), digest="a", groups={groups}),)

    def simulate(self, messages, sampling):
        return "a"

    async def judge(self, task, answer, context):
        return Verdict("passed", facts={facts})
"""
SOUND = {"record": {"caveats": ["c"], "draws": 3}, "id": "a", "groups": {"length": "5"}, "facts": {"answer": None}}


def of_ones_own(koderz: Shell, **changes: Any) -> str:
    terms = {name: repr(changes.get(name, value)) for name, value in SOUND.items()}
    (koderz.folder / "own.py").write_text(OF_ONES_OWN.format(**terms))
    return "own.py:Own"


def test_summary_of_ones_own_suite_is_read_back(koderz: Shell) -> None:
    written = read_back(koderz, of_ones_own(koderz, facts={"answer": "a", "resources": {}, "own": [1]}))
    assert written["results"][0]["own"] == [1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": ""}, "its id has to be a text that isn't empty"),
        ({"id": 5}, "its id has to be a text that isn't empty"),
        ({"groups": {"length": 5}}, "values of its groups have to be texts"),
        ({"record": {"caveats": "one caveat"}}, "the caveats in the suite's judge_record have to be a list of texts"),
    ],
)
def test_suite_that_no_reader_could_take_is_refused(koderz: Shell, change: dict[str, Any], said: str) -> None:
    done = koderz("benchmark", "--suite", of_ones_own(koderz, **change), "--model", "simulated", code=2)

    assert said in " ".join(done.err.split())
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        ({"success": "yes"}, "a fact can't be called 'success'"),
        ({"cluster": 3}, "a fact can't be called 'cluster'"),
        ({"answer": 7}, "its fact 'answer' has to be a str or None"),
        ({"resources": "much"}, "its fact 'resources' has to be a dict or None"),
    ],
)
def test_facts_that_would_take_a_results_own_keys_are_a_fault(koderz: Shell, fact: dict[str, Any], said: str) -> None:
    written = read_back(koderz, of_ones_own(koderz, facts=fact))

    (fault,) = written["faults"]
    assert said in fault["reason"]
    assert fault["cause"] == "user_code"
