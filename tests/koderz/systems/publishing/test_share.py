"""Runs that are published and pulled: whole or not at all, and each file checked."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from io import RawIOBase
from pathlib import Path
from typing import IO, Any

import orjson
import pytest

from koderz.errors import KoderzError, Unreachable
from koderz.systems.publishing.share import (
    Folder,
    Location,
    fetched,
    files_of,
    place_at,
    publish,
    published_copy,
    pull,
    runs_at,
    secrets_in,
)
from koderz_tracker.runs import read_plan
from tests.conftest import Shell

KEY = "sk-proj-Zq3vT8nB2kLw9XyR4mJd7HsG"


@pytest.fixture
def run(koderz: Shell) -> Path:
    """The folder of a run of two experiments, one of whose texts lies in a blob."""
    koderz("benchmark", 0, 2, "--mode", "zero-shot", "--model", "simulated")
    (folder,) = (path for path in koderz.results.iterdir() if path.is_dir())
    (folder / "blobs").mkdir()
    (folder / "blobs" / f"{'ab' * 32}.gz").write_bytes(b"\x1f\x8b a text")
    return folder


def sent(run: Path, place: Location) -> int:
    return publish(run, place, files_of(run, run.with_suffix(".json")))


class Breaking(Exception):
    """The connection is lost."""


@dataclass
class Fragile:
    """A place whose connection is lost after a number of files."""

    place: Location
    left: int
    read_all: list[str] = field(default_factory=list)

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Breaking

    def read(self, path: str) -> IO[bytes]:
        self._count()
        return self.place.read(path)

    def write(self, path: str, source: Path) -> None:
        self._count()
        self.place.write(path, source)

    def remove(self, path: str) -> None:
        self._count()
        self.place.remove(path)

    def names(self) -> list[str]:
        return self.place.names()


def test_publish_lists_digests_that_sha256sum_confirms(run: Path, tmp_path: Path) -> None:
    place = Folder(tmp_path / "public")
    assert sent(run, place) == 3
    assert sent(run, place) == 0

    folder = tmp_path / "public" / run.name
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.count(": OK") == 3
    assert runs_at(place) == [run.name]


def test_publish_goes_on_where_it_was_broken_off(run: Path, tmp_path: Path) -> None:
    public = Folder(tmp_path / "public")
    for files in range(6):
        with suppress(Unreachable):
            sent(run, Fragile(public, files))
        if runs_at(public):  # whole or not at all
            pull(public, run.name, tmp_path / f"pulled{files}")
    assert runs_at(public) == [run.name]
    assert (tmp_path / "pulled5" / f"{run.name}.json").read_bytes() == run.with_suffix(".json").read_bytes()


def test_pull_goes_on_where_it_was_broken_off(run: Path, tmp_path: Path) -> None:
    public, results = Folder(tmp_path / "public"), tmp_path / "results"
    sent(run, public)

    for files in range(6):
        with suppress(Unreachable):
            pull(Fragile(public, files), run.name, results)
        if (results / f"{run.name}.json").exists():
            assert (results / run.name / "journal.jsonl").read_bytes() == (run / "journal.jsonl").read_bytes()
    assert not pull(public, run.name, results)
    assert {path.name for path in results.iterdir()} == {run.name, f"{run.name}.json"}


def test_pull_of_a_grown_run_replaces_what_was_pulled(run: Path, tmp_path: Path) -> None:
    public, results = Folder(tmp_path / "public"), tmp_path / "results"
    sent(run, public)
    pull(public, run.name, results)
    with (run / "journal.jsonl").open("a") as journal:
        journal.write('{"kind":"note","time":"2026-01-01T00:00:00"}\n')

    assert sent(run, public) == 2
    assert pull(public, run.name, results)
    assert (results / run.name / "journal.jsonl").read_bytes() == (run / "journal.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["RUN.json", "RUN/journal.jsonl"])
def test_pull_overwrites_no_file_of_another(run: Path, tmp_path: Path, name: str) -> None:
    public, results = Folder(tmp_path / "public"), tmp_path / "results"
    sent(run, public)
    path = results / name.replace("RUN", run.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")

    with pytest.raises(KoderzError, match="another file"):
        pull(public, run.name, results)
    assert path.read_text() == "mine"


def test_pull_refuses_what_has_another_digest(run: Path, tmp_path: Path) -> None:
    public, results = Folder(tmp_path / "public"), tmp_path / "results"
    sent(run, public)
    with (tmp_path / "public" / run.name / "journal.jsonl").open("ab") as journal:
        journal.write(b"\n")

    with pytest.raises(KoderzError, match="isn't the file"):
        pull(public, run.name, results)
    assert not (results / f"{run.name}.json").exists()


@pytest.mark.parametrize("path", ["../evil", "/etc/passwd", "blobs/x", "blobs/../../evil"])
def test_pull_writes_no_file_that_is_none_of_a_run(run: Path, tmp_path: Path, path: str) -> None:
    public = Folder(tmp_path / "public")
    sent(run, public)
    with (tmp_path / "public" / run.name / "SHA256SUMS").open("a") as sums:
        sums.write(f"{'0' * 64}  {path}\n")

    with pytest.raises(KoderzError, match="no file of a run"):
        pull(public, run.name, tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_pull_takes_no_more_than_it_may(run: Path, tmp_path: Path) -> None:
    sent(run, Folder(tmp_path / "public"))

    with pytest.raises(KoderzError, match="max-size"):
        fetched(f"file://{tmp_path}/public/{run.name}", tmp_path / "results", max_size=100)


@pytest.mark.parametrize("name", ["journal.jsonl", "SHA256SUMS", "RUN.json"])
@pytest.mark.parametrize("target", ["/dev/zero", "../../diary"])
def test_pull_follows_no_link(run: Path, tmp_path: Path, name: str, target: str) -> None:
    public = tmp_path / "public"
    sent(run, Folder(public))
    path = public / f"{run.name}.json" if name == "RUN.json" else public / run.name / name
    path.rename(tmp_path / "diary")
    path.symlink_to(target)

    with pytest.raises(Unreachable, match=f"{path.name} is a link, and koderz follows none"):
        pull(Folder(public), run.name, tmp_path / "results", max_size=1 << 20)
    assert not (tmp_path / "results" / path.relative_to(public)).exists()


class Endless(RawIOBase):
    """A file that never ends."""

    def read(self, size: int = -1) -> bytes:
        return bytes(size)


def test_pull_ends_where_a_file_has_no_end(run: Path, tmp_path: Path) -> None:
    sent(run, Folder(tmp_path / "public"))

    class Elsewhere(Fragile):
        def read(self, path: str) -> Any:
            return Endless() if path.endswith("journal.jsonl") else self.place.read(path)

    with pytest.raises(KoderzError, match=r"journal\.jsonl is larger than --max-size allows for all of a run"):
        pull(Elsewhere(Folder(tmp_path / "public"), 99), run.name, tmp_path / "results", max_size=5 << 20)
    assert not [path for path in tmp_path.glob("results/**/*") if path.suffix == ".jsonl"]


def test_pull_takes_a_size(koderz: Shell, run: Path, tmp_path: Path) -> None:
    (run / "blobs" / f"{'ab' * 32}.gz").write_bytes(bytes(2 << 20))
    sent(run, Folder(tmp_path / "public"))

    refused = koderz("pull", tmp_path / "public", "--results", "there", "--max-size", 1, code=2)

    assert "is larger than --max-size allows for all of a run" in refused.err
    koderz("pull", tmp_path / "public", "--results", "there", "--max-size", 3)


def test_publish_of_a_secret_is_refused_until_it_is_redacted(koderz: Shell, run: Path, tmp_path: Path) -> None:
    (run / "blobs" / f"{'ab' * 32}.gz").unlink()
    lines = [orjson.loads(line) for line in (run / "journal.jsonl").read_bytes().splitlines()]
    call = next(line for line in lines if line["kind"] == "call")
    call["reply"] += f"\nKEY = '{KEY}'\n"
    (run / "journal.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    (run / "journal.index").unlink()
    assert [place.line for place in secrets_in(run, run.with_suffix(".json"))] == [lines.index(call) + 1]

    done = koderz("publish", "latest", "--to", tmp_path / "public", code=2)
    assert f"journal.jsonl, line {lines.index(call) + 1}" in done.err
    assert KEY not in done.err
    assert not (tmp_path / "public").exists()

    koderz("publish", "latest", "--to", tmp_path / "public", "--redact")
    assert all(KEY.encode() not in path.read_bytes() for path in (tmp_path / "public").rglob("*") if path.is_file())
    verified = koderz("verify", tmp_path / "public" / f"{run.name}.json", "--json", code=3)
    assert "redacted" in orjson.loads(verified.out)["not_derived"][0]


def test_publish_without_replies_has_figures_only(run: Path, tmp_path: Path) -> None:
    copy, summary = published_copy(run, tmp_path, redact=False, replies=False)

    text = (copy / "journal.jsonl").read_text()
    assert "```" not in text.split("\n", 1)[1]
    assert read_plan(run).basis.questions
    assert not read_plan(copy).basis.questions
    figures = [orjson.loads(path.read_bytes())["summary"] for path in (summary, run.with_suffix(".json"))]
    assert figures[0] == figures[1]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a bucket on an S3 server of this machine."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in (
        ("KEY_ID", "test"),
        ("SECRET_KEY", "test"),
        ("SECRET_ACCESS_KEY", "test"),
        ("ACCESS_KEY_ID", "test"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    import s3fs  # type: ignore[import-untyped]

    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bucket")
    yield "s3://bucket/runs"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "s3"])
def test_published_run_comes_back_from_an_address(
    run: Path, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("fsspec")
    address = f"memory://{tmp_path.name}/runs" if kind == "memory" else request.getfixturevalue("s3")
    place = place_at(address)

    for files in range(6):
        with suppress(Unreachable):
            sent(run, Fragile(place, files))
    for files in range(6):
        with suppress(Unreachable):
            pull(Fragile(place, files), run.name, tmp_path / "results")

    assert runs_at(place) == [run.name]
    for name in (f"{run.name}.json", f"{run.name}/journal.jsonl"):
        assert (tmp_path / "results" / name).read_bytes() == (run.parent / name).read_bytes()
