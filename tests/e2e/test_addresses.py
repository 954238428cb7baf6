"""Keys in the path of a base URL: no file of a run has them, and the run is taken up with the address given again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web

from koderz.systems.rollouts.agents.own import simulate
from koderz.testing import ModelServer
from tests.conftest import Shell, kill_after
from tests.e2e.answering import answering, labelled
from tests.e2e.conftest import Remote, once_each
from tests.e2e.test_agents import fakes as fakes
from tests.e2e.test_agents import rollout
from tests.e2e.test_recursion import DEEP, deep
from tests.e2e.written import written

KEY = "sk-live-abcdef0123456789abcdef"
PLACE = f"/proxy/{KEY}"
RECORDED = "/proxy/[redacted]/v1"


class Below(ModelServer):
    """A server behind a gateway that takes a key in the path, and tells of the path where it is another."""

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        if request.path.startswith(PLACE):
            request = request.clone(rel_url=request.path.removeprefix(PLACE))
        return await super()._answered(request)


class Case(NamedTuple):
    """A run of a system, and who answers it."""

    command: Sequence[object]
    reply: Any
    resume: Sequence[object] = ("benchmark", "resume", "latest")


_ASKED = ("--model", "openai/recorded")
CODE = Case(("benchmark", 0, 8, *_ASKED, "--concurrency", 2), lambda _: "I can't.")
CASES = {
    "rlm": Case(("benchmark", "--suite", "ruler", "--solver", "rlm", *_ASKED, "--limit", 4, *DEEP), deep),
    "optimize": Case(
        ("optimize", "run", "--demo-datasets", "labels", "--optimizers", "few_shot", "--models", "openai/recorded",
         "--seeds", 1, "--yes", "--budget-calls", 60,
         "--train-items", 20, "--validation-items", 20, "--test-items", 30),
        labelled,
        ("optimize", "run", "--resume-run-id", "latest"),
    ),
    "rollouts": Case(
        ("benchmark", 0, 2, "--suite", "rollouts", "--solver", "agent:koderz", *_ASKED),
        lambda request: simulate(request.messages),
    ),
}  # fmt: skip


def found_in(koderz: Shell) -> list[str]:
    return sorted({str(path.relative_to(koderz.folder)) for path, text in written(koderz.folder) if KEY[:24] in text})


@pytest.mark.slow
def test_address_with_a_key_is_on_no_record_and_given_again(koderz: Shell) -> None:
    env = {"KODERZ_SINKS": "json,memory"}
    with answering(CODE.reply, 0.1, Below) as (server, asked):
        url = server["OPENAI_BASE_URL"].replace("/v1", f"{PLACE}/v1")
        env |= {"OPENAI_API_KEY": "none"}
        kill_after(6, lambda: asked, koderz.start(*CODE.command, "--base-url", url, env=env))
        lacking = koderz("benchmark", "resume", "latest", code=2, env=env)
        another = koderz("benchmark", "resume", "latest", "--base-url", f"{url}/other", code=2, env=env)
        copied = koderz(*CODE.command, "--base-url", url.replace(KEY, "[redacted]"), code=2, env=env)
        given = koderz("benchmark", "resume", "latest", "--base-url", url, "--wait", env=env)
    assert lacking.err.count("\n") == 1
    assert RECORDED in lacking.err
    assert "--base-url, KODERZ_BASE_URL or koderz.toml" in lacking.err
    assert "isn't what is given" in another.err
    assert "give the address itself" in copied.err
    assert koderz.summary()["status"] == "complete"
    assert koderz.summary()["config"]["base_url"].endswith(RECORDED)
    rescored = koderz("benchmark", "rescore", "latest", "--wait", env=env)  # which asks nobody
    told = [text for done in (lacking, another, copied, given, rescored) for text in (done.out, done.err)]
    assert found_in(koderz) == []
    assert not any(KEY in text for text in told)


@pytest.mark.slow
def test_address_without_secrets_is_resumed_from_the_record(koderz: Shell) -> None:
    with answering(CODE.reply, 0.1) as (server, asked):
        url, env = server["OPENAI_BASE_URL"], {"OPENAI_API_KEY": "none"}
        kill_after(6, lambda: asked, koderz.start(*CODE.command, "--base-url", url, env=env))
        koderz("benchmark", "resume", "latest", "--base-url", "http://127.0.0.1:9/v1", code=2, env=env)
        koderz("benchmark", "resume", "latest", env=env)
    assert koderz.summary()["config"]["base_url"] == url
    assert koderz.summary()["status"] == "complete"


@pytest.mark.slow
def test_address_on_record_of_an_earlier_version_is_resumed(koderz: Shell) -> None:
    with answering(CODE.reply, 0.1, Below) as (server, asked):
        url = server["OPENAI_BASE_URL"].replace("/v1", f"{PLACE}/v1")
        env = {"OPENAI_API_KEY": "none", "KODERZ_SINKS": "json,memory"}
        kill_after(6, lambda: asked, koderz.start(*CODE.command, "--base-url", url, env=env))
        (journal,) = koderz.results.glob("[!.]*/journal.jsonl")
        journal.write_text(journal.read_text().replace("[redacted]", KEY, 1))
        koderz("benchmark", "resume", "latest", "--trust-config", "--wait", env=env)
    assert koderz.summary()["status"] == "complete"
    assert found_in(koderz) == [str(journal.relative_to(koderz.folder))]


@pytest.mark.slow
def test_address_of_koderz_toml_gets_no_key_on_resume(koderz: Shell) -> None:
    with answering(CODE.reply, 0.1, Below) as (server, asked):
        url, env = server["OPENAI_BASE_URL"].replace("/v1", f"{PLACE}/v1"), {"OPENAI_API_KEY": "a-key-of-mine"}
        kill_after(6, lambda: asked, koderz.start(*CODE.command, "--base-url", url, env=env))
        (koderz.folder / "koderz.toml").write_text(f'base-url = "{url}"\n')
        untrusted = koderz("benchmark", "resume", "latest", code=2, env=env)
        done = koderz("benchmark", "resume", "latest", "--trust-config", env=env)
    assert "this could send data elsewhere" in untrusted.err
    assert "OPENAI_API_KEY is not sent to" in done.err
    assert koderz.summary()["status"] == "complete"
    (koderz.folder / "koderz.toml").write_text(f'base-url = "{url}" # which is no longer trusted\n')
    koderz("benchmark", "rescore", "latest", env=env)  # and isn't asked where nobody is


@pytest.mark.slow
def test_address_on_modal_is_whole_for_workers_and_not_in_the_volume(on_modal: Remote, tmp_path: Path) -> None:
    with answering(CODE.reply, 0, Below) as (server, _):
        url = server["OPENAI_BASE_URL"].replace("/v1", f"{PLACE}/v1")
        on_modal("benchmark", 0, 2, *_ASKED, "--base-url", url, "--mode", "zero-shot", "--engine", "modal", "--detach")
        (run,) = (path.name for path in on_modal.results.iterdir() if path.is_dir())
        other = Remote(tmp_path / "elsewhere", on_modal.modal, on_modal.server, on_modal.before)
        other.folder.mkdir()
        lacking = other("benchmark", "resume", run, "--trust-config", code=2)
        other("benchmark", "resume", run, "--base-url", url)
    assert RECORDED in lacking.err
    once_each(other, 2)
    assert not other.summary()["faults"]
    volume = on_modal.modal.volume("koderz-results") / "runs" / run
    assert not any(KEY.encode() in path.read_bytes() for path in volume.rglob("*") if path.is_file())
    assert found_in(other) == []


@pytest.mark.slow
@pytest.mark.parametrize("server", [Below, ModelServer])
def test_agent_at_the_bridge_leaves_no_key(koderz: Shell, fakes: dict[str, str], server: type[ModelServer]) -> None:
    env = {**fakes, "OPENAI_API_KEY": "none", "KODERZ_SINKS": "json,memory"}
    with answering(lambda _: "Done.", 0, server) as (environ, _):
        url = environ["OPENAI_BASE_URL"].replace("/v1", f"{PLACE}/v1")
        done = rollout(koderz, "codex", *_ASKED[1:], "--base-url", url, code=0 if server is Below else 4, env=env)
    assert KEY not in done.out + done.err
    assert found_in(koderz) == []


@pytest.mark.slow
def test_errors_do_not_tell_of_the_key(koderz: Shell) -> None:
    def fails(*words: object, code: int, env: Mapping[str, str]) -> None:
        done = koderz(*words, code=code, env={"OPENAI_API_KEY": "none", **env})
        assert KEY not in done.out + done.err
        assert "[redacted]" in done.err or "***" in done.err

    with answering(CODE.reply, 0) as (server, _):
        url = server["OPENAI_BASE_URL"].replace("/v1", f"{PLACE}/v1")
        fails(*CODE.command, "--base-url", url, code=4, env={})
        fails(*CODE.command, code=4, env={"OPENAI_BASE_URL": url})
        fails(*CODE.command, "--base-url", f"{url}?key={KEY}", code=2, env={})
        fails(
            "benchmark",
            0,
            1,
            "--model",
            "anthropic/recorded",
            code=4,
            env={"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "x"},
        )
        fails("benchmark", 0, 1, "--model", "m", code=4, env={"OLLAMA_HOST": url.removesuffix("/v1")})
        fails("perf", "serve-bench", "--base-url", url, code=4, env={})
        fails("perf", "serve-bench", "--base-url", url, *_ASKED[:1], "recorded", "--num-prompts", 2, code=3, env={})
    everywhere = {f"{name}_BASE_URL": f"{url}?key={KEY}" for name in ("OPENAI", "ANTHROPIC", "GEMINI", "KODERZ")}
    doctor = koderz("doctor", "--json", code=(0, 1, 2, 3, 4), env={**everywhere, "OLLAMA_HOST": url})
    assert KEY not in doctor.out + doctor.err
    assert found_in(koderz) == []


@pytest.mark.slow
def test_killed_runs_of_every_system_leave_no_key_anywhere(koderz: Shell) -> None:
    env = {"OPENAI_API_KEY": "none", "KODERZ_SINKS": "json,memory,mlflow"}
    for system, case in {"code": CODE, **CASES}.items():
        _kill_and_resume(koderz, case, env)
        for kind in ("csv", "jsonl", "md", "parquet"):
            mixed = ("--all-arms",) if kind == "jsonl" else ()
            koderz("benchmark", "export", "latest", *mixed, "-o", f"{system}.{kind}", env=env)
        shown = koderz("benchmark", "show", "latest", "--json", env=env).out
        assert json.loads(shown)["status"] == "complete"
        (koderz.folder / f"{system}.json").write_text(shown)
        koderz("benchmark", "report", "latest", "-o", f"{system}.html", env=env)
    koderz("sync", env=env)
    (koderz.folder / "memories.json").write_text(koderz("memory", "export", env=env).out)
    journals = [path.read_text() for path in koderz.results.glob("bench_*/journal.jsonl")]
    assert [RECORDED in journal for journal in journals] == [True] * 4
    assert found_in(koderz) == []


def _kill_and_resume(koderz: Shell, case: Case, env: Mapping[str, str]) -> None:
    """Runs it until it is killed, and to its end with the address, which it asks for."""
    with answering(case.reply, 0.15, Below) as (server, asked):
        url = server["OPENAI_BASE_URL"].replace("/v1", f"{PLACE}/v1")
        kill_after(5, lambda: asked, koderz.start(*case.command, "--base-url", url, env=env))
        koderz(*case.resume, code=2, env=env)
        koderz(*case.resume, code=(0, 1), env={**env, "KODERZ_BASE_URL": url})
