"""How good answers are: accuracy, precision and recall, confusion, and whether a confidence means what it says. Pure."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Judged", "calibrated", "calibration_error", "confusion", "fit_calibration", "per_category", "thresholds"]

STEPS = 200
RIDGE = 1e-3
"""Keeps the fit finite where all answers are right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One answer, and what would have been right. `said` None: no valid answer."""

    right: str
    said: str | None
    confidence: float = 1.0

    @property
    def correct(self) -> bool:
        return self.said == self.right


def per_category(judged: Sequence[Judged], categories: Sequence[str]) -> dict[str, tuple[float, float, int]]:
    """Precision, recall and count of each category; 0 where nothing was said or asked."""
    found = {}
    for category in categories:
        said = sum(j.said == category for j in judged)
        asked = sum(j.right == category for j in judged)
        both = sum(j.said == category and j.correct for j in judged)
        found[category] = (both / said if said else 0.0, both / asked if asked else 0.0, asked)
    return found


def confusion(judged: Sequence[Judged]) -> dict[str, dict[str, int]]:
    """Right category -> what was said -> how often; no answer is an empty name."""
    rows: dict[str, Counter[str]] = {}
    for each in judged:
        rows.setdefault(each.right, Counter())[each.said or ""] += 1
    return {right: dict(row.most_common()) for right, row in sorted(rows.items())}


def calibrated(confidence: float, scale: float, shift: float) -> float:
    """A confidence moved to where it means what it says: `sigmoid(scale * logit + shift)` (Platt, 1999)."""
    return 1 / (1 + math.exp(-(scale * _logit(confidence) + shift)))


def _logit(confidence: float) -> float:
    inside = min(max(confidence, 1e-6), 1 - 1e-6)
    return math.log(inside / (1 - inside))


def fit_calibration(judged: Sequence[Judged]) -> tuple[float, float]:
    """Scale and shift that make confidences likeliest, by Newton's method on the logistic loss."""
    points = [(_logit(j.confidence), float(j.correct)) for j in judged]
    scale, shift = 1.0, 0.0
    for _ in range(STEPS):
        g1, g2, h11, h12, h22 = RIDGE * (scale - 1), RIDGE * shift, RIDGE, 0.0, RIDGE
        for x, y in points:
            p = 1 / (1 + math.exp(-max(-40.0, min(40.0, scale * x + shift))))
            w = p * (1 - p)
            g1, g2 = g1 + (p - y) * x, g2 + (p - y)
            h11, h12, h22 = h11 + w * x * x, h12 + w * x, h22 + w
        det = h11 * h22 - h12 * h12
        step1, step2 = (h22 * g1 - h12 * g2) / det, (h11 * g2 - h12 * g1) / det
        scale, shift = scale - max(-1.0, min(1.0, step1)), shift - max(-1.0, min(1.0, step2))
        if abs(step1) + abs(step2) < 1e-9:
            break
    return scale, shift


def calibration_error(judged: Sequence[Judged], bins: int = 10) -> float:
    """Expected calibration error: how far confidence and accuracy are apart, weighted over bins of confidence."""
    rows: list[list[Judged]] = [[] for _ in range(bins)]
    for each in judged:
        rows[min(int(each.confidence * bins), bins - 1)].append(each)
    gaps = [abs(sum(j.confidence - j.correct for j in row)) for row in rows]
    return sum(gaps) / len(judged) if judged else 0.0


def thresholds(judged: Sequence[Judged], at: Sequence[float]) -> list[tuple[float, float, float]]:
    """For each threshold: the share of answers that reach it, and the accuracy among those."""
    found = []
    for threshold in at:
        kept = [j for j in judged if j.confidence >= threshold]
        found.append((threshold, len(kept) / len(judged), sum(j.correct for j in kept) / len(kept) if kept else 0.0))
    return found
