"""The id a data folder is formatted with."""

import uuid

import pytest

from app.broker import kafka


def test_a_cluster_id_never_looks_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    dashed, plain = uuid.UUID(bytes=b"\xf8" + bytes(15)), uuid.UUID(bytes=b"\x04" + bytes(15))
    made = iter([dashed, plain])
    monkeypatch.setattr("uuid.uuid4", lambda: next(made))
    assert kafka.new_cluster_id() == "BAAAAAAAAAAAAAAAAAAAAA"
