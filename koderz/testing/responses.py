"""OpenAI's responses, in the form in which koderz' bridge serves them. Source: OpenAI's API reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from koderz.models.clients import packed, responses, translated
from koderz.testing.openai import OpenAIWire
from koderz.testing.wire import CREATED, Json, Request, sampling_of, text_of
from koderz.types import Completion, Reply


class ResponsesWire(OpenAIWire):
    """The responses API. Errors, keys and unknown models are handled as in chat completions."""

    def parse(self, body: Json, headers: Mapping[str, str]) -> Request:
        messages = [message for message in translated(packed("responses", body)).messages if message["role"] != "tools"]
        return Request(
            kind=self.kind,
            model=str(body["model"]),
            messages=tuple({"role": one["role"], "content": text_of(one["content"])} for one in messages),
            sampling=sampling_of(body, max_tokens=("max_output_tokens",)),
            stream=bool(body.get("stream", False)),
            body=body,
            headers=headers,
        )

    def reply(self, request: Request, completion: Completion) -> Json:
        reply = Reply(
            int(request.digest, 16),
            completion.text,
            reasoning=completion.reasoning,
            tokens_in=completion.tokens_in,
            tokens_out=completion.tokens_out,
            finish_reason=completion.finish_reason,
        )
        return {**responses.answer(reply, request.body), "created_at": CREATED}

    def stream(self, request: Request, completion: Completion) -> Sequence[bytes]:
        return [*responses.events(self.reply(request, completion))]
