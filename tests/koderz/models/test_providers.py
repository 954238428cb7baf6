from __future__ import annotations

from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.models import Endpoint, ModelName, Price, Provider, endpoint_for, parse_model_name, provider_of
from koderz.models.pool import ModelPool
from koderz.models.prices import could_spend, tariff_of
from koderz.models.providers import every_provider
from tests.toys import install

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "environment.md"

PACKAGE = """
from koderz.models import Price, Provider
from koderz.models.ollama import open_model


class Acme(Provider):
    address = "https://acme.example/v1"
    address_variable = "ACME_URL"
    key_variable = "ACME_LOGIN"
    prices = {"one": Price(1.0, 2.0)}


class Homeless(Provider):
    address_variable = "HOMELESS_URL"


class Misnamed(Provider):
    name = "other"


class Strange(Provider):
    address = "https://strange.example/v1"
    wire = "telegraph"


def old(name, service):
    return open_model(name, service)


NOTHING = None
"""
MISSPELT = """
from koderz.models import Provider


class Misspelt(Provider):
    key_varable = "KEY"
"""


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of somebody else's with providers, of which some are wrong."""
    found = {
        "acme": "acme_providers:Acme",
        "homeless": "acme_providers:Homeless",
        "misnamed": "acme_providers:Misnamed",
        "strange": "acme_providers:Strange",
        "old": "acme_providers:old",
        "nothing": "acme_providers:NOTHING",
        "gone": "acme_providers:Gone",
        "misspelt": "acme_misspelt:Misspelt",
        "broken": "acme_broken:Broken",
    }
    modules = {"acme_providers": PACKAGE, "acme_misspelt": MISSPELT, "acme_broken": "def ("}
    monkeypatch.syspath_prepend(install(tmp_path / "site", "acme", {"koderz.models": found}, modules))


def test_provider_of_another_package_declares_address_key_and_price() -> None:
    name = parse_model_name("acme/one")
    endpoint = endpoint_for(name, environ={"ACME_LOGIN": "an-acme-key"})

    assert (str(name), endpoint.base_url, endpoint.api_key) == ("acme/one", "https://acme.example/v1", "an-acme-key")
    assert endpoint_for(name, environ={"ACME_URL": "http://127.0.0.1:1/v1"}).base_url == "http://127.0.0.1:1/v1"
    tariff = tariff_of(name, endpoint.base_url, {})
    assert tariff is not None
    assert str(tariff) == "$1 in, $2 out, a million tokens, as its provider says"
    assert tariff_of(name, endpoint.base_url, {"acme/one": Price(3.0, 3.0)}) != tariff
    assert could_spend(["acme/one"], {})


def test_provider_keeps_its_key_from_addresses_that_a_koderz_toml_names() -> None:
    environ = {"ACME_LOGIN": "an-acme-key"}
    endpoint = endpoint_for(
        parse_model_name("acme/one"), environ=environ, base_url="https://evil.example", base_url_trusted=False
    )
    assert endpoint.api_key == ""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("misnamed", "its class has another name, 'other'"),
        ("nothing", "None is no subclass of koderz.models.Provider"),
        ("gone", "can't be loaded: module 'acme_providers' has no attribute 'Gone'"),
        ("misspelt", "Misspelt has no member `key_varable`; did you mean `key_variable`[?]"),
        ("broken", "can't be loaded: "),
    ],
)
def test_provider_that_can_not_be_loaded_is_told_in_one_line(name: str, message: str) -> None:
    with pytest.raises(KoderzError, match=f"model provider '{name}': .*{message}") as caught:
        provider_of(name)
    assert "\n" not in str(caught.value)


async def test_provider_without_an_address_says_how_to_give_one() -> None:
    async with ModelPool(lambda name: endpoint_for(name, environ={})) as pool:
        with pytest.raises(KoderzError, match="homeless/ models: give one by --base-url, or set HOMELESS_URL"):
            pool.open("homeless/x")
        with pytest.raises(KoderzError, match="no address is known for old/ models: give one by --base-url"):
            await pool.open("old/x").check()


async def test_provider_with_an_unknown_wire_format_is_told_those_there_are() -> None:
    async with ModelPool(lambda _: Endpoint("https://strange.example/v1")) as pool:
        with pytest.raises(KoderzError, match="no wire format 'telegraph'; choose from chat, messages, ollama"):
            pool.open("strange/x")


async def test_provider_that_is_an_opener_function_opens_its_models() -> None:
    async with ModelPool(lambda _: Endpoint("http://127.0.0.1:9")) as pool:
        assert str(pool.open("old/x").name) == "old/x"
        assert pool.open("other/x").name == ModelName("ollama", "other/x")


@pytest.mark.parametrize(("text", "meant"), [("acmee/one", "acme/one"), ("ACME/one", "acme/one")])
def test_provider_of_another_package_is_meant_by_a_misspelt_name(text: str, meant: str) -> None:
    with pytest.raises(KoderzError, match=f"did you mean {meant}[?]"):
        parse_model_name(text)


def test_providers_are_listed_with_those_of_other_packages() -> None:
    names = [*every_provider()]
    assert names[:5] == ["openai", "anthropic", "gemini", "ollama", "simulated"]
    assert {"acme", "old", "broken"} <= {*names}


def test_environment_page_names_the_variables_of_each_provider() -> None:
    providers = [provider_of(name) for name in ("openai", "anthropic", "gemini", "ollama")]
    declared = [variable for each in providers for variable in (each.address_variable, each.key_variable)]
    assert [variable for variable in declared if f"`{variable}`" not in PAGE.read_text()] == []


def test_provider_class_documents_each_member() -> None:
    public = {name for name in vars(Provider) if not name.startswith("_")}
    text = Path(__file__).parents[3].joinpath("koderz/models/providers.py").read_text()
    body = text.partition("class Provider(Extensible):")[2].partition("\nclass ")[0]
    told = body.split('"""')
    assert len(told) // 2 >= len(public) + 1
