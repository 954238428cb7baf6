"""Several servers in one run: each model with an address, a key and prices of its own."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.conftest import Server, Shell

A, B = "openai/local-1:7b", "openai/local-2:7b"
KEYS = {"FIRST_SERVER_KEY": "sk-first-4f9a81", "SECOND_SERVER_KEY": "sk-second-77c2e0"}


@pytest.fixture
def two(serve: Callable[..., Server]) -> tuple[Server, Server]:
    """A server for each model, which knows that model alone and takes its own key alone."""
    return (
        serve("--model", "local-1:7b", "--skill", 1, "--api-key-var", "FIRST_SERVER_KEY", env=KEYS),
        serve("--model", "local-2:7b", "--skill", 0.3, "--api-key-var", "SECOND_SERVER_KEY", env=KEYS),
    )


def test_decide_asks_each_model_at_its_own_server_with_its_own_key(koderz: Shell, two: tuple[Server, Server]) -> None:
    options = [
        word
        for model, server, key in zip((A, B), two, KEYS, strict=True)
        for name, value in (("base-url", f"{server.url}/v1"), ("api-key-env", key))
        for word in ("--model-option", f"{model}.{name}={value}")
    ]

    koderz("decide", A, B, "--limit", 6, *options, "--no-sink", "mlflow", "-q", env=KEYS)

    summary = koderz.summary()
    assert summary["faults"] == []
    assert {len(arm["results"]) for arm in summary["arms"].values()} == {6}
    for server, own in zip(two, ("local-1:7b", "local-2:7b"), strict=True):
        assert {answer["model"] for answer in server.answers()} == {own}
        assert {answer["status"] for answer in server.answers()} == {200}
    recorded = next(koderz.results.glob("[!.]*/journal.jsonl")).read_text()
    assert not any(value in recorded for value in KEYS.values())


def test_tables_of_models_are_trusted_recorded_and_resumed(koderz: Shell, two: tuple[Server, Server]) -> None:
    (koderz.folder / "koderz.toml").write_text(
        "".join(
            f'[models."{model}"]\nbase-url = "{server.url}/v1"\napi-key-env = "{key}"\n'
            "prices = { input = 1000.0, output = 1000.0 }\n"
            for model, server, key in zip((A, B), two, KEYS, strict=True)
        )
    )
    run = ("benchmark", 0, 3, "--model", A, "--model", B, "--mode", "zero-shot", "--no-sink", "mlflow", "-q")

    assert "--trust-config" in koderz(*run, code=2, env=KEYS).err
    koderz(*run, "--trust-config", "--max-cost", 0.3, "--concurrency", 1, code=3, env=KEYS)
    (koderz.folder / "koderz.toml").unlink()
    koderz("resume", "latest", "--max-cost", 100, "-q", env=KEYS)

    summary = koderz.summary()
    assert summary["status"] == "complete"
    assert [len(arm["results"]) for arm in summary["arms"].values()] == [3, 3]
    assert f"{B}.base-url={two[1].url}/v1" in summary["config"]["model_options"]
    assert all({answer["status"] for answer in server.answers()} == {200} for server in two)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (f"{A}.base-url", "write MODEL.NAME=VALUE, such as openai/local-1:7b.base-url=http://localhost:8001/v1"),
        (f"{A}.temperature=1", "a model has no option temperature; it has base-url, api-key-env, wire, context"),
        (f"{A}.base-url=nowhere", "--model-option: "),
        (f"{A}.api-key-env=sk-it.is.a.key", "api-key-env is the name of an environment variable, not a key"),
        (f"{A}.context=few", "context has to be a whole number"),
        (f"{A}.base-url=http://me:secret-77c2e0@localhost:1/v1", "must not hold a user name or password"),
        (f"{A}.base-url=http://localhost:1/secret-77c2e0d4b1a95f3c8e6/v1?key=secret-77c2e0", "--model-option"),
        ("openai/other.wire=chat", "no such model is asked here; asked are openai/local-1:7b"),
    ],
)
def test_wrong_option_of_a_model_is_one_line(koderz: Shell, option: str, said: str) -> None:
    done = koderz("benchmark", 0, 1, "--model", A, "--model-option", option, "--dry-run", code=2)

    assert said in done.err
    assert "secret-77c2e0" not in done.err
    assert "sk-it" not in done.err
    assert done.err.count("\n") == 1


def test_dry_run_says_the_same_price_with_and_without_the_key(koderz: Shell) -> None:
    at_home = ("benchmark", 0, 1, "--model", A, "--base-url", "http://127.0.0.1:9/v1", "--dry-run")
    keyed = (*at_home, "--api-key-env", "FIRST_SERVER_KEY")
    prices = {
        next(line for line in koderz(*words, env=env).out.splitlines() if line.startswith("Model: "))
        for words, env in ((at_home, {}), (keyed, {}), (keyed, KEYS))
    }

    assert prices == {f"Model: {A}: free, since it is asked on this machine and has no published price"}


def test_dry_run_prices_each_model_by_its_own_table(koderz: Shell) -> None:
    (koderz.folder / "koderz.toml").write_text(f'[models."{A}"]\nprices = {{ input = 1.0, output = 2.0 }}\n')
    plan = json.loads(koderz("benchmark", 0, 1, "--model", A, "--dry-run", "--json").out)

    assert plan["estimate"]["cost"][1] > 0
