"""Specifications that were paid for once can be used again."""

from __future__ import annotations

from pathlib import Path

import pytest

from koderz.solvers.iterative import cached_spec, keep_spec
from koderz.types import Message

ASKED: tuple[Message, ...] = ({"role": "user", "content": "write one for f"},)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_specification_is_found_by_model_and_question() -> None:
    assert cached_spec("m", ASKED) is None
    keep_spec("m", ASKED, "It adds:\n é 🙂")

    assert cached_spec("m", ASKED) == "It adds:\n é 🙂"
    assert cached_spec("other", ASKED) is None
    assert cached_spec("m", ({"role": "user", "content": "write one for g"},)) is None
    assert cached_spec("m", ({"role": "system", "content": "write one for f"},)) is None


def test_specification_stored_last_counts(cache: Path) -> None:
    keep_spec("m", ASKED, "old")
    keep_spec("m", ASKED, "new")

    assert cached_spec("m", ASKED) == "new"
    assert len(list((cache / "koderz" / "specs").iterdir())) == 1


def test_cache_that_cannot_be_written_is_left_alone(cache: Path) -> None:
    (cache / "koderz").mkdir(parents=True)
    (cache / "koderz" / "specs").write_text("in the way")
    keep_spec("m", ASKED, "text")

    assert cached_spec("m", ASKED) is None


def test_damaged_entry_counts_as_none(cache: Path) -> None:
    keep_spec("m", ASKED, "text")
    (path,) = (cache / "koderz" / "specs").iterdir()
    path.write_bytes(b"\xff\xfe")

    assert cached_spec("m", ASKED) is None


def test_unstorable_text_is_left_alone() -> None:
    keep_spec("m", ASKED, "half a pair \ud800")

    assert cached_spec("m", ASKED) is None
