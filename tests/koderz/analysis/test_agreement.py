"""Agreement of judges with people, and rates corrected for the judges' errors: closed forms, peers and coverage."""

from __future__ import annotations

import math
import random
from itertools import product
from pathlib import Path
from statistics import NormalDist

import pytest

from koderz import Comparison, compare
from koderz.analysis.agreement import Labelled, agreement_of, cohens_kappa, corrected, prediction_powered, rogan_gladen
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


def calibrated(folder: Path, mean: float) -> Comparison:
    """Two arms, of which the second passes 30 of 40 tasks more than the first, whose judge is off by `mean`."""
    figures = {"judge": "j", "drawn": True, "items": 50, "rectifier": {"mean": 0.0, "variance": 0.001}}
    off = {**figures, "rectifier": {"mean": mean, "variance": 0.002}}
    document = builders.comparative([False] * 40, [True] * 30 + [False] * 10)
    path = builders.write(folder / "run.json", {**document, "calibration": {"zero-shot": figures, "iterative": off}})
    return compare(path)


def test_compare_claims_what_holds_once_corrected_for_the_judge(tmp_path: Path) -> None:
    found = calibrated(tmp_path, -0.1)

    assert found.judged is not None
    assert found.judged.difference == pytest.approx(65.0)
    half = 100 * 1.959964 * math.sqrt(0.75 * 0.25 / 39 + 0.003)
    assert found.judged.interval == pytest.approx((65 - half, 65 + half), abs=1e-3)
    assert found.verdict == "B is better: +65.0 points (corrected for the judge's errors)."


def test_compare_says_where_the_judge_could_make_the_difference(tmp_path: Path) -> None:
    found = calibrated(tmp_path, -0.7)

    assert not found.significant
    assert found.judged is not None
    assert found.judged.note == "the judge's own errors could make this difference"
