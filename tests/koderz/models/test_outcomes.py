"""Outcomes of replies: by the word that ends one, and by an error in its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koderz.errors import FatalFault, Fault
from koderz.models.outcomes import outcome_of
from koderz.types import Completion, Message, Sampling

from .conftest import Models
from .loopback import Answer, Server

pytestmark = pytest.mark.anyio

HALF = "```python\ndef f("
BROKEN_OFF = (
    "network_error",
    "insufficient_system_resource",
    "cancelled",
    "canceled",
    "CANCELLED",
    "time_limit",
    "TIME-LIMIT",
    "timeout",
    "error: upstream",
)
REFUSED = (
    "sensitive",
    "RECITATION",
    "FINISH_REASON_RECITATION",
    "PROHIBITED_CONTENT",
    "prohibited-content",
    "SPII",
    "BLOCKLIST",
    "OTHER",
    "content-filter",
    "Content Filter",
    "content_filter: RECITATION",
    "guardrail_intervened",
    "SAFETY",
)
CUT = (
    "LENGTH",
    "max_output_tokens",
    "token_limit",
    "FINISH_REASON_MAX_TOKENS",
    "max-tokens",
    "MAX_TOKENS",
    "model_context_window_exceeded",
)
WHOLE = ("STOP", "FINISH_REASON_STOP", "eos", "COMPLETE", "end-turn")


def bodies(word: str) -> dict[str, dict[str, Any]]:
    """Half a reply that ends by a word, on each wire format, by a model that speaks it."""
    message = {"role": "assistant", "content": HALF}
    return {
        "openai/m": {"choices": [{"message": message, "finish_reason": word}]},
        "anthropic/m": {"content": [{"type": "text", "text": HALF}], "stop_reason": word},
        "m": {"message": message, "done": True, "done_reason": word},
    }


async def asked(server: Server, models: Models, name: str, *answers: Answer) -> Completion:
    server.answers = [*answers]
    prompt: list[Message] = [{"role": "user", "content": "Write f."}]
    return await (await models.open(name)).complete(prompt, Sampling())


def of(body: object, status: int = 200, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(json.dumps(body).encode(), status, named)


@pytest.mark.parametrize("name", ["openai/m", "anthropic/m", "m"])
@pytest.mark.parametrize("word", BROKEN_OFF)
async def test_reply_that_its_server_broke_off_is_asked_for_again(
    server: Server, models: Models, name: str, word: str
) -> None:
    with pytest.raises(Fault, match="the server's answer is none: it ended by") as caught:
        await asked(server, models, name, of(bodies(word)[name]))
    assert not isinstance(caught.value, FatalFault)
    assert len(server.asked) == 3


@pytest.mark.parametrize("name", ["openai/m", "anthropic/m", "m"])
@pytest.mark.parametrize(
    ("word", "finish"),
    [
        *((word, "refusal") for word in REFUSED),
        *((word, "length") for word in CUT),
        *((word, "stop") for word in WHOLE),
    ],
)
async def test_word_that_ends_a_reply_is_read_in_any_spelling(
    server: Server, models: Models, name: str, word: str, finish: str
) -> None:
    completion = await asked(server, models, name, of(bodies(word)[name]))
    assert (completion.text, completion.finish_reason, len(server.asked)) == (HALF, finish, 1)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("max_output_tokens", "length"), ("content_filter", "refusal"), ("gone_fishing", "gone_fishing")],
)
async def test_responses_end_by_the_same_words(server: Server, models: Models, reason: str, finish: str) -> None:
    item = {"type": "message", "content": [{"type": "output_text", "text": HALF}]}
    body = {"output": [item], "status": "incomplete", "incomplete_details": {"reason": reason}}
    server.answers = [of(body)]
    model = await models.open("openai/m", wire="responses")
    completion = await model.complete([{"role": "user", "content": "Write f."}], Sampling())
    assert completion.finish_reason == finish


async def test_unknown_word_is_no_fault(server: Server, models: Models) -> None:
    completion = await asked(server, models, "openai/m", of(bodies("gone_fishing")["openai/m"]))
    assert (completion.text, completion.finish_reason, len(server.asked)) == (HALF, "gone_fishing", 1)
    assert outcome_of("gone_fishing") is None
