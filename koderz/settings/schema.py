"""The settings of every run, whatever suite, solver or engine takes part.

What one suite, solver, sandbox, engine or model alone needs to know is not here but in a dataclass of its own, see
`koderz.settings.options`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from koderz.settings import trust
from koderz.settings.options import no_option, option
from koderz.settings.requests import (
    MOST_TOKENS,
    TEMPERATURES,
    ModelOptions,
    RoleOptions,
    base_urls,
    read_models,
    read_roles,
    risk_of_models,
    risk_of_roles,
    wrong_body,
    wrong_headers,
    wrong_model_options,
    wrong_rates,
    wrong_role_options,
    wrong_stops,
    wrong_version,
)
from koderz.settings.trust import RUNS_CODE, SENDS, SPENDS
from koderz.types import Effort

T = TypeVar("T")

_SPARE_JUDGES = 2
_TAG_CHARS = 100


def _wrong_tags(tags: Iterable[str]) -> str:
    fine = all(
        tag.isprintable() and 0 < len(tag) <= _TAG_CHARS and tag == tag.strip() for tag in tags
    )
    return "" if fine else f"a tag has 1 to {_TAG_CHARS} printable characters"


def _wrong_roles(roles: Iterable[str]) -> str:
    fine = all(re.fullmatch(r"\w+=\S.*", role) for role in roles)
    return "" if fine else "write ROLE=MODEL, such as judge=openai/gpt-6.1-sol"


_tasks, _model, _solver, _running = (
    partial(option, panel=panel) for panel in ("Tasks", "Model", "Solver", "Running")
)
_changeable = partial(_running, changeable=True)
_sinks = partial(option, panel="Sinks", changeable=True)


FIRST_ARM = "first"
"""The value of `until_decided` that names a run's first arm."""

OF_DECIDING = ("until_decided", "alpha", "margin", "min_tasks")
"""The settings of runs that stop once they are decided, of which solvers are offered none."""


MODEL_HELP = "The model to benchmark: qwen2.5-coder:32b (Ollama), openai/gpt-6-luna, anthropic/claude-…, simulated."
MODEL_DEFAULT = "Default: the only model of a running Ollama, else simulated."


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a run. Times are seconds, costs US dollars."""

    suite: str = _tasks(
        "humaneval",
        "The suite: humaneval, qa, ruler, …; all: koderz suites list; your own: FILE:NAME.",
        "NAME",
        risk=trust.risk_of_suite,
        common=True,
    )
    dataset: Path | None = _tasks(
        None,
        "A JSONL file, plain or .gz, instead of the suite's own.",
        "FILE",
        risk=RUNS_CODE,
        common=True,
    )
    problems: tuple[str, ...] = _tasks(
        (),
        "Only these tasks, e.g. HumanEval/3,HumanEval/7, or 3,7.",
        "IDS",
        flags=("--tasks", "--problems"),
        common=True,
    )
    limit: int | None = _tasks(
        None, "Maximum number of tasks.", "N", bounds=(1, 10_000_000), common=True
    )
    shuffle: bool = _tasks(False, "Shuffle with --seed.")
    samples: int = _tasks(
        1, "Samples per task; several give pass@k.", "N", bounds=(1, 100_000), common=True
    )
    seed: int = _tasks(
        0,
        "Seed of shuffling, sampling and the simulated model; sample N is sent this seed plus N.",
        "N",
        bounds=(0, 2**31 - 1),
    )

    local_model: str | None = _model(
        None,
        f"{MODEL_HELP} Repeatable: each model has arms of its own. {MODEL_DEFAULT}",
        "MODEL",
        flags=("--model", "--local-model", "-m"),
        names_models=True,
        common=True,
    )
    models: tuple[str, ...] = option(
        (), "Where there are several models; the first is the local model.", names_models=True
    )
    base_url: str | None = _model(
        None,
        "Address of an OpenAI-compatible server: vLLM, llama.cpp, LM Studio, …",
        "URL",
        risk=SENDS,
        is_address=True,
        reader="model",
        common=True,
    )
    api_key_env: str | None = _model(
        None,
        "The environment variable that holds the key for --base-url.",
        "NAME",
        risk=SENDS,
        reader="address",
    )
    model_options: tuple[str, ...] = _model(
        (),
        "An option for one model alone: base-url, api-key-env, wire, context or extra-body; repeatable.",
        "MODEL.NAME=VALUE",
        flags=("--model-option",),
        risk=risk_of_models,
        check=wrong_model_options,
        is_verbatim=True,
    )
    temperature: float | None = _model(
        None,
        "Sampling temperature, 0 to 2. Default: 0 for one sample, 0.8 for several.",
        "T",
        bounds=TEMPERATURES,
        reader="model",
    )
    top_p: float | None = _model(
        None, "Nucleus sampling, 0 to 1. Default: the server's.", "P", bounds=(0, 1), reader="model"
    )
    max_tokens: int = _model(
        4096, "Maximum length of a reply, in tokens.", "N", bounds=MOST_TOKENS, reader="model"
    )
    stop: tuple[str, ...] = _model(
        (),
        "A text at which a reply ends; repeatable.",
        "TEXT",
        risk=SENDS,
        check=wrong_stops,
        is_verbatim=True,
        reader="model",
    )
    reasoning_effort: Effort | None = _model(
        None,
        "How much a reasoning model thinks: none, minimal, low, medium, high, xhigh or max. Default: the server's.",
        "LEVEL",
        reader="model",
    )
    reasoning_tokens: int | None = _model(
        None,
        "The most tokens that a reasoning model thinks, instead of an effort.",
        "N",
        bounds=MOST_TOKENS,
        reader="model",
    )
    context: int = _model(
        16384,
        "Maximum length of a conversation, in tokens; Ollama's num_ctx.",
        "N",
        bounds=(256, 100_000_000),
        reader="model",
    )
    wire: Literal["auto", "chat", "responses"] = _model(
        "auto",
        "OpenAI's wire format. auto: responses where OpenAI's own address is told how much to think, else chat.",
        "[chat|responses|auto]",
        reader="openai",
    )
    api_version: str | None = _model(
        None,
        "Azure: the version of the API of a deployment, whose --base-url ends in /openai/deployments/NAME.",
        "V",
        check=wrong_version,
        reader="openai",
    )
    extra_body: str | None = _model(
        None,
        "A JSON object, or a file of one, that is merged into each request and wins over what koderz sends.",
        "JSON|@FILE",
        risk=SENDS,
        check=wrong_body,
        reader="model",
    )
    extra_headers: tuple[str, ...] = _model(
        (),
        "A header of each request to the model that answers; its value is a secret, and $VARIABLE is looked up. "
        "Repeatable.",
        "NAME=VALUE",
        flags=("--extra-header",),
        risk=SENDS,
        check=wrong_headers,
        is_secret=True,
        is_verbatim=True,
        changeable=True,
        reader="model",
    )
    keep_alive: str | None = _model(
        None,
        "How long Ollama keeps the model loaded, e.g. 30m. Default: Ollama's.",
        "TIME",
        reader="ollama",
    )
    request_timeout: float = _model(
        600.0, "Maximum time to wait for a reply.", "SECONDS", bounds=(0.1, 86_400), reader="model"
    )
    timeout_is: Literal["failure", "fault"] = _model(
        "fault",
        "Whose doing it is that a reply of the model that answers doesn't end within --request-timeout: a failure of "
        "the model, with the cause time, or a fault, which counts neither way.",
        "[failure|fault]",
        reader="model",
    )
    max_retries: int = _model(
        6,
        "Maximum retries of a call after a 429, a 5xx or a lost connection.",
        "N",
        bounds=(0, 100),
        reader="model",
    )

    mode: Literal["zero-shot", "iterative", "comparative"] = _solver(
        "iterative",
        "zero-shot, iterative, or comparative: both on the same tasks.",
        "MODE",
        reader="no solver",
        common=True,
    )
    solver: str | None = _solver(
        None,
        "A solver instead of --mode: direct, compaction, rlm, …; your own async function: FILE:NAME.",
        "NAME",
        risk=RUNS_CODE,
        reader="no matrix",
        common=True,
    )
    solvers: tuple[str, ...] = _solver(
        (),
        "Several solvers, each in an arm of its own: direct,rlm.",
        "NAME",
        listed=True,
        risk=RUNS_CODE,
        reader="no matrix",
    )
    matrix: Path | None = _solver(
        None,
        "A TOML file that lists arms and cells, instead of --mode and --solver.",
        "FILE",
        risk=RUNS_CODE,
    )
    roles: tuple[str, ...] = _solver(
        (),
        "The model for a role of the solver, such as judge=openai/gpt-6.1-sol; repeatable.",
        "ROLE=MODEL",
        flags=("--role",),
        names_models=True,
        check=_wrong_roles,
    )
    role_options: tuple[str, ...] = _solver(
        (),
        "An option for a role alone: reasoning-effort, reasoning-tokens, max-tokens, temperature, extra-body or "
        "base-url, such as judge.reasoning-effort=low; repeatable.",
        "ROLE.NAME=VALUE",
        flags=("--role-option",),
        risk=risk_of_roles,
        check=wrong_role_options,
        is_verbatim=True,
    )
    baseline_model: str | None = _solver(
        None, "Report what the local tokens would have cost on this model.", "MODEL", reader="model"
    )
    prompt_dir: Path | None = _solver(
        None,
        "A folder of *.md files that override the built-in prompts.",
        "DIR",
        risk=SENDS,
        reader="model",
    )
    use_memory: Literal["off", "other-tasks", "same-task"] = _solver(
        "off",
        "Show what earlier experiments on other tasks (same-task: on the same one) learnt from the same kind of "
        "failure, as the memory store was when the run began.",
        "[other-tasks|same-task|off]",
        risk=SENDS,
        reader="recall",
    )
    memory_live: bool = _solver(
        False,
        "Recall also what was stored since the run began; results then depend on the order of experiments.",
        reader="memory",
    )

    engine: str = _running("local", "Where experiments run: local or modal.", "NAME", risk=SPENDS)
    concurrency: int = _changeable(
        8,
        "Maximum tasks at work at once. A task that is asked several times is at work until its last call; "
        "one that is asked once, until its reply.",
        "N",
        bounds=(1, 100_000),
        common=True,
    )
    max_connections: int | None = _changeable(
        None,
        "Maximum calls in flight to one provider. Default: as many as --concurrency, however many a solver makes.",
        "N",
        bounds=(1, 4096),
        reader="model",
    )
    rpm: int | None = _changeable(
        None,
        "Maximum requests a minute to one provider with one key, of all koderz processes that are given it. Default: "
        "the limits in the provider's answers; the lower one holds.",
        "N",
        bounds=(1, 10**9),
        reader="model",
    )
    tpm: int | None = _changeable(
        None,
        "Maximum tokens a minute, in and out, as with --rpm.",
        "N",
        bounds=(1, 10**12),
        reader="model",
    )
    rates: tuple[str, ...] = option(
        (),
        'Limits of single providers, such as openai.rpm=60; in koderz.toml, [rates."openai"].',
        changeable=True,
        check=wrong_rates,
    )
    max_cost: float | None = _changeable(
        None,
        "Cost cap: no call starts that would exceed it, as calls cost so far; the run stops and can be resumed.",
        "USD",
        bounds=(0, 1e9),
        common=True,
    )
    max_experiment_cost: float | None = _changeable(
        None,
        "Cost cap of each experiment: no call starts that would exceed it; the experiment ends as a fault.",
        "USD",
        bounds=(0, 1e9),
    )
    reuse: bool = _running(
        False,
        "Take replies that are on record in the results folder instead of paying for them again: for the same request "
        "to the same model, sample by sample.",
        reader="model",
    )
    reuse_from: tuple[str, ...] = _running(
        (),
        "Take replies of this run or results folder, too; repeatable. Implies --reuse.",
        "RUN|DIR",
        risk=SENDS,
        reader="model",
    )
    judges: int | None = _changeable(
        None,
        "Maximum programs judged at once. Default: one per core and two more, as some never end.",
        "N",
        bounds=(1, 256),
        reader="programs",
    )
    sandbox: str = _running(
        "contained",
        "Where programs run: contained, docker, podman, modal or uncontained.",
        "NAME",
        risk=trust.risk_of_sandbox,
        reader="sandbox",
    )
    until_decided: str | None = _running(
        None,
        "Stop once the arms are told apart, each compared with ARM (alone: the first), a look after every task.",
        "[ARM]",
    )
    alpha: float | None = _running(
        None,
        "With --until-decided: the chance of a false claim, 0 to 0.5, over all looks and arms. Default: 0.05.",
        "P",
        bounds=(1e-6, 0.5),
        reader="decision",
    )
    margin: float | None = _running(
        None,
        "With --until-decided: stop too once the difference is shown to be smaller; of scores, in their unit.",
        "POINTS",
        bounds=(1e-9, 1e9),
        reader="decision",
    )
    min_tasks: int | None = _running(
        None,
        "With --until-decided: tasks before anything is claimed. Default: 6.",
        "N",
        bounds=(1, 10_000_000),
        reader="decision",
    )
    grace: float = _changeable(
        10.0,
        "Time that experiments have to finish after the first Ctrl-C.",
        "SECONDS",
        bounds=(0, 3600),
    )
    results: Path = _running(
        Path("benchmark_results"),
        "The results folder.",
        "DIR",
        risk=trust.risk_of_results,
        common=True,
    )
    tags: tuple[str, ...] = _running(
        (),
        "A tag to find the run by, WORD or K=V; repeatable.",
        "TAG",
        flags=("--tag",),
        check=_wrong_tags,
    )

    sinks: tuple[str, ...] = _sinks(
        ("json", "mlflow", "memory"),
        "Record into this sink, and into no other that isn't named so; repeatable.",
        "NAME",
        flags=("--sink",),
        risk=trust.risk_of_sinks,
    )
    no_sinks: tuple[str, ...] = _sinks(
        (), "Don't record into this sink; repeatable.", "NAME", flags=("--no-sink",)
    )
    sink_patience: float = _sinks(
        30.0,
        "Time without progress after which a sink is left to koderz sync (three times that until it is open).",
        "SECONDS",
        bounds=(0.1, 86_400),
        reader="sinks",
    )
    mlflow_detail: Literal["traces", "runs", "parent", "full"] | None = _sinks(
        None,
        "What MLflow gets: parent (the run and a table of its experiments), traces (and a trace of each), runs "
        "or full (and a nested run of each). Default: traces up to 5,000 experiments, else parent.",
        "DETAIL",
        reader="mlflow",
    )
    mlflow_experiment: str | None = _sinks(
        None,
        "MLflow's experiment that runs go to; made if missing. Default: MLFLOW_EXPERIMENT_NAME, else koderz/SUITE.",
        "NAME",
        reader="mlflow",
    )

    own: tuple[Any, ...] = no_option(())  # the options of what takes part, one dataclass each

    @property
    def chosen_sinks(self) -> tuple[str, ...]:
        return tuple(name for name in dict.fromkeys(self.sinks) if name not in self.no_sinks)

    @property
    def sampling_temperature(self) -> float:
        if self.temperature is not None:
            return self.temperature
        return 0.0 if self.samples == 1 else 0.8

    @property
    def main_models(self) -> tuple[str, ...]:
        """The models in the role `main`, each of which gets arms of its own."""
        return self.models or ("simulated" if self.local_model is None else self.local_model,)

    @property
    def given_roles(self) -> dict[str, str]:
        """The models in other roles, as given by `--role`."""
        return dict(role.split("=", 1) for role in self.roles)

    def rates_of(self, provider: str) -> dict[str, int]:
        """The limits a minute that hold for a provider, by the words of RATES: of --rpm and --tpm, else its own."""
        own = (rate.rpartition("=") for rate in self.rates)
        found = {
            what.rpartition(".")[2]: int(n)
            for what, _, n in own
            if what.rpartition(".")[0] == provider
        }
        given = {"rpm": self.rpm, "tpm": self.tpm}
        return found | {name: most for name, most in given.items() if most is not None}

    @property
    def options_of_roles(self) -> dict[str, RoleOptions]:
        """The options of single roles, as given by `--role-option`."""
        return read_roles(self.role_options)

    @property
    def roles_elsewhere(self) -> dict[str, str]:
        """The roles that have an address of their own, with that."""
        return base_urls(self.role_options)

    @property
    def options_of_models(self) -> dict[str, ModelOptions]:
        """The options of single models, as given by `--model-option`."""
        return read_models(self.model_options)

    @property
    def judge_count(self) -> int:
        """The number of judges: one a core and a few more, since an endless program occupies one until its limit."""
        return self.judges or (os.cpu_count() or 1) + _SPARE_JUDGES

    def having(self, options: Any) -> Settings:
        """The settings with these options in place of those of the same dataclass; None changes nothing."""
        own = tuple(options if type(each) is type(options) else each for each in self.own)
        return self if own == self.own else replace(self, own=own)

    def of(self, struct: type[T]) -> T:
        """The options of this dataclass; their defaults if nothing that takes part has them."""
        return next((each for each in self.own if type(each) is struct), None) or struct()


OF_SINKS = ("sinks", "no_sinks", "sink_patience", "mlflow_detail", "mlflow_experiment")
"""The settings that say where a run is recorded. No experiment depends on them."""

OF_REUSE = ("reuse", "reuse_from")
"""The settings that say which replies are taken from record. What a run is about doesn't depend on them."""

CLUSTER_COLUMN = "cluster_column"
"""The option of suites that read files, which came later to all but the datasets of optimizers."""

OF_PROGRAMS = ("judges", "sandbox", "docker_image", "use_memory", "memory_live", "simulated_skill")
"""The settings that matter only if programs are judged, or if attempts hear of earlier ones."""

OF_JUDGING = (
    "suite",
    "dataset",
    "test_timeout",
    "test_memory",
    "judges",
    "sandbox",
    "docker_image",
)
"""The settings for judging programs outside of a run."""
