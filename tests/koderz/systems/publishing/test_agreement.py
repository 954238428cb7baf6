"""Agreement of judges with people, and rates corrected for the judges' errors: closed forms, peers and coverage."""

from __future__ import annotations

import json
import math
import random
from itertools import product
from pathlib import Path
from statistics import NormalDist

import pytest

from koderz import Comparison, compare
from koderz.analysis.comparison import between
from koderz.analysis.judged import Labelled
from koderz.systems.publishing.agreement import agreement_of, cohens_kappa, corrected, prediction_powered, rogan_gladen
from tests.koderz.analysis import builders


def drawn(
    rng: random.Random, rate: float, hit: float, miss: float, count: int, labels: int
) -> tuple[dict[str, list[float]], list[Labelled]]:
    """A run of items with a true rate, judged with this sensitivity and specificity; the first ones are labelled."""
    others, items = {}, []
    for number in range(count):
        truth = rng.random() < rate
        judged = float(rng.random() < (hit if truth else 1 - miss))
        if number < labels:
            items.append(Labelled(str(number), judged, {"a": float(truth)}))
        else:
            others[str(number)] = [judged]
    return others, items


def covered(rate: float, hit: float, miss: float, count: int, labels: int, *, draws: int, is_drawn: bool) -> float:
    rng, hits = random.Random(f"{rate} {hit} {miss} {count}"), 0
    for _ in range(draws):
        found = corrected(*drawn(rng, rate, hit, miss, count, labels), drawn=is_drawn)
        hits += found.interval is None or found.interval[0] <= rate <= found.interval[1]
    return hits / draws


CASES = list(product((0.2, 0.95), ((0.95, 0.95), (0.7, 0.7)), ((164, 50), (500, 100))))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["prediction-powered", "Rogan-Gladen"])
def test_corrected_intervals_hold_the_truth(method: str) -> None:
    draws = 200  # scripts/check_statistics has more
    found = {
        case: covered(case[0], *case[1], *case[2], draws=draws, is_drawn=method == "prediction-powered")
        for case in CASES
    }
    assert min(found.values()) >= 0.92 - 3 * (0.92 * 0.08 / draws) ** 0.5, found
    assert sum(found.values()) / len(found) >= 0.93


def test_rogan_gladen_is_the_published_example() -> None:
    found = rogan_gladen(50, 100, (90, 100), (90, 100))

    assert found.rate == pytest.approx(0.5)
    assert found.interval is not None
    assert sum(found.interval) / 2 == pytest.approx(0.5)


def published(p: float, q1: float, q0: float, n: int, m1: int, m0: int) -> tuple[float, float, float]:
    """Rogan & Gladen's rate, and Lang & Reiczigel's interval, as arXiv 2511.21140 writes them down."""
    z = NormalDist().inv_cdf(0.975)
    rate = (p + q0 - 1) / (q0 + q1 - 1)
    p, q1, q0 = (n * p + z * z / 2) / (n + z * z), (m1 * q1 + 1) / (m1 + 2), (m0 * q0 + 1) / (m0 + 2)
    theta = (p + q0 - 1) / (q0 + q1 - 1)
    of_1, of_0 = theta * q1 * (1 - q1) / (m1 + 2), (1 - theta) * q0 * (1 - q0) / (m0 + 2)
    middle = theta + 2 * z * z * (of_1 - of_0)
    half = z * math.sqrt(p * (1 - p) / (n + z * z) + theta * of_1 + (1 - theta) * of_0) / (q0 + q1 - 1)
    low, high, value = (min(1.0, max(0.0, each)) for each in (middle - half, middle + half, rate))
    return value, low, high


def test_rogan_gladen_is_as_published_on_random_inputs() -> None:
    rng, compared = random.Random(0), 0
    while compared < 1000:
        n, m1, m0 = rng.randint(5, 2000), rng.randint(1, 300), rng.randint(1, 300)
        passed, hits, rights = rng.randint(0, n), rng.randint(0, m1), rng.randint(0, m0)
        found = rogan_gladen(passed, n, (hits, m1), (rights, m0))
        if found.rate is not None and found.interval is not None:
            expected = published(passed / n, hits / m1, rights / m0, n, m1, m0)
            assert (found.rate, *found.interval) == pytest.approx(expected, abs=1e-9)
            compared += 1


@pytest.mark.parametrize("is_drawn", [True, False])
def test_labels_turned_round_correct_nothing(is_drawn: bool) -> None:
    others, items = drawn(random.Random(5), 0.7, 0.95, 0.95, 400, 60)
    turned = [Labelled(each.task, each.judged, {"a": 1 - each.label}) for each in items]

    found = corrected(others, turned, drawn=is_drawn)

    assert (found.rate, found.interval) == (None, None)
    assert found.reason.startswith("the judge tells nothing here: sensitivity and specificity add up to ")
    assert "turned round" in found.reason
    assert corrected(others, items, drawn=is_drawn).rate is not None


def test_scores_turned_round_correct_nothing() -> None:
    items = [Labelled(str(n), n / 40, {"a": 1 - n / 50}) for n in range(40)]

    assert corrected({"u": [0.5]}, items, drawn=True).rate is None


def test_labels_that_all_agree_leave_the_errors_that_they_could_miss() -> None:
    # 30 labels see none of 8 % of false passes in 8 of 100 draws, so no 95 % interval of 70 % may begin above 62
    items = [Labelled(str(n), float(n < 21), {"a": float(n < 21)}) for n in range(30)]
    others = {f"u{n}": [float(n < 679)] for n in range(970)}

    found = corrected(others, items, drawn=True)

    assert found.rate == pytest.approx(0.7)
    assert found.interval is not None
    assert found.interval[0] < 0.62
    assert found.interval[1] > 0.75
    assert "Gaffke" in found.interval_method


@pytest.mark.parametrize("is_drawn", [True, False])
def test_no_correction_has_an_interval_without_width(is_drawn: bool) -> None:
    for passed, false_passes, others in product((30, 35, 39, 40), (0, 3, 7), (0, 100)):
        kinds = [(1.0, 1.0)] * passed + [(0.0, 0.0)] * (40 - passed)
        items = [
            Labelled(str(n), verdict if n else 1.0 - bool(false_passes), {"a": label})
            for n, (verdict, label) in enumerate(kinds)
        ]
        found = corrected({f"u{n}": [1.0] for n in range(others)}, items, drawn=is_drawn)
        assert found.interval is None or found.interval[1] > found.interval[0]


def test_labels_of_one_cluster_give_no_interval() -> None:
    items = [Labelled("c", float(n % 2), {"a": float(n % 2)}) for n in range(40)]

    found = corrected({"u": [1.0], "v": [0.0]}, items, drawn=True)

    assert found.interval is None
    assert "one task or cluster" in found.reason


@pytest.mark.parametrize(("right", "wrong"), [((5, 10), (5, 10)), ((3, 10), (2, 10))])
def test_judge_that_tells_nothing_corrects_nothing(right: tuple[int, int], wrong: tuple[int, int]) -> None:
    found = rogan_gladen(50, 100, right, wrong)

    assert found.rate is None
    assert found.reason == "the judge tells nothing here"


def test_kappa_is_that_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = random.Random(4)
    for _ in range(200):
        n = rng.randint(2, 60)
        pairs = [(float(rng.random() < 0.7), float(rng.random() < 0.6)) for _ in range(n)]
        found = cohens_kappa(pairs)
        if found is not None:
            a, b = zip(*pairs, strict=True)
            assert found == pytest.approx(metrics.cohen_kappa_score(a, b))


def test_agreement_has_kappa_of_people_sensitivity_and_specificity() -> None:
    items = [Labelled(str(n), float(n % 4 > 0), {"a": float(n % 2), "b": float(n % 2)}) for n in range(40)]
    found = agreement_of(items)

    assert found.agreement == 0.75
    assert found.among_people == 1
    assert found.sensitivity is not None
    assert (found.sensitivity.share, found.sensitivity.items) == (1, 20)
    assert found.specificity is not None
    assert found.specificity.share == 0.5
    assert found.kappa == 0.5
    assert found.kappa_interval is not None
    assert found.kappa_interval[0] < 0.5 < found.kappa_interval[1]


def test_correction_of_few_labels_says_so() -> None:
    rng = random.Random(1)
    few = prediction_powered(*drawn(rng, 0.5, 0.9, 0.9, 100, 20))
    assert "20 labels are too few" in few.reason
    one_kind = prediction_powered(*drawn(rng, 1.0, 0.9, 0.9, 100, 40))
    assert "fewer than 5 of a kind" in one_kind.reason
    assert not prediction_powered(*drawn(rng, 0.5, 0.9, 0.9, 100, 40)).reason


def test_correction_of_scores_needs_a_random_draw() -> None:
    items = [Labelled(str(n), n / 40, {"a": n / 50}) for n in range(40)]
    others = {str(n): [0.5] for n in range(40, 90)}

    assert corrected(others, items, drawn=False).rate is None
    found = corrected(others, items, drawn=True)
    assert found.rate is not None
    assert found.rate < 0.5


def test_correction_counts_samples_of_a_task_as_one() -> None:
    rng = random.Random(3)
    alone = [Labelled(str(n), 1.0, {"a": float(rng.random() < 0.5)}) for n in range(60)]
    together = [Labelled(str(n // 6), each.judged, alone[n // 6].labels) for n, each in enumerate(alone)]
    others = {f"o{n}": [1.0] for n in range(100)}

    widths = []
    for items in (alone, together):
        found = prediction_powered(others, items)
        assert found.interval is not None
        widths.append(found.interval[1] - found.interval[0])
    assert widths[1] > 1.5 * widths[0]


def calibrated(
    folder: Path,
    false_passes: int,
    *,
    labels: int = 50,
    failed: int = 25,
    judged: tuple[list[bool], list[bool]] = ([False] * 40, [True] * 30 + [False] * 10),
) -> Comparison:
    """Two arms; the judge of the second passes so many of those of the labelled items that people fail."""
    arms = {
        "zero-shot": builders.calibration(labels, failed, 0),
        "iterative": builders.calibration(labels, failed, false_passes),
    }
    document = {**builders.comparative(*judged), "calibration": arms}
    return compare(builders.write(folder / "run.json", document))


def test_compare_claims_what_holds_once_corrected_for_the_judge(tmp_path: Path) -> None:
    found = calibrated(tmp_path, 5)

    assert found.judged is not None
    assert found.judged.difference == pytest.approx(65.0)
    assert found.judged.interval is not None
    low, high = found.judged.interval
    assert 30 < low < 50
    assert 75 < high < 85
    assert found.verdict == "B is better: +65.0 points (corrected for the judge's errors)."


def test_compare_says_where_the_judge_could_make_the_difference(tmp_path: Path) -> None:
    found = calibrated(tmp_path, 35, failed=40)

    assert not found.significant
    assert found.judged is not None
    assert found.judged.note == "the judge's own errors could make this difference"


def test_compare_claims_no_small_difference_by_labels_that_show_no_error(tmp_path: Path) -> None:
    found = calibrated(tmp_path, 0, judged=([True] * 60 + [False] * 40, [True] * 68 + [False] * 32))

    assert found.p_value is not None
    assert found.p_value < 0.05
    assert not found.significant
    assert found.judged is not None
    assert found.judged.interval is not None
    assert found.judged.interval[0] < 0


def test_compare_asks_for_as_many_labels_of_a_kind_as_calibrate(tmp_path: Path) -> None:
    found = calibrated(tmp_path, 0, failed=4)

    assert found.judged is not None
    assert found.judged.interval is None
    assert "not calibrated: 46 of 50 labels are passes; with fewer than 5 of a kind" in found.judged.note


def test_compare_tests_whether_the_judge_errs_alike(tmp_path: Path) -> None:
    unlike, alike = calibrated(tmp_path, 15).judged, calibrated(tmp_path, 1).judged

    assert unlike is not None
    assert unlike.alike is not None
    assert unlike.alike < 0.01
    how = "of what people fail, it gets 0.0 % wrong in A and 60.0 % in B"
    assert f"the judge doesn't err alike in A and B: {how}" in unlike.alike_note
    assert alike is not None
    assert alike.alike == 1
    assert "errs alike in A and B, as far as 50 and 50 labels tell" in alike.alike_note


def test_compare_reads_calibrations_of_older_versions(tmp_path: Path) -> None:
    now = calibrated(tmp_path, 5).judged
    document = json.loads((tmp_path / "run.json").read_text())
    for figures in document["calibration"].values():
        del figures["labelled"], figures["clusters"]

    before = compare(builders.write(tmp_path / "older.json", document)).judged

    assert before is not None
    assert now is not None
    assert before.difference == now.difference
    assert before.alike == pytest.approx(now.alike, abs=0.03)
    assert before.interval == pytest.approx(now.interval)


def test_compare_corrects_several_arms_together(tmp_path: Path) -> None:
    names = ("zero-shot", "iterative", "third")
    rows = [[True] * 20 + [False] * 20, [True] * 40, [True] * 40]
    calibration = dict.fromkeys(names, builders.calibration(50, 25, 1))
    arms = {name: builders.arm(outcomes) for name, outcomes in zip(names, rows, strict=True)}
    base = {name: value for name, value in builders.document().items() if name not in ("results", "summary")}
    document = {**base, "mode": "matrix", "arms": arms, "calibration": calibration}

    found = compare(builders.write(tmp_path / "run.json", document))

    alone = [between(one.a, one.b, found.alpha) for one in found.arms.values()]
    assert len(alone) == 2
    for one, other in zip(found.arms.values(), alone, strict=True):
        assert one.judged is not None
        assert other.judged is not None
        assert one.judged.interval is not None
        assert other.judged.interval is not None
        assert one.judged.interval[0] < other.judged.interval[0]
