"""What program a reply comes to, shape by shape. `area` is asked for; it is right when it gives 12 for 3 and 4."""

from __future__ import annotations

import json
import warnings
from textwrap import dedent, indent
from typing import Any

import pytest

from koderz.systems.code.extraction.blocks import Extraction
from koderz.systems.code.extraction.extraction import extract_program

PROMPT = '''from typing import List
import math


def double(n: int) -> int:
    """ Twice n. """
    return n * 2


def area(sides: List[int]) -> int:
    """ The area of a rectangle, e.g.
    >>> area([3, 4])
    12
    """
'''

FUNCTION = """def area(sides: List[int]) -> int:
    if not sides:
        return 0
    return math.prod(sides)"""

BODY = """    if not sides:
        return 0
    return math.prod(sides)"""

FENCED = f"```python\n{FUNCTION}\n```"
WRONG = "def area(sides):\n    return -1"


def extracted(reply: str, prompt: str = PROMPT, entry_point: str = "area", finish_reason: str = "stop") -> Extraction:
    return extract_program(reply, prompt, entry_point, finish_reason=finish_reason)


def loaded(found: Extraction) -> dict[str, Any]:
    """The names of a program that was run as a module. Reading from the terminal fails there as in a sandbox."""
    assert found.cause == ""
    assert found.program is not None

    def no_terminal(*_: object) -> str:
        raise EOFError

    names: dict[str, Any] = {"__name__": "candidate", "input": no_terminal}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a "\\d" is the model's business
        exec(compile(found.program, "<program>", "exec", dont_inherit=True), names)
    return names


def area_by(found: Extraction) -> object:
    return loaded(found)["area"]([3, 4])


def nbsp(text: str) -> str:
    return text.replace("    ", "\u00a0" * 4)


RIGHT = {
    "a fence": FENCED,
    "a fence between prose": f"Here it is:\n\n{FENCED}\n\nIt multiplies the sides, e.g. 3 and 4.",
    "no fence": FUNCTION,
    "no fence but prose around": f"Here is the function:\n\n{FUNCTION}\n\nIt's simple: it multiplies.\n- fast\n- short",
    "no fence, indented, prose around": f"Here you go:\n\n{indent(FUNCTION, '    ')}\n\nThat's all.",
    "a fence never closed": f"Sure!\n```python\n{FUNCTION}",
    "a fence never closed, then prose": f"Sure!\n```python\n{FUNCTION}\n\nHope that helps! It isn't hard.",
    "a closing fence alone": f"{FUNCTION}\n```\nThis multiplies.",
    "a closing fence on the last line of code": f"```python\n{FUNCTION}```",
    "a closing fence far to the right": f"```python\n{FUNCTION}\n        ```\nDone.",
    "spaces behind the closing fence": f"```python\n{FUNCTION}\n```   \n",
    "a fence in a list": "1. Write:\n\n" + indent(FENCED, "   ") + "\n\n2. Run.",
    "a fence in a list, code at the margin": f"1. Write:\n\n   ```python\n{FUNCTION}\n   ```\n",
    "a fence behind a bullet": "- " + indent(FENCED, "  ").lstrip(),
    "a fence far indented": indent(FENCED, " " * 8),
    "a fence in a quotation": indent(f"So:\n{FENCED}\nDone.", "> ", lambda _: True),
    "tildes": f"~~~python\n{FUNCTION}\n~~~",
    "four tildes with attributes": f"~~~~ {{.python .numberLines}}\n{FUNCTION}\n~~~~",
    "a fence in a fence": f"````markdown\nThe code:\n{FENCED}\n````",
    "language py": f"```py\n{FUNCTION}\n```",
    "language python3": f"```python3\n{FUNCTION}\n```",
    "language Python": f"```Python\n{FUNCTION}\n```",
    "language after a space": f"``` python\n{FUNCTION}\n```",
    "language and a title": f'```python title="area.py"\n{FUNCTION}\n```',
    "language and a file": f"```python:src/area.py\n{FUNCTION}\n```",
    "no language": f"```\n{FUNCTION}\n```",
    "a language that is wrong": f"```text\n{FUNCTION}\n```",
    "code on the opening line": f"```python {FUNCTION}\n```",
    "all on one line": "```python def area(sides): return math.prod(sides)```",
    "the word python alone before it": f"python\n{FUNCTION}",
    "backticks around": f"`{FUNCTION}`",
    "asterisks around": f"**{FUNCTION}**",
    "bold headings": f"**Solution**\n\n{FENCED}\n\n**Done**",
    "HTML": f'<p>So:</p>\n<pre><code class="language-python">{FUNCTION}</code></pre>\n<p>Done</p>',
    "HTML with entities": "<code>def area(sides):\n    return math.prod(sides) if sides &gt; [] else 0</code>",
    "answer tags": f"Well.\n<answer>\n{FUNCTION}\n</answer>\nBye.",
    "tags in brackets": f"[PYTHON]\n{FUNCTION}\n[/PYTHON]\n[TESTS]\nassert False\n[/TESTS]",
    "JSON": json.dumps({"thoughts": "I will use `def`.", "code": FUNCTION}),
    "JSON with a fence in it": json.dumps({"answer": {"text": f"So:\n{FENCED}"}}),
    "JSON with a list of lines": json.dumps({"code": FUNCTION.split("\n")}),
    "JSON in a fence": "```json\n" + json.dumps({"code": FUNCTION}, indent=2) + "\n```",
    "JSON in prose": "Here it is: " + json.dumps({"code": FUNCTION}) + " Enjoy!",
    "JSON that isn't strict": '{"code": "' + FUNCTION + '"}',
    "a session at the prompt": "```pycon\n>>> def area(sides):\n...     return math.prod(sides)\n...\n"
    ">>> area([3, 4])\n12\n```",
    "a diff": "```diff\n--- a/area.py\n+++ b/area.py\n@@ -1,2 +1,2 @@\n def area(sides):\n"
    "-    pass\n+    return math.prod(sides)\n```",
    "CRLF": f"Here:\n{FENCED}\nDone.".replace("\n", "\r\n"),
    "CR": f"Here:\n{FENCED}\nDone.".replace("\n", "\r"),
    "tabs": f"```python\n{FUNCTION}\n```".replace("    ", "\t"),
    "tabs and spaces mixed": "```python\ndef area(sides):\n    if sides:\n\treturn math.prod(sides)\n    return 0\n```",
    "tabs set at four": "```python\ndef area(sides):\n    total = 1\n\tfor side in sides:\n\t\ttotal *= side\n"
    "    return total\n```",
    "a byte order mark": "\ufeff" + FUNCTION,
    "a byte order mark in the fence": f"```python\n\ufeff{FUNCTION}\n```",
    "zero-width spaces": "```python\n" + FUNCTION.replace("(", "(\u200b") + "\n```",
    "no-break spaces as indent": nbsp(FENCED),
    "typographic quotes around": f"“{FUNCTION}”",
    "typographic quotes as delimiters": "```python\ndef area(sides):\n    return {“a”: math.prod(sides)}[‘a’]\n```",
    "an unpaired surrogate and a null byte": f"\ud83d\x00\n```python\n{FUNCTION}  # \udc00\x00\n```",
    "non-ASCII names and strings": "```python\ndef area(sides):\n    größe = 'é\u00a0😀'\n"
    "    return math.prod(sides) if größe else 0\n```",
    "the prompt again, whole": f"```python\n{PROMPT}{BODY}\n```",
    "the prompt again, no fence": f"{PROMPT}{BODY}",
    "several fences, the last corrects": f"```python\n{WRONG}\n```\nWait, that's wrong.\n\n{FENCED}",
    "several texts, the last corrects": f"{WRONG}\n\nWait, that's wrong. Corrected:\n\n{FUNCTION}",
    "a first fence that doesn't parse": f"```python\ndef area(sides:\n```\nOops.\n{FENCED}",
    "an example of use behind it": f"{FENCED}\nUse:\n```python\nfrom solution import area\n"
    "area = area([3, 4])\nprint(area)\n```",
    "a shell command behind it": f"{FENCED}\nRun:\n```bash\npython area.py\n```\n```\n12\n```",
    "a helper in a fence before": "```python\nfrom functools import reduce\n\ndef times(a, b):\n    return a * b\n"
    "```\nThen:\n"
    "```python\ndef area(sides):\n    return reduce(times, sides)\n```",
    "a helper in a fence after": "```python\ndef area(sides):\n    return times(*sides)\n```\nwith\n"
    "```python\nFACTOR = 1\n\ndef times(a, b):\n    return a * b * FACTOR\n\nprint(times())\n```",
    "the stub in one fence, the body in the next": f"```python\n{PROMPT}```\nIts body:\n```python\n{BODY}\n```",
    "a fence in a docstring": "```python\ndef area(sides):\n    '''So:\n\n"
    "    ```python\n    area([3, 4])\n    ```\n    '''\n"
    "    return math.prod(sides)\n```\nDone.",
    "a fence at the margin of a docstring": "```python\ndef area(sides):\n    '''So:\n\n```\narea([3, 4])\n```\n'''\n"
    "    return math.prod(sides)\n```\nDone.",
    "a fence in a docstring, none around": "def area(sides):\n    '''So:\n    ```\n    area([3, 4])\n    ```\n    '''\n"
    "    return math.prod(sides)",
    "a class around": "```python\nclass Solution:\n    def area(self, sides):\n        return self.by(sides)\n\n"
    "    def by(self, sides):\n        return math.prod(sides)\n\nprint(Solution().area())\n```",
    "a class around a static method": "class Solution:\n    @staticmethod\n    def area(sides):\n"
    "        return math.prod(sides)",
    "a class around a method without self": "class Solution:\n    def area(sides):\n        return math.prod(sides)",
    "a class in one fence, its use in the next": "```python\nclass Solution:\n    def area(self, sides):\n"
    "        return math.prod(sides)\n```\nthen\n```python\narea = Solution().area\n```",
    "a lambda": "```python\narea = lambda sides: math.prod(sides)\n```",
    "an alias": "```python\ndef solve(sides):\n    return math.prod(sides)\n\narea: object = solve\nprint(area())\n```",
    "under a condition": "```python\nif True:\n    def area(sides):\n        return math.prod(sides)\n```",
    "an import from the future": f'```python\n"""Area."""\nfrom __future__ import annotations\n\n{FUNCTION}\n```',
    "an import from the future on a shared line": "```python\nfrom __future__ import annotations; import os\n"
    f"{FUNCTION}\n```",
    "a warning of the parser": "```python\ndef area(sides):\n    '\\d'\n    return math.prod(sides)\n```",
}


@pytest.mark.parametrize("reply", RIGHT.values(), ids=RIGHT.keys())
def test_right_answer_is_right_in_any_shape(reply: str) -> None:
    assert area_by(extracted(reply)) == 12


BODIES = {
    "as it is": BODY,
    "its first indent stripped": BODY.lstrip(),
    "at the margin": dedent(BODY),
    "indented by two": BODY.replace("    ", "  "),
    "indented by tabs": BODY.replace("    ", "\t"),
    "indented by no-break spaces": nbsp(BODY),
    "in a fence": f"```python\n{BODY}\n```",
    "at the margin in a fence": f"The body:\n```\n{dedent(BODY)}\n```\nDone.",
    "in a list": "1. So:\n   ```python\n" + indent(BODY, "   ") + "\n   ```",
    "between prose": f"Here is the body:\n\n{BODY}\n\nIt multiplies.",
    "at the margin between prose": f"Here is the body:\n\n{dedent(BODY)}\n\nIt multiplies.",
    "and then more functions": f"{BODY}\n\n\ndef check(candidate):\n    assert candidate([]) == 7\n\n\ncheck(area)\n",
    "that calls a function behind it": "    return times(*sides)\n\n\ndef times(a, b):\n    return a * b\n",
    "with a demo, stripped": "return math.prod(sides)\n\nprint(area())\n",
    "with a string of several lines": "text = '''a\nb\n  c'''\nreturn math.prod(sides) if text == 'a\\nb\\n  c' else 0",
    "with a variable named like the function": "area = math.prod(sides)\nreturn area",
    "in JSON": json.dumps({"completion": BODY}),
    "as a diff": "```diff\n"
    + indent(PROMPT.rstrip(), " ", lambda _: True)
    + "\n"
    + indent(BODY, "+", lambda _: True)
    + "\n```",
}


@pytest.mark.parametrize("reply", BODIES.values(), ids=BODIES.keys())
def test_body_alone_completes_the_prompt(reply: str) -> None:
    found = extracted(reply)

    assert area_by(found) == 12
    assert found.program is not None
    assert found.program.count(">>> area([3, 4])") == 1


def test_body_completes_prompts_without_docstring_or_with_indent_2() -> None:
    assert area_by(extracted("    return 12", "def area(sides):")) == 12
    assert area_by(extracted("return 12", 'def area(sides):\n  """Two."""\n')) == 12


def test_code_behind_the_function_does_not_decide_the_verdict() -> None:
    demo = dedent("""
        print(area(1, 2, 3))
        assert area([3, 4]) == 13
        size = int(input("size? "))
        while True:
            print(area([int(input())]))
        for sides in [[1, 2]]:
            area()
        with open("/nonexistent") as lines:
            pass
        if __name__ == "__main__":
            main()
        area([1]) -> 2
        """)

    assert area_by(extracted(f"```python\n{FUNCTION}\n{demo}```")) == 12
    assert area_by(extracted(FUNCTION + "\n" + demo)) == 12


def test_tests_behind_the_function_are_not_run_whatever_they_import() -> None:
    tests = dedent("""
        import unittest
        import pytest_of_tomorrow as pytest

        class TestArea(unittest.TestCase):
            def test_it(self):
                self.assertEqual(area([3, 4]), 13)

        @pytest.mark.parametrize("sides", [[1]])
        def test_area(sides):
            assert area(sides) == 5

        unittest.main()
        """)

    assert area_by(extracted(f"```python\n{FUNCTION}\n{tests}```")) == 12


def test_input_before_the_function_is_left_out() -> None:
    assert area_by(extracted(f"n = int(input())\nassert n > 3\n\n{FUNCTION}")) == 12


def test_dependencies_of_the_function_are_kept_anywhere() -> None:
    reply = dedent("""
        ```python
        import sys
        sys.setrecursionlimit(5000)

        def area(sides):
            return table[sides[0]][sides[1]] * ONE

        ONE = 1
        table = {}

        def fill():
            for a in range(5):
                put(a)

        def put(a):
            table[a] = {b: a * b for b in range(5)}

        fill()
        area.calls = 0
        try:
            from math import tau
        except ImportError:
            tau = 6
        result = area([1, 1])
        ```
        """)

    names = loaded(extracted(reply))

    assert names["area"]([3, 4]) == 12
    assert names["area"].calls == 0
    assert "result" not in names


def test_statements_that_share_a_line_with_a_needed_one_stay() -> None:
    names = loaded(extracted("def area(sides): return sides[0] * FOUR\nFOUR = 4; five = 5\nsix = 6"))

    assert names["area"]([3, 4]) == 12
    assert "five" in names
    assert "six" not in names


def test_prompt_imports_and_helpers_stand_before_the_code() -> None:
    names = loaded(extracted("```python\ndef area(sides):\n    return double(math.prod(sides)) // 2\n```"))

    assert names["area"]([3, 4]) == 12


def test_reply_definitions_win_over_the_prompts() -> None:
    before = "def double(n):\n    return 12\n\ndef area(sides):\n    return double(1)"
    after = "def area(sides):\n    return double(1)\n\ndef double(n):\n    return 12"

    for reply in (before, after):
        names = loaded(extracted(f"```python\n{reply}\n```"))
        assert names["area"]([]) == 12
        assert names["double"](5) == 12


def test_future_import_of_the_prompt_stays_first() -> None:
    found = extracted(f"from __future__ import annotations\n{FUNCTION}", f"from __future__ import division\n{PROMPT}")

    assert area_by(found) == 12


def test_function_must_be_whole_without_a_prompt() -> None:
    whole = "```python\nimport math\n\ndef area(sides):\n    return math.prod(sides)\n```"

    assert area_by(extracted(whole, "")) == 12
    assert area_by(extracted(whole, "Write a function to find the area of a rectangle.")) == 12
    assert extracted(f"```python\n{BODY}\n```", "").cause


def test_function_of_any_name_will_do_without_an_entry_point() -> None:
    assert (
        area_by(extracted(f"Some code.\n```python\nimport math\nfrom typing import *\n{FUNCTION}\n```", "", "")) == 12
    )
    assert extracted("```python\nx = 1\n```", "", "").cause == "no_entry_point"


def test_async_function_is_the_answer_unchanged() -> None:
    result = area_by(extracted("```python\nasync def area(sides):\n    return math.prod(sides)\n```"))

    assert hasattr(result, "__await__")
    result.close()  # type: ignore[attr-defined]


def test_stub_alone_is_judged_as_the_answer() -> None:
    assert area_by(extracted(f"```python\n{PROMPT}    pass\n```")) is None


DRAFT = f"```python\n{WRONG}\n```"
THOUGHTS = {
    "closed": f"<think>\n{DRAFT}\nHm.\n</think>\n\n{FENCED}",
    "closed, with an open fence in it": f"<think>\n```python\ndef area(\n</think>\n{FENCED}",
    "opened by the prompt": f"Maybe\n{DRAFT}\nor\n```python\n</think>\n{FENCED}",
    "several": f"<think>a</think>Well.\n<thinking>\n{DRAFT}\n</thinking>\n{FENCED}\n<think>\n{DRAFT}\n</think>\n",
    "several on a line": f"<think>a</think><think>b</think>{FUNCTION}",
    "opened twice": f"<think>\n<think>\n{DRAFT}\n</think>\n{DRAFT}\n</think>\n{FENCED}",
    "before a body": f"<think>\n    return 1\n</think>\n{BODY}",
    "in another's words": f"◁think▷{DRAFT}◁/think▷{FUNCTION}",
    "in a channel": f"<|channel|>analysis<|message|>{DRAFT}<|end|>"
    f"<|start|>assistant<|channel|>final<|message|>{FENCED}",
    "never closed, with the answer in it": f"<think>\n{DRAFT}\nBetter:\n{FENCED}",
    "a stray closing tag at the end": f"{FENCED}\n</think>",
}


@pytest.mark.parametrize("reply", THOUGHTS.values(), ids=THOUGHTS.keys())
def test_reasoning_is_not_the_answer(reply: str) -> None:
    assert area_by(extracted(reply)) == 12


MARKED_THOUGHTS = {
    "a channel, then a fence on the line": ("<|channel>thought\n{}\n<channel|>{}", True),
    "a channel": ("<|channel>thought\n{}\n<channel|>{}", False),
    "a channel that the prompt opened": ("Plan:\n{}\nSo it goes.<channel|>{}", False),
    "two channels": ("<|channel>thought\na\n<channel|>Hm.\n<|channel>thought\n{}\n<channel|>{}", False),
    "a thought that begins": (
        "<|begin_of_thought|>\n{}\n<|end_of_thought|>\n<|begin_of_solution|>\n{}\n<|end_of_solution|>",
        False,
    ),
    "a solution in a fence on the line": (
        "<|begin_of_thought|>{}\n<|end_of_thought|><|begin_of_solution|>{}<|end_of_solution|>",
        True,
    ),
    "a channel with a format": (
        "<|channel|>analysis<|message|>\n{}\n<|end|><|channel|>final <|constrain|>python<|message|>{}",
        False,
    ),
    "marks that were stripped": ("analysisLet's see.\n{}\nFine.assistantfinal{}", False),
    "words alone, as Granite's": ("Here is my thought process:\n{}\n\nHere is my response:\n{}", False),
    "a prefix and a suffix": ("<|inner_prefix|>\n{}\n<|inner_suffix|>{}", False),
    "a blank in the tag": ("<think >\n{}\n</think >\n{}", False),
    "a tag with entities": ("&lt;think&gt;\n{}\n&lt;/think&gt;\n{}", False),
    "a tag with escapes": ("\\u003cthink\\u003e\n{}\n\\u003c/think\\u003e\n{}", False),
    "an escaped slash": ("<think>\n{}\n<\\/think>\n{}", False),
    "a blank behind the slash": ("<think>\n{}\n</ think>\n{}", False),
    "a slash before the bar": ("<|think|>\n{}\n</|think|>\n{}", False),
    "a tag of another word": ("<inner_monologue>\n{}\n</inner_monologue>\n{}", False),
    "brackets": ("[REASONING]\n{}\n[/REASONING]\n{}", False),
    "marks that are no pair": ("<|think|>\n{}\n<|end|><|begin|>assistant<|content|>{}<|flush|>", False),
    "marks that are no pair, then a fence": ("<|think|>\n{}\n<|end|><|begin|>assistant<|content|>{}<|flush|>", True),
    "tokens in reserve": ("<unused94>thought\n{}\n<unused95>{}", False),
    "a word of its own": ("<|my_musing_start|>\n{}\n<|my_musing_end|>\n{}", False),
}


@pytest.mark.parametrize(("shape", "fenced"), MARKED_THOUGHTS.values(), ids=MARKED_THOUGHTS.keys())
def test_answer_behind_a_mark_counts_and_not_the_draft(shape: str, fenced: bool) -> None:
    right, wrong = (FENCED, DRAFT) if fenced else (FUNCTION, WRONG)

    assert area_by(extracted(shape.format(DRAFT, right))) == 12
    assert area_by(extracted(shape.format(FENCED, wrong))) == -1


def test_thought_that_was_cut_is_read_only_where_the_model_ended_it() -> None:
    assert area_by(extracted(f"<|channel>thought\n{DRAFT}")) == -1
    assert extracted(f"<|channel>thought\n{FENCED}", finish_reason="length").cause == "no_code"


def test_thought_about_marks_is_not_ended_by_one() -> None:
    thought = f"<|think|>\nA <|content|> is no code.\n{FENCED}\nOr '<|content|>'\n{DRAFT}"

    assert extracted(thought, finish_reason="length").cause == "no_code"


@pytest.mark.parametrize("mark", ["<channel|>", "</think>", "<|end_of_thought|>", "### Response:", "assistantfinal"])
def test_mark_in_a_string_of_the_program_is_none(mark: str) -> None:
    code = f'def area(sides):\n    """So:\n{mark}\n    """\n    mark = "{mark}"\n    return math.prod(sides)'

    assert area_by(extracted(f"So:\n```python\n{code}\n```\nDone.")) == 12
    assert area_by(extracted(code)) == 12
    assert area_by(extracted(f"<|channel>thought\n{DRAFT}\n<channel|>```python\n{code}\n```")) == 12


def test_answer_before_a_task_that_the_model_made_up_counts() -> None:
    for right, wrong in ((FENCED, DRAFT), (FUNCTION, WRONG)):
        made_up = "\n\n### Instruction:\nNow another one.\n### Response:\n"
        assert area_by(extracted(right + made_up + wrong)) == 12
        assert area_by(extracted(wrong + made_up + right)) == -1


@pytest.mark.parametrize(
    "made_up",
    [
        "\n<|im_end|>\n<|im_start|>user\nNow another one.<|im_end|>\n<|im_start|>assistant\n",
        "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nNow.<|eot_id|>\n",
        "<end_of_turn>\n<start_of_turn>user\nNow another one.<end_of_turn>\n<start_of_turn>model\n",
        "<|end|>\n<|user|>\nNow another one.<|end|>\n<|assistant|>\n",
        "</s> [INST] Now another one. [/INST]",
    ],
)
def test_answer_before_a_users_turn_that_the_model_made_up_counts(made_up: str) -> None:
    for right, wrong in ((FENCED, DRAFT), (FUNCTION, WRONG)):
        assert area_by(extracted(right + made_up + wrong, finish_reason="length")) == 12
        assert area_by(extracted(wrong + made_up + right)) == -1
    assert area_by(extracted(made_up + FENCED)) == 12
    assert area_by(extracted(f"<think>\n{DRAFT}{made_up}\n</think>\n{FUNCTION}")) == 12
    code = f'def area(sides):\n    """{made_up}"""\n    return math.prod(sides)'
    assert area_by(extracted(f"```python\n{code}\n```")) == 12


def test_heading_before_the_only_answer_ends_nothing() -> None:
    assert area_by(extracted(f"Well.\n\n### Response:\n{FENCED}")) == 12
    assert area_by(extracted(f"<think>\n{DRAFT}\n</think>\n### Response:\n{FUNCTION}")) == 12


def test_solution_between_marks_stays_whatever_follows() -> None:
    solution = f"<|begin_of_solution|>\n{FUNCTION}\n<|end_of_solution|>\n"

    assert area_by(extracted(f"{solution}Use:\n```python\nprint(area([3, 4]))\n```")) == 12


def test_code_about_reasoning_tags_stays_whole() -> None:
    code = (
        'def area(text):\n    """\n    <think>\n    """\n    return text.split("</think>")[0].removeprefix("<think>")'
    )

    assert loaded(extracted(f"```python\n{code}\n```"))["area"]("<think>12</think>") == "12"


def test_reasoning_that_was_cut_off_holds_no_answer() -> None:
    assert extracted(f"<think>\n{FENCED}\nBut wait", finish_reason="length") == Extraction(None, "no_code", 0)


def test_truncated_last_block_does_not_replace_a_complete_one() -> None:
    reply = f"{FENCED}\nOr shorter:\n```python\ndef area(sides):\n    total = 1"

    assert area_by(extracted(reply, finish_reason="length")) == 12
    assert area_by(extracted(reply, finish_reason="stop")) is None


def test_truncated_reply_behind_its_function_is_an_answer() -> None:
    assert (
        area_by(extracted(f"```python\n{FUNCTION}\n\ndef test_area():\n    assert area([", finish_reason="length"))
        == 12
    )


HALF = FUNCTION.rpartition("\n")[0]


@pytest.mark.parametrize(
    ("finish", "cause"), [("length", "length"), ("refusal", "refused"), ("content_filter", "refused")]
)
@pytest.mark.parametrize(
    "reply",
    [
        f"```python\n{HALF}",
        f"Here it is:\n\n  ```python\n{indent(HALF, '  ')}",
        HALF,
        f"Here it is:\n\n{HALF}",
        BODY.rpartition("\n")[0],
        f"```\nx = 1\n```\nAnd:\n```python\nimport math\n\n{HALF}",
        f"<think>hm</think>\n```python\n{HALF}",
    ],
)
def test_half_a_function_that_parses_is_none(reply: str, finish: str, cause: str) -> None:
    assert extracted(reply).cause == ""
    assert extracted(reply, finish_reason=finish).cause == cause


@pytest.mark.parametrize("finish", ["length", "refusal"])
@pytest.mark.parametrize(
    "reply",
    [
        FENCED,
        f"{FENCED}\nIt multiplies the",
        f"```python\n{FUNCTION}\n\nprint(area([1,",
        f"```python\n{FUNCTION}\n\n# Example",
        f"{FUNCTION}\n\nIt multiplies the",
        f"{BODY}\n\n\ndef next_task(n):\n    return",
        f"<code>\n{FUNCTION}\n</code>",
    ],
)
def test_function_before_the_cut_is_an_answer(reply: str, finish: str) -> None:
    assert area_by(extracted(reply, finish_reason=finish)) == 12


def test_truncated_reply_within_its_function_is_no_python() -> None:
    found = extracted("```python\ndef area(sides):\n    return math.prod(", finish_reason="length")

    assert found.cause == "syntax"
    assert found.program is not None
    assert found.program.splitlines()[found.line_offset] == "def area(sides):"


CAUSES = {
    "nothing": ("", "no_code"),
    "blanks": (" \n\t\n", "no_code"),
    "prose": ("You could multiply the sides with each other.", "no_code"),
    "prose with inline code": ("Call `math.prod(sides)` and then `return total`.", "no_code"),
    "a word that is Python too": ("None", "no_code"),
    "output alone": ("```\n12\n```", "no_code"),
    "a shell command alone": ("```bash\npip install area\n```", "no_code"),
    "closed reasoning alone": (f"<think>\n{FENCED}\n</think>\n", "no_code"),
    "a refusal": ("I'm sorry, but I can't help with that.", "refused"),
    "a refusal with typographic quotes": ("I can’t assist with this request.", "refused"),
    "a refusal in JSON": ('{"error": "I cannot do that."}', "refused"),
    "another function": ("```python\ndef volume(sides):\n    return 1\n```", "no_entry_point"),
    "another function without a fence": ("def volume(sides):\n    return 1", "no_entry_point"),
    "a function within another": (f"def outer():\n{indent(FUNCTION, '    ')}\n    return area", "no_entry_point"),
    "an example of use alone": ("```python\nprint(area([3, 4]))\n```", "no_entry_point"),
    "a constant of that name": ("```python\narea = 12\n```", "no_entry_point"),
    "a broken function": ("```python\ndef area(sides:\n    return 12\n```", "syntax"),
    "a broken function without a fence": ("Here:\n\ndef area(sides):\n    return (12", "syntax"),
    "a broken body": ("```python\n    return (12\n```", "syntax"),
    "a broken correction in one block": (f"```python\n{WRONG}\n\ndef area(sides:\n    return 12\n```", "syntax"),
}


@pytest.mark.parametrize(("reply", "cause"), CAUSES.values(), ids=CAUSES.keys())
def test_reply_without_a_program_says_why(reply: str, cause: str) -> None:
    found = extracted(reply)

    assert found.cause == cause
    assert (found.program is not None) == (cause in ("syntax", "no_entry_point"))


def test_last_block_that_names_the_entry_point_is_run() -> None:
    made = "globals()['area'] = lambda sides: 12"
    found = extracted(f"```python\nx = 'area'\n```\n```python\n{made}\n```\nTry:\n```python\nprint(1)\n```")

    assert found.cause == "no_entry_point"
    assert found.program is not None
    assert found.program.splitlines()[found.line_offset :] == [made]


def test_refusal_as_finish_reason_counts_where_there_is_no_program() -> None:
    assert extracted("Let's talk of something else.", finish_reason="refusal").cause == "refused"
    assert extracted("", finish_reason="content_filter").cause == "refused"
    assert area_by(extracted(FENCED, finish_reason="refusal")) == 12
