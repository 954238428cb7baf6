from __future__ import annotations

import pytest

from koderz.errors import KoderzError
from koderz.models import ModelName, parse_model_name, provider_of


@pytest.mark.parametrize(
    ("text", "provider", "name"),
    [
        ("qwen2.5-coder:32b", "ollama", "qwen2.5-coder:32b"),
        ("ollama/qwen2.5-coder:32b", "ollama", "qwen2.5-coder:32b"),
        ("hf.co/user/model:Q4_K_M", "ollama", "hf.co/user/model:Q4_K_M"),
        ("library/llama3", "ollama", "library/llama3"),
        ("gpt-oss:20b", "ollama", "gpt-oss:20b"),
        ("gpt-oss", "ollama", "gpt-oss"),
        ("o1-open:7b", "ollama", "o1-open:7b"),
        ("olmo2", "ollama", "olmo2"),
        ("openai/gpt-4o-mini", "openai", "gpt-4o-mini"),
        ("openai/openai/gpt-oss-20b", "openai", "openai/gpt-oss-20b"),
        ("gpt-4o-mini", "openai", "gpt-4o-mini"),
        ("chatgpt-4o-latest", "openai", "chatgpt-4o-latest"),
        ("o1", "openai", "o1"),
        ("o3-mini", "openai", "o3-mini"),
        ("o4-mini-2025-04-16", "openai", "o4-mini-2025-04-16"),
        ("ft:gpt-4o-mini:us::x", "openai", "ft:gpt-4o-mini:us::x"),
        ("claude-sonnet-4-5", "anthropic", "claude-sonnet-4-5"),
        ("anthropic/claude-sonnet-4-5", "anthropic", "claude-sonnet-4-5"),
        ("gemini-pro", "gemini", "gemini-pro"),
        ("gemini/gemini-2.5-pro", "gemini", "gemini-2.5-pro"),
        ("gemini-pro:7b", "ollama", "gemini-pro:7b"),
        ("  simulated ", "simulated", "simulated"),
    ],
)
def test_name_tells_its_provider(text: str, provider: str, name: str) -> None:
    assert parse_model_name(text) == ModelName(provider, name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ollama/qwen2.5-coder:32b", "qwen2.5-coder:32b"),
        ("gpt-4o-mini", "openai/gpt-4o-mini"),
        ("claude-sonnet-4-5", "anthropic/claude-sonnet-4-5"),
        ("simulated", "simulated"),
        ("ollama/simulated", "ollama/simulated"),
        ("ollama/gpt-4o", "ollama/gpt-4o"),
        ("ollama/openai/x", "ollama/openai/x"),
    ],
)
def test_name_that_is_shown_parses_back(text: str, shown: str) -> None:
    name = parse_model_name(text)
    assert str(name) == shown
    assert parse_model_name(shown) == name


@pytest.mark.parametrize("text", ["", "  ", "openai/", "a\x1b[31mb", "a\nb", "a\u202eb", "x" * 300])
def test_invalid_name_is_told_without_control_characters(text: str) -> None:
    with pytest.raises(KoderzError) as caught:
        parse_model_name(text)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("opnai/gpt-4o-mini", "openai/gpt-4o-mini"),
        ("OpenAI/gpt-4o-mini", "openai/gpt-4o-mini"),
        ("antropic/claude-sonnet-4-5", "anthropic/claude-sonnet-4-5"),
        ("olama/qwen2.5-coder:7b", "ollama/qwen2.5-coder:7b"),
        ("simulatd", "simulated"),
    ],
)
def test_misspelt_provider_is_told_with_the_nearest(text: str, meant: str) -> None:
    with pytest.raises(KoderzError, match=f"did you mean {meant}[?].* is ollama/{text}"):
        parse_model_name(text)


def test_model_name_that_looks_misspelt_can_be_used() -> None:
    name = parse_model_name("ollama/opnai/x")
    assert (name, str(name)) == (ModelName("ollama", "opnai/x"), "ollama/opnai/x")
    assert parse_model_name(str(name)) == name


def test_unknown_provider_is_told_with_the_known_ones() -> None:
    with pytest.raises(KoderzError, match="choose from openai, anthropic, gemini, ollama, simulated"):
        provider_of("nobody")
