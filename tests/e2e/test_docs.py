"""What the README and docs/ say works as it stands there, and the site that is built of them is whole."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import typer
import yaml

from koderz.analysis.statistics import drop_alarm, smallest_paired_difference
from koderz.cli import app
from koderz.engines.sources import schema_of
from koderz.suites import SUITES
from tests.conftest import Server, Shell, nothing_judged
from tests.e2e.conftest import Remote
from tests.e2e.pages import DOCS, LOGS, PAGES, ROOT, Reader, blocks, written
from tests.forks import forks
from tests.koderz.systems.publishing.logs import writers
from tests.loopback_modal import ModalServer

MODELS = ("gpt-6-luna", "qwen3-coder:30b", "my-model")
ON_MODAL = "docs/how-to/modal.md"
ON_REPOSITORIES = "docs/how-to/repositories.md"
CI = (DOCS / "ci" / "README.md").read_text(encoding="utf-8")
whole_command = cache(partial(typer.main.get_command, app))  # which keeps the groups that it has made

needs_jq = pytest.mark.skipif(not shutil.which("jq") and not os.environ.get("CI"), reason="jq is not installed")


def test_readme_is_short_and_begins_with_what_koderz_is() -> None:
    lines = PAGES["README.md"].read_text(encoding="utf-8").splitlines()

    assert len(lines) <= 180
    assert lines[0] == "# koderz"
    assert lines[1].startswith("koderz benchmarks language models on code, long documents, prompts, ")
    for command in ("scripts/demo", "scripts/test", "scripts/docs"):
        assert any(command in line for line in lines)
        assert os.access(ROOT / command, os.X_OK)


SYSTEMS = re.findall(
    r"^\| \[(.+?)\].*\| `koderz (.+?)` \| (.+) \|$", PAGES["README.md"].read_text("utf-8"), re.MULTILINE
)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), [row[1:] for row in SYSTEMS], ids=[row[0] for row in SYSTEMS])
def test_readme_shows_what_each_system_answers(koderz: Shell, command: str, shown: str) -> None:
    """A command of which no figure is shown is planned: `test_perf` and `test_rollouts` run its like."""
    figures = re.findall(r"[+-]?\d+\.\d+%?|\d+%", re.sub(r"\]\(.+?\)", "", shown))
    more = ("--quiet",) if figures else ("--dry-run",)
    out = koderz(*shlex.split(command), "--sink", "json", *more, env={"COLUMNS": "200"}).out

    assert [figure for figure in figures if figure not in out] == []


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "benchmark_results/README.md"])
def test_links_of_pages_beside_the_site_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))

    missing = [target for target in targets if "://" not in target and not ((ROOT / page).parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_docs_blocks_are_all_of_a_tested_kind(page: str) -> None:
    for block in blocks(page):
        match block.language:
            case "toml":
                assert tomllib.loads(block.text)
            case "json":
                assert json.loads(block.text)
            case "yaml":
                assert yaml.safe_load(block.text)
            case "console":
                assert block.text.startswith("$ ")
            case _:
                assert block.language in ("sh", "python", "bash", "text")


@pytest.mark.parametrize("page", PAGES)
def test_docs_name_existing_commands_and_options(page: str) -> None:
    named = re.findall(r"`koderz ([a-z][^`\n]*)`", written(page))
    shown = [line for block in blocks(page) if block.language in ("sh", "console") for line in block.commands()]
    named += [match for line in shown for match in re.findall(r"(?:^|\s)koderz ([a-z].*)$", line)]
    own = {
        f"--{name.replace('_', '-')}"
        for block in blocks(page)
        for name in re.findall(r"^    (\w+): .* = option\(", block.text, re.MULTILINE)
    }

    for line in dict.fromkeys(named):
        words = [word for word in shlex.split(line, comments=True) if word not in ("||", "true")]
        options = {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)}
        of_suites = {
            field.flag for word in words if word in SUITES for field in schema_of(("suite", word)).fields.values()
        }
        assert options <= _known(words) | own | of_suites, line


def _known(words: list[str]) -> set[str]:
    """The options of the command that these words begin with."""
    command = whole_command()
    context = command.make_context("koderz", [], resilient_parsing=True)
    while words and words[0] in getattr(command, "commands", {}):
        name, inner, _ = command.resolve_command(context, [words.pop(0)])  # type: ignore[attr-defined]
        context = inner.make_context(name, [], parent=context, resilient_parsing=True)
        command = context.command  # with the options of what it chooses itself
    command = getattr(command, "commands", {}).get("run", command)  # benchmark's own, whose name is left out
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    return {"--help", "--help-all", *known, *context.help_option_names}


def _is_run(page: str) -> bool:
    found = [block.language for block in blocks(page) if block.language != "python" or not block.title]
    return not {"sh", "console", "python"}.isdisjoint(found)


@pytest.mark.slow
@needs_jq
@pytest.mark.parametrize("page", [page for page in PAGES if page not in (ON_MODAL, ON_REPOSITORIES) and _is_run(page)])
def test_page_works_when_it_is_followed(page: str, koderz: Shell, serve: Callable[..., Server]) -> None:
    server = serve(*[word for model in MODELS for word in ("--model", model)])
    more = {"MODEL_SERVER": server.url, "KODERZ_LIMIT": "5", "MY_KEY": "sk-test-4f9a", "KODERZ_SINKS": "json,memory"}
    more["KODERZ_SINK_PATIENCE"] = "600"  # a busy machine takes minutes to set up MLflow's database
    _prepare(page, koderz)

    Reader(koderz, server.env(), more).follow(page)


@pytest.mark.slow
def test_page_on_modal_works_when_it_is_followed(koderz: Shell, serve: Callable[..., Server]) -> None:
    """On a loopback Modal of its own: the page stops the app that it has deployed."""
    (koderz.folder / "samples.jsonl").write_text('{"task_id": "HumanEval/53", "completion": "    return x + y\\n"}\n')
    more = {"MODEL_SERVER": serve("--model", "Qwen/Qwen3-8B").url, "KODERZ_LIMIT": "4", "KODERZ_JUDGES": "1"}
    server = serve("--model", "gpt-6-luna")

    with ModalServer(secrets={"llm-api-keys": {}}, max_containers=2) as modal:
        modal.put_secret("llm-api-keys", server.env())
        Reader(Remote(koderz.folder, modal, server, 0), server.env(), more).follow(ON_MODAL)


@pytest.mark.slow
def test_docs_on_repositories_make_tasks_that_tell_answers_apart(koderz: Shell) -> None:
    Reader(koderz, {}, {}).follow(ON_REPOSITORIES)

    (manifest,) = koderz.folder.glob("data/rollouts/shop/*/manifest.json")
    ended = [(each["verdict"], each["score"]) for each in json.loads(manifest.read_text())["results"]]
    assert sorted(ended) == [("failed", 0.3), ("passed", 1.0)]
    summaries = [json.loads(path.read_text()) for path in koderz.results.glob("*.json")]
    (arms,) = (each["arms"] for each in summaries if each["mode"] == "perf")
    assert arms["human"]["results"][0]["opt"]
    (patched,) = arms["agent"]["results"]
    assert (patched["problem_id"], patched["status"]) == ("shop__duplicates", "passed")
    assert patched["metrics"]["speedup_base"] > 3


def _prepare(page: str, koderz: Shell) -> None:
    if page == "docs/how-to/secrets-and-trust.md":
        (block,) = (block for block in blocks("docs/how-to/datasets.md") if block.title == "tasks.jsonl")
        (koderz.folder / "tasks.jsonl").write_text(block.text)
    if page == "docs/how-to/teams.md":
        for machine in ("laptop", "gpu-box"):
            koderz("benchmark", 0, 8, "--mode", "zero-shot", "-q", "--results", machine)
    if page == LOGS:
        _write_logs(koderz.folder)
    if page == "docs/ci/README.md":
        subprocess.run(["git", "init", "-q"], cwd=koderz.folder, check=True)


def _write_logs(folder: Path) -> None:
    """The logs that the page names."""
    for name, one_in in (("a", 3), ("b", 4)):
        passes = [n % one_in == 0 for n in range(12)]
        samples = [
            writers.inspect_sample(n, float(passed), metadata={"topic": n % 5}) for n, passed in enumerate(passes)
        ]
        entries = {"summaries.json": samples, "header.json": writers.inspect_header(len(passes))}
        writers.inspect_archive(folder / f"{name}.eval", entries)
        writers.inspect_archive(folder / "logs" / f"{name}.eval", entries)
        writers.lm_eval(folder / "lm_eval_out" / f"model_{name}", passes)
        writers.swe_bench_submission(folder / "evaluation/verified" / name, passes)


def test_reference_is_what_the_code_says() -> None:
    """Commands, settings and fields, which a clone shows as they are."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "reference.py", "--check"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_architecture_page_is_what_the_imports_say() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/architecture.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@needs_jq
def test_sessions_alone_print_what_they_print_on_their_page(tmp_path: Path) -> None:
    """The program that makes them runs nothing else of the page, on which the last run is another."""
    forks().write_command(tmp_path / "koderz")
    command = [sys.executable, "scripts/session.py", "--check", "--koderz", str(tmp_path / "koderz")]
    done = subprocess.run([*command, "docs/how-to/compare-models.md"], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


def test_prose_of_pages_keeps_to_the_bounds() -> None:
    done = subprocess.run([sys.executable, "scripts/check_prose"], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="chromium isn't installed")
@pytest.mark.parametrize(
    "names", ["compare.svg", "list.svg", "progress.svg", "report.png", "mlflow.png mlflow-compare.png"]
)
def test_pictures_show_what_the_program_shows(names: str) -> None:
    command = [sys.executable, "scripts/pictures", "--check", *names.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@needs_jq
@pytest.mark.parametrize("mode", ["iterative", "comparative"])
def test_jq_and_python_on_summaries_work_where_nothing_was_judged(koderz: Shell, mode: str) -> None:
    for each in (mode, "zero-shot"):
        koderz("benchmark", 0, 2, "--mode", each, "--quiet")
    nothing_judged(koderz, mode)
    found = blocks("docs/how-to/query-results.md")
    queries = [line for block in found if block.language == "sh" for line in block.commands() if line.startswith("jq ")]
    scripts = [block.text for block in found if block.language == "python"]
    assert (len(queries), len(scripts)) == (5, 4)

    for command in [["bash", "-c", query] for query in queries] + [[sys.executable, "-c", text] for text in scripts]:
        done = subprocess.run(command, cwd=koderz.folder, env=koderz.environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_environment_variables_that_code_reads_are_on_their_page() -> None:
    page = (DOCS / "reference" / "environment.md").read_text(encoding="utf-8")
    source = "\n".join(
        path.read_text(encoding="utf-8") for package in ("koderz", "tracker") for path in (ROOT / package).rglob("*.py")
    )
    read = set(re.findall(r"environ(?:\.get\(|\[)\"([A-Z][A-Z_]+)\"", source))
    settings = {f"KODERZ_{name.upper()}" for name in schema_of().fields}
    handed_on = (
        "MLFLOW_BACKEND_STORE_",
        "MLFLOW_DEFAULT_ARTIFACT_",
        "KODERZ_REPORTS",
    )  # from one of koderz' own processes
    own = {"PATH", "HOME", "PYTHONPATH"} | {name for name in read if name.startswith(handed_on)}

    assert [name for name in sorted(read - settings - own) if f"`{name}`" not in page] == []


def shell(koderz: Shell, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script as a CI job does."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=koderz.folder,
        env=koderz.environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_docs_on_ci_name_the_smallest_drops_of_the_statistics() -> None:
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) points \| ([\d.]+) \| ([\d.]+) \|$", CI, re.MULTILINE)
    assert len(rows) == 3

    for tasks, *drops in rows:
        for share, drop in zip((0.1, 0.2, 0.3), drops, strict=True):
            smallest = smallest_paired_difference(int(tasks), share)
            assert smallest is not None
            assert f"{100 * smallest:.1f}" == drop


def test_docs_on_ci_name_the_false_alarms_of_the_statistics() -> None:
    rows = re.findall(r"^\| (\d+) \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \| ([\d.]+)% \|$", CI, re.MULTILINE)
    assert len(rows) == 3

    for tasks, *rates in rows:
        cases = [(share, confidence) for confidence in (None, 0.95) for share in (0.1, 0.3)]
        for (share, confidence), rate in zip(cases, rates, strict=True):
            found = 100 * drop_alarm(int(tasks), share, 0.05, confidence)
            assert found == pytest.approx(float(rate), abs=0.05 if "." in rate else 0.5)


@needs_jq
@pytest.mark.parametrize(("skill", "code"), [(1.0, 0), (0.0, 1)])
def test_gate_by_jq_works_with_fractions(koderz: Shell, skill: float, code: int) -> None:
    (script,) = re.findall(r"```bash\n(.*?)```", CI, re.DOTALL)
    koderz("benchmark", 0, 7, "--mode", "zero-shot", "-q", "--model", "simulated", "--simulated-skill", skill)
    (summary,) = koderz.results.glob("*.json")
    shutil.copy(summary, koderz.folder / "latest.json")

    assert shell(koderz, script).returncode == code


@needs_jq
def test_gate_by_jq_is_shut_where_nothing_was_judged(koderz: Shell) -> None:
    (script,) = re.findall(r"```bash\n(.*?)```", CI, re.DOTALL)
    nothing_judged(koderz, "zero-shot")
    shutil.copy(next(koderz.results.glob("*.json")), koderz.folder / "latest.json")

    done = shell(koderz, script)

    assert (done.returncode, done.stdout, done.stderr) == (1, "below 85%\n", "")
