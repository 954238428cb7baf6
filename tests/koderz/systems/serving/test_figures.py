"""What a load came to: vLLM's fields and definitions, from the same timings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from koderz.systems.serving.figures import details_of, lines_of, metrics_of, result_of


def request(
    start: float = 0.0, ttft: float = 0.1, itls: tuple[float, ...] = (0.02, 0.04), **more: Any
) -> dict[str, Any]:
    latency = ttft + sum(itls)
    times = {
        "start": start,
        "ended": start + latency,
        "queued": 0.0,
        "ttft": ttft,
        "itls": list(itls),
        "latency": latency,
    }
    return {**times, "input_tokens": 10, "output_tokens": len(itls) + 1, "text": "a b c", "error": "", **more}


def failed(start: float = 0.0) -> dict[str, Any]:
    return request(start, 0.0, (), output_tokens=0, text="", ended=start + 1, error="HTTP 500")


def record(*requests: dict[str, Any], lag: float = 0.1, **about: Any) -> dict[str, Any]:
    usual = {
        "date": "20260101-000000",
        "endpoint_type": "openai",
        "backend": "openai",
        "label": None,
        "model_id": "m",
        "tokenizer_id": None,
        "num_prompts": len(requests),
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": None,
        "goodput": [],
        "percentiles": [99.0],
    }
    return {"about": usual | about, "client_lag_p99_ms": lag, "output_tokens_by": "usage", "requests": [*requests]}


def test_statistics_are_numpy_s_in_milliseconds() -> None:
    found = result_of(record(*(request(ttft=each) for each in (0.1, 0.2, 0.7)), percentiles=[50.0, 99.9]))
    ttfts = np.array([100.0, 200.0, 700.0])
    assert found["mean_ttft_ms"] == pytest.approx(ttfts.mean())
    assert found["std_ttft_ms"] == pytest.approx(ttfts.std())
    assert (found["median_ttft_ms"], found["p50_ttft_ms"]) == pytest.approx((200.0, 200.0))
    assert found["p99.9_ttft_ms"] == pytest.approx(np.percentile(ttfts, 99.9))
    assert found["mean_itl_ms"] == pytest.approx(30.0)
    assert found["mean_e2el_ms"] == pytest.approx(ttfts.mean() + 60)


def test_time_per_output_token_leaves_requests_of_one_token_out() -> None:
    found = result_of(record(request(), request(itls=(), output_tokens=1), request(itls=(0.5,), output_tokens=11)))
    assert found["mean_tpot_ms"] == pytest.approx((30.0 + 50.0) / 2)


def test_throughput_counts_from_first_sent_to_last_ended() -> None:
    found = result_of(record(request(start=1.0), request(start=2.84), failed(start=0.5)))
    assert found["duration"] == pytest.approx(2.5)
    assert (found["completed"], found["failed"]) == (2, 1)
    assert found["request_throughput"] == pytest.approx(2 / 2.5)
    assert found["output_throughput"] == pytest.approx(6 / 2.5)
    assert found["total_token_throughput"] == pytest.approx(26 / 2.5)
    assert found["request_goodput"] is None


def test_goodput_counts_requests_within_every_limit() -> None:
    quick, slow, single = request(ttft=0.1), request(ttft=0.3), request(ttft=0.1, itls=(), output_tokens=1)
    found = result_of(record(quick, slow, single, failed(), goodput=["ttft:200", "tpot:30.001"]))
    assert found["request_goodput"] == pytest.approx(2 / found["duration"])
    assert result_of(record(quick, slow, goodput=["e2el:1"]))["request_goodput"] == 0


def test_peaks_are_of_answered_requests_alone() -> None:
    ended = request(start=0.0, ttft=1.0, itls=())
    found = result_of(record(ended, request(start=1.0), request(start=1.05, ttft=0.5), failed(1.0)))
    assert found["max_concurrent_requests"] == 2
    assert found["max_output_tokens_per_s"] == 7


def test_arrays_of_failed_requests_are_empty_but_for_their_error() -> None:
    found = details_of(record(request(), failed()))
    assert found["ttfts"] == [0.1, 0.0]
    assert found["itls"] == [[0.02, 0.04], []]
    assert found["output_lens"] == [3, 0]
    assert found["errors"] == ["", "HTTP 500"]
    assert {*found} >= {"input_lens", "latencies", "start_times", "generated_texts"}


def test_late_client_says_so() -> None:
    assert result_of(record(request(), lag=1.6))["client_bound"]
    assert not result_of(record(request(), lag=1.4))["client_bound"]
    assert result_of(record(request(itls=(0.0, 0.0, 0.03)), lag=1.4))["client_bound"]  # chunks that were read together


def test_comparison_without_answers_is_empty() -> None:
    found = result_of(record(failed(), failed()))
    assert found["mean_ttft_ms"] == 0.0
    assert found["client_bound"] is False
    metrics = metrics_of(found)
    assert metrics["failed"] == 2
    assert not [name for name in metrics if name.endswith("_ms") and name != "client_lag_p99_ms"]


def test_lines_are_those_by_which_other_tools_read_figures() -> None:
    lines = [*lines_of(result_of(record(request(), request(), max_concurrency=4, goodput=["ttft:200"])))]
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[1] == f"{'Successful requests:':<40} {2:<10}"
    assert f"{'Mean TTFT (ms):':<40} {100.0:<10.2f}" in lines
    assert "---------------Time to First Token----------------" in lines
    labels = [line.partition(":")[0] for line in lines if ":" in line]
    assert labels == [
        *("Successful requests", "Failed requests", "Maximum request concurrency", "Benchmark duration (s)"),
        *("Total input tokens", "Total generated tokens", "Request throughput (req/s)", "Request goodput (req/s)"),
        *("Output token throughput (tok/s)", "Peak output token throughput (tok/s)", "Peak concurrent requests"),
        "Total token throughput (tok/s)",
        *(f"{how} {name} (ms)" for name in ("TTFT", "TPOT", "ITL", "E2EL") for how in ("Mean", "Median", "P99")),
        *(f"{how} Client Queue Time (ms)" for how in ("Mean", "Median", "P99")),
    ]
