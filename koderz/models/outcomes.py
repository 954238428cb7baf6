"""Outcomes of requests by the words that servers use: one table for every wire format.

It stands on the page `docs/how-to/whose-fault.md`, too.

`WORDS` has those that end a reply:

stop        the reply is whole
length      it was cut off by a limit of tokens
refusal     the model or a filter of its provider kept it back
broken      the server broke it off: no model can be judged by it, so it is asked for again
call        the model calls a tool; the word stays as it is
own         the word says more than these do, and stays as it is

A word that isn't here is no failure of the server: the reply is there and paid for, and is judged.

`CODES` has those of errors in place of a reply that are no failure of the server:

refusal     a filter of the provider refuses the prompt
context     the prompt is longer than the model's context
"""

from __future__ import annotations

from typing import Literal

Outcome = Literal["stop", "length", "refusal", "broken", "call", "own"]

_PREFIXES = ("finishreason", "stopreason")  # of enumerations, as Gemini's

CODES: dict[Literal["refusal", "context"], tuple[str, ...]] = {
    "refusal": (  # Azure's, OpenAI's, LiteLLM's and Alibaba's
        "content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation", "prohibited_content",
        "moderation_blocked", "prompt_blocked", "data_inspection_failed", "DataInspectionFailed",
    ),
    "context": (
        "context_length_exceeded", "string_above_max_length",  # OpenAI's
        "exceed_context_size_error",  # llama.cpp's
        "ContextWindowExceededError",  # LiteLLM's
        "model_max_prompt_tokens_exceeded", "tokens_limit_reached",  # GitHub's
    ),
}  # fmt: skip

WORDS: dict[Outcome, tuple[str, ...]] = {
    "stop": (
        "stop", "end_turn", "eos", "eos_token", "stop_sequence", "completed",
        "complete", "finish", "stop_criteria_met",  # Cohere's, and Titan's on Bedrock
        "eos_found", "stop_string_found",  # LM Studio's
        "end_of_text", "normal",  # AI21's, and Baidu's
    ),
    "length": (
        "length", "max_tokens", "model_length", "model_context_window_exceeded",
        "max_output_tokens", "max_completion_tokens", "max_new_tokens", "max_length",
        "token_limit", "error_limit",  # watsonx's, and Cohere's
        "max_predicted_tokens_reached", "context_length_reached",  # LM Studio's
    ),
    "refusal": (
        "refusal", *map(str.lower, CODES["refusal"]), "content_filtered", "safety",
        "sensitive",  # Zhipu's
        "recitation", "spii", "blocklist", "other",  # Gemini's
        "language", "image_safety", "model_armor", "filtered",
        "guardrail_intervened",  # Bedrock's
        "error_toxic",  # Cohere's
    ),
    "broken": (
        "error", "abort", "aborted", "cancelled", "canceled", "user_cancel", "failed",
        "network_error", "server_error", "internal_error", "internal_server_error",
        "insufficient_system_resource",  # DeepSeek's
        "time_limit", "timeout", "deadline_exceeded",
        "queued", "in_progress", "not_finished",
        "model_unloaded", "user_stopped",  # LM Studio's
        "load", "unload",  # an Ollama that did no more than load or unload the model
    ),
    "call": (
        "tool_calls", "tool_call", "tool_use", "function_call",
        "malformed_function_call", "unexpected_tool_call", "too_many_tool_calls",  # Gemini's
        "function_call_filter",
        "malformed_tool_use",  # Bedrock's
    ),
    "own": (
        "pause_turn", "incomplete", "malformed_model_output",
        "rejected", "context", "time", "imported",  # koderz' own
    ),
}  # fmt: skip


def outcome_of(word: str) -> Outcome | None:
    """The outcome that a server's word means; None if koderz doesn't know it."""
    return _OUTCOMES.get(_folded(word))


def _folded(word: str) -> str:
    """The letters of a word by which it is looked up.

    Servers write `contentFilter`, `content-filter` or `FinishReason.CONTENT_FILTER`, and gateways add after a colon
    what the provider behind them said, as in `content_filter: RECITATION`. What stands before the colon is the word.
    """
    name = "".join(filter(str.isalnum, word.partition(":")[0].lower()))
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


_OUTCOMES = {_folded(word): outcome for outcome, words in WORDS.items() for word in words}
