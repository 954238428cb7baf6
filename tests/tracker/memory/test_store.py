"""The store: tags with a kept count, upserts, migrations, many writers, and files that are not well."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koderz_tracker.memory import Draft, InvalidMemory, database
from koderz_tracker.memory import store as writing
from koderz_tracker.memory.database import StoreDamaged, StoreDown, migrate
from koderz_tracker.memory.maintenance import rebuild
from koderz_tracker.memory.search import search
from koderz_tracker.memory.store import Filter, Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "memory.db") as opened:
        yield opened


def note(title: str = "a note", **more: Any) -> Draft:
    return Draft(**{"title": title, "content": "what it says", **more})


def titles(store: Store, *tags: str, **more: Any) -> list[str]:
    return [memory.title for memory in store.select(Filter(tags=tags, **more))]


def counts(store: Store) -> dict[str, int]:
    store.index_newest()
    return dict(store.rows("SELECT name, n FROM tags"))


def test_memory_is_read_back_as_stored(store: Store) -> None:
    draft = note(
        "Größe\0 \ud800",
        content="x" * 60_000,
        category="error",
        type="episodic",
        tags=["b", "a", "b"],
        importance="high",
        metadata={"deep": {"list": [1, None, "é"]}},
        project="p",
    )
    (number,) = store.remember([draft])

    memory = store.get(number)

    assert memory is not None
    assert memory.title == "Größe\0 \\ud800"  # half a character is no text, but isn't lost either
    assert (len(memory.content), memory.category, memory.type, memory.project) == (60_000, "error", "episodic", "p")
    assert (memory.tags, memory.importance, memory.salience) == (["b", "a"], "high", 0.8)
    assert memory.metadata == {"deep": {"list": [1, None, "é"]}}
    assert store.check() == "ok"


def test_tags_must_all_match(store: Store) -> None:
    store.remember([note("1", tags=["x", "y"]), note("2", tags=["y", "z"]), note("3", tags=["x", "y", "z"])])

    assert titles(store, "y") == ["1", "2", "3"]
    assert titles(store, "x", "z") == ["3"]
    assert titles(store, "x", "nowhere") == []
    assert titles(store) == ["1", "2", "3"]


def test_tag_query_walks_the_rarest_tag(store: Store) -> None:
    store.remember([note(str(i), tags=["often", *(["seldom"] if i == 7 else [])]) for i in range(50)])
    store.index_newest()
    seen: list[str] = []
    store._connection.set_trace_callback(seen.append)

    assert titles(store, "often", "seldom") == titles(store, "seldom", "often") == ["7"]

    ids = dict(store.rows("SELECT name, id FROM tags"))
    queries = [text for text in seen if "CROSS JOIN memories" in text]
    assert len(queries) == 2
    assert all(f"t.tag_id = {ids['seldom']}" in text for text in queries)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"category": "joke"}, "category: invalid value 'joke'; choose from architecture"),
        ({"type": "forever"}, "type: invalid value 'forever'"),
        ({"importance": "most"}, "importance: invalid value 'most'; choose from low, normal, high, critical"),
        ({"tags": "one"}, "tags are a list"),
        ({"tags": [""]}, "tags are a list"),
        ({"title": " "}, "needs a title"),
        ({"metadata": {"a": object()}}, "metadata has to be a JSON object"),
        ({"created_at": "yesterday"}, "created_at 'yesterday'"),
    ],
)
def test_batch_with_an_invalid_memory_is_refused_whole(store: Store, wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidMemory, match=why):
        store.remember([note("fine"), note(**wrong)])

    assert titles(store) == []


def test_key_is_updated_and_never_reverted(store: Store) -> None:
    first = note("one", key="k", tags=["a", "b"], created_at="2026-01-01T00:00:00", updated_at="2026-01-01T00:00:00")
    later = note("two", key="k", tags=["b", "c"], created_at="2026-01-02T00:00:00", updated_at="2026-01-02T00:00:00")
    for batch in ([first], [later], [first], [first, later], [later, first]):
        store.remember(batch)

    (memory,) = store.select(Filter())
    assert (memory.title, memory.tags, memory.updated_at) == ("two", ["b", "c"], "2026-01-02T00:00:00")
    assert counts(store) == {"b": 1, "c": 1}


def test_put_of_the_same_memory_changes_nothing(store: Store) -> None:
    store.remember([note("one", key="k", tags=["a"])])
    before = store.select(Filter())

    store.remember([note("one", key="k", tags=["a"])])

    assert store.select(Filter()) == before


WORDS = st.sampled_from(["a", "b", "c", "d e", "ü"])
PUTS = st.tuples(
    st.sampled_from([None, "k1", "k2", "k3"]), st.lists(WORDS, max_size=4), st.sampled_from(["red", "green", "blue"])
)
STEPS = st.lists(st.one_of(st.lists(PUTS, min_size=1, max_size=4), st.integers(0, 6)), max_size=12)


@pytest.mark.slow
@settings(max_examples=60)
@given(STEPS, st.sampled_from([0, 2, 256]))
def test_counts_tags_and_text_agree_after_any_upserts_and_deletions(steps: list[Any], lag: int) -> None:
    with (
        patch.object(writing, "LAG", lag),
        patch.object(writing, "AT_ONCE", lag + 1),
        tempfile.TemporaryDirectory() as folder,
        Store(Path(folder) / "memory.db") as store,
    ):
        expected: dict[Any, tuple[list[str], str]] = {}
        fresh = 0
        for step in steps:
            if isinstance(step, int):  # the memory at that place is forgotten
                gone = store.select(Filter())[step : step + 1]
                store.delete(gone)
                for memory in gone:
                    del expected[memory.key or memory.id]
                continue
            numbers = store.remember([note(word, key=key, tags=tags) for key, tags, word in step])
            for number, (key, tags, word) in zip(numbers, step, strict=True):
                fresh += key is None
                expected[key or number] = (list(dict.fromkeys(tags)), word)

        found = {memory.key or memory.id: (memory.tags, memory.title) for memory in store.select(Filter())}
        assert found == expected
        for tag in ("a", "d e"):
            marked = {memory.key or memory.id for memory in store.select(Filter(tags=(tag,)))}
            assert marked == {which for which, (tags, _) in expected.items() if tag in tags}
        assert counts(store) == dict(Counter(tag for tags, _ in expected.values() for tag in tags))
        for color in ("red", "green", "blue"):
            hits = store.rows("SELECT count(*) FROM thing_text WHERE thing_text MATCH ?", (f"about:{color}",))
            assert hits == [(sum(word == color for _, word in expected.values()),)]
        assert store.check() == "ok"


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_migration_keeps_what_an_older_store_holds(tmp_path: Path, version: int) -> None:
    path = tmp_path / "memory.db"
    _store_of_version(path, version)

    with Store(path) as store:
        assert store.rows("PRAGMA user_version") == [(len(database.MIGRATIONS),)]
        assert titles(store, "old") == ["an old title"]
        store.remember([note("new", key="k", tags=["old", "new"])])
        store.index_newest()
        assert store.rows("SELECT rowid FROM thing_text WHERE thing_text MATCH 'content'") == [(1,)]
        assert store.delete(store.select(Filter(tags=("old",)))) == 2
        assert store.check() == "ok"
        assert store.rows("SELECT rowid FROM thing_text WHERE thing_text MATCH 'content OR new'") == []
        assert [store.rows(f"SELECT count(*) FROM {table}") for table in ("things", "cells", "trials")] == [[(0,)]] * 3


def _store_of_version(path: Path, version: int) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, to=version)
    tags = '["old","tag"]'
    values = (None, "an old title", "old content", "note", "long_term", tags, "normal", "{}", None, 0.5, 0)
    connection.execute(database.INSERT, (*values, "2025-01-01T00:00:00", "2025-01-01T00:00:00", None, 7))
    for number, name in enumerate(("old", "tag"), 1):
        connection.execute("INSERT INTO tags (name, n) VALUES (?, 1)", (name,))
        connection.execute(database.LINK, (number, 1))
    if version >= 2:
        connection.execute("CREATE VIRTUAL TABLE memory_text USING fts5 (title, tags, content, content = '')")
        text = (
            "INSERT INTO memory_text (rowid, title, tags, content) VALUES (1, 'an old title', 'old tag', 'old content')"
        )
        connection.execute(text)
    connection.close()


@pytest.mark.slow
def test_eight_processes_at_once_make_the_store_and_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(tmp_path / "new" / "memory.db", n)) for n in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert [writer.exitcode for writer in writers] == [0] * 8
    with Store(tmp_path / "new" / "memory.db") as store:
        assert len(titles(store, "shared")) == 8 * 12 + 1  # the one with a key was written by all
        assert counts(store)["shared"] == 8 * 12 + 1
        assert store.check() == "ok"


def _write(path: Path, writer: int) -> None:
    for number in range(12):
        with Store(path) as store:
            store.remember([note(f"{writer}/{number}", tags=["shared", f"writer {writer}"])])
            store.remember([note("common", key="common", content=f"{writer}/{number}", tags=["shared"])])


def test_locked_store_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    Store(path).close()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with Store(path, timeout=0.1) as store:
        assert titles(store) == []  # readers don't wait
        with pytest.raises(StoreDown, match="is locked by another process"):
            store.remember([note()])
        store.touch(store.select(Filter()))  # a count isn't worth waiting for
    holder.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_store_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    Store(path).close()
    path.chmod(0o444)
    with Store(path) as store, pytest.raises(StoreDown, match="can't be written"):
        store.remember([note()])


def test_folder_in_place_of_the_store_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "memory.db").mkdir()
    with pytest.raises(StoreDown, match="can't be written"):
        Store(tmp_path / "memory.db")
    (tmp_path / "file").touch()
    with pytest.raises(StoreDown, match="can't be made"):
        Store(tmp_path / "file" / "memory.db")


def test_foreign_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()

    with pytest.raises(StoreDown, match="another program"):
        Store(path)

    assert path.read_bytes() == before


def test_newer_store_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    with Store(path) as store:
        store.run("PRAGMA user_version = 99")
    with pytest.raises(StoreDown, match="newer koderz"):
        Store(path)


@pytest.mark.parametrize("damage", ["not a database", "pages"])
def test_rebuild_puts_a_damaged_store_aside_and_keeps_its_memories(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "memory.db"
    with Store(path) as store:
        store.remember([note(f"note {i}", content="word " * 500, tags=["mine"]) for i in range(200)])
    data = bytearray(path.read_bytes())
    if damage == "pages":
        data[len(data) // 2 : len(data) // 2 + 8192] = os.urandom(8192)
    else:
        data[:100] = b"this is no database at all".ljust(100)
    path.write_bytes(data)

    with pytest.raises(StoreDamaged, match=r"koderz sync --rebuild"):
        _look_at_everything(path)
    aside = rebuild(path, {})

    assert aside is not None
    assert aside.name.startswith("memory.db.corrupt-")
    assert aside.read_bytes() == data
    with Store(path) as store:
        assert store.check() == "ok"
        assert len(titles(store, "mine")) >= (100 if damage == "pages" else 0)
    assert rebuild(path, {}) is None  # there is nothing to mend any more


def test_rebuild_mends_full_text_that_is_damaged_within_sound_pages(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    with Store(path) as store:
        store.remember([note(f"walrus {i}", content="word " * 50) for i in range(20)])
        store.index_newest()
        store.run("UPDATE thing_text_data SET block = zeroblob(40) WHERE id > 10")
    with Store(path) as store, pytest.raises(StoreDamaged, match="koderz sync --rebuild"):
        store.check()

    assert rebuild(path, {}) is not None
    with Store(path) as store:
        assert len(search(store, "walrus", Filter(), limit=3)) == 3
        assert store.check() == "ok"


def _look_at_everything(path: Path) -> None:
    with Store(path) as store:
        store.select(Filter())
        if (found := store.check()) != "ok":
            raise StoreDamaged(path, found)


def test_rebuild_skips_a_sound_or_missing_store(store: Store, tmp_path: Path) -> None:
    store.remember([note()])
    assert rebuild(store.path, {}) is None
    assert rebuild(tmp_path / "none.db", {}) is None
    assert len(titles(store)) == 1


@pytest.mark.slow
def test_tag_counts_of_a_large_store_are_right(tmp_path: Path) -> None:
    with Store(tmp_path / "memory.db") as store:
        for start in range(0, 30_000, 5000):
            numbers = range(start, start + 5000)
            store.remember([note(f"n{i}", key=f"k{i}", tags=["all", f"run {i // 164}"]) for i in numbers])

        assert titles(store, "all", "run 3") == [f"n{i}" for i in range(3 * 164, 4 * 164)]
        assert counts(store)["all"] == 30_000
        assert store.check() == "ok"
