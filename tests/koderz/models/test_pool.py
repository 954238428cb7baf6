from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from koderz.models import Endpoint, Model, ModelName, Provider, Service, parse_model_name
from koderz.models.pool import ModelPool
from koderz.models.transport import proxy_for
from koderz.types import Message, Sampling

from .conftest import Models
from .loopback import Server, until


async def test_pool_opens_a_model_once(models: Models) -> None:
    pool = await models.pooled()
    assert pool.open("gpt-4o") is pool.open(parse_model_name("openai/gpt-4o"))


async def test_models_of_one_address_share_connections_and_limit(
    server: Server, models: Models, prompt: list[Message]
) -> None:
    pool = await models.pooled(concurrency=2)
    local, frontier = pool.open("openai/a"), pool.open("openai/b")
    for model in (local, frontier, local):
        await model.complete(prompt, Sampling())
    assert server.connections == 1
    server.gate = asyncio.Event()
    calls = [asyncio.create_task(model.complete(prompt, Sampling())) for model in (local, frontier) for _ in range(3)]
    await until(lambda: server.in_flight == 2)
    assert len(pool.throttle) == 1
    server.gate.set()
    await asyncio.gather(*calls)
    assert server.peak == 2


async def test_endpoint_notices_are_told_once() -> None:
    async with ModelPool(lambda _: Endpoint("http://127.0.0.1:9", notices=("mind the gap",))) as pool:
        pool.open("llama3")
        pool.open("qwen3")
        assert pool.notices == ["mind the gap"]


async def test_pool_prefers_providers_that_it_is_given(models: Models) -> None:
    opened: list[ModelName] = []

    class Given(Provider):
        def open(self, name: ModelName, service: Service) -> Model:
            opened.append(name)
            return models.pool.open("llama3")

    await models.pooled()
    async with ModelPool(lambda _: Endpoint(), providers={"simulated": Given()}) as pool:
        pool.open("simulated")
    assert opened == [ModelName("simulated", "simulated")]


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://127.0.0.1:11434", None),
        ("http://localhost:8000/v1", None),
        ("https://api.openai.com/v1", "http://proxy.example:3128"),
        ("http://192.168.0.9", "http://all.example"),
        ("https://inside.example/v1", None),
    ],
)
def test_proxy_is_for_remote_addresses(monkeypatch: pytest.MonkeyPatch, url: str, proxy: str | None) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "proxy.example:3128")
    monkeypatch.setenv("all_proxy", "http://all.example")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert proxy_for(url) == proxy


def test_models_import_loads_nothing_heavy() -> None:
    heavy = "asyncio", "aiohttp", "httpx", "tenacity", "genai_prices", "msgspec", "orjson"
    program = f"import sys, koderz.models; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_requests_load_no_command_line() -> None:
    program = "import sys, koderz.models.transport; print({'rich', 'click', 'httpcore', 'respx'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
