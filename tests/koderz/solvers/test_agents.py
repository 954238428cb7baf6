"""How a model's reply becomes commands and edits."""

from __future__ import annotations

import pytest

from koderz.solvers.agents.own import Action, read_actions


def test_blocks_are_read_in_their_order() -> None:
    text = (
        "First.\n\n```shell\nls\npwd\n```\n\n```edit a b.py\n<<<<<<< old\n=======\nnew\n>>>>>>> new\n```\n"
        "````shell\ncat <<'E'\n```\nE\n````\n```python\nnot for us\n```"
    )
    assert read_actions(text) == [
        Action("ls\npwd\n"),
        Action("", "a b.py", "", "new\n"),
        Action("cat <<'E'\n```\nE\n"),
    ]


@pytest.mark.parametrize("text", ["Done.", "", "```python\nx\n```", "say ```shell``` then"])
def test_a_reply_without_a_block_asks_for_nothing(text: str) -> None:
    assert read_actions(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "```shell\nls",
        "```edit\n<<<<<<<\na\n=======\nb\n>>>>>>>\n```",
        "```edit x\njust text\n```",
        "```shell\nls\n```\n```edit x\n<<<<<<<\n",
    ],
)
def test_a_block_that_can_t_be_read_is_no_end(text: str) -> None:
    assert read_actions(text) is None
