"""Links in folders of strangers: no command that reads runs follows one, and each says which it is."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Shell
from tests.koderz.cli.conftest import Command
from tests.koderz.cli.test_options import ALL

SECRET = "dear diary"
NAMES_RUNS = re.compile(r"\bRUN\b|\[A\]")
"""How the arguments and options are declared that name runs."""

MORE = {
    "benchmark export": ("--format", "md"),
    "benchmark compare": ("latest",),
    "benchmark calibrate": ("--labels", "labels.csv"),
    "publish": ("--to", "published"),
    "sync": ("--sink", "json"),
}
"""What else a command has to be given to get as far as its runs."""


def reading() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each command that names runs, as it is called for the latest one."""
    for name, command in ALL.items():
        for param in command.params:
            if (
                param.name == "reuse_from"
            ):  # a link isn't followed, and the calls are made: tests/tracker/test_recorded.py
                continue
            if NAMES_RUNS.search(param.metavar or "") and param.name != "source" and name != "pull":
                flag = (param.opts[0],) if param.param_type_name == "option" else ()
                yield f"{name} {' '.join(flag)}".strip(), (*name.split(), *flag, "latest", *MORE.get(name, ()))


READING = dict(reading())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a results folder with one run."""
    shell = Shell(tmp_path_factory.mktemp("run"))
    shell("benchmark", "0", "2", "--model", "simulated", "--quiet")
    (folder,) = (path for path in shell.results.iterdir() if (path / "journal.jsonl").exists())
    return folder


def linked_summary(folder: Path, diary: Path) -> Path:
    return linked(folder.with_suffix(".json"), diary / "summary.json")


def linked_journal(folder: Path, diary: Path) -> Path:
    return linked(folder / "journal.jsonl", diary / "journal.jsonl")


def linked_texts(folder: Path, diary: Path) -> Path:
    return linked(folder / "blobs", diary)


def linked_run(folder: Path, diary: Path) -> Path:
    shutil.copytree(folder, diary / "run")
    shutil.rmtree(folder)
    return linked(folder, diary / "run")


def linked(link: Path, target: Path) -> Path:
    """Puts a file of somebody's in the place of one of the run's, with its content and a secret."""
    if link.is_file() and not target.exists():
        target.write_text(link.read_text().replace('"simulated_skill"', f'"tags":["{SECRET}"],"simulated_skill"'))
        link.unlink()
    link.symlink_to(os.path.relpath(target, link.parent))
    return link


KINDS = (linked_summary, linked_journal, linked_texts, linked_run)


def files_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_commands_that_read_runs_are_found() -> None:
    assert {name.rpartition(" ")[2] for name in READING} >= {
        *("show", "report", "export", "compare", "problems", "verify", "publish", "resume", "rescore", "sync"),
        *("watch", "calibrate", "--repair"),
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READING)
def test_links_in_a_results_folder_are_refused(
    koderz: Shell, command: Command, run: Path, name: str, kind: Callable[[Path, Path], Path]
) -> None:
    shutil.copytree(run.parent, koderz.results)
    diary = koderz.folder / "diary"
    diary.mkdir()
    (koderz.folder / "labels.csv").write_text("experiment_id,label\n")
    link = kind(koderz.results / run.name, diary)
    before = files_in(diary)

    done = command(*READING[name], code=2)

    assert re.search(rf"{link.name}\S* is a link, and koderz follows none in folders of runs", done.err), done
    assert "Traceback" not in done.err
    assert not done.out
    assert files_in(diary) == before
    assert not (koderz.folder / "published").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_list_says_which_run_is_a_link_and_goes_on(
    koderz: Shell, command: Command, run: Path, kind: Callable[[Path, Path], Path]
) -> None:
    shutil.copytree(run.parent, koderz.results)
    shutil.copytree(run, koderz.results / "bench_0000000f_20260101_000000")
    (koderz.folder / "diary").mkdir()
    kind(koderz.results / run.name, koderz.folder / "diary")

    done = command("benchmark", "list")

    assert run.name in done.out  # as the copy says of itself
    assert SECRET not in done.out + done.err
    if kind in (linked_summary, linked_journal):  # of what a list reads
        assert "is a link, and koderz follows none" in done.err


@pytest.mark.parametrize("name", ["memory.db", "memory.db-wal", "mlflow.db", "mlartifacts"])
def test_links_in_place_of_stores_make_no_file_elsewhere(
    koderz: Shell, command: Command, run: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # which mlflow itself sets in this process
    shutil.copytree(run.parent, koderz.results)
    (koderz.folder / "elsewhere").mkdir()
    (koderz.results / name).symlink_to("../elsewhere/new")
    sink = "memory" if name.startswith("memory") else "mlflow"

    done = command("sync", "--all", "--sink", sink, "--json", code=3)

    assert f"{name} is a link, and koderz follows none" in done.out + done.err
    assert not any((koderz.folder / "elsewhere").iterdir())


@pytest.mark.parametrize("name", [name for name in ALL if name.startswith("memory ")])
def test_memory_commands_refuse_a_linked_store(koderz: Shell, command: Command, name: str) -> None:
    koderz.results.mkdir()
    (koderz.folder / "elsewhere").mkdir()
    (koderz.folder / "memories.jsonl").write_text("[]")
    (koderz.results / "memory.db").symlink_to("../elsewhere/new")
    given: Any = {"memory show": ("1",), "memory import": ("memories.jsonl",), "memory forget": ("1", "--yes")}
    given |= {"memory compare": ("latest",), "memory claim": ("so it is", "--run", "latest")}

    done = command(*name.split(), *given.get(name, ()), code=2)

    assert "memory.db is a link, and koderz follows none" in done.err
    assert not any((koderz.folder / "elsewhere").iterdir())
