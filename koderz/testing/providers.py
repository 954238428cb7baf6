"""Conformance tests of model providers: functions that raise AssertionError if a provider breaks the rules.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_acme_is_a_provider(check):
        asyncio.run(check("acme"))

The argument is the word before the slash in its models' names. A provider that is asked at an address is asked at a
loopback server, so no key is needed and nothing is paid.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from koderz.errors import FatalFault, KoderzError, Unreachable
from koderz.models import ModelName, Price, Provider, endpoint_for, provider_of
from koderz.models.pool import ModelPool
from koderz.models.providers import WIRES
from koderz.settings.options import fields_of
from koderz.testing.server import ModelServer
from koderz.types import Completion, Sampling

Check = Callable[[str], Coroutine[Any, Any, None]]

_MODEL, _KEY, _REPLY = "recorded", "sk-of-the-loopback-server", "good day"


async def declarations_are_whole(provider: str) -> None:
    """Variables are names of variables, the wire is one that there is, prices aren't negative, options have help."""
    found = provider_of(provider)
    assert re.fullmatch(r"[\w.-]+", provider), f"{provider!r} can't stand before a slash"
    for variable in filter(None, (found.address_variable, found.key_variable)):
        assert re.fullmatch(r"[A-Z][A-Z0-9_]*", variable), (
            f"{variable!r} is no environment variable"
        )
    assert found.wire in WIRES or _opens_by_itself(found), f"there is no wire format {found.wire!r}"
    assert not found.address or found.read_address(found.address, _MODEL), (
        "it can't read its own address"
    )
    for name, price in {**found.prices, _MODEL: found.price(_MODEL)}.items():
        assert price is None or (
            isinstance(price, Price) and min(price.input, price.output) >= 0
        ), f"price of {name}"
    for option in fields_of(found.options).values() if found.options else ():
        assert option.about.help.endswith("."), f"the option {option.flag} has no sentence of help"


async def its_models_reply(provider: str) -> None:
    """A call of a model returns its reply, with tokens that aren't negative; its name is the one that was asked for."""
    if _is_asked_at_an_address(provider):
        async with ModelServer({"hello": _REPLY}, api_key=_KEY) as server:
            completion = await _asked(provider, _environ(provider, server.url, _KEY))
        assert completion.text == _REPLY, f"it replied {completion.text!r}"
        assert sum(server.counts.values()) >= 1
    else:
        completion = await _asked(provider, {})
        assert completion.text, "the reply is empty"
    assert min(completion.tokens_in, completion.tokens_out) >= 0


async def a_wrong_key_is_fatal(provider: str) -> None:
    """A key that is refused ends the run, and is not asked with again and again."""
    if not _is_asked_at_an_address(provider) or not provider_of(provider).needs_key:
        return
    async with ModelServer({"hello": _REPLY}, api_key=_KEY) as server:
        refusal = await _refusal(
            FatalFault, _asked(provider, _environ(provider, server.url, "sk-another"))
        )
    assert "sk-another" not in refusal, "the fault tells the key"


async def a_missing_key_is_told_before_anything_is_asked(provider: str) -> None:
    """Where a key is needed at its own address, a run without one ends at once, naming the variable."""
    found = provider_of(provider)
    if not (found.needs_key and found.key_variable and found.address):
        return
    refusal = await _refusal(Unreachable, _asked(provider, {}))
    assert found.key_variable in refusal, f"the message doesn't name {found.key_variable}"


async def an_unusable_address_is_told(provider: str) -> None:
    """A malformed address is a KoderzError of one line."""
    if variable := provider_of(provider).address_variable:
        refusal = await _refusal(KoderzError, _asked(provider, {variable: "no address at all://"}))
        assert "\n" not in refusal, refusal


CHECKS: tuple[Check, ...] = (
    declarations_are_whole,
    its_models_reply,
    a_wrong_key_is_fatal,
    a_missing_key_is_told_before_anything_is_asked,
    an_unusable_address_is_told,
)
"""All of them. None depends on another."""


async def _asked(provider: str, environ: Mapping[str, str]) -> Completion:
    """The completion of a greeting."""
    async with ModelPool(lambda name: endpoint_for(name, environ=environ)) as pool:
        model = pool.open(ModelName(provider, _MODEL))
        assert model.name == ModelName(provider, _MODEL), f"the model calls itself {model.name}"
        await model.check()
        return await model.complete([{"role": "user", "content": "hello"}], Sampling())


async def _refusal(kind: type[Exception], asking: Coroutine[Any, Any, Completion]) -> str:
    """The text of the error of this kind that a coroutine raises. Raises AssertionError if it raises none."""
    try:
        completion = await asking
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised; it replied {completion.text!r}")


def _environ(provider: str, url: str, key: str) -> Mapping[str, str]:
    found = provider_of(provider)
    address = f"{url}/v1" if found.wire == "chat" else url
    return {
        name: value
        for name, value in ((found.address_variable, address), (found.key_variable, key))
        if name
    }


def _is_asked_at_an_address(provider: str) -> bool:
    found = provider_of(provider)
    return bool(found.address_variable) and not _opens_by_itself(found)


def _opens_by_itself(provider: Provider) -> bool:
    return inspect.getattr_static(type(provider), "open") is not inspect.getattr_static(
        Provider, "open"
    )
