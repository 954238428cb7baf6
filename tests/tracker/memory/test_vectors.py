"""Vectors: found by meaning, made once for each thing and model, gone with what they are of, and never in the way."""

from __future__ import annotations

import asyncio
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from koderz_tracker.errors import KoderzError
from koderz_tracker.memory import Cortex, Draft, database, open_cortex, vectors
from koderz_tracker.memory.database import migrate
from koderz_tracker.memory.maintenance import forget, rebuild
from koderz_tracker.memory.search import SearchHit, fused, search
from koderz_tracker.memory.store import Filter, Store
from koderz_tracker.memory.vectors import NoVectors, StaticModel, Vectors, embedder_for

MEANINGS = (("dog", "hound", "puppy"), ("car", "automobile"), ("sum", "total", "add"))

HOUND = "On a hound\nhound\n-"  # what its vector is made of: title, tags, content


class Fake:
    """A model to which words of a row of MEANINGS mean the same. It counts the texts that it is asked for."""

    def __init__(self, name: str = "fake 1", *, scale: float = 7.0, more: int = 0) -> None:
        self.name, self.scale, self.more, self.at_once = name, scale, more, 256
        self.asked: list[str] = []
        self.answer: Any = None  # in place of vectors

    def embed(self, texts: Sequence[str]) -> Any:
        self.asked += texts
        if isinstance(self.answer, Exception):
            raise self.answer
        counts = [[sum(text.lower().count(word) for word in row) for row in MEANINGS] for text in texts]
        if self.answer is not None:
            return self.answer
        return [[self.scale * n for n in row] + [0.0] * self.more for row in counts]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "memory.db") as opened:
        opened.remember([Draft(title=f"On a {word}", content="-", tags=[word]) for word in ("hound", "automobile")])
        yield opened


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(vectors, "embedder_for", lambda _: made)
    return made


def hits(store: Store, query: str, made: Vectors | None = None, **how: Any) -> list[SearchHit]:
    return search(store, query, how.pop("wanted", Filter()), limit=10, vectors=made or Vectors(None), **how)


def titles(store: Store, query: str, made: Vectors | None = None, **how: Any) -> list[str]:
    return [hit.memory.title for hit in hits(store, query, made, **how)]


def kept(store: Store) -> dict[int, str]:
    return dict(store.rows("SELECT thing, model FROM vectors"))


def test_recall_finds_what_is_meant_in_other_words(store: Store, fake: Fake) -> None:
    assert not search(store, "puppy", Filter(), limit=10)
    assert titles(store, "puppy") == ["On a hound"]
    assert titles(store, "puppy", wanted=Filter(tags=["automobile"])) == []
    assert titles(store, "puppy", wanted=Filter(category="error")) == []
    assert titles(store, "puppy", wanted=Filter(category="note")) == ["On a hound"]
    assert fake.asked.count("puppy") == 4


def test_vectors_are_made_once_and_again_for_what_changed(store: Store, fake: Fake) -> None:
    made = Vectors(None)
    for _ in range(2):
        titles(store, "puppy", made)
    assert fake.asked == ["puppy", HOUND, "On a automobile\nautomobile\n-", "puppy"]

    fake.asked.clear()
    store.remember([Draft(title="On a sum", content="-", key="k")])
    assert titles(store, "total", made) == ["On a sum"]
    store.remember([Draft(title="On a dog", content="-", key="k")])
    assert titles(store, "total", made) == []
    assert set(titles(store, "puppy", made)) == {"On a hound", "On a dog"}
    assert fake.asked == ["total", "On a sum\n\n-", "total", "On a dog\n\n-", "puppy"]


def test_task_that_is_tried_again_keeps_its_vector(store: Store, fake: Fake) -> None:
    for trial in range(3):
        told = {"problem_id": "T/1", "suite": "s", "success": bool(trial)}
        content = f'T/1: tried\n\nAsked:\ndef f(x):\n    """Total of x."""\n\nAttempts:\n1. it came to {trial}'
        store.remember([Draft(title=f"E{trial}", content=content, tags=["result"], metadata=told)])
        assert len(hits(store, "add")) == 1
    assert sum("Total of x" in text for text in fake.asked) == 1


def test_ranks_are_fused_and_explained(store: Store, fake: Fake) -> None:
    store.remember([Draft(title="puppy food", content="-"), Draft(title="puppy and hound", content="-")])

    found = hits(store, "puppy food", explain=True)

    assert [hit.memory.title for hit in found] == ["puppy food", "puppy and hound", "On a hound"]
    assert [hit.why["ranks"] for hit in found if hit.why] == [
        {"words": 1, "meaning": 1},
        {"words": 2, "meaning": 1},
        {"words": None, "meaning": 1},
    ]
    assert [hit.score for hit in found] == pytest.approx([1, (61 / 62 + 1) / 2, 0.5], abs=0.001)
    again = hits(store, "puppy food", explain=True)
    assert [hit.memory.id for hit in again] == [hit.memory.id for hit in found]
    assert fake.asked.count("puppy and hound\n\n-") == 1


def test_ranks_of_two_orders_are_summed_reciprocally() -> None:
    assert fused([{1: 1, 2: 2}, {2: 1, 3: 2}]) == pytest.approx({1: 0.5, 2: (1 + 61 / 62) / 2, 3: 61 / 62 / 2})


@pytest.mark.parametrize("other", [Fake("fake 2"), Fake(more=2)], ids=["name", "length"])
def test_another_model_makes_all_anew_and_is_never_mixed(store: Store, fake: Fake, other: Fake) -> None:
    titles(store, "puppy")
    before = kept(store)
    fake.name, fake.more, fake.answer = other.name, other.more, None

    assert titles(store, "puppy") == ["On a hound"]
    assert kept(store).keys() == before.keys()
    assert len(set(kept(store).values())) == 1
    assert set(kept(store).values()).isdisjoint(before.values())


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (NoVectors("it is gone"), "it is gone"),
        ([], "no vectors of numbers"),
        ([[float("nan"), 1.0]], "no vectors of numbers"),
        ([["a", "b"]], "no vectors of numbers"),
        ([[1.0], [2.0]], "no vectors of numbers"),
        ([[]], "no vectors of numbers"),
        ([[1.0, 2.0], [1.0]], "no vectors of numbers"),
    ],
)
def test_recall_goes_on_by_words_where_there_are_no_vectors(store: Store, fake: Fake, answer: Any, why: str) -> None:
    fake.answer = answer
    made = Vectors(None)

    found = hits(store, "hound", made)

    assert [hit.memory.title for hit in found] == ["On a hound"]
    assert "only words were compared" in str(found[0].note)
    assert why in str(found[0].note)
    alone = search(store, "hound", Filter(), limit=10)
    assert [hit.score for hit in found] == pytest.approx([hit.score for hit in alone])
    asked = len(fake.asked)
    titles(store, "hound", made)
    assert len(fake.asked) == asked, "it rests for a minute"


def test_texts_of_other_lengths_than_the_question_are_refused(store: Store, fake: Fake) -> None:
    def embed(texts: Sequence[str]) -> Any:
        return [[1.0] * (2 + len(texts))] * len(texts)

    fake.embed = embed  # type: ignore[method-assign]

    assert "vectors of 4 numbers after one of 3" in str(hits(store, "hound")[0].note)
    assert not kept(store)


def test_making_takes_turns_and_goes_on_at_the_next_question(
    store: Store, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.remember([Draft(title=f"number {n}", content="-") for n in range(4)])
    fake.at_once = 2
    times = iter([0.0, 0.0, 0.0, 1e9, 1e9, *[1e9] * 99])
    monkeypatch.setattr(vectors, "time", SimpleNamespace(monotonic=lambda: next(times)))
    made = Vectors(None)

    assert titles(store, "puppy", made) == []
    assert (
        str(made.trouble)
        == "only words were compared: the vectors of 4 tasks and notes are still to be made; ask again"
    )
    assert titles(store, "puppy", made) == ["On a hound"]
    assert made.trouble is None
    assert len(kept(store)) == 6
    assert fake.asked.count(HOUND) == 1


def test_forgetting_deletes_vectors(store: Store, fake: Fake) -> None:
    titles(store, "puppy")
    (hound,) = (memory.id for memory in store.select(Filter(tags=["hound"])))

    forget(store, Filter(id=hound), None, None, dry_run=False)

    assert len(kept(store)) == 1
    assert store.check() == "ok"
    store.remember([Draft(title="On a sum", content="-")])  # whose thing may get the number that has come free
    assert titles(store, "puppy") == []


@pytest.mark.parametrize(
    ("damage", "is_mended"),
    [
        ("DELETE FROM vectors", True),
        ("UPDATE vectors SET vector = x'00'", True),
        ("UPDATE vectors SET vector = zeroblob(6)", False),
        ("UPDATE vectors SET vector = x'ffffffffffff'", False),  # no numbers
        ("UPDATE vectors SET vector = x'007c007c007c'", False),  # infinite
    ],
)
def test_damaged_vectors_are_made_anew_or_left_out(store: Store, fake: Fake, damage: str, is_mended: bool) -> None:
    titles(store, "puppy")
    store.run(damage)
    fake.asked.clear()

    assert titles(store, "puppy") == ["On a hound"] * is_mended
    assert titles(store, "hound") == ["On a hound"]
    assert (HOUND in fake.asked) == is_mended


def test_vector_of_no_thing_is_damage_and_a_rebuilt_store_makes_its_own(tmp_path: Path, fake: Fake) -> None:
    path = tmp_path / "memory.db"
    with Store(path) as store:
        store.remember([Draft(title="On a hound", content="-", tags=["hound"])])
        titles(store, "puppy")
        store.run("INSERT INTO vectors VALUES (99, 'm', x'00')")
        assert store.check() == "1 vectors are of no thing"

    assert rebuild(path, {})
    with Store(path) as store:
        assert not kept(store)
        assert titles(store, "puppy") == ["On a hound"]
        assert store.check() == "ok"
    assert fake.asked.count(HOUND) == 2


def test_vectors_are_used_though_another_process_keeps_writing(store: Store, fake: Fake) -> None:
    titles(store, "sum")
    store.run("DELETE FROM vectors")
    writer = sqlite3.connect(store.path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    try:
        assert titles(store, "puppy") == ["On a hound"]
        assert titles(store, "puppy", wanted=Filter(tags=["automobile"])) == []
        assert not kept(store)
    finally:
        writer.close()
    titles(store, "puppy")
    assert len(kept(store)) == 2
    assert fake.asked.count(HOUND) == 4


def test_vector_of_a_text_that_changed_meanwhile_is_not_stored(store: Store, fake: Fake) -> None:
    store.remember([Draft(title="On a sum", content="-", key="k")])
    plain = Fake()

    def embed(texts: Sequence[str]) -> Any:
        with Store(store.path) as other:
            other.remember([Draft(title="On a dog", content="-", key="k")])
        return plain.embed(texts)

    store.index_newest()
    fake.embed = embed  # type: ignore[method-assign]
    titles(store, "sum")
    fake.embed = plain.embed  # type: ignore[method-assign]

    assert titles(store, "sum") == []
    assert set(titles(store, "puppy")) == {"On a hound", "On a dog"}


def test_store_of_the_version_before_gets_the_table(tmp_path: Path, fake: Fake) -> None:
    connection = sqlite3.connect(tmp_path / "memory.db", isolation_level=None)
    migrate(connection, len(database.MIGRATIONS) - 1)
    connection.close()

    with Store(tmp_path / "memory.db") as store:
        store.remember([Draft(title="On a hound", content="-", tags=["hound"])])
        assert titles(store, "puppy") == ["On a hound"]
    assert fake.asked


def test_settings_name_a_model_or_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vectors, "find_spec", lambda _: None)
    assert embedder_for("none") is None
    assert embedder_for(None) is None
    assert embedder_for("http://127.0.0.1:1/v1#m") is not None
    for wrong in (
        "ftp://x#m",
        "nope",
        "http://#m",
        "http://h/v1",
        "http://h:x/v1#m",
        "http://u:p@h/v1#m",
        "http://h?k#m",
    ):
        with pytest.raises(KoderzError, match="embeddings"):
            embedder_for(wrong)

    async def asked() -> None:
        async with open_cortex(tmp_path / "memory.db", environ={"KODERZ_EMBEDDINGS": "nope"}) as cortex:
            assert await cortex.recall() == []
            with pytest.raises(KoderzError, match="embeddings nope: say none, or an address"):
                await cortex.recall("x")

    asyncio.run(asked())


def test_lessons_for_models_depend_on_no_vectors(tmp_path: Path, fake: Fake) -> None:
    async def asked(cortex: Cortex) -> None:
        told = {"problem_id": "T/1", "lesson": "l", "lesson_cause": "c", "simulated": False}
        await cortex.remember("E", "T/1\n\nAsked:\nhound", tags=["result"], metadata=told)
        assert await cortex.recall_lessons("T/2", "c", same_task=False, statement="puppy") == ["l"]
        assert not fake.asked
        assert len(await cortex.recall("puppy")) == 1
        assert "## On: puppy\n- **E**" in await cortex.get_context(query="puppy")

    async def opened() -> None:
        async with open_cortex(tmp_path / "memory.db") as cortex:
            await asked(cortex)

    asyncio.run(opened())


def test_recall_without_vectors_loads_no_numpy(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from koderz_tracker.memory import open_cortex\n"
        "async def main():\n"
        f"    async with open_cortex({str(tmp_path / 'memory.db')!r}) as cortex:\n"
        "        await cortex.remember('sorting', 'x'); assert await cortex.recall('sorting')\n"
        "asyncio.run(main()); sys.exit('numpy' in sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"KODERZ_EMBEDDINGS": "none"}, cwd=Path(__file__).parents[3]
    )


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package as wordllama is laid out, whose import would fail."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is no dependency of koderz")
    words = {word: n for n, word in enumerate(("hound", "puppy", "automobile", "the", "[UNK]"))}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.enable_truncation(2)
    folder = tmp_path / "site" / "wordllama"
    (folder / "tokenizers").mkdir(parents=True)
    (folder / "weights").mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('it is imported')")
    model.save(str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    write_table(folder, [[1, 0], [1, 0.5], [0, 2], [0, 0], [0, 0]])
    monkeypatch.syspath_prepend(folder.parent)
    return folder


def write_table(folder: Path, rows: Sequence[Sequence[float]]) -> None:
    table = np.asarray(rows, "<f2")
    told = {"dtype": "F16", "shape": table.shape, "data_offsets": [0, table.nbytes]}
    head = orjson.dumps({"__metadata__": {"format": "pt"}, "embedding.weight": told})
    path = folder / "weights" / "l2_supercat_256.safetensors"
    path.write_bytes(struct.pack("<Q", len(head)) + head + table.tobytes())


def test_static_model_is_found_without_its_import_and_takes_the_mean(package: Path) -> None:
    model = embedder_for(None)

    assert isinstance(model, StaticModel)
    assert "wordllama" not in sys.modules
    assert model.embed(["hound puppy automobile", "", "unknown"]).tolist() == pytest.approx(
        np.array([[2 / 3, 2.5 / 3], [0, 0], [0, 0]])
    )
    before = model.name
    write_table(package, [[1, 0], [1, 0.25], [0, 2], [0, 0], [0, 0]])
    assert StaticModel(package).name != before


def test_static_model_answers_for_a_store(package: Path, store: Store) -> None:
    assert package.exists()
    assert titles(store, "puppy") == ["On a hound", "On a automobile"]
    assert titles(store, "nothing of these") == []


@pytest.mark.parametrize(
    "where", ["tokenizers/l2_supercat_tokenizer_config.json", "weights/l2_supercat_256.safetensors"]
)
@pytest.mark.parametrize("data", [None, b"", b"{}", b"\xff" * 64])
def test_static_model_that_cannot_be_read_is_said(package: Path, store: Store, where: str, data: bytes | None) -> None:
    (package / where).unlink()
    if data is not None:
        (package / where).write_bytes(data)

    (found,) = hits(store, "hound")

    assert "only words were compared: the model of" in str(found.note)
    assert "can't be read" in str(found.note)
