"""Outcomes of replies: by the word that ends one, and by an error in its place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from koderz.errors import FatalFault, Fault
from koderz.models.faults import CODES, WORDS, outcome_of
from koderz.types import Completion, Message, Sampling

from .conftest import Models
from .loopback import Answer, Routes, chat

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "whose-fault.md"
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
    "contentFilter",
    "ContentFiltered",
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
    "maxTokens",
    "FinishReason.MAX_TOKENS",
    "<FinishReason.MAX_TOKENS: 'MAX_TOKENS'>",
    "contextLengthReached",
)
WHOLE = ("STOP", "FINISH_REASON_STOP", "eos", "COMPLETE", "end-turn", "endTurn", "eosFound", "endoftext")


def bodies(word: str) -> dict[str, dict[str, Any]]:
    """Half a reply that ends by a word, on each wire format, by a model that speaks it."""
    message = {"role": "assistant", "content": HALF}
    return {
        "openai/m": {"choices": [{"message": message, "finish_reason": word}]},
        "anthropic/m": {"content": [{"type": "text", "text": HALF}], "stop_reason": word},
        "m": {"message": message, "done": True, "done_reason": word},
    }


async def asked(routes: Routes, models: Models, name: str, *answers: Answer) -> Completion:
    routes.answers = [*answers]
    prompt: list[Message] = [{"role": "user", "content": "Write f."}]
    return await (await models.open(name)).complete(prompt, Sampling())


def of(body: object, status: int = 200, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(json.dumps(body).encode(), status, named)


@pytest.mark.parametrize("name", ["openai/m", "anthropic/m", "m"])
@pytest.mark.parametrize("word", BROKEN_OFF)
async def test_reply_that_its_server_broke_off_is_asked_for_again(
    routes: Routes, models: Models, name: str, word: str
) -> None:
    with pytest.raises(Fault, match="the server's answer is none: it ended by") as caught:
        await asked(routes, models, name, of(bodies(word)[name]))
    assert not isinstance(caught.value, FatalFault)
    assert len(routes.asked) == 3


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
    routes: Routes, models: Models, name: str, word: str, finish: str
) -> None:
    completion = await asked(routes, models, name, of(bodies(word)[name]))
    assert (completion.text, completion.finish_reason, len(routes.asked)) == (HALF, finish, 1)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("max_output_tokens", "length"), ("content_filter", "refusal"), ("gone_fishing", "gone_fishing")],
)
async def test_responses_end_by_the_same_words(routes: Routes, models: Models, reason: str, finish: str) -> None:
    item = {"type": "message", "content": [{"type": "output_text", "text": HALF}]}
    body = {"output": [item], "status": "incomplete", "incomplete_details": {"reason": reason}}
    routes.answers = [of(body)]
    model = await models.open("openai/m", wire="responses")
    completion = await model.complete([{"role": "user", "content": "Write f."}], Sampling())
    assert completion.finish_reason == finish


async def test_unknown_word_is_no_fault(routes: Routes, models: Models) -> None:
    completion = await asked(routes, models, "openai/m", of(bodies("gone_fishing")["openai/m"]))
    assert (completion.text, completion.finish_reason, len(routes.asked)) == (HALF, "gone_fishing", 1)
    assert outcome_of("gone_fishing") is None
    assert "openai/m: a reply ended by 'gone_fishing', which koderz doesn't know" in models.pool.notices


# Tools that nobody offered

FUNCTION = {"name": "python", "arguments": "{}"}


def message(finish: str, **fields: object) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", **fields}, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("name", "wire", "body"),
    [
        ("openai/m", "chat", message("tool_calls", content=None, tool_calls=[{"id": "1", "function": FUNCTION}])),
        ("openai/m", "chat", message("function_call", content=None, function_call=FUNCTION)),
        (
            "openai/m",
            "responses",
            {"output": [{"type": "function_call", "call_id": "1", **FUNCTION}], "status": "completed"},
        ),
        (
            "anthropic/m",
            "auto",
            {"content": [{"type": "tool_use", "id": "1", "name": "python", "input": {}}], "stop_reason": "tool_use"},
        ),
        ("m", "auto", {"message": {"role": "assistant", "tool_calls": [{"function": FUNCTION}]}, "done": True}),
    ],
)
async def test_call_of_a_tool_that_nobody_offered_is_a_reply(
    routes: Routes, models: Models, name: str, wire: str, body: object
) -> None:
    routes.answers = [of(body)]
    completion = await (await models.open(name, wire=wire)).complete([{"role": "user", "content": "go"}], Sampling())
    assert (completion.text, [call["function"]["name"] for call in completion.tool_calls]) == ("", ["python"])
    assert len(routes.asked) == 1


@pytest.mark.parametrize("word", ["MALFORMED_FUNCTION_CALL", "function_call_filter: MALFORMED_FUNCTION_CALL"])
async def test_call_that_its_server_could_not_read_is_a_reply(routes: Routes, models: Models, word: str) -> None:
    completion = await asked(routes, models, "openai/m", of(message(word)))
    assert (completion.text, completion.finish_reason, len(routes.asked)) == ("", word, 1)


# Waits and ends

INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "6.5s"}
BUSY = {"error": {"code": 429, "message": "Quota exceeded.", "status": "RESOURCE_EXHAUSTED", "details": [INFO]}}
PER_DAY = {"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier", "quotaValue": "20"}]}
NO_KEY = {"code": 400, "message": "Please pass one.", "details": [{"reason": "API_KEY_INVALID"}]}


def busy(message: str, **fields: object) -> dict[str, Any]:
    return {"error": {"message": message, **fields}}


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (of(BUSY, 429), 6.5),
        (of([BUSY], 429), 6.5),
        (of([BUSY], 429, retry_after="1"), 6.5),
        (of(busy("provider", metadata={"raw": json.dumps([BUSY])}), 429), 6.5),
        (of(busy("Quota exceeded for this minute. Please retry in 6.5s."), 429), 6.5),
        (of(busy("Please retry after 4 seconds."), 429), 4.0),
        (of(busy("Limit 3, used 3. Please try again in 187ms. Visit us."), 429), 0.187),
        (of(busy("Limit on tokens per day (TPD): please try again in 2m12.5s."), 429), 132.5),
        (of(busy("try again in 1 minute and 5 seconds"), 503), 65.0),
        (of(busy("try again in 3 hours"), 429), 300.0),
        (of(busy("Rate limit of 10 per 60s exceeded. Please wait 42 seconds before retrying."), 429), 42.0),
        (of(busy("Too many requests", retry_after=4.5), 429), 4.5),
        (of(busy("Too many requests", metadata={"retry_after_seconds": "7"}), 429), 7.0),
        (of(busy("Quota exceeded. [retry_delay {\n  seconds: 40\n}]"), 429), 40.0),
        (of(busy("slow down"), 429, retry_after_ms="4000"), 4.0),
        (of(busy("slow down"), 429, x_ms_retry_after_ms="4000", retry_after="9"), 4.0),
        (of(busy("slow down"), 429, retry_after_ms="soon", retry_after="9"), 9.0),
    ],
)
async def test_wait_is_as_long_as_the_server_says_in_any_way(
    routes: Routes, models: Models, answer: Answer, seconds: float
) -> None:
    completion = await asked(routes, models, "openai/m", answer, chat())
    assert completion.retries == 1
    assert models.clock.slept == [pytest.approx(seconds)]


@pytest.mark.parametrize("message", ["slow down", "wait in line", "retry in 5 mice", "retry after 2026"])
async def test_words_without_a_wait_name_none(routes: Routes, models: Models, message: str) -> None:
    await asked(routes, models, "openai/m", of(busy(message), 429), chat())
    assert len(models.clock.slept) == 1
    assert models.clock.slept[0] < 3


@pytest.mark.parametrize(
    "answer",
    [
        of([{"error": NO_KEY}], 400),
        of({"error": NO_KEY}, 400),
        of(busy("API key expired. Please renew the API key."), 400),
        of([{"error": {"message": "You exceeded your quota.", "details": [PER_DAY, INFO]}}], 429),
        of(busy("Rate limit exceeded: free-models-per-day."), 429),
        of(busy("You have reached your daily quota."), 429),
        of(busy("Insufficient balance or no resource package. Please recharge.", code="1113"), 429),
        of(busy("suspended", type="exceeded_current_quota_error"), 429),
        of(busy("Rate limit of 50 per 86400s exceeded for UserByModelByDay. Please wait 8103 seconds."), 429),
        of({"code": "invalid argument", "error": "Incorrect API key provided: s***y."}, 400),
        of(busy("Please make sure that your account is in good standing.", code="Arrearage"), 400),
        of({"code": "insufficient_quota", "error": "no"}, 429),
        of(busy("余额不足或无可用资源包,请充值。", code="1113"), 429),
    ],
)
async def test_error_that_no_wait_heals_ends_the_run(routes: Routes, models: Models, answer: Answer) -> None:
    with pytest.raises(FatalFault):
        await asked(routes, models, "openai/m", answer)
    assert len(routes.asked) == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([{"error": NO_KEY}], "400: Please pass one."),
        ({"error": [{"message": "too many words"}]}, "400: too many words"),
        ({"error": {"message": {"message": "too many words"}}}, "400: too many words"),
        ({"detail": [{"loc": ["body"], "msg": "no"}]}, '400: [{"loc":["body"],"msg":"no"}]'),
        (["too many", None, True], '400: ["too many",null,true]'),
        ({}, "400: {}"),
    ],
)
async def test_error_of_any_shape_is_shown_without_python(
    routes: Routes, models: Models, body: object, words: str
) -> None:
    with pytest.raises(Fault) as caught:
        await asked(routes, models, "openai/m", of(body, 400))
    assert str(caught.value).endswith(words)


# Servers that say something else than they mean


NO_PATH = "Unexpected endpoint or method. (POST /chat/completions). Returning 200 anyway"


async def test_wrong_path_is_told_at_once(routes: Routes, models: Models) -> None:
    with pytest.raises(FatalFault, match=r"Unexpected endpoint .*; see whether the base URL .* ends in /v1"):
        await asked(routes, models, "openai/m", of({"error": NO_PATH}))
    assert len(routes.asked) == 1


@pytest.mark.parametrize("said", ["The model has crashed without additional information.", "Model was unloaded."])
async def test_model_that_crashed_is_asked_again(routes: Routes, models: Models, said: str) -> None:
    completion = await asked(routes, models, "openai/m", *[of({"error": said}, 400)] * 2, chat("hi"))
    assert (completion.text, len(routes.asked)) == ("hi", 3)


# Prompts that a filter refuses

POLICY = "The response was filtered due to the prompt triggering Azure OpenAI's content management policy."


@pytest.mark.parametrize(
    "answer",
    [
        of(busy("no", code="content_filter", param="prompt", innererror={"code": "other"}), 400),
        of(busy("no", code="bad", innererror={"code": "ResponsibleAIPolicyViolation"}), 400),
        of(busy(POLICY), 400),
        of([busy("no", code="content_filter")], 400),
        of(busy("no", code="content_policy_violation"), 422),
        of(busy("Content Exists Risk", type="invalid_request_error"), 400),
        of(busy("x requires moderation. Your input was flagged for violence.", code=403), 403),
        of(busy("Output blocked by content filtering policy"), 400),
        of(busy("no", code="content_filter")),
        of({"code": "content_filter", "error": "no"}, 400),
        of({"code": "no permission", "error": "Content violates usage guidelines. Failed check: BIO"}, 403),
        of(busy("System detected potentially unsafe or sensitive content in input.", code="1301"), 400),
        of({"choices": [{"index": 0, "finish_reason": "content_filter"}]}),
        of({"choices": [{"index": 0, "finish_reason": "content_filter", "message": None}]}),
        of({"choices": [{"index": 0, "finish_reason": "PROHIBITED_CONTENT", "message": {}}]}),
    ],
)
async def test_prompt_that_a_filter_refuses_is_a_refusal(routes: Routes, models: Models, answer: Answer) -> None:
    completion = await asked(routes, models, "openai/m", answer)
    assert (completion.text, completion.finish_reason, completion.cost) == ("", "refusal", 0.0)
    assert len(routes.asked) == 1


FOUND = [{"prompt_index": 0, "content_filter_results": {"hate": {"filtered": False}, "violence": {"filtered": True}}}]
HARMLESS = [{"prompt_index": 0, "content_filter_results": {"hate": {"filtered": False}}}]
COUNTED = {"usage": {"prompt_tokens": 9, "total_tokens": 9}}


@pytest.mark.parametrize("choices", [None, []])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("openai/m", {"prompt_filter_results": FOUND}),
        ("openai/m", {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}),
        ("gemini/m", COUNTED),
    ],
)
async def test_filter_that_leaves_no_choices_is_a_refusal(
    routes: Routes, models: Models, choices: object, name: str, told: dict[str, Any]
) -> None:
    completion = await asked(routes, models, name, of({"choices": choices, **told}))
    assert (completion.text, completion.finish_reason, len(routes.asked)) == ("", "refusal", 1)


@pytest.mark.parametrize("choices", [None, []])
@pytest.mark.parametrize(
    ("name", "told"), [("openai/m", {"prompt_filter_results": HARMLESS}), ("openai/m", COUNTED), ("gemini/m", {})]
)
async def test_no_choices_without_a_filter_are_no_reply(
    routes: Routes, models: Models, choices: object, name: str, told: dict[str, Any]
) -> None:
    with pytest.raises(Fault, match="the server's answer is none: it has no choices"):
        await asked(routes, models, name, of({"choices": choices, **told}))
    assert len(routes.asked) == 3


async def test_filter_says_once_in_the_servers_words_that_it_refused(routes: Routes, models: Models) -> None:
    for _ in range(2):
        await asked(routes, models, "openai/m", of(busy(POLICY, code="content_filter"), 400))
    assert [notice for notice in models.pool.notices if "filter refused a prompt: 400: The" in notice]


async def test_agent_is_told_of_a_filter_as_of_a_reply_kept_back(routes: Routes, models: Models) -> None:
    routes.answers = [of(busy("no", code="content_filter"), 400)]
    offer: list[Message] = [{"role": "tools", "content": []}, {"role": "user", "content": "go"}]
    completion = await (await models.open()).complete(offer, Sampling())
    assert completion.finish_reason == "refusal"


@pytest.mark.parametrize(
    "answer",
    [
        of(busy("Your account was suspended for violating our content policy."), 403),
        of(busy("Your account has been flagged."), 403),
    ],
)
async def test_refusal_of_an_account_is_no_filter(routes: Routes, models: Models, answer: Answer) -> None:
    with pytest.raises(FatalFault, match="Authentication failed"):
        await asked(routes, models, "openai/m", answer)


@pytest.mark.parametrize("finish", ["stop", "length", "tool_calls"])
async def test_choice_without_message_is_no_reply_unless_filtered(routes: Routes, models: Models, finish: str) -> None:
    with pytest.raises(Fault, match="the server's answer is none"):
        await asked(routes, models, "openai/m", of({"choices": [{"text": "hi", "finish_reason": finish}]}))


# Prompts that are longer than the context

VLLM = "This model's maximum context length is 4096 tokens. However, you requested 5210 tokens ({} in the messages, …)."
TGI = "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: {} `inputs` tokens and 512 `max_new_tokens`"


@pytest.mark.parametrize(
    "answer",
    [
        of({"object": "error", "message": VLLM.format(4698), "type": "BadRequestError", "code": 400}, 400),
        of(busy(VLLM.format(4698), code="context_length_exceeded")),
        of(busy("no", code="context_length_exceeded"), 400),
        of(busy("no", type="exceed_context_size_error", n_prompt_tokens=4698, n_ctx=4096), 400),
        of(busy("the request exceeds the available context size, try increasing it"), 500),
        of(busy("prompt is too long: 213462 tokens > 200000 maximum"), 400),
        of(busy("input length and `max_tokens` exceed context limit: 210000 + 8192 > 200000"), 400),
        of(busy("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."), 400),
        of(busy("Prompt contains 40000 tokens, too large for model with 32768 maximum context length"), 400),
        of(busy("This model's maximum prompt length is 131072 but the request contains 537812 tokens."), 400),
        of(busy("The input (5000 tokens) is longer than the model's context length (4096 tokens)."), 400),
        of({"error": "Trying to keep the first 5000 tokens when context the overflows."}, 400),
        of({"error": "Requested tokens (5000) exceed context window of 4096"}),
        of({"error": "the input length exceeds the context length"}, 400),
        of({"error": TGI.format(5000)}, 422),
        of({"message": "Input is too long for requested model."}, 400),
        of(busy("The decoder prompt (length 4698) is longer than the maximum model length of 4096."), 400),
        of(busy("Invalid request: Your request exceeded model token limit: 8192"), 400),
        of(busy("the number of input tokens 4698 cannot exceed the total tokens limit 4096 for this model"), 400),
        of(busy("prompt is 4698 tokens long, but the maximum supported sequence length is just 4096!"), 400),
        of(busy("Context length 4698 is greater than max_seq_len 4096"), 400),
        of(busy("Request body too large for gpt-4o model. Max size: 8000 tokens.", code="tokens_limit_reached"), 413),
    ],
)
async def test_prompt_that_the_context_cannot_hold_is_told(routes: Routes, models: Models, answer: Answer) -> None:
    completion = await asked(routes, models, "openai/m", answer)
    assert (completion.finish_reason, completion.cost, len(routes.asked)) == ("context", 0.0, 1)
    assert ": " in completion.text
    routes.answers = [answer]
    offer: list[Message] = [{"role": "tools", "content": []}, {"role": "user", "content": "go"}]
    assert (await (await models.open()).complete(offer, Sampling())).finish_reason == "rejected"


@pytest.mark.parametrize(
    "said",
    [
        VLLM.format(3900),
        TGI.format(4000),
        "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000",
        "This model's maximum context length is 8192 tokens and your request has 50 input tokens (9000 > 8192 - 50).",
        "max_tokens (9000) exceeds the context length",
        "context_mode is not supported",
    ],
)
async def test_reply_that_the_context_cannot_hold_is_the_settings_fault(
    routes: Routes, models: Models, said: str
) -> None:
    with pytest.raises(Fault, match="400: ") as caught:
        await asked(routes, models, "openai/m", of(busy(said), 400))
    assert caught.value.cause == "rejected"


# Replies without a text


def empty(tokens: int, finish: str = "stop", **fields: object) -> Answer:
    return of(message(finish, content=None, **fields) | {"usage": {"prompt_tokens": 9, "completion_tokens": tokens}})


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (empty(60, reasoning="Sort first."), ["openai/m: replies are empty, and reasoning came with them"]),
        (empty(60), ["openai/m: replies are empty, and their server counted tokens of them"]),
        (empty(1), []),
        (empty(60, "length", reasoning="Sort"), []),
        (empty(60, "content_filter"), []),
        (empty(60, "tool_calls", tool_calls=[{"function": FUNCTION}]), []),
        (chat("hello"), []),
    ],
)
async def test_empty_replies_that_are_paid_for_are_told_once(
    routes: Routes, models: Models, answer: Answer, told: list[str]
) -> None:
    model, routes.answers = await models.open(), [answer]
    for _ in range(2):
        await model.complete([{"role": "user", "content": "go"}], Sampling())
    assert [each.partition(";")[0] for each in models.pool.notices if "empty" in each] == told


# The page


@pytest.mark.parametrize(
    ("heading", "table"), [("Words that end a reply", WORDS), ("Errors in place of a reply", CODES)]
)
def test_page_has_the_table_of_outcomes(heading: str, table: Mapping[str, Sequence[str]]) -> None:
    section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.split("\n") if line[:3] == "| `"]
    assert {cells[0].strip("`"): re.findall(r"`(\w+)`", cells[-1]) for cells in rows} == {
        outcome: [*words] for outcome, words in table.items()
    }


def test_each_word_has_one_outcome() -> None:
    words = [word for each in WORDS.values() for word in each]
    assert len({*words}) == len(words)
    assert all(outcome_of(word) == outcome for outcome, each in WORDS.items() for word in each)
