"""The newest memories, which the indexes by tag and of full text don't know yet: found all the same, and never lost."""

from __future__ import annotations

import multiprocessing
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koderz_tracker.memory import Draft, database
from koderz_tracker.memory import store as writing
from koderz_tracker.memory.database import migrate
from koderz_tracker.memory.maintenance import stats
from koderz_tracker.memory.search import search
from koderz_tracker.memory.store import Filter, Store

INDEXED = "SELECT count(*) FROM memory_tags"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "memory.db") as opened:
        yield opened


def note(title: str, **more: Any) -> Draft:
    return Draft(**{"title": title, "content": "what it says", **more})


def titles(store: Store, *tags: str, **more: Any) -> list[str]:
    return [memory.title for memory in store.select(Filter(tags=tags), **more)]


def recalled(store: Store, words: str, **more: Any) -> list[str]:
    return [found.memory.title for found in search(store, words, Filter(**more), limit=10)]


def test_tags_lead_to_the_newest_memories_too(store: Store) -> None:
    store.remember([note("1", tags=["x", "y"]), note("2", tags=["x"])])
    store.index_newest()
    store.remember([note("3", tags=["y", "x"]), note("4", tags=["new", "x"])])

    assert store.rows(INDEXED) == [(3,)]
    assert titles(store, "x") == ["1", "2", "3", "4"]
    assert titles(store, "x", newest_first=True) == ["4", "3", "2", "1"]
    assert titles(store, "x", limit=3) == ["1", "2", "3"]
    assert titles(store, "x", limit=3, newest_first=True) == ["4", "3", "2"]
    assert titles(store, "x", "y") == ["1", "3"]
    assert titles(store, "new") == ["4"]
    assert titles(store, "nowhere") == []
    assert store.check() == "ok"


def test_tags_are_told_apart_whatever_they_are_written_with(store: Store) -> None:
    odd = ["ü", 'say "x"', "a\\", "\0", "b,c"]
    store.remember([note("odd", tags=odd), note("two", tags=["a", "b"])])

    assert [titles(store, tag) for tag in odd] == [["odd"]] * 5
    assert [titles(store, tag) for tag in (",", "x", '","', "c")] == [[]] * 4


def test_indexes_never_lag_far_behind(store: Store) -> None:
    for number in range(writing.LAG + 5):
        store.remember([note(str(number), tags=["x"])])

    assert len(store.unindexed(Filter())) == 4
    assert store.rows(INDEXED) == [(writing.LAG + 1,)]
    assert len(titles(store, "x")) == writing.LAG + 5
    assert store.check() == "ok"


def test_index_takes_a_large_batch_in_parts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "LAG", 2)
    monkeypatch.setattr(writing, "AT_ONCE", 4)
    changed = [note("walrus", key="1", tags=["y"]), note("walrus", key="12", tags=["y"])]
    store.remember([*(note("horse", key=str(number), tags=["x"]) for number in range(13)), *changed])

    assert len(titles(store, "x")) == 11
    assert titles(store, "y") == ["walrus", "walrus"]
    assert recalled(store, "walrus") == ["walrus", "walrus"]
    assert store.check() == "ok"


def test_recall_lets_the_indexes_catch_up(store: Store) -> None:
    store.remember([note("a walrus", tags=["x"]), note("a horse")])

    assert recalled(store, "walrus") == ["a walrus"]
    assert store.unindexed(Filter()) == []
    assert store.rows(INDEXED) == [(1,)]


def test_counts_of_tags_are_those_of_all_memories(store: Store) -> None:
    store.remember([note("a", tags=["x", "y"]), note("b", tags=["x"])])

    assert stats(store)["common_tags"] == {"x": 2, "y": 1}


@pytest.mark.parametrize("why", ["locked", "read-only"])
def test_recall_finds_the_newest_in_a_read_only_store(store: Store, why: str) -> None:
    store.remember([note("a walrus, indexed"), note("a horse")])
    store.index_newest()
    store.remember([note("a walrus, new", tags=["x"]), note("a walrus of others", project="other"), note("a cow")])
    holder = sqlite3.connect(store.path, isolation_level=None)
    if why == "locked":
        holder.execute("BEGIN IMMEDIATE")
    else:
        store.run("PRAGMA query_only = ON")

    assert sorted(recalled(store, "walrus")) == ["a walrus of others", "a walrus, indexed", "a walrus, new"]
    assert recalled(store, "walrus", project="other") == ["a walrus of others"]
    assert recalled(store, "walrus", tags=["x"]) == ["a walrus, new"]
    assert recalled(store, "zebra") == []
    assert len(store.unindexed(Filter())) == 3
    holder.close()


def test_memory_changes_before_and_after_it_is_indexed(store: Store) -> None:
    store.remember([note("walrus", key="old", tags=["x"])])
    store.index_newest()
    for key in ("old", "new"):
        store.remember([note("walrus", key=key, tags=["x"])])
        store.remember([note("horse", key=key, tags=["y"])])

    assert titles(store, "x") == []
    assert titles(store, "y") == ["horse", "horse"]
    assert recalled(store, "walrus") == []
    store.remember([note("horse", key="newest", tags=["y"])])
    assert store.delete(store.select(Filter())) == 3
    assert recalled(store, "horse walrus") == []
    assert store.rows("SELECT count(*) FROM tags") == [(0,)]
    assert store.check() == "ok"


def test_memory_id_is_never_given_again(store: Store) -> None:
    (first,) = store.remember([note("walrus")])
    store.index_newest()
    store.delete(store.select(Filter()))
    (second,) = store.remember([note("horse")])

    assert second > first
    assert recalled(store, "horse walrus") == ["horse"]
    assert store.check() == "ok"


def _older(path: Path, memories: int) -> None:
    """A store of the version before that of things, with so many memories of two tasks, a note and a run's."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE VIRTUAL TABLE memory_text USING fts5 (title, tags, content, content = '')")
    migrate(connection, to=4)
    for number in range(memories):
        metadata = f'{{"problem_id": "T/{number % 2}", "suite": "s", "success": {["true", "false"][number % 3 > 0]}}}'
        content = (
            f"T/{number % 2}: passed\n\nAsked:\nFind the {['walrus', 'horse'][number % 2]}.\n\nAttempts:\n1. passed"
        )
        told = (f"k{number}", f"Experiment {number}", content, "learning", "episodic", '["result"]', "normal", metadata)
        times = (f"2026-01-01T00:00:00.{number:06}", f"2026-01-01T00:00:00.{number:06}", None, None)
        connection.execute(database.INSERT, (*told, None, 0.5, 0, *times))
    connection.execute("INSERT INTO tags (name, n) VALUES ('result', ?)", (memories,))
    connection.execute("INSERT INTO memory_tags SELECT 1, id FROM memories")
    connection.execute("UPDATE index_mark SET last_id = ?", (memories,))
    connection.close()


def test_store_of_an_older_version_is_taken_over_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "BATCH", 100)
    _older(tmp_path / "memory.db", 350)
    told: list[tuple[int, int]] = []

    for _ in range(2):
        with Store(tmp_path / "memory.db", progress=lambda *each: told.append(each)) as store:
            (hit,) = search(store, "walrus", Filter(), limit=10)
            assert (hit.memory.title, hit.tried, hit.passed) == ("Experiment 348", 175, 59)
            assert len(titles(store, "result")) == 350
            assert store.check() == "ok"
    assert told == [(0, 350), (100, 350), (200, 350), (300, 350)]


def test_many_processes_take_a_store_over_together(tmp_path: Path) -> None:
    _older(tmp_path / "memory.db", 1500)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_open_and_write, args=(tmp_path / "memory.db", worker)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert [worker.exitcode for worker in workers] == [0] * 4
    with Store(tmp_path / "memory.db") as store:
        assert [hit.tried for hit in search(store, "horse walrus", Filter(), limit=10)] == [750, 750]
        assert sorted(recalled(store, "mouse")) == [f"mouse {worker}" for worker in range(4)]
        assert store.check() == "ok"


def _open_and_write(path: Path, worker: int) -> None:
    writing.BATCH = 100
    with Store(path) as store:
        store.remember([note(f"mouse {worker}", tags=["mouse"])])


def test_taking_over_leaves_a_locked_store_to_others(tmp_path: Path) -> None:
    _older(tmp_path / "memory.db", 300)
    holder = sqlite3.connect(tmp_path / "memory.db", isolation_level=None)
    migrate(holder)
    holder.execute("BEGIN IMMEDIATE")

    with Store(tmp_path / "memory.db", timeout=0.1) as store:
        assert len(recalled(store, "walrus")) == 1
        assert len(store.unindexed(Filter())) == 300
    holder.close()


def _killed(work: Any, *arguments: Any) -> None:
    """What a process does that is killed in the middle of it."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 9


def test_crash_loses_no_acknowledged_memory(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    _killed(_remember_and_die, path)

    with Store(path) as store:
        assert titles(store, "x") == ["walrus 0", "walrus 1", "walrus 2"]
        assert len(recalled(store, "walrus")) == 3
        assert store.check() == "ok"


def _remember_and_die(path: Path) -> None:
    store = Store(path)
    for number in range(3):
        store.remember([note(f"walrus {number}", tags=["x"])])
    os._exit(9)


def test_crash_while_indexing_leaves_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    _killed(_die_while_catching_up, path)

    with Store(path) as store:
        assert len(store.unindexed(Filter())) == 5
        assert store.rows(INDEXED) == [(0,)]
        assert len(recalled(store, "walrus")) == 5
        assert store.unindexed(Filter()) == []
        assert store.check() == "ok"


def _die_while_catching_up(path: Path) -> None:
    store = Store(path)
    for number in range(5):
        store.remember([note(f"walrus {number}", tags=["x"])])
    writing.Writer._link = lambda writer: os._exit(9)  # type: ignore[method-assign, assignment]
    store.index_newest()


@pytest.mark.slow
def test_concurrent_processes_leave_the_store_sound(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_work, args=(path, seed)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert [worker.exitcode for worker in workers] == [0] * 4
    with Store(path) as store:
        store.index_newest()
        every = store.select(Filter())
        assert {memory.title for memory in every if memory.key} == {f"horse {seed}/19" for seed in range(4)}
        counts = Counter(tag for memory in every for tag in memory.tags)
        assert dict(store.rows("SELECT name, n FROM tags")) == dict(counts)
        for word in ("walrus", "horse"):
            (hits,) = store.rows("SELECT count(*) FROM thing_text WHERE thing_text MATCH ?", (word,))
            assert hits == (sum(word in memory.title for memory in every),)
        assert store.check() == "ok"


def _work(path: Path, seed: int) -> None:
    writing.LAG = 7
    chance = random.Random(seed)
    with Store(path) as store:
        for number in range(20):
            store.remember([note(f"walrus {seed}/{number}", tags=["shared", f"worker {seed}", str(number % 3)])])
            store.remember([note(f"horse {seed}/{number}", key=f"key {seed}", tags=["shared", str(number % 2)])])
            mine = store.select(Filter(tags=(f"worker {seed}",)))
            if chance.random() < 0.4:
                store.delete(chance.sample(mine, 1))
            if chance.random() < 0.4:
                assert recalled(store, "walrus horse")
