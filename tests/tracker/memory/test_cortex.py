"""The Cortex interface: what is remembered is found again, whole, and nothing is lost unless asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from koderz_tracker import open_cortex
from koderz_tracker.memory import IMPORTANCE, Cortex, InvalidMemory, store_path
from koderz_tracker.memory.database import StoreDown
from koderz_tracker.memory.memories import Importance
from koderz_tracker.memory.search import COMMON
from koderz_tracker.memory.store import Filter, Store


def using(path: Path, work: Callable[[Cortex], Awaitable[Any]]) -> Any:
    """What `work` makes of the store in `path`."""

    async def worked() -> Any:
        async with open_cortex(path / "memory.db") as cortex:
            return await work(cortex)

    return asyncio.run(worked())


async def remembered(cortex: Cortex, *titles: str, **more: Any) -> None:
    for title in titles:
        await cortex.remember(title, f"about {title}", **more)


async def test_store_defaults_to_that_of_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async with open_cortex(environ={}) as cortex:
        await cortex.remember("a", "b")
        found = cortex.path
    assert found.resolve() == tmp_path / "benchmark_results" / "memory.db"
    assert store_path(Path("r"), {}) == Path("r/memory.db")
    assert store_path(Path("r"), {"KODERZ_MEMORY": "/else/where.db"}) == Path("/else/where.db")
    assert store_path(None, {"KODERZ_RESULTS": "runs"}) == Path("runs/memory.db")


def test_store_that_is_missing_is_made_only_on_request(tmp_path: Path) -> None:
    async def opened() -> None:
        async with open_cortex(tmp_path / "memory.db", create=False):
            pass

    with pytest.raises(StoreDown, match="there is no memory store"):
        asyncio.run(opened())
    assert list(tmp_path.iterdir()) == []


def test_export_has_words_lists_dicts_and_a_null_run_id(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        await cortex.remember("old", "x", tags=["result", "completed"], importance="high", metadata={"success": True})
        return await cortex.export_memories(tags=["result"])

    (memory,) = using(tmp_path, work)
    assert memory["importance"] == "high"
    assert memory["tags"] == ["result", "completed"]
    assert memory["metadata"] == {"benchmark_run_id": None, "success": True}


def test_exports_are_narrowed_by_everything_said(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        await remembered(cortex, "a", tags=["x", "y"], project="p")
        middle = datetime.now()
        await remembered(cortex, "b", tags=["x"], project="q", category="error")
        return [
            [memory["title"] for memory in await cortex.export_memories(**how)]
            for how in (
                {},
                {"tags": ["x", "y"]},
                {"project": "q"},
                {"category": "error"},
                {"since": middle},
                {"since": middle.astimezone().isoformat()},
                {"limit": 1},
                {"tags": ["x"], "project": "p", "category": "note"},
            )
        ]

    assert using(tmp_path, work) == [["a", "b"], ["a"], ["b"], ["b"], ["b"], ["b"], ["a"], ["a"]]


@pytest.mark.parametrize(
    "call",
    [
        lambda cortex: cortex.export_memories("result"),
        lambda cortex: cortex.export_memories(category="nonsense"),
        lambda cortex: cortex.export_memories(since="soon"),
        lambda cortex: cortex.recall("x", limit=0),
        lambda cortex: cortex.recall("x", mode="guess"),
        lambda cortex: cortex.recall("x", type="forever"),
        lambda cortex: cortex.get_context(format="poem"),
        lambda cortex: cortex.forget(),
        lambda cortex: cortex.end_session(99),
    ],
)
def test_invalid_input_is_an_error_not_an_empty_answer(tmp_path: Path, call: Any) -> None:
    with pytest.raises(InvalidMemory):
        using(tmp_path, call)


def test_recall_ranks_titles_and_salience_first(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        await cortex.remember("off by one", "nothing else")
        await cortex.remember("recursion", "it was off by one in the slice of the recursion")
        await cortex.remember("sorting", "something unlike it")
        await cortex.remember("quiet", "overflow", importance="low")
        await cortex.remember("loud", "overflow", importance="critical")
        return [
            [m["title"] for m in await cortex.recall(words)] for words in ("off by one", "overflow", "zebra", '"*)(')
        ]

    assert using(tmp_path, work) == [["off by one", "recursion"], ["loud", "quiet"], [], []]


def test_recall_finds_ids_accents_and_any_of_the_words(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        await cortex.remember("Experiment exp_0123456789abcdef", "Größe", tags=["HumanEval/3"])
        await cortex.remember("other", "HumanEval/4")
        queries = ("exp_0123456789abcdef", "grosse größe", "GROSSE", "HumanEval/3", "nowhere größe", "humaneval")
        return [[m["title"][:5] for m in await cortex.recall(query)] for query in queries]

    found = using(tmp_path, work)
    assert found[:2] == [["Exper"], ["Exper"]]
    assert found[2] == []
    assert found[3][0] == "Exper"
    assert found[4] == ["Exper"]
    assert sorted(found[5]) == ["Exper", "other"]


EXPERIMENT = (
    "HumanEval/{0} · iterative: passed after 1 attempt. Asked: Complete the following Python function of the list"
)


@pytest.mark.parametrize(
    "query",
    [
        "zebra",
        "zebra of the function",
        "how do I bake bread",
        "python zebra",
        "passed after zebra attempts",
        "zebra zoo",
    ],
)
@pytest.mark.parametrize("tags", [(), ("result",)])
def test_recall_of_what_nothing_is_about_finds_nothing(tmp_path: Path, query: str, tags: tuple[str, ...]) -> None:
    async def work(cortex: Cortex) -> None:
        for number in range(12):
            await cortex.remember(f"Experiment {number}", EXPERIMENT.format(number), tags=["result"])

        assert await cortex.recall(query, tags=tags) == []

    using(tmp_path, work)


@pytest.mark.parametrize("query", ["the", "of the", "python", "python function", "11", "the 11", "zebra 11"])
def test_recall_uses_common_words_only_for_want_of_rarer_ones(tmp_path: Path, query: str) -> None:
    async def work(cortex: Cortex) -> None:
        for number in range(12):
            await cortex.remember(f"Experiment {number}", EXPERIMENT.format(number), tags=["result"])

        found = await cortex.recall(query)

        assert [each["title"] for each in found] == ["Experiment 11"] if "11" in query else len(found) == 10

    using(tmp_path, work)


def test_recall_narrows_by_tags_project_category_and_type(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        await remembered(cortex, "bug one", tags=["x", "y"], project="p", category="error", type="episodic")
        await remembered(cortex, "bug two", tags=["x"], project="q")
        await remembered(cortex, "bug three", tags=["y"])
        hows: list[dict[str, Any]] = [
            {"tags": ["x", "y"]},
            {"project": "q"},
            {"project": "q", "include_global": False},
            {"category": "error"},
            {"type": "episodic"},
        ]
        return [sorted(m["title"] for m in await cortex.recall("bug", **how)) for how in hows]

    one, two, three = "bug one", "bug two", "bug three"
    assert using(tmp_path, work) == [[one], [three, two], [two], [one], [one]]


def test_recall_ranks_very_common_words_among_the_newest(tmp_path: Path) -> None:
    with Store(tmp_path / "memory.db") as store:
        from koderz_tracker.memory import Draft

        store.remember([Draft(title=f"n{i}", content="the same words") for i in range(COMMON + 5)])
        store.remember([Draft(title="special", content="the same words, and a rare one: xylophone")])

    async def work(cortex: Cortex) -> Any:
        return await cortex.recall("same words"), await cortex.recall("xylophone same words")

    common, rare = using(tmp_path, work)
    assert {memory["ranking"] for memory in common} == {"newest"}
    assert len(common) == 10
    assert [(memory["title"], memory["ranking"]) for memory in rare] == [("special", "full")]


def test_reading_changes_nothing_but_access_counts(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        await remembered(cortex, "a")
        before = await cortex.export_memories()
        await cortex.recall("a")
        await cortex.recall(mode="recent")
        await cortex.get_memory(1)
        await cortex.get_context()
        return before, await cortex.export_memories()

    (before,), (after,) = using(tmp_path, work)
    assert after["access_count"] == 3
    assert after["last_accessed"] is not None
    assert {**after, "access_count": 0, "last_accessed": None} == before


def test_age_lowers_the_rank_but_not_of_what_is_critical_or_a_result(tmp_path: Path) -> None:
    long_ago = (datetime.now() - timedelta(days=2000)).isoformat()
    rows: list[dict[str, Any]] = [
        {"title": "plain", "content": "fact", "created_at": long_ago},
        {"title": "critical", "content": "fact", "created_at": long_ago, "importance": "critical"},
        {"title": "result", "content": "fact", "created_at": long_ago, "tags": ["result"]},
        {"title": "new", "content": "fact", "created_at": datetime.now().isoformat()},
    ]

    async def work(cortex: Cortex) -> Any:
        await cortex.import_memories(rows)
        every = await cortex.recall("fact")
        return [m["title"] for m in every], [m["title"] for m in await cortex.recall("fact", include_decayed=False)]

    every, fresh = using(tmp_path, work)
    assert every[0] == "critical"
    assert every[-1] == "plain"
    assert sorted(fresh) == ["critical", "new", "result"]


CORTEX_EXPORT = [
    {
        "id": 7,
        "type": "episodic",
        "category": "architecture",
        "title": "Benchmark Run bench_0a1b2c3d_20260131_120000",
        "content": "x" * 30_000,
        "project": "p",
        "tags": '["benchmark_run","zero-shot"]',
        "salience": 1.0,
        "access_count": 4,
        "created_at": "2026-01-31 12:00:00",
        "metadata": '{"benchmark_run_id":"bench_0a1b2c3d_20260131_120000"}',
    },
    {"title": "minimal", "content": "c", "tags": "", "metadata": None},
]


def test_import_of_a_cortex_export_is_whole_and_idempotent(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        new = [await cortex.import_memories(json.dumps(CORTEX_EXPORT)) for _ in range(3)]
        new.append(await cortex.import_memories({"memories": CORTEX_EXPORT}))
        return new, await cortex.export_memories()

    new, (run, minimal) = using(tmp_path, work)
    assert new == [2, 0, 0, 0]
    assert run["tags"] == ["benchmark_run", "zero-shot"]
    assert run["metadata"] == {"benchmark_run_id": "bench_0a1b2c3d_20260131_120000"}
    assert (run["importance"], len(run["content"]), run["access_count"]) == ("critical", 30_000, 4)
    assert run["created_at"] == "2026-01-31T12:00:00.000000"
    assert minimal["tags"] == []


def test_import_of_own_export_round_trips(tmp_path: Path) -> None:
    async def first(cortex: Cortex) -> Any:
        await remembered(cortex, "a", tags=["x"], project="p", importance="high")
        await remembered(cortex, "k", key="k")
        exported = await cortex.export_memories()
        assert await cortex.import_memories(exported) == 0
        return exported

    async def second(cortex: Cortex) -> Any:
        assert await cortex.import_memories(json.dumps(exported)) == 2
        assert await cortex.import_memories(exported) == 0
        return await cortex.export_memories()

    exported = using(tmp_path, first)
    assert using(tmp_path / "other", second) == exported


def test_remember_takes_the_tools_importance_as_salience(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> list[dict[str, Any]]:
        for importance in get_args(Importance):
            await cortex.remember(importance, "x", importance=importance, tags=["x"])
        return await cortex.export_memories(tags=["x"])

    found = {memory["importance"]: memory["salience"] for memory in using(tmp_path, work)}

    assert found == {"low": 0.3, "normal": 0.5, "high": 0.8, "critical": 1.0} == IMPORTANCE


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("not json", "no JSON"),
        ("12", "a JSON array"),
        ([3], "memory 1 is no JSON object"),
        ([{"content": "x"}], "memory 1 has no title"),
        ([{"title": "a"}, {"title": "b", "tags": "{"}], "memory 2: tags"),
        ([{"title": "a", "metadata": "[1]"}], "memory 1: metadata"),
        ([{"title": "a", "created_at": "soon"}], "memory 1: created_at"),
        ([{"title": "a", "salience": "much"}], "memory 1"),
        ([{"title": "a", "access_count": 10**30}], "memory 1: access_count '1000000"),
        ('[{"title": "a", "access_count": 1e400}]', "no JSON"),
        ([{"title": "a", "access_count": float("inf")}], "memory 1: access_count 'inf' is no count"),
        ([{"title": "a", "accessCount": -1}], "memory 1: access_count '-1' is no count"),
        ([{"title": "a", "access_count": [1]}], "memory 1: access_count"),
        ([{"title": "a", "created_at": "0001-01-01T00:00:00+14:00"}], "memory 1: created_at"),
        ([{"title": "a", "last_accessed": "9999-12-31T23:59:59-12:00"}], "memory 1: last_accessed"),
    ],
)
def test_import_that_is_invalid_names_the_entry_and_stores_nothing(tmp_path: Path, data: Any, why: str) -> None:
    with pytest.raises(InvalidMemory, match=why):
        using(tmp_path, lambda cortex: cortex.import_memories(data))
    assert using(tmp_path, lambda cortex: cortex.export_memories()) == []


def test_forget_is_a_dry_run_first_and_keeps_critical_memories(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        await remembered(cortex, "plain", tags=["x"])
        await remembered(cortex, "result", tags=["x", "result"])
        await remembered(cortex, "critical", tags=["x"], importance="critical")
        dry = await cortex.forget(tags=["x"])
        assert len(await cortex.export_memories()) == 3
        wet = await cortex.forget(tags=["x"], dry_run=False)
        by_id = [(await cortex.forget(id=number, dry_run=False))["forgotten"] for number in (1, 2, 3)]
        return dry, wet, by_id, [m["title"] for m in await cortex.export_memories()]

    dry, wet, by_id, left = using(tmp_path, work)
    assert (dry["would_forget"], dry["protected"], dry["forgotten"]) == (1, 2, 0)
    assert [memory["title"] for memory in dry["memories"]] == ["plain"]
    assert (wet["forgotten"], by_id, left) == (1, [0, 0, 0], ["result", "critical"])


def test_forgetting_takes_words_age_and_salience(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        await cortex.import_memories([{"title": "old", "content": "red fish", "created_at": "2020-01-01"}])
        await cortex.remember("new", "red bird", importance="low")
        hows: list[dict[str, Any]] = [
            {"query": "red"},
            {"query": "red fish"},
            {"query": "re"},
            {"older_than": 30},
            {"below_salience": 0.01},
            {"below_salience": 0.4},
            {"id": 1},
            {"id": 1, "tags": ["none"]},
        ]
        return [[m["title"] for m in (await cortex.forget(**how))["memories"]] for how in hows]

    assert using(tmp_path, work) == [["old", "new"], ["old"], [], ["old"], ["old"], ["old", "new"], ["old"], []]


def test_forgetting_every_memory_at_once_has_to_be_meant(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        for title in ("a", "b"):
            await cortex.remember(title, title)
        await cortex.remember("kept", "kept", importance="critical")
        told = (await cortex.forget(below_salience=1), await cortex.forget(tags=["x"]), await cortex.forget(id=1))
        dry = [each["everything"] for each in told]
        for age, salience in ((None, 1.0), (0.0, None), (0.0, 1.0)):
            with pytest.raises(InvalidMemory, match="these are all 2 memories that may be forgotten"):
                await cortex.forget(older_than=age, below_salience=salience, dry_run=False)
        gone = await cortex.forget(below_salience=1.0, dry_run=False, everything=True)
        return dry, gone["forgotten"], gone["protected"]

    assert using(tmp_path, work) == ([True, False, False], 2, 0)


def test_consolidate_merges_equal_memories_on_request_only(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        for tags, key, importance in ((["a"], None, "normal"), (["b"], None, "normal"), (["c"], "k", "normal")):
            await cortex.remember("same", "text", tags=tags, key=key, importance=importance)
        await cortex.remember("same", "text", importance="critical")
        await cortex.remember("same", "another text")
        dry = await cortex.consolidate()
        assert len(await cortex.export_memories()) == 5
        wet = await cortex.consolidate(dry_run=False)
        return dry, wet, await cortex.export_memories()

    dry, wet, left = using(tmp_path, work)
    assert (dry["merged"], wet["merged"], len(left)) == (0, 1, 4)
    assert left[0]["tags"] == ["a", "b"]
    with Store(tmp_path / "memory.db") as store:
        assert store.check() == "ok"
        assert len(store.select(Filter(tags=("b",)))) == 1


def test_stats_count_by_everything(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        await remembered(cortex, "a", "b", tags=["x"], project="p")
        await remembered(cortex, "c", importance="high")
        return await cortex.memory_stats(), await cortex.memory_stats("p")

    every, mine = using(tmp_path, work)
    assert (every["total"], mine["total"]) == (3, 2)
    assert every["by_project"] == {"p": 2, "": 1}
    assert every["by_importance"] == {"normal": 2, "high": 1}
    assert every["common_tags"] == {"x": 2}
    assert every["bytes"] > 0


def test_session_begins_with_context_and_leaves_a_summary(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        await cortex.remember("the layout", "tracker imports nothing", importance="critical", project="p")
        await cortex.remember("elsewhere", "not of this project", project="q")
        begun = await cortex.start_session("p")
        ended = await cortex.end_session(begun["session_id"], "it went well")
        return begun, await cortex.get_memory(ended["memory_id"]), await cortex.get_context(project="p", format="raw")

    begun, summary, raw = using(tmp_path, work)
    assert "the layout" in begun["context"]
    assert "elsewhere" not in begun["context"]
    assert (summary["content"], summary["key"], summary["project"]) == ("it went well", "session:1", "p")
    assert [memory["title"] for memory in json.loads(raw)["Important"]] == ["the layout", "Session 1"]


def test_event_loop_runs_on_while_the_disk_works(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        for number in range(20):
            await cortex.remember(f"m{number}", "c" * 10_000)
        ticking.cancel()
        return ticks, len(await cortex.export_memories())

    ticks, stored = using(tmp_path, work)
    assert stored == 20
    assert ticks >= 20


def test_secrets_stay_out_of_title_content_tags_and_metadata(tmp_path: Path) -> None:
    async def work() -> Any:
        async with open_cortex(tmp_path / "memory.db", environ={"MY_API_KEY": "v3ry-own"}) as cortex:
            await cortex.remember("v3ry-own", "v3ry-own", tags=["v3ry-own"], metadata={"a": ["v3ry-own"]}, key="k")

    asyncio.run(work())
    files = [path.read_bytes() for path in tmp_path.iterdir()]
    assert files
    assert not any(b"v3ry-own" in data for data in files)


def _experiment(task: int, told: str, *, success: bool = False, run: str = "r1", **more: Any) -> dict[str, Any]:
    """A memory of an experiment as the sink writes it, as an entry of an import."""
    program = f"import re\n\ndef solveTask{task}(x):\n    '''{told}\n    >>> solveTask(1)\n    tomato\n    '''\n"
    asked = f"Write it.\n\n```python\n{program}```"
    metadata = {"problem_id": f"T/{task}", "suite": "s", "success": success, "benchmark_run_id": run, **more}
    content = f"T/{task} · zero-shot · m: ended\n\nAsked:\n{asked}\n\nAttempts:\n1. failed (assertion)\n\nCost $0.0"
    return {"title": f"Experiment of {run}", "content": content, "tags": ["result", run], "metadata": metadata}


def found(cortex: Cortex, words: str, **how: Any) -> Awaitable[list[str]]:
    async def asked() -> list[str]:
        return [each["metadata"].get("problem_id") or each["title"] for each in await cortex.recall(words, **how)]

    return asked()


def test_recall_collapses_repeats_to_the_newest_with_the_best(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        for run in range(12):
            entries = [
                _experiment(task, f"count walrus {task}", success=run == task, run=f"r{run}") for task in range(4)
            ]
            await cortex.import_memories([{**each, "created_at": f"2026-01-{run + 1:02}"} for each in entries])
        return await cortex.recall("walrus", limit=10)

    hits = using(tmp_path, work)
    assert sorted(hit["metadata"]["problem_id"] for hit in hits) == ["T/0", "T/1", "T/2", "T/3"]
    assert {(hit["tried"], hit["passed"]) for hit in hits} == {(12, 1)}
    assert {hit["metadata"]["benchmark_run_id"] for hit in hits} == {"r11"}
    best = {hit["metadata"]["problem_id"]: hit["best"] for hit in hits}
    assert best == {f"T/{task}": 4 * task + task + 1 for task in range(4)}  # the run that passed


def test_recall_knows_statements_stems_and_parts_of_identifiers_but_no_examples(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        statements = ["tell palindromes", "the running maximum", "sum of primes"]
        entries = [_experiment(n, told, concepts=["math.gcd"] if n == 2 else []) for n, told in enumerate(statements)]
        await cortex.import_memories(entries)
        await cortex.remember("isLeapYear", "a note")
        queries = ("palindrome", "maximums", "solve task 1", "leap", "gcd", "tomato", "T/2 palindromes", "\ud800")
        return [await found(cortex, query) for query in queries]

    stem, plural, parts, hump, concept, example, name, half = using(tmp_path, work)
    assert (stem, plural, hump, concept) == (["T/0"], ["T/1"], ["isLeapYear"], ["T/2"])
    assert (example, half) == ([], [])
    assert parts[0] == "T/1"
    assert name[:2] == ["T/2", "T/0"]


def test_recall_narrows_before_it_ranks(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        for task in range(40):
            more = {"model": f"m{task % 2}", "arm": "a", "solver": "s", "cause": "assertion" if task < 20 else ""}
            entry = _experiment(task, "walrus", success=task >= 20, run=f"r{task % 4}", **more)
            await cortex.import_memories([{**entry, "created_at": f"2026-01-{task % 20 + 1:02}"}])
        await cortex.remember("a note of a walrus", "walrus", project="p")
        hows: list[dict[str, Any]] = [
            {"task": "T/39"},
            {"model": "m1", "outcome": "passed", "run": "r3"},
            {"cause": "assertion", "since": "2026-01-20"},
            {"outcome": "failed", "until": "2026-01-02"},
            {"suite": "none"},
            {"tags": ["nowhere"]},
            {"project": "p", "include_global": False},
            {"arm": "a", "solver": "other"},
        ]
        return [sorted(await found(cortex, "walrus", limit=10, **how)) for how in hows]

    one, three, late, early, *none, note, odd = using(tmp_path, work)
    assert (one, late, early, none, odd) == (["T/39"], ["T/19"], ["T/0"], [[], []], [])
    assert three == ["T/23", "T/27", "T/31", "T/35", "T/39"]
    assert note == ["a note of a walrus"]
    with pytest.raises(InvalidMemory, match="outcome: invalid value 'won'"):
        using(tmp_path, lambda cortex: cortex.recall("x", outcome="won"))


def test_recall_tries_the_nearest_spelling_and_says_so(tmp_path: Path) -> None:
    async def work(cortex: Cortex) -> Any:
        await cortex.import_memories([_experiment(0, "palindromes"), _experiment(1, "heron"), _experiment(2, "median")])
        return [
            await cortex.recall(words, explain=True) for words in ("palyndrome of it", "her", "xylophone", "medain")
        ]

    (right,), short, nothing, (swapped,) = using(tmp_path, work)
    assert right["metadata"]["problem_id"] == "T/0"
    assert right["note"] == "nothing holds palyndrome: palindromes was looked for instead"
    assert right["why"]["words"]["palindromes"] == ["about"]
    assert swapped["metadata"]["problem_id"] == "T/2"
    assert (short, nothing) == ([], [])


def test_run_is_found_by_its_digest(tmp_path: Path) -> None:
    results = [{"problem_id": f"T/{n}", "success": n > 0} for n in range(3)]
    arm = {"summary": {"total_problems": 3, "successes": 2, "causes": {"timeout": 1}}, "results": results}
    summary = {"arms": {"iterative": arm}, "results": ["walrus"] * 1000}

    async def work(cortex: Cortex) -> Any:
        metadata = {"benchmark_run_id": "bench_1", "mode": "iterative", "model": "m"}
        tags = ["benchmark_run", "bench_1"]
        await cortex.remember("Benchmark Run bench_1", json.dumps(summary), tags=tags, metadata=metadata)
        return [[len(each["content"]) for each in await cortex.recall(words)] for words in ("timeout", "T/0", "walrus")]

    assert using(tmp_path, work) == [[len(json.dumps(summary))], [len(json.dumps(summary))], []]


def test_lessons_are_of_the_tasks_that_ask_most_nearly_the_same(tmp_path: Path) -> None:
    statements = [
        "reverse a list of words",
        "longest palindrome of a text",
        "sum of primes",
        "words that are palindromes",
    ]

    def learnt(task: int, told: str, lesson: str, **more: Any) -> dict[str, Any]:
        return _experiment(task, told, lesson=lesson, lesson_cause="assertion", simulated=False, **more)

    async def work(cortex: Cortex) -> Any:
        await cortex.import_memories([learnt(n, told, f"lesson {n}") for n, told in enumerate(statements)])
        await cortex.import_memories([learnt(1, statements[1], f"again {n}", run=f"r{n}") for n in range(5)])
        until = await cortex.snapshot()

        async def lessons(statement: str, task: str = "T/9", **how: Any) -> list[str]:
            told = {"same_task": False, "until": until, "statement": statement, **how}
            return await cortex.recall_lessons(task, "assertion", **told)

        asked = "def f(x):\n    '''Whether a word is a palindrome.\n    >>> f('sum of primes in a list')\n    '''"
        before = [await lessons(asked), await lessons("primes"), await lessons(""), await lessons(asked, "T/3")]
        await cortex.import_memories([learnt(n, "palindrome", f"later {n}") for n in range(10, 40)])
        after = [await lessons(asked), await lessons("primes"), await lessons(""), await lessons(asked, "T/3")]
        same = await lessons(asked, "T/1", same_task=True)
        return before, after, same

    before, after, same = using(tmp_path, work)
    near, primes, newest, other = before
    assert near[:2] == ["lesson 3", "again 4"]
    assert primes[0] == "lesson 2"
    assert newest == ["again 4", "lesson 3", "lesson 2"]
    assert other[0] == "again 4"
    assert before == after
    assert same == ["again 4", "again 3", "again 2"]


def test_recall_takes_any_metadata_of_an_import(tmp_path: Path) -> None:
    odd: dict[str, Any] = {"suite": ["x"], "model": {"a": 1}, "cause": 5, "concepts": "none", "success": "yes"}

    async def work(cortex: Cortex) -> Any:
        for n, score in enumerate(("high", 0.5, None, 0.75, [1])):
            entry = _experiment(0, "walrus", run=f"r{n}", arm=f"a{n}", score=score)
            await cortex.import_memories([entry])
        await cortex.import_memories([{**entry, "title": "odd", "metadata": {**odd, "problem_id": {"a": 1}}}])
        return await cortex.recall("walrus"), await cortex.recall("walrus", task="T/0")

    hits, (narrowed,) = using(tmp_path, work)
    assert len(hits) == 2
    assert (narrowed["id"], narrowed["tried"], narrowed["best"]) == (5, 5, 4)
