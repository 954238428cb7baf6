"""The sinks of koderz and of another package pass the tests that every sink has to pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from koderz.testing.sinks import CHECKS, SinkTarget
from koderz_tracker.errors import KoderzError
from koderz_tracker.records import Experiment, Record
from koderz_tracker.sinks import KNOWN, SINKS, Sink, Source, sink_class
from koderz_tracker.sinks.json import write_summary
from tests.tracker.sinks.mlflow_world import seen
from tests.tracker.sinks.test_memory import stored


class Lines(Sink):
    """A file with a line for each experiment."""

    def take(self, records: Sequence[Record]) -> None:
        path = self.source.folder / "lines.txt"
        lines = {*path.read_text().splitlines()} if path.exists() else set()
        lines |= {each.problem_id for each in records if isinstance(each, Experiment)}
        path.write_text("\n".join(sorted(lines)))


class JsonSink(Sink):
    """The summary, which no sink writes but the process that ends a session."""

    def take(self, records: Sequence[Record]) -> None:
        write_summary(self.source.folder)


class Doubling(Lines):
    """The same, with a line more whenever a record comes again."""

    def take(self, records: Sequence[Record]) -> None:
        with (self.source.folder / "lines.txt").open("a") as file:
            file.writelines(each.problem_id for each in records if isinstance(each, Experiment))


class Plain:
    """A sink of a package for which there was no class."""

    def __init__(self, source: Source) -> None:
        self._inner = Lines(source)

    def take(self, records: Sequence[Record]) -> None:
        self._inner.take(records)

    def close(self) -> None:
        self._inner.close()

    @classmethod
    def check(cls, results: Path, environ: Mapping[str, str]) -> str:
        return str(results)


def lines_of(folder: Path) -> str:
    return (folder / "lines.txt").read_text()


def memories_of(folder: Path) -> Sequence[object]:
    return sorted((each.key, each.title, each.content, tuple(each.tags), each.updated_at) for each in stored(folder))


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {each.__name__.lower(): f"{__name__}:{each.__name__}" for each in (Lines, Doubling, Plain)}
    own["json"] = f"{__name__}:JsonSink"
    monkeypatch.setattr("koderz_tracker.sinks.SINKS", {**SINKS, **own})


TARGETS: Mapping[str, Callable[[Path], object]] = {
    "json": lambda folder: folder.with_suffix(".json").read_bytes(),
    "mlflow": lambda folder: seen(folder).facts(),
    "memory": memories_of,
    "lines": lines_of,
    "plain": lines_of,
}


def test_sink_of_the_registry_is_tried() -> None:
    assert {*KNOWN} == TARGETS.keys() - {"lines", "plain"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "mlflow")) for name in TARGETS]
)
def test_sink_passes(name: str, tmp_path: Path) -> None:
    for check in CHECKS:
        asyncio.run(check(tmp_path, SinkTarget(name, TARGETS[name])))


def test_sink_that_doubles_records_does_not_pass(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="came again"):
        asyncio.run(CHECKS[0](tmp_path, SinkTarget("doubling", lines_of)))


def test_sink_of_a_package_without_the_class_has_all_members(tmp_path: Path) -> None:
    assert issubclass(sink_class("plain"), Sink)
    assert sink_class("plain").check(tmp_path, {}) == str(tmp_path)
    sink_class("plain").rebuild(tmp_path, {})
    assert sink_class("lines").check(tmp_path, {}) == ""


def test_sink_that_can_not_be_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koderz_tracker.sinks.SINKS", {"nothing": "koderz_tracker.sinks:GROUP"})
    with pytest.raises(KoderzError, match=r"the sink nothing is no subclass of koderz\.extend\.Sink"):
        sink_class("nothing")


def test_sink_with_a_misspelt_member_is_refused() -> None:
    with pytest.raises(KoderzError, match=r"^Own has no member `rebuid`; did you mean `rebuild`\?$"):
        type("Own", (Lines,), {"rebuid": None})
