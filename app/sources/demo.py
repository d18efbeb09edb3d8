"""The demo stream: a shop's orders, payments, parcels, logins, heartbeats and customer messages, as envelopes.

One seed and one start time give one stream, byte for byte. Ids carry the seed, so that streams of two seeds never count
as duplicates of each other. Some records are repeated, late or broken on purpose, as real streams are.
"""

import itertools
import random
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from app.sources.demo_texts import SLOTS, TEXTS

__all__ = ["DemoRecord", "demo_stream", "demo_texts"]

DUPLICATES, BROKEN, LATE = 0.05, 0.01, 0.02
"""Shares of all records: repeated bytes; no valid event; event time 10 to 60 minutes back."""

HEARTBEATS = 0.10
STRUCTURED = 0.27
"""Shares of new events. The rest, 63%, are customer messages: so 30% of what gets a result is decided by rule."""

USERS = 400
REPEAT_WITHIN = 200
"""A repeat comes within this many records: a producer's retry, not a replay."""

_encode = msgspec.json.Encoder().encode
_HOLE = re.compile(r"\{(\w+)\}")


STORIES = 0.02
"""Chance that an ordinary structured event begins a story: a few events of one user that mean something together."""
CRAWLER_VIEWS = 110

Told = tuple[str, str, str, str, dict[str, Any]]
"""User, event type, system, category, payload."""


@dataclass(frozen=True, slots=True)
class DemoRecord:
    """What is sent, and what it is: for tests and for measuring answers against the truth."""

    key: bytes
    value: bytes
    kind: str
    """heartbeat, structured, message, duplicate or broken."""
    category: str = ""
    """The right answer, where there is one."""
    late: bool = False


def demo_texts() -> list[tuple[str, str]]:
    """Every text with its category, each once, in a fixed order."""
    found = []
    for category, templates in TEXTS.items():
        for template in templates:
            holes = [[(hole, value) for value in SLOTS[hole]] for hole in dict.fromkeys(_HOLE.findall(template))]
            # zip, not product: two holes walk in step, or they would make up half of all texts.
            for values in zip(*holes, strict=True) if holes else [()]:
                found.append((template.format(**dict(values)), category))
    return found


def demo_stream(seed: int, start_ms: int, step_ms: float = 20.0) -> Iterator[DemoRecord]:
    """An endless stream.

    Args:
        seed: fixes everything but the times.
        start_ms: event time of the first record, ms since the epoch.
        step_ms: event time from one record to the next.
    """
    rng = random.Random(seed)  # noqa: S311 - a demo, no secret
    shop = _Shop(rng, seed)
    recent: deque[DemoRecord] = deque(maxlen=REPEAT_WITHIN)
    for number in itertools.count():
        at_ms = start_ms + int(number * step_ms)
        chance = rng.random()
        if chance < DUPLICATES and recent:
            first = rng.choice(recent)
            yield DemoRecord(first.key, first.value, "duplicate", first.category, first.late)
            continue
        record = shop.broken(at_ms) if chance < DUPLICATES + BROKEN else shop.event(at_ms, rng.random() < LATE)
        if record.kind != "broken":
            recent.append(record)
        yield record


class _Shop:
    """Makes new records; every choice comes from one generator."""

    def __init__(self, rng: random.Random, seed: int) -> None:
        self.rng, self.seed = rng, seed
        self.texts = demo_texts()
        self.ids = itertools.count(1)
        self.story: deque[Told] = deque()

    def event(self, at_ms: int, late: bool) -> DemoRecord:
        if late:
            at_ms -= self.rng.randint(600_000, 3_600_000)
        chance = self.rng.random()
        if chance < HEARTBEATS:
            host = f"app-{self.rng.randint(1, 6)}"
            payload = {"host": host, "load": round(self.rng.random(), 2)}
            return self._record(host, "heartbeat", at_ms, "monitor", payload, "heartbeat", "", late)
        user = self._user()
        if chance < HEARTBEATS + STRUCTURED:
            if not self.story and self.rng.random() < STORIES:
                self.story.extend(self._story(user))
            if self.story:
                user, event_type, system, category, payload = self.story.popleft()
            else:
                event_type, system, category, payload = self._structured()
            kind = "message" if event_type == "customer.message" else "structured"
            return self._record(user, event_type, at_ms, system, payload, kind, category, late)
        text, category = self.rng.choice(self.texts)
        payload = {"message": text, "channel": self.rng.choice(("app", "mail", "chat"))}
        return self._record(user, "customer.message", at_ms, "support", payload, "message", category, late)

    def broken(self, at_ms: int) -> DemoRecord:
        """A record that is no valid event, each time in another of six ways."""
        good = self.event(at_ms, late=False)
        text = good.value
        value = self.rng.choice(
            (
                text[: len(text) * 2 // 3],
                text.replace(b'"event_id"', b'"id"', 1),
                text.replace(b'"event_time":', b'"event_time":"yesterday","sent":', 1),
                text.replace(b'"event_time":', b'"event_time":9', 1),
                text.replace(b'"event_type":"', b'"event_type":"caf\xe9-', 1),
                text.replace(b'"payload":', b'"load":NaN,"payload":', 1),
            )
        )
        return DemoRecord(good.key, value, "broken")

    def _user(self) -> str:
        """A few users are much busier than the rest."""
        return f"user-{int(USERS * self.rng.random() ** 2) + 1:04d}"

    def _story(self, user: str) -> list[Told]:
        """Three failed payments and a question; a cart that is left after three hesitations; or a crawler."""
        name = self.rng.choices(("payment", "cart", "crawler"), (3, 3, 1))[0]
        if name == "payment":
            failed = {"order_id": f"SO-{self.rng.randint(100_000, 999_999)}", "method": "card"}
            text = self.rng.choice([text for text, category in self.texts if category == "payment"])
            message = {"message": text, "channel": "chat"}
            return [
                *[(user, "payment.failed", "payments", "payment", failed)] * 3,
                (user, "customer.message", "support", "payment", message),
            ]
        if name == "cart":
            paused = {"page": "/checkout", "seconds": self.rng.randint(8, 40)}
            return [
                *[(user, "page.hesitated", "web", "other", paused)] * 3,
                (user, "cart.abandoned", "web", "order", {"items": self.rng.randint(1, 5)}),
            ]
        crawler = f"visitor-{self.rng.randint(1, 99):04d}"
        return [
            (crawler, "page.viewed", "web", "other", {"page": f"/products/{number}"}) for number in range(CRAWLER_VIEWS)
        ]

    def _structured(self) -> tuple[str, str, str, dict[str, Any]]:
        rng = self.rng
        order = f"SO-{rng.randint(100_000, 999_999)}"
        amount = round(rng.lognormvariate(3.6, 0.8), 2)
        name = rng.choices(("order", "payment", "logistics", "login"), (35, 25, 25, 15))[0]
        if name == "order":
            event_type = rng.choice(("order.created", "order.created", "order.cancelled", "order.changed"))
            payload: dict[str, Any] = {"order_id": order, "amount": amount, "items": rng.randint(1, 5)}
            return event_type, "orders", "order", payload
        if name == "payment":
            event_type = rng.choice(("payment.captured", "payment.captured", "payment.failed", "payment.refunded"))
            method = rng.choice(("card", "wallet", "transfer"))
            return event_type, "payments", "payment", {"order_id": order, "amount": amount, "method": method}
        if name == "logistics":
            event_type = rng.choice(("logistics.shipped", "logistics.out_for_delivery", "logistics.delivered"))
            return event_type, "warehouse", "logistics", {"order_id": order, "parcel": f"P{rng.randint(10**8, 10**9)}"}
        return (
            "login",
            "accounts",
            "other",
            {"ok": rng.random() < 0.93, "device": rng.choice(("ios", "android", "web"))},
        )

    def _record(
        self,
        entity: str,
        event_type: str,
        at_ms: int,
        system: str,
        payload: dict[str, Any],
        kind: str,
        category: str,
        late: bool,
    ) -> DemoRecord:
        envelope = {
            "event_id": f"demo-{self.seed}-{next(self.ids):07d}",
            "event_type": event_type,
            "event_time": at_ms,
            "source_system": system,
            "trace_id": f"{self.rng.getrandbits(128):032x}",
            "payload": payload,
        }
        return DemoRecord(entity.encode(), _encode(envelope), kind, category, late)
