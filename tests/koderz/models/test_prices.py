from __future__ import annotations

import subprocess
import sys

import pytest

from koderz.models import Price, parse_model_name
from koderz.models.prices import price_of, tariff_of
from koderz.models.tariffs import Tier, Usage

HOSTED = "https://api.openai.com/v1"
LOOPBACK = "http://127.0.0.1:8000/v1"
LOCAL = "since it is asked on this machine and has no published price"


def test_price_is_dollars_per_million_tokens() -> None:
    assert Price(2.0, 10.0).cost(1_000_000, 100_000) == pytest.approx(3.0)


@pytest.mark.parametrize("key", ["openai/gpt-4o-mini", "gpt-4o-mini"])
def test_configured_prices_win(key: str) -> None:
    assert price_of(parse_model_name("gpt-4o-mini"), {key: Price(1.0, 2.0)}) == Price(1.0, 2.0)


def test_configured_prices_hold_for_local_models() -> None:
    name = parse_model_name("qwen2.5-coder:32b")
    assert price_of(name, {"qwen2.5-coder:32b": Price(0.1, 0.1)}) == Price(0.1, 0.1)


@pytest.mark.parametrize(
    ("name", "base_url", "why"),
    [
        ("llama3", "http://box:11434", "since an Ollama runs it"),
        ("gpt-oss:20b", None, "since an Ollama runs it"),
        ("simulated", None, "since it is simulated"),
        ("openai/x", LOOPBACK, LOCAL),
        ("openai/Qwen/Qwen2.5-Coder-7B-Instruct", LOOPBACK, LOCAL),
        ("openai/openai/gpt-oss-20b", LOOPBACK, LOCAL),
        ("openai/deepseek-r1-distill-qwen-7b", LOOPBACK, LOCAL),
        ("openai/mistralai/Mistral-Nemo-Instruct-2407", LOOPBACK, LOCAL),
    ],
)
def test_local_model_is_free_and_the_reason_is_told(name: str, base_url: str | None, why: str) -> None:
    tariff = tariff_of(parse_model_name(name), base_url, {})
    assert tariff is not None
    assert (tariff.price, str(tariff)) == (Price(0.0, 0.0), f"free, {why}")


LOOK = """
import sys
from koderz.models import parse_model_name
from koderz.models.prices import tariff_of

sys.executable = sys.argv[3] or sys.executable
print(tariff_of(parse_model_name(sys.argv[1]), sys.argv[2], {}).price.input, "genai_prices" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "executable", "price", "is_loaded"),
    [("x", "", 0.0, False), ("gpt-4o-mini", "", 0.15, True), ("x", "/nowhere/python", 0.0, True)],
)
def test_price_list_is_not_loaded_for_local_models(
    name: str, executable: str, price: float, *, is_loaded: bool
) -> None:
    command = [sys.executable, "-c", LOOK, f"openai/{name}", LOOPBACK, executable]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(price), str(is_loaded)]


@pytest.mark.parametrize("base_url", [LOOPBACK, "http://192.168.0.9:8000/v1", "https://elsewhere.example/v1"])
@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("openai/gpt-4o-mini", "gpt-4o-mini"),
        ("openai/gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        ("openai/openai/gpt-4o-mini", "gpt-4o-mini"),
        ("openai/claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("openai/anthropic/claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("anthropic/claude-sonnet-4-5", "claude-sonnet-4-5"),
    ],
)
def test_published_price_holds_at_any_address(name: str, own: str, base_url: str) -> None:
    """A proxy bills, also one on this machine."""
    tariff = tariff_of(parse_model_name(name), base_url, {})
    assert tariff is not None
    assert tariff.price == price_of(parse_model_name(own), {})
    assert (tariff.assumed, "although another address is asked" in str(tariff)) == (True, True)


@pytest.mark.parametrize("name", ["openai/gemini/gemini-2.5-pro", "openai/deepseek-chat", "openai/x-ai/grok-4"])
def test_models_behind_a_proxy_have_their_makers_price(name: str) -> None:
    price = price_of(parse_model_name(name), {}, LOOPBACK)
    assert price is not None
    assert 0 < price.input < price.output


def test_configured_prices_win_over_published_ones() -> None:
    tariff = tariff_of(parse_model_name("gpt-4o-mini"), LOOPBACK, {"openai/gpt-4o-mini": Price(0.0, 0.0)})
    assert tariff is not None
    assert (str(tariff), tariff.assumed) == ("free, as koderz.toml says", False)


def test_hosted_models_have_their_published_price() -> None:
    price = price_of(parse_model_name("gpt-4o-mini"), {}, HOSTED)
    assert price is not None
    assert 0 < price.input < price.output


def test_cached_tokens_of_a_hosted_model_are_cheaper() -> None:
    tariff = tariff_of(parse_model_name("claude-sonnet-4-5"), "https://api.anthropic.com", {})
    assert tariff is not None
    assert 0 < tariff.cost(Usage(1000, 10, cache_read=900)) < tariff.cost(Usage(1000, 10))


def test_long_context_costs_the_price_of_its_tier() -> None:
    tariff = tariff_of(parse_model_name("claude-sonnet-4-5"), "https://api.anthropic.com", {})
    assert tariff is not None
    assert tariff.cost(Usage(400_000, 0)) > 2.5 * tariff.cost(Usage(200_000, 0))


def test_cached_tokens_above_all_tokens_are_no_error() -> None:
    tariff = tariff_of(parse_model_name("gpt-4o-mini"), HOSTED, {})
    assert tariff is not None
    assert tariff.cost(Usage(10, 10, cache_read=900, cache_write=900)) > 0


@pytest.mark.parametrize(
    ("name", "base_url"),
    [
        ("openai/nobody-knows", HOSTED),
        ("openai/x", "http://192.168.0.9:8000/v1"),
        ("openai/gpt-oss-20b", "https://elsewhere.example/v1"),
        ("openai/nobody-knows", None),
    ],
)
def test_unknown_price_is_not_guessed(name: str, base_url: str | None) -> None:
    assert price_of(parse_model_name(name), {}, base_url) is None


def test_gateway_that_is_known_has_its_own_prices() -> None:
    assert price_of(parse_model_name("openai/openai/gpt-4o-mini"), {}, "https://openrouter.ai/api/v1") is not None


def test_tiers_make_every_token_of_a_long_prompt_dearer() -> None:
    price = Price(1.0, 2.0, (Tier(200_000, 10.0, 20.0), Tier(500_000, 100.0, 200.0)))
    assert price.cost(200_000, 1_000_000) == pytest.approx(2.2)
    assert price.cost(300_000, 1_000_000) == pytest.approx(23.0)
    assert price.cost(600_000, 0) == pytest.approx(60.0)


@pytest.mark.parametrize("name", ["anthropic/claude-sonnet-4-5", "gpt-4o-mini", "gemini-2.5-pro"])
def test_published_tiers_are_those_that_calls_are_charged_by(name: str) -> None:
    tariff = tariff_of(parse_model_name(name), None, {})
    assert tariff
    for tokens in (10, 150_000, 199_999, 200_001, 900_000):
        assert tariff.price.cost(tokens, 1000) == pytest.approx(tariff.cost(Usage(tokens, 1000)))
    assert ("more above" in str(tariff)) == bool(tariff.price.tiers)
