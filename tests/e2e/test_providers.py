"""A provider that another package adds: its models are asked, priced and told of like koderz' own."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from koderz.testing import ModelServer
from koderz.testing.wire import Request
from tests.conftest import Shell, lines_of
from tests.e2e.written import written
from tests.toys import HERE, install

KEY = "a-key-of-no-known-format"  # of a variable whose name doesn't say that it is secret
CODED = base64.b64encode(KEY.encode()).decode()

ACME = """
from koderz.models import Price, Provider


class Acme(Provider):
    \"\"\"Acme's models, in OpenAI's format.\"\"\"

    address = "https://acme.invalid/v1"
    address_variable = "ACME_URL"
    key_variable = "ACME_LOGIN"
    prices = {"one": Price(1000.0, 2000.0)}
"""
TASK = {
    "task_id": "T/0",
    "prompt": f'def add(x, y):\n    """Adds. Never tell {KEY} to anybody."""\n',
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    "canonical_solution": "    return x + y\n",
}
OWN = ("tasks.jsonl", "journal.jsonl", "journal.index")  # which may hold secrets


@pytest.fixture
def acme(tmp_path: Path) -> Mapping[str, str]:
    """The variables of a shell in which the package is installed."""
    entry_points = {"koderz.models": {"acme": "acme_provider:Acme"}}
    site = install(tmp_path / "site", "acme", entry_points, {"acme_provider": ACME})
    return {"PYTHONPATH": f"{site}:{HERE.parents[1]}", "ACME_LOGIN": KEY}


def _reply(_request: Request) -> str:
    return f"```python\ndef add(x, y):\n    note = '{CODED}'\n    return x + y\n```"


async def _served(koderz: Shell, env: Mapping[str, str], *commands: tuple[object, ...]) -> list[Request]:
    """What a server of Acme's is asked by commands."""
    async with ModelServer(_reply, models=("one",), api_key=KEY) as server:
        for command in commands:
            await asyncio.to_thread(koderz, *command, env={**env, "ACME_URL": f"{server.url}/v1"})
        return server.requests


def test_provider_of_another_package_is_sent_its_key_and_charged_by_its_prices(
    koderz: Shell, acme: Mapping[str, str]
) -> None:
    (koderz.folder / "tasks.jsonl").write_text(json.dumps(TASK))
    asked = ("--dataset", "tasks.jsonl", "--model", "acme/one")

    requests = asyncio.run(_served(koderz, acme, ("benchmark", 0, 1, *asked), ("run", "T/0", *asked)))

    assert [request.headers["authorization"] for request in requests] == [f"Bearer {KEY}"] * 2
    (result,) = koderz.summary()["results"]
    call, *_ = lines_of(koderz.results, "call")
    assert result["cost"] == pytest.approx((call["tokens_in"] * 1000 + call["tokens_out"] * 2000) / 1e6)
    assert result["cost"] > 0


def test_provider_of_another_package_has_its_key_kept_out_of_records(koderz: Shell, acme: Mapping[str, str]) -> None:
    (koderz.folder / "tasks.jsonl").write_text(json.dumps(TASK))
    sinks = ("--sink", "json", "--sink", "memory", "--wait")
    asyncio.run(_served(koderz, acme, ("benchmark", 0, 1, "--dataset", "tasks.jsonl", "--model", "acme/one", *sinks)))
    env = {**acme}
    koderz("benchmark", "export", "latest", "--attempts", "-o", "attempts.jsonl", env=env)
    koderz("benchmark", "report", "latest", env=env)
    (koderz.folder / "memories.json").write_text(koderz("memory", "export", env=env).out)
    (koderz.folder / "shown.txt").write_text(koderz("benchmark", "show", "latest", "--json", env=env).out)

    journal = b"".join(path.read_bytes() for path in koderz.results.glob("bench_*/journal.jsonl")).decode()
    assert KEY in journal
    assert CODED in journal
    assert "[redacted]" in (koderz.folder / "attempts.jsonl").read_text()
    found = {
        path.name
        for path, text in written(koderz.folder)
        if path.name not in OWN and path.parent.name != "blobs"
        if KEY in text or CODED in text
    }
    assert found == set()


@pytest.mark.slow
def test_provider_of_another_package_is_known_to_doctor_help_plans_and_hints(
    koderz: Shell, acme: Mapping[str, str]
) -> None:
    without = {name: value for name, value in acme.items() if name != "ACME_LOGIN"}
    told = {
        finding["what"]: (finding["state"], finding["detail"])
        for env in (without, acme)
        for finding in json.loads(koderz("doctor", "--json", env=env, code=(0, 1, 4)).out)
        if finding["what"] == "acme"
    }
    assert told == {"acme": ("ok", "ACME_LOGIN is set")}
    assert "ACME_LOGIN is not set" in koderz("doctor", env=without, code=(0, 1, 4)).out

    assert "acme/…" in koderz("benchmark", "--help-all", env=acme).out
    assert "acme/…" not in koderz("benchmark", "--help-all").out

    plan = koderz("benchmark", 0, 2, "--model", "acme/one", "--dry-run", env=without).out
    assert "acme/one: $1000 in, $2000 out, a million tokens, as its provider says" in plan

    assert "acme/one needs a key: set ACME_LOGIN" in koderz("run", 0, "--model", "acme/one", env=without, code=4).err
    for command in ("benchmark", "run"):
        misspelt = koderz(
            command, 0, *((1,) if command == "benchmark" else ()), "--model", "acmee/one", env=acme, code=2
        )
        assert misspelt.err.splitlines()[-1].startswith("koderz: unknown model 'acmee/one'; did you mean acme/one?")
