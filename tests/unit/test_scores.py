"""Scores against what can be counted by hand, and a fit against numbers made with a known law."""

import random

import pytest

from app.inference.scores import (
    Judged,
    calibrated,
    calibration_error,
    confusion,
    fit_calibration,
    per_category,
    thresholds,
)

PAIRS = [("a", "a"), ("a", "a"), ("a", "b"), ("b", "b"), ("b", None), ("c", "a")]
JUDGED = [Judged(right=right, said=said) for right, said in PAIRS]


def test_precision_recall_and_confusion_are_those_counted_by_hand() -> None:
    found = per_category(JUDGED, ["a", "b", "c"])
    assert found["a"] == (pytest.approx(2 / 3), pytest.approx(2 / 3), 3)
    assert found["b"] == (0.5, 0.5, 2)
    assert found["c"] == (0.0, 0.0, 1)
    assert confusion(JUDGED) == {"a": {"a": 2, "b": 1}, "b": {"b": 1, "": 1}, "c": {"a": 1}}


def made(count: int, scale: float, shift: float, seed: int) -> list[Judged]:
    """Confidences that are too bold: the chance to be right is what the law makes of them."""
    rnd = random.Random(seed)
    confidences = [rnd.uniform(0.3, 0.999) for _ in range(count)]
    return [
        Judged(right="a", said="a" if rnd.random() < calibrated(c, scale, shift) else "b", confidence=c)
        for c in confidences
    ]


def test_fit_finds_the_law_and_mends_confidences_it_has_not_seen() -> None:
    scale, shift = fit_calibration(made(6000, 0.6, -0.5, 1))
    assert (scale, shift) == (pytest.approx(0.6, abs=0.08), pytest.approx(-0.5, abs=0.12))
    held_out = made(3000, 0.6, -0.5, 2)
    moved = [Judged(right=j.right, said=j.said, confidence=calibrated(j.confidence, scale, shift)) for j in held_out]
    assert calibration_error(held_out) > 0.1
    assert calibration_error(moved) < 0.04


def test_fit_stays_finite_when_all_are_right() -> None:
    scale, shift = fit_calibration([Judged(right="a", said="a", confidence=0.7)] * 50)
    assert 0.9 < calibrated(0.7, scale, shift) <= 1


def test_thresholds_give_share_and_accuracy() -> None:
    judged = [
        Judged(right="a", said=said, confidence=c) for said, c in [("a", 0.9), ("b", 0.8), ("a", 0.4), ("b", 0.2)]
    ]
    assert thresholds(judged, [0.5, 0.85]) == [(0.5, 0.5, 0.5), (0.85, 0.25, 1.0)]
