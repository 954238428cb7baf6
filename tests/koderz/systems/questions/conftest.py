"""One process that reads replies for all tests of a worker, since it takes seconds to load NLTK."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from koderz.systems.questions.apart import Reader


@pytest.fixture(scope="session")
def reader() -> Iterator[Reader]:
    found = Reader()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _shared_reader(monkeypatch: pytest.MonkeyPatch, reader: Reader) -> None:
    monkeypatch.setattr("koderz.systems.questions.suite.Reader", lambda: reader)
