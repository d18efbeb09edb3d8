"""The day's money of each task. Partitioned as `budget` is, by task and day."""

from app.delivery.maps import Map
from app.llm.budget import Account

__all__ = ["ACCOUNTS", "account_key"]

ACCOUNTS: Map[Account] = Map(
    "accounts", b"b", Account, help="task and day -> settled money and open leases", moves=lambda key: key
)


def account_key(task: str, day: str) -> bytes:
    """Also the key of the records, so that one partition has all of an account."""
    return f"{task}|{day}".encode()
