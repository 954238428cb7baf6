"""Bad input gets one clear line and exit code 2, and nothing is created."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Shell


def test_wrong_usage_is_one_line_and_creates_nothing(koderz: Shell) -> None:
    done = koderz("benchmark", 0, 2, "--mode", "nope", code=2)  # all the others: tests/koderz/cli/test_bad_input.py

    (line,) = done.err.splitlines()
    assert "choose from zero-shot, iterative, comparative" in line
    assert not done.out
    assert not koderz.results.exists()


def test_trust_holds_until_the_file_changes(koderz: Shell) -> None:
    config = koderz.folder / "koderz.toml"
    (koderz.folder.parent / "prompts").mkdir()
    config.write_text('model = "simulated"\nprompt-dir = "../prompts"\n')

    koderz("benchmark", 0, 1, "--quiet", code=2)
    koderz("benchmark", 0, 1, "--quiet", "--trust-config")
    koderz("benchmark", 0, 1, "--quiet")
    config.write_text('model = "simulated"\nprompt-dir = "../prompts"\nseed = 3\n')
    koderz("benchmark", 0, 1, "--quiet", code=2)


def test_unwritable_results_folder_is_told_before_any_call(koderz: Shell) -> None:
    (koderz.folder / "file").touch()

    done = koderz("benchmark", 0, 2, "--results", "file", "--model", "simulated", code=2)

    assert "choose another with --results" in done.err


def test_runs_that_are_not_there_or_not_ours_are_refused(koderz: Shell, tmp_path: Path) -> None:
    assert "no run yet" in koderz("benchmark", "resume", "latest", code=2).err
    assert "is no run" in koderz("benchmark", "resume", "../x", code=2).err
    folder = koderz.results / "bench_00000000_20260101_000000"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text('{"hello": 1}\n')

    assert "doesn't begin with a plan" in koderz("benchmark", "resume", "latest", code=2).err


def test_plan_from_elsewhere_that_names_an_address_needs_trust(koderz: Shell) -> None:
    koderz("benchmark", 0, 1, "--quiet")
    (path,) = koderz.results.glob("[!.]*/journal.jsonl")
    plan, *rest = path.read_text().splitlines(keepends=True)
    path.write_text(plan.replace('"base_url":null', '"base_url":"http://127.0.0.1:1/v1"') + "".join(rest[:1]))

    done = koderz("benchmark", "resume", "latest", code=2)

    assert "--trust-config" in done.err


@pytest.mark.slow
def test_plan_whose_prompts_changed_is_refused_unless_accepted(koderz: Shell) -> None:
    prompts = koderz.folder / "prompts"
    prompts.mkdir()
    (prompts / "system.md").write_text("Be brief.\n")
    koderz("benchmark", 0, 2, "--quiet", "--prompt-dir", "prompts")
    (path,) = koderz.results.glob("[!.]*/journal.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))
    (prompts / "system.md").write_text("Be very brief.\n")

    done = koderz("benchmark", "resume", "latest", code=2)

    assert "prompt system" in done.err
    assert "--accept-changes" in done.err
    koderz("benchmark", "resume", "latest", "--quiet", "--accept-changes")


@pytest.mark.slow
@pytest.mark.parametrize("indexed", [True, False])
def test_damaged_line_is_skipped_told_and_repaired(koderz: Shell, indexed: bool) -> None:
    koderz("benchmark", 0, 3, "--quiet")
    (path,) = koderz.results.glob("[!.]*/journal.jsonl")
    run, lines = path.parent.name, path.read_bytes().splitlines(keepends=True)
    number = next(number for number, line in enumerate(lines) if line.startswith(b'{"kind":"experiment"'))
    at = len(b"".join(lines[:number]))
    lines[number] = b"\x00" * (len(lines[number]) - 1) + b"\n"
    path.write_bytes(damaged := b"".join(lines))
    if not indexed:
        path.with_suffix(".index").unlink()

    shown = koderz("benchmark", "show", run)
    assert f"byte {at}: 1 line can't be read and is left out" in shown.err
    assert "2 of 3 judged" in shown.out
    assert "1 damaged line" in koderz("benchmark", "list").out

    repaired = koderz("doctor", "--repair", run)
    assert f"byte {at}: {len(lines[number])} bytes left out: not a journal line" in repaired.out
    copy = path.parent.with_name(f"{run}_repaired") / "journal.jsonl"
    assert copy.read_bytes() == b"".join(line for line in lines if not line.startswith(b"\x00"))
    assert path.read_bytes() == damaged
    assert "nothing to repair" in koderz("doctor", "--repair", copy.parent).out
    as_json = json.loads(koderz("doctor", "--repair", copy.parent, "--json").out)
    assert as_json == {
        "folder": None,
        "kept": len(copy.read_bytes().splitlines()),
        "damaged": [],
        "doubled": [],
        "lost": [],
    }
    assert "is there already" in koderz("doctor", "--repair", run, code=2).err

    again = koderz("benchmark", "resume", run)
    assert "Successes:" in again.out
    assert path.read_bytes().startswith(damaged)
    added = [json.loads(line)["kind"] for line in path.read_bytes()[len(damaged) :].splitlines()]
    assert added == ["resumed", "experiment", "finished"], "every call and verdict was on record"
