"""The section ``bench`` of a recipe: the load test, closed loop by concurrency and open loop by arrivals."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trtforge.ground.section import PositiveInt, Section
from trtforge.ground.units import Seconds

#: requests a second: beyond these a figure is a slip of the hand
Rate = Annotated[float, Field(gt=0, le=100_000)]
#: requests at each rate where neither a number nor a time is given
DEFAULT_ARRIVALS = 100
#: seconds of a search for a rate
DEFAULT_BUDGET = 300.0
#: requests that one rate may plan
MOST_ARRIVALS = 1_000_000


class Slo(Section):
    """What a request must meet to count as goodput."""

    ttft_p99: Seconds | None = Field(None, description="Time to the first token, 99th percentile, for example 2s")
    itl_p99: Seconds | None = Field(None, description="Time between tokens, 99th percentile, for example 200ms")
    min_goodput: Rate | None = Field(
        None,
        description="Gate: least rate, in requests a second, at which 99 % of the requests that arrive meet the limits",
    )


class Arrivals(Section):
    """Requests that arrive by themselves, whatever has come back: the open loop."""

    rate: tuple[Rate, ...] | Literal["auto"] = Field(
        description="Requests a second, one level after another; auto: the largest rate at which 99 % of the requests "
        "meet bench.slo, to 5 %"
    )
    process: Literal["poisson", "constant"] = Field("poisson", description="Gaps between requests: random, or equal")
    seed: Annotated[int, Field(ge=0, strict=True)] = Field(0, description="Of the random gaps; the same at every rate")
    seconds: Seconds | None = Field(None, description="How long requests arrive at each rate; instead of requests")
    requests: PositiveInt | None = Field(
        None, description=f"Requests at each rate; default {DEFAULT_ARRIVALS} where seconds is not given"
    )
    budget: Seconds | None = Field(
        None, description="Of rate auto: no further rate is tried after this time; default 5min"
    )

    @model_validator(mode="after")
    def _bounded(self) -> Arrivals:
        if self.rate == ():
            raise ValueError("rate has no value")
        if self.seconds is not None and self.requests is not None:
            raise ValueError("seconds and requests both say how many arrive; give one")
        if self.seconds == 0:
            raise ValueError("in 0 seconds no request arrives")
        if self.seconds is not None and not isinstance(self.rate, str):
            if max(self.rate) * self.seconds > MOST_ARRIVALS:
                raise ValueError(f"that would be over {MOST_ARRIVALS:,} requests at one rate")
            if min(self.rate) * self.seconds < 1:
                raise ValueError(f"at {min(self.rate):g} requests a second fewer than one arrives in the time")
        return self


class Trace(Section):
    """Requests that arrive as they did once: lengths and times of a file."""

    file: str = Field(
        description="file:PATH beside the recipe; a line is {isl, osl, timestamp}, in tokens and milliseconds, as "
        "trtforge plan --trace reads it"
    )
    speed: Annotated[float, Field(gt=0, le=1000)] = Field(1.0, description="2: twice as fast as it was")
    requests: PositiveInt | None = Field(None, description="The first so many; default: all")


class Bench(Section):
    """The load test of the served engine."""

    concurrency: tuple[PositiveInt, ...] = Field(
        (1, 4, 16), min_length=1, description="Requests in flight, one level after another"
    )
    prompts: str = Field(
        "builtin:mixed", description="builtin:mixed, short, chat, code, copy or open, or file:PATH (one prompt a line)"
    )
    requests_per_level: PositiveInt = Field(
        24, description="Requests measured at each concurrency (at least the concurrency)"
    )
    max_tokens: PositiveInt = Field(32, description="Tokens an answer")
    arrivals: Arrivals | None = Field(None, description="Also: requests that arrive by themselves, by rate")
    trace: Trace | None = Field(None, description="Also: requests that arrive as a file says")
    slo: Slo | None = Field(
        None, description="A gate at the lowest concurrency; every level reports its goodput, the requests that met it"
    )

    @model_validator(mode="after")
    def _decidable(self) -> Bench:
        limited = self.slo is not None and (self.slo.ttft_p99 is not None or self.slo.itl_p99 is not None)
        if self.arrivals is not None and self.arrivals.rate == "auto" and not limited:
            raise ValueError("arrivals.rate: auto looks for the largest rate inside slo; give slo.ttft_p99 or itl_p99")
        if self.slo is not None and self.slo.min_goodput is not None:
            if self.arrivals is None and self.trace is None:
                raise ValueError("slo.min_goodput is decided by requests that arrive; give arrivals or trace")
            if not limited:
                raise ValueError("slo.min_goodput counts requests inside slo; give slo.ttft_p99 or itl_p99")
            rates = self.arrivals.rate if self.arrivals is not None and self.trace is None else "auto"
            if not isinstance(rates, str) and max(rates) < self.slo.min_goodput:
                least = f"{self.slo.min_goodput:g}"
                raise ValueError(f"slo.min_goodput {least} is over every rate in arrivals.rate: it cannot be decided")
        return self
