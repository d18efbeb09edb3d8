"""The day's money of each task, and the minute of each provider. Partitioned as `budget` is, by account and day."""

from app.delivery.maps import Map
from app.llm.budget import Account

__all__ = ["ACCOUNTS", "account_key"]

ACCOUNTS: Map[Account] = Map(
    "accounts",
    b"b",
    Account,
    help="task and day, or provider -> what is settled or recent, and open leases",
    moves=lambda key: key,
)


def account_key(account: str, day: str) -> bytes:
    """Also the key of the records, so that one partition has all of an account."""
    return f"{account}|{day}".encode()
