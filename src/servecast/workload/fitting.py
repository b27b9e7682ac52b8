"""A generator fitted to a trace: its burstiness at 1, 10 and 60 s, its lengths together, and how close the copy is.

Arrivals become `rates.Modulated`, whose counts have the trace's indices of dispersion. Lengths become quantiles of the
prompt, cut into equally full classes, with quantiles of the output for each class, which keeps how outputs depend on
prompts. Not kept: structure below a second (ticks, batches), trends longer than a minute, sessions, prefixes.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from servecast.errors import InputError
from servecast.workload.clients import LengthColumns
from servecast.workload.rates import Modulated
from servecast.workload.synthetic import generate
from servecast.workload.traces.statistics import column_statistics, dispersion

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from servecast.workload.clients import RequestColumns

CLASSES = 16  # of prompts, at most
FEWEST = 50  # requests of a class, so that its output quantiles mean something
PERCENTILES = tuple(float(percent) for percent in (*range(0, 100, 2), 99, 99.25, 99.5, 99.75, 99.9, 100))


@dataclass(frozen=True)
class JointQuantiles:
    """Prompt quantiles, and output quantiles for each of k equally likely classes of prompts, from short to long.

    percentiles : rising from 0 to 100, of all tables
    prompt_tokens : the prompt at each percentile [tokens]
    output_tokens : for each class, the output at each percentile [tokens]
    """

    percentiles: tuple[float, ...]
    prompt_tokens: tuple[float, ...]
    output_tokens: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in pairwise(self.percentiles))
        if len(self.percentiles) < 2 or self.percentiles[0] != 0 or self.percentiles[-1] != 100 or not rising:
            raise ValueError("percentiles must rise from 0 to 100")
        if not self.output_tokens:
            raise ValueError("output_tokens is empty; give at least one class")
        tables = [("prompt_tokens", self.prompt_tokens), *(("output_tokens", one) for one in self.output_tokens)]
        for name, table in tables:
            if len(table) != len(self.percentiles):
                raise ValueError(f"{name} has {len(table)} values, percentiles {len(self.percentiles)}; give as many")
            if table[0] < 1 or any(a > b for a, b in pairwise(table)):
                raise ValueError(f"{name} must start at 1 or above, and not fall")

    def draw(self, n: int, prompt_rng: np.random.Generator, output_rng: np.random.Generator) -> LengthColumns:
        rank = prompt_rng.random(n)
        prompts = np.rint(np.interp(100 * rank, self.percentiles, self.prompt_tokens)).astype(np.int64)
        outputs = np.empty(n, np.int64)
        within = 100 * output_rng.random(n)
        of = np.minimum((rank * len(self.output_tokens)).astype(int), len(self.output_tokens) - 1)
        for at, table in enumerate(self.output_tokens):
            rows = of == at
            outputs[rows] = np.rint(np.interp(within[rows], self.percentiles, table)).astype(np.int64)
        return LengthColumns(prompts, outputs)

    @classmethod
    def of(cls, lengths: LengthColumns) -> JointQuantiles:
        """The quantiles of observed pairs."""
        n = len(lengths.prompt_tokens)
        order = np.argsort(lengths.prompt_tokens, kind="stable")
        classes = np.array_split(lengths.output_tokens[order], max(1, min(CLASSES, n // FEWEST)))
        return cls(PERCENTILES, _quantiles(lengths.prompt_tokens), tuple(map(_quantiles, classes)))


def _quantiles(tokens: NDArray[np.int64]) -> tuple[float, ...]:
    return tuple(np.rint(np.percentile(tokens, PERCENTILES)).tolist())


@dataclass(frozen=True)
class TraceModel:
    """A generator like a trace."""

    arrivals: Modulated
    lengths: JointQuantiles
    requests: int

    def generate(self, seed: int, requests: int | None = None) -> RequestColumns:
        """As many requests as the trace has, or ``requests``."""
        return generate(self.arrivals, self.lengths, requests or self.requests, seed)

    def closeness(self, columns: RequestColumns, seed: int = 0) -> list[tuple[str, float | None, float | None]]:
        """(figure, in the trace, in one regenerated trace): rate, dispersion, lengths, how they go together."""
        again = self.generate(seed)
        theirs, ours = _figures(columns), _figures(again)
        return [(name, theirs[name], ours[name]) for name in theirs]

    def workload(self) -> dict[str, object]:
        """The keys of a scenario's workload: arrivals and lengths."""
        return {
            "arrivals": {"kind": "modulated", **asdict(self.arrivals)},
            "lengths": {
                "kind": "joint_quantiles",
                "percentiles": list(self.lengths.percentiles),
                "prompt_tokens": list(self.lengths.prompt_tokens),
                "output_tokens": [list(table) for table in self.lengths.output_tokens],
            },
            "requests": self.requests,
        }


def fit(columns: RequestColumns, place: str = "trace") -> TraceModel:
    """The generator of requests like these. A trace that takes no time has no rate, and is an InputError."""
    rate_rps = columns.offered_rps
    if rate_rps is None:
        raise InputError(place, "all requests arrive at once: there is no rate to fit; take more of the trace")
    iod_1s, iod_10s, iod_60s = (dispersion(columns.arrival_s, window) for window in (1, 10, 60))
    # A trace too short for the longer windows is taken to be no burstier there than its longest window shows.
    iod_1s = 1.0 if iod_1s is None else iod_1s
    iod_10s = iod_1s if iod_10s is None else iod_10s
    arrivals = Modulated.of_dispersion(rate_rps, iod_1s, iod_10s, iod_10s if iod_60s is None else iod_60s)
    return TraceModel(arrivals, JointQuantiles.of(columns.lengths), len(columns))


def _figures(columns: RequestColumns) -> dict[str, float | None]:
    kept = re.compile(r"mean_rate_rps|iod_.*|.*_tokens_(mean|p\d+)")
    figures: dict[str, float | None] = {k: v for k, v in column_statistics(columns).items() if kept.fullmatch(k)}
    return figures | {"rank_correlation": rank_correlation(columns.lengths)}


def rank_correlation(lengths: LengthColumns) -> float | None:
    """Spearman's correlation of prompts and outputs, equal values sharing their rank; None where one never varies."""
    from scipy.stats import rankdata

    if min(np.ptp(tokens) for tokens in lengths) == 0:
        return None
    prompts, outputs = (rankdata(tokens) for tokens in lengths)
    return float(np.corrcoef(prompts, outputs)[0, 1])
