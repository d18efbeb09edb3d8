"""How far event time has come in the partitions before a stage, and in its own: for every stage that windows depend on."""

from app.delivery.maps import COPY, Map
from app.logic.progress import Said

__all__ = ["SAID", "row_of"]

SAID: Map[Said] = Map(
    "progress",
    b"w",
    Said,
    help="source, with the partition before or alone -> highest event time, and since when it is idle",
    moves=COPY,  # a new partition knows what the one knew that it comes from
)


def row_of(source: str, origin: str) -> bytes:
    """The key: origin is the stage and partition that said it."""
    return f"{source}@{origin}".encode()
