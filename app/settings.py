"""One settings tree: built-in defaults, then `headrace.toml`, then `HEADRACE_SECTION__FIELD` in the environment.

Every field says its unit and the reason for its default. The tree is frozen and checked as a whole when it is loaded,
so that nothing starts on a mistake. Secrets come from the environment only and never from the file.
"""

import functools
import os
import tomllib
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from app.errors import SettingsError
from app.settings_base import Condition, Section
from app.settings_files import read_file, with_files
from app.settings_kafka import DeliverySettings, KafkaSettings
from app.settings_llm import BreakerSettings, BudgetSettings, LlmSettings, OverBudget, ProviderSettings
from app.settings_sinks import SinkSettings
from app.settings_tasks import (
    CategorySettings,
    ExampleSettings,
    MarkRule,
    NoiseRule,
    SourceSettings,
    TaskRule,
    TaskSettings,
)
from app.settings_web import LOOPBACK, ConsoleSettings, GatewaySettings, ResultsSettings, ReviewsSettings
from app.settings_windows import AggregateSettings, IntentRule, WindowsSettings, check_windows

__all__ = [
    "ROLES",
    "AggregateSettings",
    "BreakerSettings",
    "BudgetSettings",
    "CategorySettings",
    "ClassifySettings",
    "Condition",
    "ConsoleSettings",
    "DeliverySettings",
    "ExampleSettings",
    "GatewaySettings",
    "IngestSettings",
    "IntentRule",
    "KafkaSettings",
    "LightSettings",
    "LlmSettings",
    "MarkRule",
    "NoiseRule",
    "ProviderSettings",
    "ResultsSettings",
    "ReviewsSettings",
    "Role",
    "Settings",
    "SinkSettings",
    "SourceSettings",
    "TaskRule",
    "TaskSettings",
    "WebSettings",
    "WindowsSettings",
    "config_path",
    "load",
]

Role = Literal["all", "ingest", "windows", "classify", "review", "results"]
ROLES: tuple[Role, ...] = get_args(Role)

SECRETS = (
    "kafka.password", "llm.api_key", "web.token", "console.secret", "console.token", "console.oidc.client_secret",
)  # fmt: skip
"""Fields that may come from the environment only."""


class IngestSettings(Section):
    """Validation and deduplication."""

    dedup_horizon_s: float = Field(
        86_400.0, gt=0, description="An event_id seen within this time is a duplicate. 24 h covers a day of retries."
    )
    max_event_bytes: int = Field(
        1_000_000, ge=1000, description="A larger value is a dead letter (too-large), whatever it holds."
    )
    max_depth: int = Field(100, ge=5, le=500, description="Deeper nested JSON is a dead letter (too-deep).")
    max_id_bytes: int = Field(512, ge=16, le=4096, description="A longer event_id is a dead letter (bad-field).")
    max_future_s: float = Field(
        86_400.0 * 366,
        gt=0,
        description="An event_time further ahead of the broker's clock is a dead letter (bad-time).",
    )


class LightSettings(Section):
    """The light tier: a sentence encoder on the CPU, against the category descriptions."""

    enabled: bool = Field(True, description="False: what no rule decides goes straight to the deep model.")
    threshold: float = Field(
        0.85,
        ge=0,
        le=1,
        description="Confidence from which a light answer stands. Set so that the demo stream ends about "
        "30% by rule, 50% light, 20% deep.",
    )
    batch: int = Field(
        16, ge=1, le=256, description="Texts a call: 23 ms each on one core, so 16 keep others waiting 0.4 s."
    )
    threads: int = Field(1, ge=1, le=64, description="Threads of the encoder.")
    max_chars: int = Field(2000, ge=50, description="Longer texts are cut: the encoder reads 512 tokens.")


class ClassifySettings(Section):
    """The queue of open work in State behind the model tiers."""

    max_open: int = Field(
        5000,
        ge=20,
        description="Open items a partition: at the bound the lane stops taking input, Kafka keeps the rest.",
    )
    retry_s: float = Field(
        300.0,
        gt=0,
        description="How long an item waits in State after every provider allowed failed it. Less when one recovers; about 30 s "
        "at most where they answered, but not validly.",
    )
    max_rounds: int = Field(
        5, ge=1, le=100, description="Such rounds of an item, of invalid answers at most two; then a person decides."
    )
    max_age_s: float = Field(
        86_400.0,
        gt=0,
        description="An item open for this long goes to a person, though no provider could be asked (outage, budget).",
    )
    cache_age_s: float = Field(
        86_400.0, ge=0, description="How long a deep answer stands for other events of the same text; 0: each is asked."
    )
    cache_items: int = Field(
        20_000,
        ge=1,
        description="Deep answers a partition keeps for that; above it the oldest go. About 150 bytes each.",
    )
    trace_horizon_s: float = Field(86_400.0, gt=0, description="How long `headrace trace` knows an answered event.")
    keep_prompts_s: float = Field(
        0.0,
        ge=0,
        description="How long State keeps what a deep model was sent for an event, masked as it was sent, and its raw answer, "
        "for `headrace trace` and the page Event; 0: not at all, and what was kept goes.",
    )
    keep_prompts_items: int = Field(
        5000,
        ge=1,
        description="Events a partition keeps them of; above it the oldest go. About 1 kB each with the built-in "
        "prompt, twice that on disk.",
    )
    keep_prompts_bytes: int = Field(
        16 << 10,
        ge=256,
        le=64 << 10,
        description="What is kept of the system prompt, of the event's part of the prompt and of the answer, each.",
    )


class WebSettings(Section):
    """Each worker's own web port: table state as JSON, metrics, health."""

    host: str = Field("127.0.0.1", description="Loopback. Anything else needs web.token.")
    port: int = Field(6066, ge=0, le=65535, description="The next free port is taken when it is in use. 0: any.")
    token: SecretStr = Field(SecretStr(""), description="Bearer token. From the environment only.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.host not in LOOPBACK and not self.token.get_secret_value():
            raise ValueError(f"web.host {self.host} is reachable by others: set HEADRACE_WEB__TOKEN, or use 127.0.0.1")
        return self


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = Field("text", description="json: one object a line, with keys, never payloads.")


class Settings(BaseSettings):
    """The whole tree."""

    model_config = SettingsConfigDict(
        env_prefix="HEADRACE_",
        env_nested_delimiter="__",
        frozen=True,
        extra="ignore",
        nested_model_default_partial_update=True,
    )

    data_dir: Path = Field(Path("data"), description="State, and the embedded broker's data. One worker a folder.")
    role: Role = Field("all", description="Which stages this worker runs; each role is a consumer group of its own.")
    kafka: KafkaSettings = KafkaSettings()
    delivery: DeliverySettings = DeliverySettings()
    ingest: IngestSettings = IngestSettings()
    sources: list[SourceSettings] = Field(default_factory=list)
    noise: list[NoiseRule] = Field(default_factory=list)
    marks: list[MarkRule] = Field(default_factory=list)
    tasks: list[TaskSettings] = Field(default_factory=list)
    windows: WindowsSettings = WindowsSettings()
    aggregates: list[AggregateSettings] = Field(default_factory=list)
    intents: list[IntentRule] = Field(default_factory=list)
    light: LightSettings = LightSettings()
    llm: LlmSettings = LlmSettings()
    budget: BudgetSettings = BudgetSettings()
    classify: ClassifySettings = ClassifySettings()
    results: ResultsSettings = ResultsSettings()
    reviews: ReviewsSettings = ReviewsSettings()
    web: WebSettings = WebSettings()
    gateway: GatewaySettings = GatewaySettings()
    console: ConsoleSettings = ConsoleSettings()
    sinks: list[SinkSettings] = Field(default_factory=list)
    log: LogSettings = LogSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings

    @model_validator(mode="after")
    def _check(self) -> Self:
        for what, names in (
            ("sources", [s.name for s in self.sources]),
            ("noise", [n.name for n in self.noise]),
            ("marks", [m.name for m in self.marks]),
            ("tasks", [t.name for t in self.tasks]),
            ("aggregates", [a.name for a in self.aggregates]),
            ("intents", [i.name for i in self.intents]),
            ("sinks", [s.name for s in self.sinks]),
            ("sinks, path", [str(s.file(self.data_dir)) for s in self.sinks if s.kind == "duckdb"]),
        ):
            if len(set(names)) != len(names):
                raise ValueError(f"{what}: names must differ, given {', '.join(names)}")
        if self.gateway.source and self.gateway.source not in [s.name for s in self.sources]:
            raise ValueError(f"gateway.source {self.gateway.source!r} isn't declared as a source")
        topics = [s.topic for s in self.sources]
        if len(set(topics)) != len(topics):
            raise ValueError(f"sources: each topic may be read by one source, given {', '.join(topics)}")
        known = {s.name for s in self.sources}
        rules: list[NoiseRule | MarkRule | TaskSettings | ProviderSettings | AggregateSettings] = [
            *self.noise, *self.marks, *self.tasks, *self.llm.chain(), *self.aggregates,
        ]  # fmt: skip
        for rule in rules:
            for name in rule.sources:
                if name not in known:
                    raise ValueError(f"{rule.name}: source {name!r} isn't declared; there are {', '.join(known)}")
        self._check_providers()
        categories = {t.name: {c.id for c in t.categories} for t in self.tasks if t.input == "windows"}
        asked = {t.name: t.aggregates for t in self.tasks if t.input == "windows"}
        check_windows(self.aggregates, self.intents, categories, asked)
        self._check_hints()
        return self

    def _check_hints(self) -> None:
        alone = {a.name for a in self.aggregates if self.chained_to(a) is None}
        for intent in self.intents:
            if intent.deep_s and intent.aggregate in alone:
                raise ValueError(
                    f"intent {intent.name}, deep_s: aggregate {intent.aggregate} is over several sources or a rekeyed one; "
                    "its windows are a stage of their own, and can't say how ingest goes on. Give a category or an incident"
                )

    def over(self, aggregate: AggregateSettings) -> list[str]:
        """Names of the sources that an aggregate is over."""
        return aggregate.sources or [source.name for source in self.sources]

    def chained_to(self, aggregate: AggregateSettings) -> str | None:
        """The source in whose ingest stage an aggregate runs: the only one, if it is keyed by the entity.

        None: it runs in the stage `windows`.
        """
        over = self.over(aggregate)
        return next((s.name for s in self.sources if [s.name] == over and not s.rekey), None)

    def _check_providers(self) -> None:
        tasks, marks = [t.name for t in self.tasks], [m.name for m in self.marks]
        for provider in self.llm.chain():
            for what, named, there in (("task", provider.tasks, tasks), ("mark", provider.marks, marks)):
                for name in set(named) - set(there):
                    raise ValueError(
                        f"llm provider {provider.name}: {what} {name!r} isn't declared; there are {', '.join(there) or 'none'}"
                    )

    def day_usd(self, task: TaskSettings) -> float | None:
        """What a task's deep calls may cost a day; None: no limit."""
        return self.budget.day_usd if task.day_usd is None else task.day_usd

    def over_budget(self, task: str) -> OverBudget:
        """What happens with a task's events at its limit."""
        own = next((each.over_budget for each in self.tasks if each.name == task), None)
        return own or self.budget.over

    @property
    def has_budget(self) -> bool:
        """Whether any task has a limit."""
        return any(self.day_usd(task) is not None for task in self.tasks)

    def topic(self, name: str) -> str:
        """The full name of a topic of ours."""
        return self.kafka.topic_prefix + name

    def group(self, role: Role) -> str:
        """The consumer group of the workers with a role."""
        return self.topic("headrace") + ("" if role == "all" else f"-{role}")

    def source_topic(self, source: SourceSettings) -> str:
        """The full name of a source's topic: as written, or with our prefix where the source says so."""
        return self.topic(source.topic) if source.prefixed else source.topic


def config_path() -> Path | None:
    """The file that settings are read from: `HEADRACE_CONFIG`, else `headrace.toml` in the current folder, else none."""
    if named := os.environ.get("HEADRACE_CONFIG"):
        return Path(named)
    return Path("headrace.toml") if Path("headrace.toml").is_file() else None


def load(path: Path | None = None) -> Settings:
    """Reads the built-in defaults, the file and the environment, in that order.

    Lists (sources, noise, tasks) of the file replace the built-in ones as a whole.

    Args:
        path: the TOML file; unset: `HEADRACE_CONFIG`, else `headrace.toml` in the current folder if it is there.

    Raises:
        SettingsError: the file can't be read, or a field is wrong. Not retryable.
    """
    chosen = path or config_path()
    tree = dict(_defaults())
    if chosen is not None:
        given = read_file(chosen)
        _refuse_secrets(given, chosen)
        if "sources" in given or "aggregates" in given:
            # The built-in aggregates are of the built-in source, the built-in intents of those aggregates.
            tree.update({name: [] for name in ("aggregates", "intents")})
        tree.update(with_files(given, chosen.parent))
    _refuse_unknown_environment()
    try:
        return Settings(**tree)
    except ValidationError as error:
        raise SettingsError(_explain(error, chosen)) from None


@functools.cache
def _defaults() -> dict[str, Any]:
    """The built-in sources, noise rules and tasks: the demo of a shop, in the same language as a user's own file."""
    return tomllib.loads((Path(__file__).parent / "defaults.toml").read_text(encoding="utf-8"))


def _refuse_secrets(tree: dict[str, Any], path: Path) -> None:
    for dotted in SECRETS:
        part: Any = tree
        for name in dotted.split("."):
            part = part.get(name) if isinstance(part, dict) else None
        if part:
            variable = "HEADRACE_" + dotted.upper().replace(".", "__")
            raise SettingsError(f"{path}: {dotted} is a secret and isn't read from a file; set {variable}")


def _refuse_unknown_environment() -> None:
    fields = Settings.model_fields
    for name in os.environ:
        if not name.startswith("HEADRACE_") or name in ("HEADRACE_CONFIG", "HEADRACE_CACHE_DIR"):
            continue
        if name.startswith("HEADRACE_TEST_"):
            continue
        section = name.removeprefix("HEADRACE_").split("__")[0].lower()
        if section not in fields:
            raise SettingsError(
                f"environment variable {name}: there is no setting {section!r}; allowed are {', '.join(sorted(fields))}"
            )


def _explain(error: ValidationError, path: Path | None) -> str:
    lines = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"]) or "settings"
        given = item.get("input")
        secret = where in SECRETS
        shown = "" if secret or isinstance(given, dict) or given is None else f", given {repr(given)[:200]}"
        allowed = (item.get("ctx") or {}).get("expected")
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            message = "there is no such setting"
        lines.append(
            f"  {where}{shown}: {message}" + (f" (allowed: {allowed})" if allowed and allowed not in message else "")
        )
    origin = f"{path} and the environment" if path else "the environment"
    return f"settings from {origin}:\n" + "\n".join(lines)
