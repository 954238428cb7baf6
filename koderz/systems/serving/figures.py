"""The figures of a load, with the fields, definitions and printed lines of vLLM's `bench serve`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from koderz.systems.serving.options import read_goodput
from koderz.types import Measure

_SPANS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
    "client_queue_time": ("Client Queue Time", "Client-side Queueing"),
}
_RATES = {
    "request_throughput": "1/s",
    "request_goodput": "1/s",
    "output_throughput": "tokens/s",
    "total_token_throughput": "tokens/s",
    "max_output_tokens_per_s": "tokens/s",
}
_BOUND = 0.05  # of the median ITL: a client that is later than this tells of itself

MEASURES = (
    *(
        Measure(f"{how}_{name}_ms", "lower", "ms", average="median" if how == "median" else "")
        for name in _SPANS
        for how in ("mean", "median", "p99")
    ),
    *(Measure(name, "higher", unit) for name, unit in _RATES.items()),
    Measure("failed", "lower", "requests"),
    Measure("completed", "higher", "requests"),
)

Json = Mapping[str, Any]


def result_of(record: Json) -> dict[str, Any]:
    """The result of a recorded load in vLLM's format, with notes on this client."""
    about, requests = record["about"], record["requests"]
    done = [each for each in requests if not each["error"]]
    duration = max(each["ended"] for each in requests) - min(each["start"] for each in requests)
    tokens_in, tokens_out = (
        sum(each[name] for each in done) for name in ("input_tokens", "output_tokens")
    )
    spans = _spans(done, queued=about["max_concurrency"] is not None)
    good = _good(spans, read_goodput(about["goodput"]))
    found = {
        **{name: about[name] for name in _HEAD},
        "duration": duration,
        "completed": len(done),
        "failed": len(requests) - len(done),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": len(done) / duration,
        "request_goodput": None if good is None else good / duration,
        "output_throughput": tokens_out / duration,
        "total_token_throughput": (tokens_in + tokens_out) / duration,
        "max_output_tokens_per_s": _most_tokens(done),
        "max_concurrent_requests": _most_at_once(done),
    }
    spans["tpot"] = [
        each
        for each, request in zip(spans["tpot"], done, strict=True)
        if request["output_tokens"] > 1
    ]
    for name, values in spans.items():
        found |= _statistics(name, values, about["percentiles"])
    lag = record["client_lag_p99_ms"]
    return found | {
        "output_tokens_by": record["output_tokens_by"],
        "client_lag_p99_ms": lag,
        "client_bound": bool(spans["itl"]) and _BOUND * found["median_itl_ms"] < lag,
    }


_HEAD = (
    *(
        "date",
        "endpoint_type",
        "backend",
        "label",
        "model_id",
        "tokenizer_id",
        "num_prompts",
        "request_rate",
    ),
    *("burstiness", "max_concurrency"),
)


def details_of(record: Json) -> dict[str, list[Any]]:
    """The fields that --save-detailed adds, an entry a request; times in seconds."""
    names = {
        "input_lens": "input_tokens",
        "output_lens": "output_tokens",
        "ttfts": "ttft",
        "itls": "itls",
        "latencies": "latency",
        "start_times": "start",
        "queue_times": "queued",
        "generated_texts": "text",
        "errors": "error",
    }
    return {ours: [each[name] for each in record["requests"]] for ours, name in names.items()}


def metrics_of(result: Json) -> dict[str, float]:
    """The figures by which experiments are compared, without those of requests that were never answered."""
    about = {*_HEAD, "output_tokens_by"}
    spans = () if result["completed"] else tuple(f"_{name}_ms" for name in _SPANS)
    return {
        name: float(value)
        for name, value in result.items()
        if name not in about and value is not None and not (spans and name.endswith(spans))
    }


def lines_of(result: Json) -> Iterator[str]:
    """The lines that vLLM prints; ISO-Bench and others read figures by their labels."""
    yield f"{' Serving Benchmark Result ':=^50}"
    yield _line("Successful requests:", result["completed"])
    yield _line("Failed requests:", result["failed"])
    if result["max_concurrency"] is not None:
        yield _line("Maximum request concurrency:", result["max_concurrency"])
    if result["request_rate"] != "inf":
        yield _line("Request rate configured (RPS):", float(result["request_rate"]))
    yield _line("Benchmark duration (s):", result["duration"])
    yield _line("Total input tokens:", result["total_input_tokens"])
    yield _line("Total generated tokens:", result["total_output_tokens"])
    yield _line("Request throughput (req/s):", result["request_throughput"])
    if result["request_goodput"] is not None:
        yield _line("Request goodput (req/s):", result["request_goodput"])
    yield _line("Output token throughput (tok/s):", result["output_throughput"])
    yield _line("Peak output token throughput (tok/s):", result["max_output_tokens_per_s"])
    yield _line("Peak concurrent requests:", float(result["max_concurrent_requests"]))
    yield _line("Total token throughput (tok/s):", result["total_token_throughput"])
    for name, (label, title) in _SPANS.items():
        if f"mean_{name}_ms" in result:
            yield f"{title:-^50}"
            for key in result:
                how = key.removesuffix(f"_{name}_ms")
                if how not in (key, "std"):
                    yield _line(f"{how.capitalize()} {label} (ms):", result[key])
    yield "=" * 50


def _line(label: str, value: float) -> str:
    return f"{label:<40} {value:<10.2f}" if isinstance(value, float) else f"{label:<40} {value:<10}"


def _spans(done: Sequence[Json], *, queued: bool) -> dict[str, list[float]]:
    """The values of each metric for each request, in seconds; of `itl`, for all chunks."""
    tpots = [
        (each["latency"] - each["ttft"]) / (each["output_tokens"] - 1)
        if each["output_tokens"] > 1
        else 0.0
        for each in done
    ]
    found = {
        "ttft": [each["ttft"] for each in done],
        "tpot": tpots,
        "itl": [gap for each in done for gap in each["itls"]],
        "e2el": [each["latency"] for each in done],
    }
    return found | ({"client_queue_time": [each["queued"] for each in done]} if queued else {})


def _statistics(
    name: str, values: Sequence[float], percentiles: Sequence[float]
) -> dict[str, float]:
    """Statistics in milliseconds; 0 if there is no value, as in vLLM."""
    import numpy as np

    data = np.asarray(values or [0.0]) * 1000
    named = {f"p{each:g}": float(np.percentile(data, each)) for each in percentiles}
    found = {
        "mean": float(data.mean()),
        "median": float(np.median(data)),
        "std": float(data.std()),
        **named,
    }
    return {f"{how}_{name}_ms": value for how, value in found.items()}


def _good(spans: Mapping[str, Sequence[float]], most: Mapping[str, float]) -> int | None:
    """The number of requests within all limits; None without limits. A request of a single token has a TPOT of 0."""
    if not most:
        return None
    return sum(
        all(value <= limit for value, limit in zip(request, most.values(), strict=True))
        for request in zip(*(spans[name] for name in most), strict=True)
    )


def _most_tokens(done: Sequence[Json]) -> float:
    """The largest number of chunks with tokens in any second since the first request was sent."""
    first = min((each["start"] for each in done), default=0.0)
    seconds: Counter[int] = Counter()
    for each in done:
        time = each["start"] - first + each["ttft"]
        seconds[int(time)] += 1
        for gap in each["itls"]:
            time += gap
            seconds[int(time)] += 1
    return float(max(seconds.values(), default=0))


def _most_at_once(done: Sequence[Json]) -> int:
    """The largest number of requests under way at once; one that ends as another begins doesn't count with it."""
    events = sorted(
        event
        for each in done
        for event in ((each["start"], 1), (each["start"] + each["latency"], -1))
    )
    most = now = 0
    for _, change in events:
        now += change
        most = max(most, now)
    return most
