from __future__ import annotations

from dataclasses import asdict

import pytest

from koderz.errors import KoderzError, Unreachable
from koderz.models import Endpoint, endpoint_for, parse_model_name
from koderz.models.names import base_url_of, is_loopback, ollama_url

KEY = "sk-test-0123456789abcdef"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("box", "http://box:11434"),
        ("box:8080", "http://box:8080"),
        (":8080", "http://127.0.0.1:8080"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:9", "http://127.0.0.1:9"),
        ("::", "http://[::1]:11434"),
        ("::1", "http://[::1]:11434"),
        ("[::1]:9", "http://[::1]:9"),
        ("http://box", "http://box"),
        ("http://0.0.0.0:11434/", "http://127.0.0.1:11434"),
        ("https://ollama.example/path/", "https://ollama.example/path"),
        ('"box:1"', "http://box:1"),
    ],
)
def test_ollama_host_means_what_it_means_to_ollama(host: str, url: str) -> None:
    assert ollama_url(host) == url


@pytest.mark.parametrize(
    "text",
    [
        "ftp://x",
        "localhost:8000",
        "http://",
        "http://x:port",
        "http://x:99999",
        "http://a b",
        "http://x\n",
        "http://[x",
    ],
)
def test_base_url_that_is_malformed_is_wrong_configuration(text: str) -> None:
    with pytest.raises(KoderzError) as caught:
        base_url_of(text.replace("\n", "\x00"))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["http://x?api_key=1", "http://x#y"])
def test_base_url_holds_no_query(text: str) -> None:
    with pytest.raises(KoderzError, match="has no"):
        base_url_of(text)


@pytest.mark.parametrize("text", ["https://me:secret@x/v1", "ftp://me:secret@x", "http://me:secret word@x"])
def test_base_url_password_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(KoderzError, match="must not hold") as caught:
        base_url_of(text)
    assert "secret" not in str(caught.value)
    with pytest.raises(KoderzError, match="must not hold"):
        ollama_url(text)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:1", True),
        ("http://127.8.8.8", True),
        ("http://localhost:1/v1", True),
        ("http://a.localhost", True),
        ("http://[::1]:1", True),
        ("http://192.168.0.1", False),
        ("http://localhost.example.org", False),
    ],
)
def test_loopback_is_this_machine_only(url: str, expected: bool) -> None:
    assert is_loopback(url) is expected


def test_hosted_provider_gets_its_key_at_its_own_address() -> None:
    endpoint = endpoint_for(parse_model_name("gpt-4o"), environ={"OPENAI_API_KEY": f" {KEY}\n"})
    assert endpoint == Endpoint(base_url="https://api.openai.com/v1", api_key=KEY)


def test_key_is_not_shown() -> None:
    endpoint = endpoint_for(parse_model_name("gpt-4o"), environ={"OPENAI_API_KEY": KEY})
    assert KEY not in repr(endpoint)


def test_hosted_provider_without_a_key_names_the_variable() -> None:
    for name, variable in (
        ("gpt-4o", "OPENAI_API_KEY"),
        ("claude-opus-4-1", "ANTHROPIC_API_KEY"),
        ("gemini-pro", "GEMINI_API_KEY"),
    ):
        with pytest.raises(Unreachable, match=f"set {variable}") as caught:
            endpoint_for(parse_model_name(name), environ={})
        assert caught.value.exit_code == 4


def test_key_is_optional_for_an_own_server() -> None:
    endpoint = endpoint_for(parse_model_name("openai/x"), environ={}, base_url="http://127.0.0.1:8000/v1/")
    assert endpoint == Endpoint(base_url="http://127.0.0.1:8000/v1")


def test_key_variable_that_is_named_must_be_set() -> None:
    with pytest.raises(Unreachable, match="set MY_KEY"):
        endpoint_for(parse_model_name("openai/x"), environ={}, base_url="http://127.0.0.1/v1", api_key_env="MY_KEY")


def test_key_variable_that_is_named_wins() -> None:
    endpoint = endpoint_for(
        parse_model_name("openai/x"),
        environ={"MY_KEY": KEY, "OPENAI_API_KEY": "other"},
        base_url="https://router.example/v1",
        api_key_env="MY_KEY",
    )
    assert endpoint.api_key == KEY


def test_key_goes_to_an_address_by_flag_or_environment() -> None:
    environ = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "https://env.example/v1"}
    assert endpoint_for(parse_model_name("gpt-4o"), environ=environ).base_url == "https://env.example/v1"
    flagged = endpoint_for(parse_model_name("gpt-4o"), environ=environ, base_url="https://flag.example/v1")
    assert (flagged.base_url, flagged.api_key) == ("https://flag.example/v1", KEY)


def test_key_is_withheld_from_an_address_of_koderz_toml() -> None:
    endpoint = endpoint_for(
        parse_model_name("gpt-4o"),
        environ={"OPENAI_API_KEY": KEY},
        base_url="https://evil.example/v1",
        base_url_trusted=False,
    )
    assert KEY not in str(asdict(endpoint))
    assert endpoint.notices == (
        "OPENAI_API_KEY is not sent to https://evil.example/v1, which koderz.toml names; give it by --base-url",
    )


def test_key_goes_to_the_providers_own_address_from_any_source() -> None:
    endpoint = endpoint_for(
        parse_model_name("claude-opus-4-1"),
        environ={"ANTHROPIC_API_KEY": KEY},
        base_url="https://api.anthropic.com/v1/",
        base_url_trusted=False,
    )
    assert (endpoint.base_url, endpoint.api_key, endpoint.notices) == ("https://api.anthropic.com", KEY, ())


def test_key_sent_unencrypted_is_announced() -> None:
    endpoint = endpoint_for(
        parse_model_name("openai/x"), environ={"OPENAI_API_KEY": KEY}, base_url="http://192.168.0.9:8000/v1"
    )
    assert endpoint.notices == ("OPENAI_API_KEY goes unencrypted to http://192.168.0.9:8000/v1",)


def test_key_with_a_line_end_is_refused_and_not_repeated() -> None:
    with pytest.raises(KoderzError, match="OPENAI_API_KEY holds characters") as caught:
        endpoint_for(parse_model_name("gpt-4o"), environ={"OPENAI_API_KEY": "sk-abc\ndef"})
    assert "abc" not in str(caught.value)


def test_ollama_at_an_openai_address_is_told_how_to_name_the_model() -> None:
    with pytest.raises(KoderzError, match="name the model openai/llama3"):
        endpoint_for(parse_model_name("llama3"), environ={}, base_url="http://127.0.0.1:11434/v1")


def test_endpoint_keeps_other_settings() -> None:
    settings = Endpoint(timeout=7, max_retries=1, concurrency=3, num_ctx=4096, keep_alive="5m")
    endpoint = endpoint_for(parse_model_name("llama3"), environ={"OLLAMA_HOST": "box"}, settings=settings)
    assert endpoint == Endpoint("http://box:11434", "", 7, 1, 0.5, 3, 4096, "5m")


def test_simulated_model_has_no_address() -> None:
    assert endpoint_for(parse_model_name("simulated"), environ={}).base_url is None
