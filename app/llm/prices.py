"""What a call costs: the settings' prices, else those that `genai-prices` ships, else nothing."""

import logging
from dataclasses import dataclass
from functools import lru_cache

from app.llm.loopback import is_loopback_url
from app.settings import ProviderSettings

__all__ = ["Price", "price_of"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens."""

    prompt_usd: float
    completion_usd: float

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Of a call, in US dollars."""
        return (prompt_tokens * self.prompt_usd + completion_tokens * self.completion_usd) / 1e6

    @property
    def free(self) -> bool:
        return not (self.prompt_usd or self.completion_usd)


def price_of(provider: ProviderSettings) -> Price:
    """The price of a provider's model. No network: the library carries its table with it."""
    prompt, completion = provider.price_prompt_usd, provider.price_completion_usd
    if prompt is None or completion is None:
        known = (0.0, 0.0) if is_loopback_url(provider.base_url) else _known(provider.base_url, provider.model)
        prompt = known[0] if prompt is None else prompt
        completion = known[1] if completion is None else completion
    return Price(prompt, completion)


@lru_cache
def _known(base_url: str, model: str) -> tuple[float, float]:
    import genai_prices

    million = genai_prices.Usage(input_tokens=1_000_000, output_tokens=1_000_000)
    for url in (base_url, None):
        try:
            found = genai_prices.calc_price(million, model_ref=model, provider_api_url=url)
        except LookupError:
            continue
        return float(found.input_price), float(found.output_price)
    log.warning(
        "no price is known for model %s at %s, so its calls count as free: set price_prompt_usd and "
        "price_completion_usd",
        model,
        base_url,
    )
    return 0.0, 0.0
