"""The keyword arguments of functions that run something, with their types; written by `scripts/keywords.py`.

They are the settings, and the options of koderz' own suites, solvers, sandboxes, engines and models. An option of
somebody else's is passed as `**{"its_name": value}`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict


class Changes(TypedDict, total=False):
    """The settings that may differ when a run is resumed, and those that a program hands over again."""

    agreement: float
    base_url: str | None
    batch_fallback: Literal["fault", "live"]
    batch_wait: float
    clock: Literal["cpu", "wall"]
    concurrency: int
    extra_headers: Sequence[str]
    grace: float
    gso_strict: bool
    images: str | Path | None
    judges: int | None
    max_blocks: int
    max_connections: int | None
    max_containers: int | None
    max_cost: float | None
    max_experiment_cost: float | None
    metric: str | Callable[..., Any] | None
    mlflow_detail: Literal["traces", "runs", "parent", "full"] | None
    mlflow_experiment: str | None
    no_sinks: Sequence[str]
    packages: str | Path | None
    poll: float
    push: bool
    rates: Sequence[str]
    rounds: int | None
    rpm: int | None
    scorer: str | Callable[..., Any] | None
    sink_patience: float
    sinks: Sequence[str]
    solver: str | Callable[..., Any] | None
    solvers: Sequence[str | Callable[..., Any]]
    suite: Any
    threshold: float
    timeout: float
    tpm: int | None
    wasm_url: str | None


class Keywords(Changes, total=False):
    """The settings and options of a new run."""

    agent_memory: int
    agent_timeout: float | None
    allow_network: Literal["none", "build"]
    alpha: float | None
    api_key_env: str | None
    api_version: str | None
    backend: Literal["openai", "openai-chat", "vllm", "sglang"]
    baseline_model: str | None
    batch: bool
    batch_roles: Sequence[str]
    browsecomp_canary: str | None
    budget_calls: int
    burstiness: str
    canaries: str | None
    canaries_shown: bool
    checkpoint_interval: int
    checkpoints: bool
    choices: Sequence[str]
    closed_book: bool
    cluster_column: str | None
    command_timeout: float
    context: int
    context_lengths: Sequence[str]
    corpus: str | Path | None
    cot: bool
    cpus: float | None
    data_seed: int
    dataset: str | Path | Sequence[str] | None
    dataset_name: Literal["random", "sharegpt", "custom"]
    dataset_path: str | Path | None
    demo_datasets: Sequence[str]
    docker_image: str
    documents: int | None
    endpoint: str | None
    engine: str
    entry_sandbox: bool
    env: Sequence[str]
    environments: str | Path | None
    extra_body: str | None
    feedback: Literal["tests", "examples", "none"]
    few_shot: int | None
    few_shot_from: str | Path | None
    format_line: bool
    frontier_checkpoint_model: str | None
    frontier_spec_model: str | None
    goodput: Sequence[str]
    gpu: str | None
    hard: bool
    haystack: str | Path | None
    history: int
    host_base: bool
    id: str | None
    ignore_eos: bool
    image: str | None
    initial_prompt: str | Path | None
    input: str
    input_columns: Sequence[str]
    io: Literal["official", "process"]
    item_concurrency: int
    judge_draws: int
    judge_model: str | None
    keep_alive: str | None
    keep_private_text: bool
    label: str | None
    layer_mb: int
    limit: int | None
    margin: float | None
    matrix: str | Path | None
    max_concurrency: int | None
    max_concurrent_subcalls: int
    max_depth: int
    max_diff_mb: int
    max_errors: int | None
    max_iterations: int
    max_retries: int
    max_tokens: int
    max_turns: int
    mcp_network: str | None
    memory_live: bool
    memory_mb: int | None
    metric_percentiles: Sequence[str]
    min_tasks: int | None
    mode: Literal["zero-shot", "iterative", "comparative"]
    model_options: Sequence[str]
    needle_positions: Sequence[str]
    needle_types: Sequence[str]
    network: Literal["none", "task"]
    num_prompts: int
    num_warmups: int
    on_leak: Literal["drop", "refuse", "keep"]
    oolong_datasets: Sequence[str]
    optimizer_params: str | Path | None
    optimizers: Sequence[str]
    output_column: str | None
    overrides: str | Path | None
    patches: str | Path | None
    pattern: str | None
    pool_size: int | None
    predictions: Sequence[str]
    prompt_dir: str | Path | None
    python: str | None
    qa_data: str | Path | None
    questions: int
    questions_per_text: int
    random_input_len: int
    random_output_len: int
    ready_check_timeout_sec: float
    reasoning: bool
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None
    reasoning_model: str | None
    reasoning_tokens: int | None
    registry: str | None
    release: Literal["v1", "v2", "v3", "v4", "v5", "v6"] | None
    request_rate: str
    request_timeout: float
    require_fresh: bool
    results: str | Path
    reuse: bool
    reuse_from: Sequence[str]
    reuse_spec: bool
    role_options: Sequence[str]
    roles: Sequence[str]
    rubric: str | Path | None
    ruler_tasks: Sequence[str]
    samples: int
    sandbox: str
    script: str | Path | None
    seed: int
    session: Literal["wasm", "native"] | None
    shuffle: bool
    simulated_fault_rate: float
    simulated_latency: float
    simulated_skill: float
    since: str | None
    skip_unrunnable: bool
    spec: bool
    split: Literal["complete", "instruct"]
    stop: Sequence[str]
    sub_model: str | None
    tags: Sequence[str]
    target: str
    task_timeout: float | None
    tasks_per_length: int
    temperature: float | None
    template: str | Path | None
    test_items: int | None
    test_memory: int | None
    test_mode: bool
    test_timeout: float | None
    timeout_is: Literal["failure", "fault"]
    timeout_multiplier: float
    tokenizer: str | None
    top_p: float | None
    train_items: int | None
    until: str | None
    until_decided: str | None
    use_memory: Literal["off", "other-tasks", "same-task"]
    validation_items: int | None
    wasm_timeout: float
    wasm_token: str | None
    wheels: str | Path | None
    wire: Literal["auto", "chat", "responses"]
