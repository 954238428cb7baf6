"""Runs as entries of public registries, read by the registries' own packages."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.conftest import Shell, nothing_judged

MINE = ("--organization", "My lab", "--relationship", "third_party")
BOARD = ("--hf-dataset", "openai/openai_humaneval", "--hf-task", "humaneval")
VALIDATOR = os.environ.get("KODERZ_EEE")
"""The program `every_eval_ever`, which needs an environment of its own."""


def exported(koderz: Shell, *options: object) -> list[Path]:
    koderz("benchmark", "export", "latest", "--format", "eee", "-o", "eee", *MINE, *options)
    return sorted((koderz.folder / "eee").rglob("*.json"))


@pytest.mark.slow
@pytest.mark.skipif(not VALIDATOR and not os.environ.get("CI"), reason="KODERZ_EEE names no every_eval_ever")
@pytest.mark.parametrize(
    "words",
    [
        ("benchmark", 0, 4, "--mode", "comparative"),
        ("benchmark", 0, 2, "--samples", 3, "--mode", "zero-shot"),
        ("rlm", "run", "--benchmark", "ruler", "--simulated", "--max-tasks", 1, "--no-save"),
    ],
    ids=["comparative", "samples", "long context"],
)
def test_eee_files_are_valid_by_their_own_validator(koderz: Shell, words: Sequence[object]) -> None:
    koderz(*words, *(() if "--simulated" in words else ("--model", "simulated")))
    exported(koderz, "--model-id", "koderz/simulated", "--source-url", "https://example.org/run")

    files = [path.relative_to(koderz.folder / "eee") for path in (koderz.folder / "eee" / "data").rglob("*.json*")]
    done = subprocess.run(
        [str(VALIDATOR), "validate", "--format", "json", *map(str, files)],
        cwd=koderz.folder / "eee",
        capture_output=True,
        text=True,
        check=False,
    )
    reports = json.loads(done.stdout)
    assert len(reports) == len(files) > 1
    assert [(each["errors"], each["warnings"]) for each in reports] == [([], [])] * len(files)


def test_eee_figures_are_those_of_the_summary(koderz: Shell) -> None:
    koderz("benchmark", 0, 4, "--mode", "comparative", "--model", "simulated")
    files = exported(koderz)

    found = {}
    for path in files:
        entry = json.loads(path.read_text())
        (result,) = entry["evaluation_results"]
        samples = [json.loads(line) for line in path.with_name(f"{path.stem}_samples.jsonl").read_text().splitlines()]
        arm = entry["source_metadata"]["additional_details"]["arm"]
        found[arm] = result["score_details"]["score"], [each["evaluation"]["is_correct"] for each in samples]
    for arm, key in (("zero-shot", "zero_shot"), ("iterative", "iterative")):
        results = koderz.summary()[key]["results"]
        rate, correct = found[arm]
        assert correct == [result["success"] for result in results]
        assert rate == pytest.approx(koderz.summary()[key]["summary"]["success_rate"] / 100)
    again = exported(koderz)
    assert again == files


def test_hub_entries_are_read_by_the_hubs_own_package(koderz: Shell) -> None:
    hub = pytest.importorskip("huggingface_hub")
    koderz("benchmark", 0, 4, "--mode", "comparative", "--model", "simulated")
    done = koderz(
        "benchmark", "export", "latest", "--format", "hf", "--arm", "iterative", *BOARD, "--source-url", "https://a/b"
    )

    (entry,) = hub.parse_eval_result_entries(yaml.safe_load(done.out))
    assert (entry.dataset_id, entry.task_id) == ("openai/openai_humaneval", "humaneval")
    assert entry.value == koderz.summary()["iterative"]["summary"]["success_rate"]
    assert entry.source_url == "https://a/b"
    assert entry.verify_token is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--format", "eee", "-o", "eee"), "needs --organization NAME"),
        (("--format", "eee", *MINE), "say which with --output DIR"),
        (("--format", "hf", "--arm", "iterative"), "needs --hf-dataset ID and --hf-task ID"),
        (("--format", "hf", *BOARD), "has 2 arms; choose one with --arm"),
        (("--format", "csv", "--model-id", "a/b"), "--model-id has no effect here"),
    ],
)
def test_registry_option_that_lacks_is_named(koderz: Shell, options: Sequence[object], reason: str) -> None:
    koderz("benchmark", 0, 1, "--mode", "comparative", "--model", "simulated")

    done = koderz("benchmark", "export", "latest", *options, code=2)

    assert reason in done.err
    assert len(done.err.splitlines()) == 1


def test_registry_entry_of_nothing_judged_is_refused(koderz: Shell) -> None:
    nothing_judged(koderz, "zero-shot")

    done = koderz("benchmark", "export", "latest", "--format", "hf", *BOARD, code=2)

    assert "nothing of zero-shot was judged" in done.err
