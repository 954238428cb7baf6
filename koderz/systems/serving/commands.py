"""`koderz perf serve-bench`: a server of completions under load, with vLLM's flags and figures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from koderz.cli.console import say_all, warn
from koderz.cli.front import Front, run_options
from koderz.cli.session import Account
from koderz.errors import KoderzError, Unreachable
from koderz.settings.options import without_effect

if TYPE_CHECKING:
    from koderz.systems.serving.client import Target


_OPTIONS = (
    *(
        "suite.serving",
        "seed",
        "local_model",
        "base_url",
        "api_key_env",
        "temperature",
        "top_p",
        "request_timeout",
    ),
    *(
        "grace",
        "results",
        "tags",
        "sinks",
        "no_sinks",
        "sink_patience",
        "mlflow_detail",
        "mlflow_experiment",
    ),
)
"""The options of a run that apply to a load."""


_server = partial(typer.Option, help="The server's, without --base-url.", rich_help_panel="Server")


def _saving(help_text: str, *flags: str, **more: Any) -> Any:
    return typer.Option(*flags, help=help_text, rich_help_panel="Result file", **more)


@run_options(
    only=_OPTIONS,
    without={"detach": ""},
    told={"local_model": "The model to ask. Default: the server's first."},
    suite="serving",
    solver="serve-bench",
    request_timeout=21_600.0,
)
def serve_bench(
    front: Front,
    host: Annotated[str, _server(metavar="HOST")] = "127.0.0.1",
    port: Annotated[int, _server(metavar="PORT")] = 8000,
    save_result: Annotated[
        bool, _saving("Save the result as JSON, in vLLM's form.", "--save-result")
    ] = False,
    save_detailed: Annotated[
        bool,
        _saving(
            "Save the times, lengths, texts and error of each request, too.", "--save-detailed"
        ),
    ] = False,
    result_dir: Annotated[
        Path | None, _saving("Where it is saved. Default: here.", metavar="DIR")
    ] = None,
    result_filename: Annotated[
        str | None, _saving("Its name. Default: LABEL-RATEqps-MODEL-DATE.json.", metavar="NAME")
    ] = None,
) -> None:
    """Put a server of OpenAI-compatible completions under load, and measure how fast it answers.

    It asks the server's first model unless --model names one. Nothing is retried: failed requests are figures.

    Examples:
        koderz perf serve-bench --port 8000 --num-prompts 100
    """
    import asyncio

    given = dict(front.values)
    if "models" in given:
        raise KoderzError("serve-bench is one load on one model: give one --model")
    saves = save_result or save_detailed
    if not saves and (result_dir or result_filename):
        flag = "--result-dir" if result_dir else "--result-filename"
        raise without_effect(flag, "a load with --save-result")
    given["base_url"] = (
        given.get("base_url") or os.environ.get("KODERZ_BASE_URL") or f"http://{host}:{port}"
    )
    target = _target(given)
    given["local_model"] = f"openai/{target.model or asyncio.run(_first_model(target))}"

    def figures(folder: Path) -> None:
        ServingAccount().results(folder)
        if saves and (record := _recorded(folder)):
            _save(record, result_dir or Path(), result_filename, detailed=save_detailed)

    replace(front, values=given).run(figures=figures)


class ServingAccount(Account):
    """The account of a load: the lines that vLLM prints."""

    def results(self, folder: Path) -> None:
        """Prints the figures and the warnings on their measurement; nothing before there are any."""
        from koderz.systems.serving.figures import lines_of, result_of

        if record := _recorded(folder):
            result = result_of(record)
            say_all(lines_of(result))
            _warn(record, result)


def _target(given: Mapping[str, Any]) -> Target:
    """The target of requests. Raises KoderzError for an invalid one, Unreachable if a key is missing."""
    from koderz.settings.schema import Settings
    from koderz.systems.serving.options import ServingOptions
    from koderz.systems.serving.suite import target_of

    named = {name: given[name] for name in ("backend", "endpoint") if name in given}
    settings = Settings(base_url=given["base_url"], api_key_env=given.get("api_key_env"))
    return target_of(given.get("local_model") or "", ServingOptions(**named), settings)


async def _first_model(target: Target) -> str:
    from koderz.models.faults import clean
    from koderz.systems.serving.client import first_model
    from koderz_tracker.scrubber import secrets_of

    try:
        found = await first_model(replace(target, timeout=30.0))
    except (OSError, ValueError) as error:
        why = clean(str(error), *secrets_of(target.base_url))
        raise Unreachable(
            f"{target.address} doesn't say which models it has: {why}; name one with --model"
        ) from None
    if not found:
        raise Unreachable(f"{target.address} has no model; name one with --model")
    return found


def _recorded(folder: Path) -> Mapping[str, Any] | None:
    """The last recorded load of a run; None if there is none."""
    from koderz.plans.ids import planned_ids
    from koderz_tracker.records import Once
    from koderz_tracker.stories import Stories

    stories = Stories(folder, os.environ)
    stories.refresh()
    lines = [line for name, *_ in planned_ids(stories.plan) for line in stories.of(name)]
    return next((line.value for line in reversed(lines) if isinstance(line, Once)), None)


def _warn(record: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Warns of problems with the measurement."""
    if result["client_bound"]:
        lag = result["client_lag_p99_ms"]
        warn(
            f"client_bound: this client itself was up to {lag:.1f} ms late (p99), more than 5 % of the median ITL"
        )
    if result["output_tokens_by"] != "usage":
        warn(
            f"the server doesn't count its tokens: output tokens are counted by {result['output_tokens_by']}"
        )
    errors = [each["error"] for each in record["requests"] if each["error"]]
    for error in dict.fromkeys(errors):
        warn(f"{errors.count(error)} of {len(record['requests'])} requests failed: {error}")


def _save(record: Mapping[str, Any], folder: Path, name: str | None, *, detailed: bool) -> None:
    import orjson

    from koderz.systems.serving.figures import details_of, result_of
    from koderz_tracker.files import write_whole

    result = result_of(record)
    at_once = (
        f"-concurrency{result['max_concurrency']}" if result["max_concurrency"] is not None else ""
    )
    start = f"{result['label'] or result['backend']}-{result['request_rate']}qps{at_once}"
    path = folder / (
        name
        or f"{start}-{result['model_id'].rpartition('/')[2]}-{datetime.now():%Y%m%d-%H%M%S}.json"
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [orjson.dumps({**result, **(details_of(record) if detailed else {})})])
    except OSError as error:
        raise KoderzError(f"{path} can't be written: {error.strerror}") from None
    warn(f"result: {path}")
