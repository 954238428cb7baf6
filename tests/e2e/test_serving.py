"""`koderz perf serve-bench` on a server whose delays are known."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.conftest import Server, Shell

Start = Callable[..., Server]
SMALL = ("--num-prompts", 6, "--random-input-len", 8, "--random-output-len", 5)


def test_serve_bench_is_a_run_of_one_experiment_with_figures(koderz: Shell, serve: Start) -> None:
    server = serve("--stream", "--model", "first", "--model", "second")
    done = koderz("perf", "serve-bench", "--base-url", server.url, *SMALL, "--max-concurrency", 2)
    assert "============ Serving Benchmark Result ============" in done.out
    assert f"{'Successful requests:':<40} {6:<10}\n" in done.out
    summary = koderz.summary()
    (result,) = summary["results"]
    assert (summary["mode"], summary["config"]["local_model"]) == ("serving", "openai/first")
    assert result["success"]
    assert result["metrics"]["total_output_tokens"] == 30
    assert {"mean_ttft_ms", "median_itl_ms", "p99_e2el_ms", "client_lag_p99_ms", "client_bound"} <= {*result["metrics"]}
    assert len(server.answers()) == 6  # nothing before the load, and nothing twice
    assert "openai/first" in koderz("benchmark", "list").out
    koderz("perf", "serve-bench", "--base-url", server.url, *SMALL, "--max-concurrency", 2, "--quiet")
    compared = koderz("benchmark", "compare", "latest~1", "latest", "--measure", "mean_itl_ms", "--json")
    assert json.loads(compared.out)
    before = koderz.results / summary["run_id"] / "journal.jsonl"
    told = done.out[done.out.index("===") : done.out.index("BENCHMARK SUMMARY SAVED")]
    assert told in koderz("benchmark", "rescore", summary["run_id"], "--quiet").out
    lines = [json.loads(line) for line in before.read_text().splitlines()]
    assert sum(line["kind"] == "once" for line in lines) == 1
    assert len(server.answers()) == 12


def test_result_file_has_the_fields_of_vllm(koderz: Shell, serve: Start) -> None:
    server = serve("--stream", "--model", "org/model")
    own = ("--save-detailed", "--result-dir", "made/here", "--goodput", "ttft:60000", "tpot:60000")
    rate = ("--request-rate", 200, "--burstiness", 2, "--metric-percentiles", "50,99.9", "--label", "mine")
    koderz("perf", "serve-bench", "--base-url", f"{server.url}/v1", "--backend", "openai-chat", *SMALL, *own, *rate)
    (path,) = (koderz.folder / "made/here").iterdir()
    assert path.name.startswith("mine-200.0qps-model-")
    found = json.loads(path.read_text())
    assert (found["model_id"], found["label"], found["backend"]) == ("org/model", "mine", "openai-chat")
    assert (found["request_rate"], found["burstiness"], found["max_concurrency"]) == (200.0, 2.0, None)
    assert found["request_goodput"] == pytest.approx(found["request_throughput"])
    assert {"p50_ttft_ms", "p99.9_itl_ms", "std_tpot_ms", "mean_e2el_ms", "tokenizer_id", "date"} <= {*found}
    assert [len(each) for each in found["itls"]] == [4] * 6
    assert found["errors"] == [""] * 6


def test_failed_requests_are_figures_and_all_failed_is_a_fault(koderz: Shell, serve: Start) -> None:
    half = serve("--stream", "--faults", "503:0.5")
    done = koderz("perf", "serve-bench", "--base-url", half.url, "--num-prompts", 20, *SMALL[2:], "--model", "recorded")
    metrics = koderz.summary()["results"][0]["metrics"]
    assert metrics["failed"] + metrics["completed"] == 20
    assert metrics["failed"] > 0
    assert "HTTP 503" in done.err
    none = serve("--stream", "--faults", "500:1")
    own = ("--results", "none", "--save-result", "--result-filename", "none.json")
    done = koderz("perf", "serve-bench", "--base-url", none.url, *SMALL, *own, code=3)
    assert f"{'Failed requests:':<40} {6:<10}\n" in done.out
    assert "all 6 requests failed, the first with: HTTP 500" in done.err
    assert json.loads((koderz.folder / "none.json").read_text())["failed"] == 6


def test_key_is_sent_and_on_no_record(koderz: Shell, serve: Start) -> None:
    env = {"SECRET": "key-0123456789abcdef"}
    server = serve("--stream", "--api-key-var", "SECRET", env=env)
    command = ("perf", "serve-bench", "--base-url", server.url, *SMALL, "--save-detailed")
    koderz(*command, "--result-filename", "out.json", "--api-key-env", "SECRET", env=env)
    assert koderz.summary()["results"][0]["metrics"]["completed"] == 6
    for path in koderz.folder.rglob("*"):
        assert not path.is_file() or b"0123456789abcdef" not in path.read_bytes()


@pytest.mark.parametrize(
    ("given", "said", "code"),
    [
        (("--goodput", "ttlt:3"), "ttft:MS", 2),
        (("--request-rate", "0"), "above 0", 2),
        (("--dataset-name", "custom"), "--dataset-path", 2),
        (("--dataset-name", "custom", "--dataset-path", "gone.jsonl"), "gone.jsonl", 2),
        (("--samples", "2"), "--samples has no effect here: it is for koderz benchmark", 2),
        (("--model", "n"), "one load", 2),
        (("--metric-percentiles", "101"), "from 0 to 100", 2),
        (("--base-url", "nowhere"), "not a base URL", 2),
        (("--model", "other"), "one --model", 2),
    ],
)
def test_bad_input_is_one_sentence_and_creates_nothing(
    koderz: Shell, given: tuple[str, ...], said: str, code: int
) -> None:
    done = koderz("perf", "serve-bench", "--model", "m", *given, code=code)
    assert said in done.err
    assert "Traceback" not in done.err
    assert not koderz.results.exists()


def test_help_shows_what_serves_a_load(koderz: Shell) -> None:
    shown = " ".join(koderz("perf", "serve-bench", "--help-all").out.split())
    assert "--local-model MODEL The model to ask. Default: the server's first." in shown
    assert "--num-prompts" in shown
    assert "--request-timeout" in shown
    assert not {"--max-iterations", "--judges", "--docker-image", "--problems-file", "--limit"} & {*shown.split()}


def test_missing_server_cannot_list_its_models(koderz: Shell) -> None:
    done = koderz("perf", "serve-bench", "--port", 9, code=4)
    assert "http://127.0.0.1:9" in done.err
    assert "name one with --model" in done.err
    assert not koderz.results.exists()
