"""Sources of the server's replies: a text, texts by words of the request, a function, or a model."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from koderz.models.reasoning import part
from koderz.testing.wire import Request
from koderz.types import Completion, Message, Sampling

CHARACTERS_PER_TOKEN = 4


class NoReply(LookupError):
    """The source has no reply for a conversation."""


@runtime_checkable
class Answering(Protocol):
    """A completer of conversations, such as `koderz.systems.code.simulated.Simulated`."""

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion: ...


Answered = str | Completion
Replies = (
    str
    | Mapping[str, str | Sequence[str]]
    | Callable[[Request], Answered | Awaitable[Answered]]
    | Answering
)
"""A text for every request; or texts by words that the conversation holds, of which the n-th is for a
conversation with n earlier replies in it, and the last for all that follow; or a function; or a model."""

Answer = Callable[[Request], Awaitable[Completion]]


def answer_from(replies: Replies | None) -> Answer:
    """A function from a request to its completion, which raises NoReply if there is none.

    None stands for the simulated model over HumanEval.
    """
    if replies is None:
        return answer_from(_simulated_humaneval())
    if isinstance(replies, str):
        return _answer_calling(lambda _: replies)
    if isinstance(replies, Mapping):
        return _answer_calling(lambda request: _looked_up(replies, request))
    if isinstance(replies, Answering):
        return lambda request: replies.complete(request.messages, request.sampling)
    return _answer_calling(replies)


def with_reasoning_inline(completion: Completion) -> Completion:
    """The completion as sent by a server that doesn't separate reasoning from reply."""
    if not completion.reasoning:
        return completion
    whole = f"<think>\n{completion.reasoning}\n</think>\n\n{completion.text}"
    return replace(completion, text=completion.raw or whole, reasoning="")


def truncated(completion: Completion) -> Completion:
    """The first half of a completion, as sent by a server that reached its token limit."""
    half = completion.text[: len(completion.text) // 2]
    return replace(
        completion, text=half, finish_reason="length", tokens_out=completion.tokens_out // 2
    )


def empty(completion: Completion) -> Completion:
    return replace(completion, text="", reasoning="", tokens_out=0)


def _simulated_humaneval() -> Answering:
    from koderz.suites import load_suite
    from koderz.suites.options import SimulatedOptions

    suite: Any = load_suite("humaneval")
    found: Answering = suite.simulated_model(suite.tasks, 0, SimulatedOptions())
    return found


def _answer_calling(function: Callable[[Request], Answered | Awaitable[Answered]]) -> Answer:
    async def answer(request: Request) -> Completion:
        answer = function(request)
        if inspect.isawaitable(answer):
            answer = await answer
        return answer if isinstance(answer, Completion) else _completion(request, answer)

    return answer


def _looked_up(replies: Mapping[str, str | Sequence[str]], request: Request) -> str:
    text = "\n".join(str(one["content"]) for one in request.messages if one["role"] != "assistant")
    found = next((reply for words, reply in replies.items() if words in text), None)
    if found is None:
        raise NoReply(
            f"no reply was given for a conversation that holds none of: {', '.join(replies)}"
        )
    if isinstance(found, str):
        return found
    turns = len([one for one in request.messages if one["role"] == "assistant"])
    return found[min(turns, len(found) - 1)]


def _completion(request: Request, text: str) -> Completion:
    parted = part(text, complete=True)
    return Completion(
        text=parted.text,
        reasoning=parted.reasoning,
        tokens_in=_tokens("".join(message["content"] for message in request.messages)),
        tokens_out=_tokens(text),
        raw=text if parted.cut else None,
    )


def _tokens(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)
