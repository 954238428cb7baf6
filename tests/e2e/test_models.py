"""The real command against a model server: three wire formats, and everything that can go wrong on the way."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATIENCE, Server, Shell, kill_after, wait_for

Serve = Callable[..., Server]

FORMATS = {"ollama": "recorded", "openai": "openai/recorded", "anthropic": "anthropic/recorded"}
ONE_FAST = [
    pytest.param(name, id=id_, marks=[] if id_ == "openai" else pytest.mark.slow) for id_, name in FORMATS.items()
]
FREE = '[prices."{}"]\ninput = 1.0\noutput = 2.0\n'


@pytest.fixture(autouse=True)
def priced(koderz: Shell) -> None:
    (koderz.folder / "koderz.toml").write_text("".join(FREE.format(name) for name in FORMATS.values()))


@pytest.fixture(scope="module")
def directly(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the model gives that the server asks, without a server."""
    shell = Shell(tmp_path_factory.mktemp("directly"))
    told = shell("benchmark", 0, 4, "--mode", "comparative", "--model", "simulated", "--json", "--quiet")
    return json.loads(told.out)


@pytest.mark.parametrize("name", ONE_FAST)
def test_wire_formats_give_the_same_figures(koderz: Shell, serve: Serve, name: str, directly: Any) -> None:
    server = serve()

    koderz("benchmark", 0, 4, "--mode", "comparative", "--model", name, "--quiet", env=server.env())

    summary = koderz.summary()
    assert summary["simulated"] is False
    for arm in ("zero_shot", "iterative"):
        assert [r["verdict"] for r in summary[arm]["results"]] == [r["verdict"] for r in directly[arm]["results"]]
    assert summary["iterative"]["summary"]["total_cost"] > 0
    calls = [line for line in koderz.journal() if line["kind"] == "call"]
    assert len(calls) == len([row for row in server.answers() if row["status"] == 200])
    assert all(call["tokens_in"] > 0 and call["tokens_out"] > 0 and call["cost"] > 0 for call in calls)
    if name == "recorded":
        assert summary["environment"]["models"]["recorded"]["digest"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_FAST)
def test_retries_end_with_each_experiment_judged_once(koderz: Shell, serve: Serve, name: str) -> None:
    server = serve("--faults", "429:0.1,500:0.1,drop:0.1,garbage:0.05", "--seed", 7)
    options = ("--mode", "comparative", "--max-iterations", 2, "--quiet")  # fewer waits, one after the other

    koderz("benchmark", 0, 12, *options, "--model", name, env=server.env())

    summary = koderz.summary()
    assert summary["status"] == "complete"
    assert len(summary["zero_shot"]["results"]) == len(summary["iterative"]["results"]) == 12
    assert {row["status"] for row in server.answers()} > {200, 429, 500}
    assert any(line["retries"] for line in koderz.journal() if line["kind"] == "call")


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_FAST)
def test_answers_without_a_reply_in_them_are_faults_and_no_failures(koderz: Shell, serve: Serve, name: str) -> None:
    server = serve("--faults", "hollow:1")

    done = koderz("benchmark", 0, 2, "--mode", "zero-shot", "--model", name, "--quiet", env=server.env(), code=3)

    summary = koderz.summary()
    assert (summary["status"], summary["results"], len(summary["faults"])) == ("incomplete", [], 2)
    assert all("the server's answer is not of its format" in fault["reason"] for fault in summary["faults"])
    assert "no_code" not in done.out + done.err


@pytest.mark.slow
def test_hanging_server_is_given_up_and_the_fault_can_be_retried(koderz: Shell, serve: Serve) -> None:
    server = serve("--faults", "hang:0.4", "--seed", 3)
    options = ("--model", "openai/recorded", "--request-timeout", "5", "--max-retries", "0", "--quiet")

    done = koderz("benchmark", 0, 6, "--mode", "zero-shot", *options, env=server.env(), code=3)

    summary = koderz.summary()
    assert summary["status"] == "incomplete"
    assert 0 < len(summary["faults"]) < 6
    assert len(summary["results"]) + len(summary["faults"]) == summary["planned"] == 6
    assert f"koderz benchmark retry {summary['run_id']}" in done.err
    well = serve()
    koderz("benchmark", "retry", "latest", "--quiet", env={**server.env(), "OPENAI_BASE_URL": f"{well.url}/v1"})
    summary = koderz.summary()
    assert (summary["status"], summary["faults"], len(summary["results"])) == ("complete", [], 6)


@pytest.mark.parametrize("fault", ["empty", "truncated"])
def test_empty_or_cut_off_reply_is_a_verdict_and_no_fault(koderz: Shell, serve: Serve, fault: str) -> None:
    server = serve("--faults", f"{fault}:1.0")

    koderz("benchmark", 0, 2, "--mode", "zero-shot", "--model", "openai/recorded", "--quiet", env=server.env())

    assert {result["verdict"] for result in koderz.summary()["results"]} <= {"error", "failed"}
    assert koderz.summary()["faults"] == []


def test_bad_key_ends_the_run_after_one_call_and_is_shown_nowhere(koderz: Shell, serve: Serve) -> None:
    server = serve("--api-key-var", "THE_KEY", env={"THE_KEY": "right"})
    secret = "sk-wrong-77aa88bb"

    done = koderz("benchmark", 0, 20, "--model", "openai/recorded", env=server.env(secret), code=4)

    assert len([row for row in server.answers() if row["kind"] != "models"]) <= 1
    assert "key" in done.err.lower()
    everything = (
        done.out
        + done.err
        + "".join(path.read_text(errors="replace") for path in koderz.folder.rglob("*") if path.is_file())
    )
    assert secret not in everything
    assert "Traceback" not in done.err


@pytest.mark.parametrize("name", ONE_FAST)
def test_unknown_model_ends_the_run_at_once(koderz: Shell, serve: Serve, name: str) -> None:
    server = serve("--model", "another")

    done = koderz("benchmark", 0, 20, "--model", name, env=server.env(), code=4)

    assert len([row for row in server.answers() if row["status"] == 404]) <= 2  # a free look, and one call
    assert "recorded" in done.err


def test_refused_parameters_are_adapted_once_and_said(koderz: Shell, serve: Serve) -> None:
    server = serve("--refuse", "temperature", "--refuse", "max_tokens")

    done = koderz("benchmark", 0, 4, "--model", "openai/recorded", "--mode", "zero-shot", env=server.env())

    assert len([line for line in done.err.splitlines() if "the server said 400" in line]) == 2
    assert Counter(row["status"] for row in server.answers())[400] <= 3
    assert koderz.summary()["status"] == "complete"


def test_reasoning_is_kept_apart_from_the_reply(koderz: Shell, serve: Serve) -> None:
    server = serve("--reasoning", "reasoning_content")

    koderz("benchmark", 8, 13, "--mode", "zero-shot", "--model", "openai/recorded", "--quiet", env=server.env())

    thoughts = [line for line in koderz.journal() if line["kind"] == "call" and line["reasoning"]]
    assert thoughts
    assert all(call["reasoning"] not in call["reply"] for call in thoughts)


@pytest.mark.slow
def test_cost_cap_stops_before_the_call_that_could_pass_it(koderz: Shell, serve: Serve) -> None:
    server = serve()
    options = ("--mode", "zero-shot", "--model", "openai/recorded", "--max-tokens", 400, "--quiet")

    done = koderz("benchmark", 0, 15, *options, "--max-cost", "0.003", env=server.env(), code=3)

    stopped = koderz.summary()
    assert stopped["status"] == "stopped"
    assert 0 < len(stopped["results"]) < 15
    assert stopped["paid"]["total"] <= 0.003
    assert "--max-cost" in done.err
    answered = len(server.answers())
    koderz("benchmark", "resume", "latest", "--max-cost", "1", "--quiet", env=server.env())
    summary = koderz.summary()
    assert (summary["status"], len(summary["results"])) == ("complete", 15)
    assert len([r for r in server.answers()[answered:] if r["kind"] != "models"]) == 15 - len(stopped["results"])


def test_cost_cap_on_an_unknown_price_is_refused_before_any_call(koderz: Shell) -> None:
    options = ("--model", "openai/unheard-of", "--base-url", "http://192.0.2.1/v1", "--max-cost", 1)

    done = koderz("benchmark", 0, 3, *options, code=2)

    assert "--max-cost can't hold without the price of openai/unheard-of" in done.err
    assert not list(koderz.results.glob("*.json"))


def test_cost_cap_holds_for_a_published_price_behind_a_local_proxy(koderz: Shell, serve: Serve) -> None:
    server = serve("--model", "gpt-4o-mini")
    options = ("--mode", "zero-shot", "--model", "openai/gpt-4o-mini", "--concurrency", 1)

    plan = koderz("benchmark", 0, 30, *options, "--dry-run", env=server.env())
    done = koderz("benchmark", 0, 30, *options, "--max-tokens", 200, "--max-cost", 0.0005, env=server.env(), code=3)

    assert re.search(r"openai/gpt-4o-mini: \$.* a million tokens, as its provider publishes it", plan.out)
    assert re.search(r"openai/gpt-4o-mini is reckoned \$.*koderz\.toml", done.err)
    summary = koderz.summary()
    assert (summary["status"], summary["summary"]["cost_known"]) == ("stopped", True)
    assert 0 < summary["paid"]["total"] <= 0.0005


def test_sample_of_a_dry_run_is_paid_recorded_and_capped(koderz: Shell, serve: Serve) -> None:
    server = serve("--model", "gpt-4o-mini")
    asked = ("benchmark", 0, 30, "--mode", "zero-shot", "--model", "openai/gpt-4o-mini", "--dry-run", "--sample")
    limits = ("--max-tokens", 200, "--concurrency", 1, "--max-cost")

    whole = koderz(*asked, 3, *limits, 1, env=server.env()).out
    capped = koderz(*asked, 20, *limits, 0.0005, env=server.env(), code=3).out

    found = {path.stem: json.loads(path.read_bytes()) for path in koderz.results.glob("bench_*.json")}
    kept = {run: summary["paid"]["total"] for run, summary in found.items()}
    told = [
        re.match(r"SAMPLE: (\d+) of 30 tasks cost \$([\d.]+).* kept as run (\w+)\n", out) for out in (whole, capped)
    ]
    assert {each[3]: float(each[2]) for each in told if each} == pytest.approx(kept, abs=6e-5)
    assert all(0 < paid <= 0.0005 for paid in kept.values())
    assert "(stopped after " in capped
    assert "Likely figures: by 3 experiments of 1 run with the same model and settings" in whole


def test_plan_tells_what_is_free_and_why(koderz: Shell, serve: Serve) -> None:
    env = serve().env()

    told = {name: koderz("benchmark", 0, 3, "--model", name, "--dry-run", env=env).out for name in ("m", "openai/m")}
    document = koderz("benchmark", 0, 3, "--model", "openai/m", "--dry-run", "--json", env=env).out

    assert "Model: m: free, since an Ollama runs it" in told["m"]
    assert "Model: openai/m: free, since it is asked on this machine and has no published price" in told["openai/m"]
    assert json.loads(document)["prices"]["openai/m"]["input"] == 0


@pytest.mark.slow
def test_ctrl_c_finishes_what_is_under_way_and_says_how_to_go_on(koderz: Shell, serve: Serve) -> None:
    server = serve("--latency-ms", 1000)  # so that it takes many seconds
    asked = ("--mode", "zero-shot", "--model", "openai/recorded", "--concurrency", 2)
    running = koderz.start("benchmark", 0, 20, *asked, env=server.env())
    wait_for(server.answers)

    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=PATIENCE)

    assert running.returncode == 130
    assert "BENCHMARK INTERRUPTED" in out
    summary = koderz.summary()
    assert summary["status"] == "interrupted"
    assert f"koderz benchmark resume {summary['run_id']}" in err
    assert summary["paid"]["unfinished"] == 0
    koderz("benchmark", "resume", "latest", "--quiet", env=serve().env())
    assert len(koderz.summary()["results"]) == 20
    calls = Counter((line["experiment_id"], line["key"]) for line in koderz.journal() if line["kind"] == "call")
    assert set(calls.values()) == {1}


def test_ctrl_c_twice_ends_at_once_and_resumes(koderz: Shell, serve: Serve) -> None:
    server = serve("--fail-first", 1, "--faults", "hang:1.0")
    running = koderz.start("benchmark", 0, 9, "--model", "openai/recorded", "--grace", 600, env=server.env())
    wait_for(server.answers)

    running.send_signal(signal.SIGINT)
    wait_for(lambda: not _is_pending(running.pid, signal.SIGINT))  # two that are pending would be one
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=PATIENCE)

    assert running.returncode == 130
    assert "Traceback" not in err
    assert koderz.summary()["status"] == "interrupted"


@pytest.mark.slow
def test_run_is_locked_against_a_second_process(koderz: Shell, serve: Serve) -> None:
    server = serve("--faults", "hang:1.0")
    koderz.start("benchmark", 0, 40, "--model", "openai/recorded", env=server.env())
    wait_for(lambda: any(koderz.results.glob("[!.]*/journal.jsonl")))

    done = koderz("benchmark", "resume", "latest", env=server.env(), code=2)

    assert "another koderz process is working on" in done.err


@pytest.mark.slow
def test_run_can_be_watched_from_another_terminal(koderz: Shell, serve: Serve) -> None:
    server = serve("--latency-ms", 100)
    running = koderz.start("benchmark", 0, 10, "--mode", "zero-shot", "--model", "openai/recorded", env=server.env())
    wait_for(server.answers)

    watched = koderz("benchmark", "watch", "latest", "--every", "0.2")

    running.communicate(timeout=PATIENCE)
    assert "10/10" in watched.out
    assert "ended: complete" in watched.out


@pytest.mark.slow
def test_rescoring_makes_no_call(koderz: Shell, serve: Serve) -> None:
    server = serve()
    koderz("benchmark", 0, 4, "--mode", "comparative", "--model", "openai/recorded", "--quiet", env=server.env())
    before, answered = koderz.summary(), len(server.answers())

    koderz("benchmark", "rescore", "latest", "--quiet", env=server.env())

    assert len(server.answers()) == answered
    after = koderz.summary()
    for arm in ("zero_shot", "iterative"):
        assert after[arm]["summary"]["successes"] == before[arm]["summary"]["successes"]
        assert after[arm]["summary"]["total_cost"] == before[arm]["summary"]["total_cost"]


@pytest.mark.slow
def test_killed_at_random_moments_no_recorded_call_is_made_again(koderz: Shell, serve: Serve) -> None:
    server = serve("--latency-ms", 40, "--faults", "500:0.05,drop:0.05")
    running = koderz.start("benchmark", 0, 16, "--mode", "comparative", "--model", "openai/recorded", env=server.env())
    for more in (1, 12, 7, 12):
        kill_after(more, server.answers, running)
        running = koderz.start("benchmark", "resume", "latest", env=server.env())
    running.communicate(timeout=2 * PATIENCE)

    assert running.returncode == 0
    journal = koderz.journal()
    ends = Counter(line["experiment_id"] for line in journal if line["kind"] == "experiment")
    assert (len(ends), set(ends.values())) == (32, {1})
    calls = Counter((line["experiment_id"], line["key"]) for line in journal if line["kind"] == "call")
    assert set(calls.values()) == {1}
    paid = sum(row["status"] == 200 for row in server.answers())
    assert len(calls) <= paid <= len(calls) + 4 * 8 + 8  # what was in flight at a kill may be asked again


@pytest.mark.slow
def test_full_disk_ends_the_run_clearly_and_loses_nothing(koderz: Shell, serve: Serve) -> None:
    server = serve()
    script = (
        "import resource, runpy, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY)); "
        "sys.argv = ['koderz', *sys.argv[1:]]; runpy.run_module('koderz', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", script, "benchmark", "0", "10", "--model", "openai/recorded", "--quiet"]
    done = subprocess.run(
        command, cwd=koderz.folder, env=koderz.environment(server.env()), capture_output=True, text=True, check=False
    )

    assert done.returncode == 3
    assert "resume the run" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(koderz.results.glob("*.json"))
    for line in _journal(koderz).read_bytes().splitlines():
        json.loads(line)
    koderz("benchmark", "resume", "latest", "--quiet", env=server.env())
    assert koderz.summary()["status"] == "complete"


def _journal(koderz: Shell) -> Path:
    (path,) = koderz.results.glob("[!.]*/journal.jsonl")
    return path


def _is_pending(process: int, number: signal.Signals) -> bool:
    (pending,) = re.findall(r"^ShdPnd:\s*(\w+)$", Path(f"/proc/{process}/status").read_text(), re.MULTILINE)
    return bool(int(pending, 16) >> (number - 1) & 1)
