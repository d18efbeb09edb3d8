"""A Kafka client without a broker, as far as it says which topics there are."""

import asyncio
from types import SimpleNamespace

__all__ = ["Client"]


class Client:
    """What `app.delivery.presence` asks.

    Args:
        there: partition counts by topic.
        answers: False: no broker does.
    """

    def __init__(self, *, answers: bool = True, **there: int) -> None:
        self.there, self.answers, self.asked = there, answers, 0
        self.known: dict[str, int] = {}
        self.hidden: set[str] = set()
        self.cluster = SimpleNamespace(
            partitions_for_topic=lambda topic: set(range(self.known[topic])) if topic in self.known else None,
            unauthorized_topics=self.hidden,
        )
        self._topics: set[str] = set()

    def add_topic(self, topic: str) -> None:
        self._topics.add(topic)

    def force_metadata_update(self) -> "asyncio.Future[bool]":
        self.asked += 1
        if self.answers:
            self.known = {topic: count for topic, count in self.there.items() if topic in self._topics}
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        done.set_result(self.answers)
        return done
