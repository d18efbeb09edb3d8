"""What the tiers do with one item, without a lane and without models."""

from types import SimpleNamespace
from typing import Any

import pytest

from agents.same_text import SameText
from agents.tiers import Tiers
from app.llm.ledger import Ledger
from app.llm.outcomes import OverBudget
from app.settings import Settings, load


class Items:
    """Notes what was to be done."""

    def __init__(self) -> None:
        self.reviews: list[str] = []

    def review(self, open_: Any, cause: str, attempts: int) -> None:
        self.reviews.append(cause)

    def dropped(self, open_: Any) -> None:
        """Nothing is kept."""


def over_light(**task: Any) -> Settings:
    tree = load()
    tasks = [tree.tasks[0].model_copy(update={"over_budget": "light", **task})]
    return tree.model_copy(update={"tasks": tasks})


@pytest.mark.parametrize(
    ("task", "asked", "reviews"),
    [
        ({}, "shop", []),
        ({"extract": {"properties": {"order": {"type": "string"}}}}, "shop", ["over-budget"]),
        ({}, "removed-meanwhile", ["over-budget"]),
    ],
)
async def test_the_light_model_stands_in_only_where_it_can(
    task: dict[str, Any], asked: str, reviews: list[str]
) -> None:
    settings, items = over_light(**task), Items()
    held: Any = items
    tiers = Tiers(settings, held, Ledger(settings))
    taken: list[Any] = []
    light: Any = tiers._light
    light.put = taken.append
    open_: Any = SimpleNamespace(
        item=SimpleNamespace(request=SimpleNamespace(task=asked), tried=[]), done=False, over_budget=False
    )
    if asked != "shop":
        tiers.settings = over_light(name=asked)  # its policy was light; the task is gone from what is in force
        tiers.tasks = {}
    tiers._over_budget(open_, OverBudget([]))
    assert items.reviews == reviews
    assert bool(taken) is not bool(reviews)


def test_a_changed_age_of_the_cache_holds_for_what_is_kept_too() -> None:
    classify = load().classify
    same = SameText(classify.model_copy(update={"cache_age_s": 0.0}))
    same.use(classify.model_copy(update={"cache_age_s": 3600.0}))
    assert same.expiry.horizon_ms == 3_600_000
