from __future__ import annotations

import json

import pytest

from koderz.errors import FatalFault, KoderzError, Unreachable
from koderz.models.ollama import discover_ollama
from koderz.types import Message, Sampling

from .conftest import Models
from .loopback import Answer, Asked, Routes, Server


def as_json(value: object, status: int = 200) -> Answer:
    return Answer(json.dumps(value).encode(), status)


def reply(content: str = "hi", **fields: object) -> Answer:
    return as_json({"model": "llama3", "message": {"role": "assistant", "content": content}, "done": True, **fields})


async def test_request_has_ollamas_format(routes: Routes, models: Models, prompt: list[Message]) -> None:
    routes.answers = [reply(prompt_eval_count=20, eval_count=4, done_reason="length")]
    model = await models.open("llama3:8b", num_ctx=4096, keep_alive="10m")
    completion = await model.complete(prompt, Sampling(0.0, 99, 0.5, 7, ("END",)))
    (asked,) = routes.asked
    assert asked.path == "/api/chat"
    assert asked.json == {
        "model": "llama3:8b",
        "messages": prompt,
        "stream": False,
        "options": {"num_ctx": 4096, "seed": 7, "temperature": 0.0, "num_predict": 99, "top_p": 0.5, "stop": ["END"]},
        "keep_alive": "10m",
    }
    assert (completion.text, completion.finish_reason, completion.model) == ("hi", "length", "llama3")
    assert (completion.tokens_in, completion.tokens_out) == (20, 4)
    assert (completion.cost, completion.cost_known) == (0.0, True)


async def test_request_leaves_out_unset_parameters(routes: Routes, models: Models, prompt: list[Message]) -> None:
    routes.answers = [reply()]
    await (await models.open("llama3")).complete(prompt, Sampling())
    assert routes.asked[0].json == {"model": "llama3", "messages": prompt, "stream": False, "options": {}}


async def test_schema_is_sent_as_the_format(routes: Routes, models: Models, prompt: list[Message]) -> None:
    routes.answers = [reply()]
    await (await models.open("llama3")).complete(prompt, Sampling(response_format={"type": "object"}))
    assert routes.asked[0].json["format"] == {"type": "object"}


async def test_thinking_is_kept_apart(routes: Routes, models: Models, prompt: list[Message]) -> None:
    routes.answers = [as_json({"message": {"content": "hi", "thinking": "hm"}})]
    completion = await (await models.open("llama3")).complete(prompt, Sampling())
    assert (completion.text, completion.reasoning) == ("hi", "hm")


async def test_cached_prompt_tokens_are_estimated(routes: Routes, models: Models, prompt: list[Message]) -> None:
    routes.answers = [reply(eval_count=4)]
    completion = await (await models.open("llama3")).complete(prompt, Sampling())
    assert (completion.tokens_in, completion.tokens_out) == (2, 4)


async def test_model_that_is_gone_ends_the_run(routes: Routes, models: Models, prompt: list[Message]) -> None:
    routes.answers = [as_json({"error": "model 'llama3' not found"}, 404)]
    model = await models.open("llama3")
    with pytest.raises(FatalFault, match="404: model 'llama3' not found"):
        await model.complete(prompt, Sampling())


@pytest.mark.parametrize(
    ("name", "there"), [("llama3", "llama3:latest"), ("hf.co/A/b:Q4", "hf.co/a/b:Q4"), ("a:b", "a:b")]
)
async def test_model_digest_is_recorded(routes: Routes, models: Models, name: str, there: str) -> None:
    routes.answers = [as_json({"models": [{"name": "other:1", "digest": "no"}, {"name": there, "digest": "abc"}]})]
    assert await (await models.open(name)).check() == {"digest": "abc"}
    assert routes.asked[0].path == "/api/tags"


@pytest.mark.parametrize(
    ("installed", "told"),
    [
        (None, "it has none"),
        ([], "it has none"),
        (["qwen3:8b"], "it has qwen3:8b"),
        (["qwen3:8b", "llama3:70b"], "did you mean llama3:70b? It has qwen3:8b, llama3:70b"),
        (["llama2:latest", *"abcdefg"], "did you mean llama2? It has llama2, a, b, c, d, …"),
        (["\x1b[31mllama3:1b"], "did you mean [31mllama3:1b? It has [31mllama3:1b"),
    ],
)
async def test_missing_model_is_told_with_the_nearest_and_how_to_get_it(
    routes: Routes, models: Models, installed: list[str] | None, told: str
) -> None:
    tags = None if installed is None else [{"name": name} for name in installed]
    routes.answers = [as_json({"models": tags})]
    model = await models.open("llama3")
    with pytest.raises(Unreachable) as caught:
        await model.check()
    assert str(caught.value) == f"the Ollama at {routes.url} has no model llama3; {told}; get it by: ollama pull llama3"


async def test_chat_models_at_hand_are_found(server: Server) -> None:
    tags = [
        {"name": "qwen2.5-coder:32b", "details": {"family": "qwen2"}},
        {"name": "nomic-embed-text:latest", "details": {"family": "nomic-bert"}},
        {"name": "all-minilm:33m", "details": {"family": "bert"}},
        {"name": "qwen3-e:8b", "details": {"family": "qwen3"}},
        {"name": "old:7b"},
    ]
    capabilities = {"qwen2.5-coder:32b": ["completion", "tools"], "qwen3-e:8b": ["embedding"]}

    def decide(asked: Asked) -> Answer:
        if asked.path == "/api/tags":
            return as_json({"models": tags})
        known = capabilities.get(asked.json["model"])
        return as_json({"capabilities": known}) if known else as_json({"error": "no such path"}, 404)

    server.decide = decide
    assert await discover_ollama({"OLLAMA_HOST": server.url}) == ["qwen2.5-coder:32b", "old:7b"]


async def test_ollama_without_models_has_none(server: Server) -> None:
    server.answers = [as_json({"models": []})]
    assert await discover_ollama({"OLLAMA_HOST": server.url}) == []


@pytest.mark.parametrize("answer", [Answer(b"not ollama"), Answer(status=404), Answer(status=500), Answer(hang=True)])
async def test_server_that_is_not_ollama_has_no_models(routes: Routes, answer: Answer) -> None:
    routes.answers = [answer]
    assert await discover_ollama({"OLLAMA_HOST": routes.url}) is None


async def test_server_that_is_absent_has_no_models() -> None:
    assert await discover_ollama({"OLLAMA_HOST": "127.0.0.1:9"}) is None


async def test_ollama_host_that_is_malformed_is_told() -> None:
    with pytest.raises(KoderzError, match="not a base URL"):
        await discover_ollama({"OLLAMA_HOST": "box:port"})
