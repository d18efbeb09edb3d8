"""Settings of sinks: where results are copied to, beside Kafka."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from app.settings_base import Name, Section

__all__ = ["SinkSettings", "SinkTopic"]

SinkTopic = Literal["ai-results", "manual-review", "agg-events", "agent-trigger"]
"""Topics whose records have a key to upsert by. Each has a table of its own."""
Variable = Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")]


class SinkSettings(Section):
    """A database that holds one row an event (`headrace sink`)."""

    name: Name = Field(
        description="Names the sink on the command line, in metrics, in its consumer group and in `headrace_positions`. Unique."
    )
    kind: Literal["duckdb", "postgres"] = Field(
        "duckdb",
        description="duckdb: a file on this machine, one process writes it. postgres: processes share the work.",
    )
    topics: list[SinkTopic] = Field(
        ["ai-results"], min_length=1, description="What is copied, each into a table of its name."
    )
    path: Path | None = Field(None, description="DuckDB: the file. Unset: `NAME.duckdb` in data_dir.")
    dsn_env: Variable = Field(
        "",
        description="PostgreSQL: the environment variable with the connection string. Empty: libpq's own variables "
        "(PGHOST, PGDATABASE, PGUSER, PGPASSWORD, PGSERVICE ...).",
    )
    batch_records: int = Field(
        5000,
        ge=1,
        le=100_000,
        description="Most records a transaction: above it there is little to gain, and more to repeat.",
    )
    flush_s: float = Field(
        1.0, ge=0, le=60, description="The longest that records are gathered under light load before they are written."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.topics)) != len(self.topics):
            raise ValueError(f"sink {self.name}: topics must differ, given {', '.join(self.topics)}")
        if self.path is not None and self.kind != "duckdb":
            raise ValueError(f"sink {self.name}: path is for kind duckdb; PostgreSQL is named by dsn_env")
        if self.dsn_env and self.kind != "postgres":
            raise ValueError(f"sink {self.name}: dsn_env is for kind postgres; a DuckDB file is named by path")
        if self.dsn_env.startswith("HEADRACE_"):
            raise ValueError(f"sink {self.name}: dsn_env can't begin with HEADRACE_, those variables are settings")
        return self

    def file(self, data_dir: Path) -> Path:
        """The DuckDB file."""
        return self.path or data_dir / f"{self.name}.duckdb"
