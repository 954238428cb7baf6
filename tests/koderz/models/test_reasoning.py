from __future__ import annotations

import pytest

from koderz.models.messages import SplitText, part


@pytest.mark.parametrize(
    ("sent", "text", "reasoning"),
    [
        ("<think>hm\nso</think>\n\n    return 1", "    return 1", "hm\nso"),
        ("\n <think></think>def f(): ...", "def f(): ...", ""),
        ("<thinking>a</thinking>b", "b", "a"),
        ("I wonder.\n</think>\n\ndef f(): ...", "def f(): ...", "I wonder."),
        ("<think>a</think>b<think>c</think>", "b<think>c</think>", "a"),
    ],
)
def test_leading_reasoning_is_kept_apart(sent: str, text: str, reasoning: str) -> None:
    assert part(sent, complete=True) == SplitText(text, reasoning, cut=True)


@pytest.mark.parametrize(
    "sent",
    [
        "def f(): ...",
        "Here: <think>no</think>",
        "```\nx = 1\n</think>\n```",
        "text </think> text",
        "<think>never closed\ndef f(): ...",
        "",
    ],
)
def test_reply_without_reasoning_is_unchanged(sent: str) -> None:
    assert part(sent, complete=True) == SplitText(sent)


def test_reasoning_that_was_cut_short_leaves_no_reply() -> None:
    assert part("<think>on and on", complete=False) == SplitText("", "on and on", cut=True)
