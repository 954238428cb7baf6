"""What models are told: prompts in files, values in their places, and one's own in place of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.prompts import PLACEHOLDERS, load_prompts

PROMPT = 'def f(x):\n    """Costs $5, ${prompt} and ${reasoning}."""\n'
VALUES = {"prompt": PROMPT.rstrip(), "entry_point": "f"}


def overriding(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name}.md").write_text(text)
    return folder


def test_prompts_are_all_there_and_use_known_names() -> None:
    prompts = load_prompts()

    for name, allowed in PLACEHOLDERS.items():
        assert prompts.texts[name].strip()
        values = {key: f"<{key}>" for key in allowed}
        text = prompts.render(name, **values)
        assert all(value in text for value in values.values()), name
        assert "${" not in text


def test_prompt_shows_the_task_unchanged() -> None:
    system, user = load_prompts().first_messages(VALUES)

    assert (system["role"], user["role"]) == ("system", "user")
    assert f"```python\n{PROMPT.rstrip()}\n```" in user["content"]
    assert "the whole function `f`" in user["content"]
    assert "step by step" in user["content"]


def test_thinking_step_by_step_can_be_left_out() -> None:
    (_, user) = load_prompts().first_messages(VALUES, cot=False)

    assert "step by step" not in user["content"]
    assert "\n\n\n" not in user["content"]


def test_prompt_shows_a_specification_if_there_is_one() -> None:
    prompts = load_prompts()
    (_, without), (_, shown) = (prompts.first_messages(VALUES, specification=text) for text in ("", "it adds"))

    assert "it adds" in shown["content"]
    assert "specification" not in without["content"]


def test_guidance_is_part_of_the_feedback_where_there_is_some() -> None:
    prompts = load_prompts()
    guidance = prompts.render("guidance", guidance="try recursion")

    assert "try recursion" in prompts.render("feedback", feedback="no", guidance=guidance)
    assert "\n\n\n" not in prompts.render("feedback", feedback="no", guidance="")


def test_values_are_put_in_as_they_are(tmp_path: Path) -> None:
    prompts = load_prompts(overriding(tmp_path, feedback="$$5: ${feedback} | ${guidance}"))

    assert (
        prompts.render("feedback", feedback="${guidance} $x \\1 %s {}", guidance="g")
        == "$5: ${guidance} $x \\1 %s {} | g"
    )


def test_ones_own_prompts_override_ours_one_by_one(tmp_path: Path) -> None:
    ours = load_prompts()
    prompts = load_prompts(overriding(tmp_path, system="Be brief.\n"))

    assert prompts.render("system") == "Be brief."
    assert {name for name in PLACEHOLDERS if prompts.texts[name] != ours.texts[name]} == {"system"}


def test_prompt_digest_changes_with_its_text(tmp_path: Path) -> None:
    ours, own = load_prompts().digests(), load_prompts(overriding(tmp_path, system="Be brief.\n")).digests()

    assert ours.keys() == own.keys() == set(PLACEHOLDERS)
    assert {name for name in ours if ours[name] != own[name]} == {"system"}
    assert all(len(digest) == 16 for digest in ours.values())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("task", "${promt}", r"task.md: \$\{promt\} is unknown here; it may use entry_point, prompt, reasoning"),
        ("system", "${prompt}", r"\$\{prompt\} is unknown here; it may use none"),
        ("task", "costs $ 5", r"a \$ that begins no \$\{name\}; write \$\$ for a dollar sign"),
        ("tasks", "x", r"no prompt has that name; there are .*, system, task$"),
        ("README", "x", "no prompt has that name"),
    ],
)
def test_prompt_that_cannot_be_filled_in_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(KoderzError, match=said):
        load_prompts(overriding(tmp_path, **{name: text}))


def test_prompt_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "system.md").write_bytes(b"\xff")

    with pytest.raises(KoderzError, match=r"system\.md can't be read as UTF-8 text"):
        load_prompts(tmp_path)


def test_prompts_folder_may_hold_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("${anything}")

    assert load_prompts(tmp_path).texts == load_prompts().texts
