"""Settings of the connection to Kafka, and of batches and transactions."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from app.settings_base import Section

__all__ = ["DeliverySettings", "KafkaSettings"]

HEARTBEATS_PER_SESSION = 5
"""Kafka advises at least three; a busy loop doesn't matter, heartbeats have a thread of their own."""
HEARTBEAT_MAX_S = 1.0
"""A member learns with its next heartbeat that partitions are to be moved: what a standby waits before it takes over."""


class KafkaSettings(Section):
    """How to reach Kafka, and what our topics look like."""

    bootstrap_servers: str = Field("127.0.0.1:9092", description="host:port, several divided by commas.")
    topic_prefix: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]{0,60}$",
        description="Put before every topic of ours and before the consumer group, so that deployments can share a "
        "cluster. Topics of your own sources are taken as written.",
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="As in Kafka's own clients."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "PLAIN", description="Used when security_protocol starts with SASL."
    )
    username: str = Field("", description="SASL user.")
    password: SecretStr = Field(SecretStr(""), description="SASL password. From the environment only.")
    ssl_ca_file: Path | None = Field(None, description="PEM of the CA that signed the brokers; unset: the system's.")
    ssl_cert_file: Path | None = Field(None, description="PEM client certificate, for mutual TLS.")
    ssl_key_file: Path | None = Field(None, description="PEM key of the client certificate.")
    manage_topics: Literal["create", "check"] = Field(
        "create",
        description="create: missing topics of ours are made; check: they must be there, and are only checked.",
    )
    partitions: int = Field(
        4, ge=1, le=1000, description="Partitions of topics we make. 24 suits production; it can't be lowered later."
    )
    replication: int = Field(1, ge=1, le=9, description="Replicas of topics we make. 3 in production, 1 on one broker.")
    standby_replicas: int = Field(
        0, ge=0, le=5, description="Workers that keep a warm copy of each partition's state, beside the owner."
    )
    session_timeout_s: float = Field(
        15.0, ge=6, le=300, description="A worker silent this long loses its partitions; below it a pause is survived."
    )
    max_poll_interval_s: float = Field(
        300.0, ge=30, description="Kafka's default. Slow work is a queue in State, so it needs no more."
    )
    request_timeout_s: float = Field(40.0, ge=10, description="One request to a broker. Above session_timeout_s.")
    fetch_max_bytes: int = Field(16 << 20, ge=1 << 16, description="Bytes a fetch may bring for all partitions.")
    partition_fetch_bytes: int = Field(
        4 << 20, ge=1 << 16, description="Bytes a fetch may bring for one partition; holds a batch of usual events."
    )
    max_message_bytes: int = Field(
        1_048_588, ge=1024, description="The brokers' message.max.bytes: what is larger is refused before it is sent."
    )
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = Field(
        "none", description="Of what we write. none costs the least CPU; lz4 or zstd where the network is the limit."
    )

    @property
    def heartbeat_s(self) -> float:
        """How often a member of a consumer group says that it is there."""
        return min(HEARTBEAT_MAX_S, self.session_timeout_s / HEARTBEATS_PER_SESSION)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.security_protocol.startswith("SASL") and not self.username:
            raise ValueError(f"kafka.username is needed with security_protocol {self.security_protocol}")
        if (self.ssl_cert_file is None) != (self.ssl_key_file is None):
            raise ValueError("kafka.ssl_cert_file and kafka.ssl_key_file go together")
        if self.request_timeout_s <= self.session_timeout_s:
            raise ValueError(
                f"kafka.request_timeout_s ({self.request_timeout_s}) must be above kafka.session_timeout_s "
                f"({self.session_timeout_s}): a group member that waits for its session must not time out first"
            )
        return self


class DeliverySettings(Section):
    """Batches and transactions."""

    batch_records: int = Field(
        8000,
        ge=1,
        le=100_000,
        description="Most records in one transaction: larger ones cost less each (us and the broker), and wait more.",
    )
    commit_interval_ms: int = Field(
        100,
        ge=0,
        le=10_000,
        description="The longest that a lane gathers records under light load before it commits. 0: none.",
    )
    transactions_per_s: int = Field(
        200,
        ge=1,
        le=10_000,
        description="What a worker aims at under light load, over all its lanes: more wait less and cost more CPU.",
    )
    max_input_bytes: int = Field(64 << 20, ge=1 << 20, description="Input held in memory by a worker, all stages.")
    max_output_bytes: int = Field(32 << 20, ge=1 << 20, description="Output not yet written, all stages.")
    transaction_timeout_s: float = Field(20.0, ge=5, le=900, description="The broker aborts a transaction after this.")
    retry_backoff_s: float = Field(0.5, gt=0, le=5, description="First wait of a broken lane; doubles up to 5 s.")
    stall_timeout_s: float = Field(
        60.0,
        ge=10,
        description="A partition with input and room that doesn't move for this long, though Kafka answers, ends the worker.",
    )
    block_cache_bytes: int = Field(64 << 20, ge=1 << 20, description="RocksDB block cache, shared by all partitions.")
    write_buffer_bytes: int = Field(64 << 20, ge=1 << 20, description="RocksDB write buffers, all partitions together.")
