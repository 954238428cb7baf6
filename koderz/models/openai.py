"""OpenAI's chat completions, also served by vLLM, llama.cpp, LM Studio, OpenRouter and many others."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from koderz.errors import Unreachable
from koderz.models.faults import outcome_of
from koderz.models.messages import parted, responses_input
from koderz.models.names import is_another
from koderz.models.providers import Gemini, OpenAI
from koderz.models.remote import RemoteModel
from koderz.models.wire import (
    Body,
    Part,
    Wire,
    WireReply,
    called,
    count,
    decode,
    decode_reply,
    fetched,
    finish,
    inner_error,
    instead_of,
    no_answer,
    text_and_reasoning,
    told_cost,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from koderz.models.names import Endpoint, ModelName
    from koderz.models.providers import Service
    from koderz.models.transport import Http
    from koderz.types import Message, Sampling


class _Message(msgspec.Struct):
    content: str | list[Part] | UnsetType | None = UNSET
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: list[Any] | None = None
    function_call: Any = None


class _Choice(msgspec.Struct):
    message: _Message | None = None  # missing where a filter kept the reply back
    finish_reason: Any = None
    error: Any = None  # OpenRouter's, where a provider gave up on the way


class _ChatCompletion(Body, kw_only=True):
    choices: list[_Choice] | None
    prompt_filter_results: Any = None  # Azure's
    prompt_feedback: Any = msgspec.field(default=None, name="promptFeedback")  # Google's
    usage: Any = None
    model: Any = None


class _Listed(msgspec.Struct):
    id: str = ""


class _Models(msgspec.Struct):
    data: list[_Listed] | None = None


def _blocked(found: Any) -> bool:
    """Whether what a filter found in a prompt kept it back, as Google and Azure have it."""
    if isinstance(found, dict):
        return (
            bool(found.get("blockReason"))
            or found.get("filtered") is True
            or any(map(_blocked, found.values()))
        )
    return isinstance(found, list) and any(map(_blocked, found))


class OpenAIWire(Wire):
    """Chat completions below a base URL that usually ends in `/v1`."""

    client = "chat"
    path = "/chat/completions"
    parameters: tuple[str, ...] = (
        "temperature", "top_p", "seed", "stop", "max_tokens", "max_completion_tokens", "response_format",
    )  # fmt: skip
    other_names: Mapping[str, str] = MappingProxyType(
        {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
    )
    reasoning: Mapping[str, str] = MappingProxyType(
        {"reasoning_effort": "reasoning_effort", "reasoning": "reasoning"}
    )

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint.api_key)
        if endpoint.is_deployment and endpoint.api_key:
            self.headers = {"api-key": endpoint.api_key}
        self._is_openai = endpoint.base_url == OpenAI.address

    def settled(self, sampling: Sampling) -> tuple[Sampling, tuple[str, ...]]:
        """Without a budget of reasoning at OpenAI's own address; elsewhere it is sent as OpenRouter takes it."""
        if sampling.reasoning_tokens is None or not self._is_openai:
            return sampling, ()
        return replace(sampling, reasoning_tokens=None), ("reasoning_tokens",)

    def thinking(self, sampling: Sampling) -> dict[str, Any]:
        """The fields of a request that say how much to think; None for those that say nothing."""
        budget = sampling.reasoning_tokens
        return {
            "reasoning_effort": sampling.reasoning_effort,
            "reasoning": None if budget is None else {"max_tokens": budget},
        }

    def request(
        self, model: str, messages: Sequence[Message], sampling: Sampling
    ) -> dict[str, Any]:
        schema = sampling.response_format
        asked: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "max_tokens": sampling.max_tokens,
            "stop": list(sampling.stop) or None,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "reply", "schema": schema},
            }
            if schema
            else None,
            **self.thinking(sampling),
        }
        offer, conversation = parted(messages)
        asked |= {"tools": offer.tools or None, "tool_choice": offer.choice}
        given = {name: value for name, value in asked.items() if value is not None}
        return {"model": model, "messages": conversation, **given}

    def read(self, body: bytes) -> WireReply:
        completion = decode_reply(body, _ChatCompletion)
        if not completion.choices:
            return self.without_choices(completion)
        choice = completion.choices[0]
        if choice.error:
            raise inner_error(choice.error)
        message = choice.message or _Message()
        said, thought = text_and_reasoning(None if message.content is UNSET else message.content)
        reasoning = words(message.reasoning_content) or words(message.reasoning) or thought
        refusal = words(message.refusal)
        text = said or refusal
        old = [{"function": message.function_call}] if message.function_call else []
        calls = called([*(message.tool_calls or ()), *old], text)
        reason = finish(words(choice.finish_reason), text, calls=calls)
        if choice.message is None and reason != "refusal":
            raise no_answer("it has no message")
        has_end = outcome_of(reason) in ("length", "refusal", "call")
        if message.content is UNSET and not (text or reasoning or calls or has_end):
            # mlx-lm and Gemini leave it out where the thinking took all
            raise no_answer("its message has no content")
        return WireReply(
            text=text,
            reasoning=reasoning,
            finish_reason="refusal" if refusal else reason,
            model=words(completion.model),
            tokens_in=count(completion.usage, "prompt_tokens"),
            tokens_out=count(completion.usage, "completion_tokens"),
            cache_read=count(completion.usage, "prompt_tokens_details", "cached_tokens") or 0,
            tokens_reasoning=count(
                completion.usage, "completion_tokens_details", "reasoning_tokens"
            ),
            cost=told_cost(completion.usage),
            tool_calls=calls,
        )

    def without_choices(self, completion: _ChatCompletion) -> WireReply:
        """The refusal of a prompt that a filter keeps from the model. Raises Retryable where no filter is named."""
        if not self.is_kept_back(completion):
            raise no_answer("it has no choices")
        return WireReply(
            "",
            finish_reason="refusal",
            model=words(completion.model),
            tokens_in=count(completion.usage, "prompt_tokens"),
            tokens_out=count(completion.usage, "completion_tokens") or 0,
        )

    def is_kept_back(self, completion: _ChatCompletion) -> bool:
        """Whether a completion without choices says that a filter kept the prompt from the model."""
        return _blocked(completion.prompt_feedback) or _blocked(completion.prompt_filter_results)

    async def look(self, http: Http, model: str, say: Callable[[str], None], /) -> dict[str, str]:
        from difflib import get_close_matches

        if http.base_url == OpenAI.address:
            await fetched(http, f"/models/{quote(model)}", self.headers, _Listed, must_exist=True)
            return {}
        models = await fetched(http, "/models", self.headers, _Models)
        listed = models.data or () if models else ()
        offered = [one.id.removeprefix("models/") for one in listed]  # as Google has it
        if (
            not offered
            or model.partition(":")[0] in offered
            or any(not is_another(model, one) for one in offered)
        ):
            return {}
        # some servers would answer with the near one, or with any other
        if get_close_matches(model, offered, n=1):
            raise Unreachable(f"{http.address} doesn't list {model}; {instead_of(model, offered)}")
        say(f"{http.address} doesn't list {model}; {instead_of(model, offered)}")
        return {}


class GeminiWire(OpenAIWire):
    """Chat completions as Google's address speaks them."""

    reasoning = MappingProxyType({
        "reasoning_effort": "reasoning_effort",
        **dict.fromkeys(("extra_body", "thinking_config", "thinking_budget"), "extra_body"),
        **dict.fromkeys(("thinking", "thinking_level"), "reasoning_effort"),
    })  # fmt: skip

    def settled(self, sampling: Sampling) -> tuple[Sampling, tuple[str, ...]]:
        """As it is: both an effort and a budget have their fields."""
        return sampling, ()

    def is_kept_back(self, completion: _ChatCompletion) -> bool:
        """See `OpenAIWire.is_kept_back`. Google may leave the filter out, and counts the tokens of the prompt alone."""
        usage = completion.usage
        is_prompt_alone = bool(count(usage, "prompt_tokens")) and not count(
            usage, "completion_tokens"
        )
        return is_prompt_alone or super().is_kept_back(completion)

    def thinking(self, sampling: Sampling) -> dict[str, Any]:
        """See `OpenAIWire.thinking`."""
        budget = sampling.reasoning_tokens
        config = {"google": {"thinking_config": {"thinking_budget": budget}}}
        return {
            "reasoning_effort": sampling.reasoning_effort,
            "extra_body": None if budget is None else config,
        }


class _Text(msgspec.Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct):
    type: str
    content: list[_Text] | None = None
    summary: list[_Text] | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    call_id: str | None = None


class _Reason(msgspec.Struct):
    reason: str | None = None


class _Response(Body, kw_only=True):
    output: list[_Item]
    status: str | None = None
    incomplete_details: _Reason | None = None
    usage: Any = None
    model: Any = None


class _AllItems(msgspec.Struct):
    output: list[dict[str, Any]]


class ResponsesWire(OpenAIWire):
    """The responses API: of clients that speak it, and of koderz where a run asks for it.

    Nothing is stored at the server, so that a later turn brings the items of earlier ones along.
    """

    client = "responses"
    path = "/responses"
    parameters = ("temperature", "top_p", "max_output_tokens", "text", "include")
    other_names: Mapping[str, str] = MappingProxyType({})
    lacking = ("seed", "stop")
    reasoning = MappingProxyType({"reasoning": "reasoning", "effort": "reasoning"})
    takes_items = True

    def settled(self, sampling: Sampling) -> tuple[Sampling, tuple[str, ...]]:
        """Without a budget of reasoning, which has no field."""
        if sampling.reasoning_tokens is None:
            return sampling, ()
        return replace(sampling, reasoning_tokens=None), ("reasoning_tokens",)

    def request(
        self, model: str, messages: Sequence[Message], sampling: Sampling
    ) -> dict[str, Any]:
        offer, conversation = parted(messages)
        schema, effort = sampling.response_format, sampling.reasoning_effort
        asked = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "stop": list(sampling.stop) or None,
            "max_output_tokens": sampling.max_tokens,
            "text": {"format": {"type": "json_schema", "name": "reply", "schema": schema}}
            if schema
            else None,
            "reasoning": {"effort": effort} if effort is not None else None,
            "tools": [_as_tool(tool) for tool in offer.tools] or None,
            "tool_choice": {"type": "function", "name": offer.choice["function"]["name"]}
            if isinstance(offer.choice, dict)
            else offer.choice,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        kept = {"store": False, "include": ["reasoning.encrypted_content"]}
        return {"model": model, "input": responses_input(conversation), **kept, **given}

    def read(self, body: bytes) -> WireReply:
        response = decode_reply(body, _Response)
        parts = [
            part
            for item in response.output
            if item.type == "message"
            for part in item.content or ()
        ]
        text = "".join(part.text or part.refusal or "" for part in parts)
        thoughts = [
            part.text or ""
            for item in response.output
            if item.type == "reasoning"
            for part in (*(item.summary or ()), *(item.content or ()))
        ]
        items = [
            item for item in response.output if item.type in ("function_call", "custom_tool_call")
        ]
        made = [
            {
                "id": item.call_id,
                "function": {
                    "name": item.name,
                    "arguments": item.arguments or {"input": item.input},
                },
            }
            for item in items
        ]
        calls = called(made, text)
        cut = response.incomplete_details.reason if response.incomplete_details else None
        return WireReply(
            text=text,
            reasoning="\n\n".join(filter(None, thoughts)),
            finish_reason=finish(cut or response.status, text, calls=calls),
            model=words(response.model),
            tokens_in=count(response.usage, "input_tokens"),
            tokens_out=count(response.usage, "output_tokens"),
            cache_read=count(response.usage, "input_tokens_details", "cached_tokens") or 0,
            tokens_reasoning=count(response.usage, "output_tokens_details", "reasoning_tokens"),
            cost=told_cost(response.usage),
            tool_calls=calls,
            items=tuple(decode(body, _AllItems).output),
        )


def _as_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool of chat completions as responses offer it: without a level of its own for the function."""
    function = tool["function"]
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"type": "function", "strict": False, **function, "parameters": schema}


class OpenAIModel(RemoteModel):
    """A model that is asked by chat completions or by responses, as its run says."""

    def __init__(self, name: ModelName, service: Service) -> None:
        endpoint = service.endpoint
        self._responses = ResponsesWire(endpoint)
        chat = GeminiWire if isinstance(service.provider, Gemini) else OpenAIWire
        super().__init__(name, chat(endpoint), service, self._responses)

    def wire_for(self, sampling: Sampling) -> Wire:
        """The format that the run names; by default responses where OpenAI's own address is told how much to think."""
        endpoint = self.service.endpoint
        is_reasoning = endpoint.base_url == OpenAI.address and sampling.reasons
        by_responses = is_reasoning if endpoint.wire == "auto" else endpoint.wire == "responses"
        return self._responses if by_responses else self.wire


def open_model(name: ModelName, service: Service) -> RemoteModel:
    """Opens a model that speaks OpenAI's formats."""
    return OpenAIModel(name, service)
