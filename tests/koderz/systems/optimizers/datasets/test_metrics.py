"""Replies and what they score, with all the ways in which models write an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from koderz.errors import Fault
from koderz.suites.dataset import Row
from koderz.suites.metrics import Graded, LabelMetric, Metric, NumberMetric, OwnMetric, TextMetric, Unread, macro_f1
from koderz.suites.scorers import Labels, levenshtein_ratio, number_in, rouge_l, squad_exact, squad_f1
from koderz.suites.tables import read_rows
from koderz.systems.optimizers.datasets.payload import Item
from koderz.systems.optimizers.datasets.published import PUBLISHED, JudgeMetric
from koderz.types import Message, Reply
from tests.koderz.systems.optimizers.datasets.published import DATA

CHOICES = Labels.of_options({"A": "a car", "B": "a car wash", "C": "the sea", "D": "none of them"})


def graded(metric: Metric, gold: str, reply: str, *said: str) -> Graded:
    """What a metric says of a reply; `said`: what its judge replies, one after another."""
    replies = iter(said)

    async def judge(messages: Sequence[Message]) -> Reply:
        return Reply(1, next(replies))

    return asyncio.run(metric(Item("d/test/0", {"question": "Why?"}, gold), reply, judge))


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("It is 18.", "18"),
        ("3 + 4 = 7\n#### 7", "7"),
        ("#### 7 apples of 9", "7"),
        ("#### seven, which is 7 in digits: 8", "7"),
        ("12\n#### none", "12"),
        ("5\n#### first\n#### 6", "6"),
        (r"so \boxed{42} of 50", "42"),
        (r"\boxed{1} then \boxed{\text{about } 2{,}500} of 3", "2500"),
        (r"\boxed{x} is 4", "4"),
        (r"\boxed{12", "12"),
        ("1,234,567 in all", "1234567"),
        ("between 1,2 and 3", "3"),
        ("12,3456", "3456"),
        ("5-10", "10"),
        ("x-3", "3"),
        ("it is -3", "-3"),
        ("it is \N{MINUS SIGN}3", "-3"),
        ("it is -$3.50", "-3.50"),
        ("it is $-3", "-3"),
        ("(-3)", "-3"),
        ("costs $.75", ".75"),
        ("£1{,}000", "1000"),
        ("A: 18.00 dollars.", "18.00"),
        (r"so he paid $1\,600$", "1600"),
        (r"so he paid \$1,\!600", "1600"),
        (r"\boxed{12{\,}345}", "12345"),
        (r"-\$5 it is", "-5"),
        ("1\N{THIN SPACE}800", "1800"),
        ("#### 1\N{THIN SPACE}800", "1800"),
        ("in all 1\N{NARROW NO-BREAK SPACE}234\N{NARROW NO-BREAK SPACE}567 \N{EURO SIGN}", "1234567"),
        ("Total: 12\N{NO-BREAK SPACE}500", "12500"),
        ("of 2020\N{NO-BREAK SPACE}100 were sold", "100"),
        ("1'600 francs", "1600"),
        ("1\N{RIGHT SINGLE QUOTATION MARK}234\N{RIGHT SINGLE QUOTATION MARK}567.50", "1234567.50"),
        ("x = 1_600", "1600"),
        ("#### 1 800", "1800"),
        ("#### $1 234 567.", "1234567"),
        ("#### 3 500 ml bottles", "3"),
        ("in 2020 100 apples", "100"),
        ("12,34,567 rupees", "1234567"),
        ("1.234.567 Euro", "1234567"),
        ("1.234,50 Euro", "1234.50"),
        ("Answer: 1.234", "1.234"),
        ("\N{FULLWIDTH DIGIT ONE}\N{FULLWIDTH DIGIT EIGHT}", "18"),
        ("\N{ARABIC-INDIC DIGIT ONE}\N{ARABIC-INDIC DIGIT EIGHT}", "18"),
        ("it is \N{EN DASH}3", "-3"),
        ("5\N{EN DASH}10", "10"),
        ("1.6e3", "1.6e3"),
        (r"1.6 \times 10^{3}", "1.6e3"),
        ("#### 9*2 = 18", "18"),
        ("#### 18 = 9*2", "18"),
        ("#### 9 * 2 = 18 apples", "18"),
        ("#### 10 - 2 = 8 apples, 2 left", "8"),
        ("#### $9*2 = $18.00", "18.00"),
        (r"\boxed{9 \cdot 2 = 18}", "18"),
        (r"\boxed{x = 4}", "4"),
        ("#### about 55/3 \N{ALMOST EQUAL TO} 18.33", "18.33"),
        ("#### **18**", "18"),
        ("####18", "18"),
        ("#### Step 2: the total\n\n9 + 9 = 18\n\nHe pays 18 dollars.", "18"),
        ("#### 2. The total\n\n9 + 9 = 18", "18"),
        ("#### Final answer\n\n18 apples", "18"),
        ("#### 18\n\nIn 2 steps.", "18"),
        (r"#### $\boxed{18}$ of 20", "18"),
        ("nothing", None),
        ("", None),
    ],
)
def test_number_of_a_reply_is_the_one_given_as_answer(reply: str, number: str | None) -> None:
    found = number_in(reply)

    assert (found and found.replace("0.75", ".75")) == number


@pytest.mark.parametrize(
    ("gold", "reply", "score", "cause"),
    [
        ("9 * 2 = 18\n#### 18", "A: 18.00", 1, ""),
        ("#### 2,125", "#### 2125", 1, ""),
        ("#### -5", "It is -5.0 degrees", 1, ""),
        ("18", "It is 19", 0, "wrong"),
        ("#### 18", "I do not know", 0, "no_answer"),
    ],
)
def test_numbers_are_compared_by_value(gold: str, reply: str, score: float, cause: str) -> None:
    said = graded(NumberMetric(), gold, reply)

    assert (said.score, said.cause) == (score, cause)
    assert bool(said.reason) == (score == 0)


# Of GSM8K's published example_model_solutions.jsonl (MIT): the end of a reply, the gold, and the official flag.
FLAGS = [
    (
        "95060>>95060.\nThe difference in cost is $95060 - $29100 = $<<95060-29100=65960>>65960.\nA: 65960",
        "#### 65,960",
        True,
    ),
    ("He delivers 600-198-209=<<600-198-209=193>>193 newspapers to District B.\nA: 193", "#### 193", True),
    (
        "is 6*4=<<6*4=24>>24 cubic feet\nSo it cost 24*.1=$<<24*.1=2.4000000000000004>>2.4 to fill\nA: 2.4",
        "#### 12",
        False,
    ),
    ("The extra cost to repave Lewis' street is 194 * 150 = $<<194*150=29100>>29100.\nA: 29100", "#### 65,960", False),
    (
        " added 5 + 7 = <<5+7=12>>12 notebooks.\nMartha now has 12 - 21 = <<12-21=-9>>-9 notebooks.\nA: -9",
        "#### 1",
        False,
    ),
]


@pytest.mark.parametrize(("reply", "gold", "flag"), FLAGS)
def test_grader_agrees_with_the_official_flags(reply: str, gold: str, flag: bool) -> None:
    assert graded(NumberMetric(), gold, reply).score == flag


def test_grader_agrees_with_all_official_flags_at_hand() -> None:
    path = DATA / "gsm8k" / "model_solutions.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"GSM8K's published model solutions are not in {path}")
    golds = {row.text("question"): row.text("answer") for row in read_rows(DATA / "gsm8k" / "test.jsonl.gz")}
    rows = [row.fields for row in read_rows(path)]

    wrong = [
        (row["question"], model)
        for row in rows
        for model, reply in row["solutions"].items()
        if graded(NumberMetric(), golds[row["question"]], reply).score != row["is_correct"][model]
    ]

    assert sum(len(row["solutions"]) for row in rows) == 1200
    assert wrong == []


@pytest.mark.parametrize(
    ("reply", "labels"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("**B**", "B"),
        ("B.", "B"),
        ("The answer is B, not A.", "B"),
        ("Answer: (C)", "C"),
        ("Answer: **C**", "C"),
        ("A and B are no cars, so (C)", "C"),
        ("either (A) or (B)", "AB"),
        ("A or B", "AB"),
        ("It must be D because", "D"),
        ("it was a car wash", "B"),
        ("a car", "A"),
        ("it is the sea, the sea", "C"),
        ("a car or the sea", "AC"),
        ("ABBA", ""),
        ("no idea", ""),
        ("", ""),
    ],
)
def test_choice_is_read_by_label_and_at_last_by_text(reply: str, labels: str) -> None:
    assert CHOICES.read(reply) == {*labels}


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ("1", "1"),
        ("Irrelevant.", "0"),
        ("not relevant", "0"),
        ("The answer is: relevant", "1"),
        ("**No**", "0"),
        ("It is not relevant here", "0"),
        ("It is relevant, not irrelevant", "1"),
    ],
)
def test_labels_go_by_their_synonyms(reply: str, found: str) -> None:
    metric = PUBLISHED["ragbench_sentence_relevance"].metric
    assert isinstance(metric, LabelMetric)
    assert metric.labels
    assert metric.labels.read(reply) == {found}


CITIES = Labels.of_options({"A": "Paris", "B": "London", "C": "Rome", "D": "Berlin"})


@pytest.mark.parametrize(
    ("reply", "labels"),
    [
        ("A. Paris\nB. London is wrong", "A"),
        ("A. Paris\nB. London", "AB"),
        ("A. Paris\nB. London\nC. Rome\nD. Berlin\n\nC", "C"),
        ("A. Paris\nB. London\nC. Rome\nD. Berlin", "ABCD"),
        ("B. London\n\nExplanation: (A) lies in France, (C) in Italy.", "B"),
        ("**B. London**\n\nParis (A) lies in France.", "B"),
        ("It lies on the Thames.\n\nB", "B"),
        ("答案是A", "A"),
        ("答案是:B。", "B"),
        ("正确答案是 C", "C"),
        ("A和B都不对,故选C", "C"),
        ("因此选B,不选A", "B"),
        ("选项D正确", "D"),
        ("B是正确答案", "B"),
        ("A是错误的,B是正确的", "B"),
        ("答えはBです", "B"),
        ("정답은 C입니다", "C"),
        ("\N{FULLWIDTH LATIN CAPITAL LETTER B}", "B"),
        ("\N{FULLWIDTH LEFT PARENTHESIS}C\N{FULLWIDTH RIGHT PARENTHESIS}", "C"),
        ("Die richtige Antwort ist B, nicht A.", "B"),
        ("Die Antwort lautet: C", "C"),
        ("La bonne réponse est B.", "B"),
        ("Réponse : D", "D"),
        ("La respuesta correcta es C.", "C"),
        ("A resposta correta é B.", "B"),
        ("La risposta corretta è D.", "D"),
        ("Правильный ответ: B", "B"),
        ("option (a)", "A"),
        ("I think it is option b.", "B"),
        ("The answer is (c).", "C"),
        ("The answer is c.", "C"),
        ("The answer is a capital in Italy: Rome", "C"),
        ("Thus, (b) is correct.", "B"),
        ("Thus, (A) is correct, (B) is not", "A"),
        ("Thus (A) is not correct, but (B) is.", "B"),
        ("(A) isn't right; (C) is.", "C"),
        ("A is wrong. C does not fit. So B.", "B"),
        ("A is wrong and B is wrong.", ""),
        ("A is better than B which is wrong.", "A"),
        ("The answer is not B.", ""),
        ("It is D rather than B.", "D"),
        ("We can eliminate A and it must be C", "C"),
        ("It is neither A nor B.", ""),
        ("A can be ruled out, leaving D", "D"),
        ("B is the correct answer; A and C are not.", "B"),
        ("(D) is the answer", "D"),
        ("The correct option is **C**", "C"),
        ("**Answer:** B", "B"),
        ("**Answer**: (D) Berlin", "D"),
        ("Final Answer: Option C", "C"),
        ("The best answer would be the option D", "D"),
        ("I'd go with B over A.", "B"),
        ('{"answer": "B", "not": "A"}', "B"),
        ("<answer>C</answer>", "C"),
        (r"So A fails. $\boxed{B}$ and C", "B"),
        (r"\boxed{\text{(C)}}", "C"),
        (r"\boxed{\mathrm{D}}", "D"),
        ("A city on the Thames is B", "B"),
        ("A capital of Italy: Rome", "C"),
        ("A_1 is less than C_2, so D", "D"),
        ("_B_", "B"),
        ("The answer is A. No: the answer is B.", "AB"),
        ("Paris isn't on the Thames. London is.", "AB"),
    ],
)
def test_choice_is_read_as_models_write_it(reply: str, labels: str) -> None:
    assert CITIES.read(reply) == {*labels}


def test_choice_of_ten_is_not_the_word_i() -> None:
    ten = Labels.of_options({letter: f"option {letter}" for letter in "ABCDEFGHIJ"})

    assert ten.read("I think that H fits") == {"H"}
    assert ten.read("I is the one") == {"I"}
    assert ten.read("I'd say J") == {"J"}


def test_choice_of_two_labels_is_no_answer() -> None:
    metric = LabelMetric(CHOICES)

    assert graded(metric, "A", "A or B") == Graded(0.0, {}, "expected A, found A and B", "", "ambiguous")
    assert graded(metric, "A", "well").cause == "no_answer"
    assert graded(metric, "A", "A").score == 1


def test_macro_f1_is_the_mean_over_labels() -> None:
    pairs = [("x", "x"), ("x", "y"), ("y", "y"), ("y", "")]
    items = [(Item(str(n), {}, gold), Graded(0, {}, answer=answer)) for n, (gold, answer) in enumerate(pairs)]

    assert macro_f1(pairs) == pytest.approx((2 * 1 / 3 + 2 * 1 / 4) / 2)
    assert LabelMetric(CHOICES).over(items) == {"macro_f1": macro_f1(pairs)}
    assert LabelMetric().over(items) == {}


@pytest.mark.parametrize(
    ("gold", "reply", "exact", "f1"),
    [
        ("the Eiffel Tower", "Eiffel tower.", 1, 1),
        ("Paris, France", "in Paris", 0, 0.5),
        ("yes", "yes, it is", 0, 0),
        ("Yes", "yes", 1, 1),
        ("a b b c", "b b d", 0, 2 * 2 / 6),
        ("Paris", "", 0, 0),
    ],
)
def test_squad_and_hotpot_normalise_before_they_compare(gold: str, reply: str, exact: float, f1: float) -> None:
    assert squad_exact(gold, reply) == exact
    assert squad_f1(gold, reply) == pytest.approx(f1)


def test_rouge_l_and_levenshtein_are_those_of_their_libraries() -> None:
    # rouge-score 0.1.2 (rougeL, no stemmer) and Levenshtein 0.27 (ratio) said these
    assert rouge_l("The quick brown fox jumps", "the brown dog quickly jumps over") == pytest.approx(6 / 11)
    assert rouge_l("a b c", "") == 0
    assert levenshtein_ratio("kitten", "sitting") == pytest.approx(8 / 13)
    assert levenshtein_ratio("", "") == 1
    assert levenshtein_ratio("abc", "") == 0


@pytest.mark.slow
def test_absurd_lengths_are_scored_in_no_time() -> None:
    long = "word " * 400_000

    assert 0 < levenshtein_ratio("the end", long) < 1
    assert rouge_l("word " * 50, long) < 1
    assert number_in("1," * 500_000) == "1"
    assert number_in("{" * 100_000 + r"\boxed{" * 10_000) is None
    assert CHOICES.read("(" * 200_000) == set()
    assert CHOICES.read("answer" + " :" * 100_000) == set()
    assert CHOICES.read("A " * 100_000 + "is") == {"A"}
    assert CHOICES.read("option " * 50_000) == set()
    assert CHOICES.read("I would choose " * 20_000) == set()
    assert number_in("1\N{THIN SPACE}" * 200_000) == "1"
    assert number_in("=" * 200_000) is None


def test_metrics_beside_the_main_one_are_named() -> None:
    said = graded(TextMetric("exact_match", ("f1",)), "Paris, France", "in Paris")

    assert said.score == 0
    assert said.metrics == {"f1": 0.5}
    assert said.reason == "exact_match 0.00; expected: Paris, France"


@pytest.mark.parametrize(
    "said", ['{"score": 0.5, "reason": "half"}', 'Well:\n```json\n{"note": {}, "score": 0.5, "reason": "half"}\n```']
)
def test_judge_model_is_read_in_fences_and_prose(said: str) -> None:
    found = graded(JudgeMetric(), "because", "why", said)

    assert (found.score, found.reason) == (0.5, "half")


@pytest.mark.parametrize(
    "bad", ["fine", '{"score": 2}', '{"score": NaN}', '{"score": "1"}', '{"verdict": 1}', "{" * 5000]
)
def test_judge_model_that_is_unreadable_is_asked_once_more(bad: str) -> None:
    assert graded(JudgeMetric(), "because", "why", bad, '{"score": 1}').score == 1
    with pytest.raises(Unread):
        graded(JudgeMetric(), "because", "why", bad, bad)


def test_rubrics_of_the_original_are_all_asked_for() -> None:
    metric = PUBLISHED["truthful_qa"].original

    said = graded(metric, "because", "why", '{"score": 1}', '{"score": 0.25}')

    assert metric.asks_judge
    assert (metric.name, said.score, said.metrics) == ("hallucination", 1, {"answer_relevance": 0.25})


def test_users_metric_returns_a_number_from_0_to_1() -> None:
    assert graded(OwnMetric("same", lambda item, reply: item.gold == reply), "a", "a").score == 1
    assert graded(OwnMetric("half", lambda item, reply: 0.5), "a", "a").score == 0.5
    for wrong in ("much", 2, float("nan"), None):
        with pytest.raises(Fault, match="the metric odd said"):
            graded(OwnMetric("odd", lambda item, reply, wrong=wrong: wrong), "a", "a")  # type: ignore[misc]
    with pytest.raises(Fault, match="failed on d/test/0: ZeroDivisionError"):
        graded(OwnMetric("odd", lambda item, reply: 1 / 0), "a", "a")


@pytest.mark.parametrize("name", PUBLISHED)
def test_demonstration_is_right_by_the_metric_itself(name: str) -> None:
    metric = PUBLISHED[name].metric
    gold = {"gsm8k": "2 + 2 = 4\n#### 4", "election_questions": "Harmful", "rag_hallucinations": "true"}.get(name, "1")
    gold = "SUPPORTED" if name == "hover" else gold
    item = Item("d/train/0", {"question": "Why?"}, gold, {"1": "this", "2": "that"})
    if metric.asks_judge:
        assert metric.demonstrated(item) == ("" if name == "ifbench" else gold)
    else:
        assert asyncio.run(metric(item, metric.demonstrated(item))).score == 1


def test_pupa_counts_private_texts_that_a_reply_repeats() -> None:
    metric = PUBLISHED["pupa"].metric
    item = Item("pupa/train/0", {"user_query": "Write to Ann and Bo."}, "Dear", {"1": "Ann", "2": "Bo"})

    async def judge(_: Sequence[Message]) -> Reply:
        return Reply(1, '{"score": 0.5, "reason": "half"}')

    assert (metric.name, metric.others) == ("quality", ("kept_private",))
    found = asyncio.run(metric(item, "To ann:", judge))
    assert (found.score, found.metrics, found.reason) == (0.5, {"kept_private": 0.5}, "half; it repeats Ann")
    assert asyncio.run(metric(item, "To X:", judge)).metrics == {"kept_private": 1}


@pytest.mark.parametrize(
    ("row", "prompt", "gold"),
    [
        ({"messages": [{"role": "user", "content": "Tell."}], "constraint": "No comma."}, "Tell.", "No comma."),
        (
            {"prompt": "Tell.", "instruction_id_list": ["count:words"], "kwargs": [{"N": 3, "word": None}]},
            "Tell.",
            '- count:words: {"N": 3}',
        ),
    ],
)
def test_ifbench_reads_the_rows_of_both_its_places(row: dict[str, Any], prompt: str, gold: str) -> None:
    item = PUBLISHED["ifbench"].make("ifbench/train/0", Row("rows.jsonl, line 1", row), 42)
    assert (item.columns, item.gold) == ({"prompt": prompt}, gold)
