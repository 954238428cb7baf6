"""The options of the suite `serving`, named as in vLLM's `bench serve`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from koderz.settings.options import option

SLOS = ("ttft", "tpot", "e2el")


def _wrong_number(text: str) -> str:
    try:
        fine = float(text) > 0
    except ValueError:
        fine = False
    return "" if fine else "it must be a number above 0, or inf"


def _wrong_goodput(words: Iterable[str]) -> str:
    try:
        read_goodput(words)
    except ValueError:
        return f"write {' or '.join(f'{name}:MS' for name in SLOS)}"
    return ""


def _wrong_percentiles(words: Iterable[str]) -> str:
    try:
        fine = all(0 <= float(word) <= 100 for word in words)
    except ValueError:
        fine = False
    return "" if fine else "a percentile is a number from 0 to 100"


def read_goodput(words: Iterable[str]) -> dict[str, float]:
    """Limits such as `ttft:300` as seconds. Raises ValueError for anything else."""
    found = {}
    for word in words:
        name, _, value = word.partition(":")
        if name not in SLOS or not float(value) >= 0:
            raise ValueError(word)
        found[name] = float(value) / 1000
    return found


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """The options of a load: its prompts and its rate."""

    backend: Literal["openai", "openai-chat", "vllm", "sglang"] = option(
        "openai",
        "The server's API: openai, vllm and sglang mean completions, openai-chat chat completions.",
        "NAME",
    )
    endpoint: str | None = option(
        None,
        "The path below --base-url. Default: /v1/completions, or /v1/chat/completions.",
        "PATH",
    )
    dataset_name: Literal["random", "sharegpt", "custom"] = option(
        "random",
        "Where prompts come from: random, or sharegpt or custom with --dataset-path.",
        "NAME",
    )
    dataset_path: Path | None = option(
        None, "ShareGPT's JSON, or JSON lines with prompt and, if you like, output_tokens.", "FILE"
    )
    random_input_len: int = option(
        1024, "Length of each random prompt, in tokens.", "N", bounds=(1, 10_000_000)
    )
    random_output_len: int = option(
        128,
        "Tokens asked for with each random prompt; of custom ones, where they don't say.",
        "N",
        bounds=(1, 1_000_000),
    )
    tokenizer: str | None = option(
        None,
        "A tokenizer.json that counts tokens; without one, words are counted (needs koderz[data]).",
        "FILE",
    )
    label: str | None = option(
        None, "What the result file calls this load. Default: --backend.", "TEXT"
    )
    num_prompts: int = option(1000, "Number of requests.", "N", bounds=(1, 1_000_000))
    request_rate: str = option(
        "inf",
        "Requests a second, sent whether or not others are done; inf sends all at once.",
        "R",
        check=_wrong_number,
    )
    burstiness: str = option(
        "1",
        "How even requests come: 1 is a Poisson process, less is burstier, inf is even.",
        "B",
        check=_wrong_number,
    )
    max_concurrency: int | None = option(
        None,
        "Maximum requests at once; with --request-rate inf, a closed loop.",
        "N",
        bounds=(1, 100_000),
    )
    goodput: tuple[str, ...] = option(
        (),
        "What a good request takes at most, in ms: ttft:300 tpot:50 e2el:5000.",
        "NAME:MS",
        listed=True,
        check=_wrong_goodput,
    )
    ignore_eos: bool = option(
        False, "Ask the server to go on after the end of the text (vLLM, SGLang)."
    )
    num_warmups: int = option(
        0, "Requests before the load, which don't count.", "N", bounds=(0, 100_000)
    )
    ready_check_timeout_sec: float = option(
        0.0,
        "Time that the server has to answer a first request; 0 sends none.",
        "SECONDS",
        bounds=(0, 86_400),
    )
    metric_percentiles: tuple[str, ...] = option(
        ("99",),
        "The percentiles that are reported: 50,90,99.",
        "P",
        listed=True,
        check=_wrong_percentiles,
    )
