"""Providers of koderz and of another package pass the tests that every provider has to pass."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from koderz.models import PROVIDERS
from koderz.testing.providers import CHECKS, Check, declarations_are_whole
from tests.toys import install

OWN = """
from koderz.extend import Completion, Price, Provider


class Sound(Provider):
    address = "https://api.sound.example/v1"
    address_variable, key_variable = "SOUND_URL", "SOUND_KEY"
    prices = {"one": Price(1, 2)}


class Shouting(Sound):
    address_variable, key_variable = "shouting url", "SHOUTING_KEY"


class Silent(Sound):
    needs_key = False

    def open(self, name, service):
        return Mute(name)


class Mute:
    def __init__(self, name):
        self.name = name

    async def complete(self, messages, sampling):
        return Completion("", tokens_in=0, tokens_out=0)

    async def check(self):
        return {}

    def price(self):
        return None

    async def aclose(self):
        pass
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name: f"conforming:{name.capitalize()}" for name in ("sound", "shouting", "silent")}
    site = install(tmp_path / "site", "conforming", {"koderz.models": names}, {"conforming": OWN})
    monkeypatch.syspath_prepend(str(site))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", [name for name in PROVIDERS if name != "simulated"])
def test_provider_passes(name: str, check: Check) -> None:
    asyncio.run(check(name))


def test_provider_of_the_simulated_model_is_declared_whole() -> None:
    asyncio.run(declarations_are_whole("simulated"))


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_provider_of_a_package_passes(check: Check) -> None:
    asyncio.run(check("sound"))


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("name", "check"), [("shouting", CHECKS[0]), ("silent", CHECKS[1])], ids=["a variable's name", "no reply"]
)
def test_provider_that_breaks_a_rule_does_not_pass(name: str, check: Check) -> None:
    with pytest.raises(AssertionError):
        asyncio.run(check(name))
