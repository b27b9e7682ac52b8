"""How long prompts and answers are [tokens]: fixed, uniform, lognormal, empirical quantiles, or pairs from a trace.

A *law* is the distribution of one length; *lengths* are a prompt and an output together: two independent laws, a named
data set, or pairs that keep the correlation of a trace. Values outside a law's limits are clipped to them, never drawn
again, so that no choice of limits can loop. Whole numbers, at least 1.

A value that cannot be raises ValueError.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from servecast.errors import InputError
from servecast.workload.checks import ABOVE_0, between, check
from servecast.workload.clients import LengthColumns
from servecast.workload.prefixes import PrefixIds, require_few

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONGEST_TOKENS = 10**9  # beyond this a length is taken for a mistake
_LENGTH = between(1, LONGEST_TOKENS, f"1 and {LONGEST_TOKENS:,}")


class Law(Protocol):
    """The distribution of one length."""

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """n lengths: (n,) int64 [tokens], at least 1."""


class Lengths(Protocol):
    """Prompt and output lengths together."""

    def draw(self, n: int, prompt_rng: np.random.Generator, output_rng: np.random.Generator) -> LengthColumns:
        """n pairs. The two streams are apart, so that another law for one leaves the other's lengths as they were."""


@dataclass(frozen=True)
class Fixed:
    """Always ``tokens``.

    tokens : the length
    """

    tokens: int

    def __post_init__(self) -> None:
        check(self, _LENGTH, "tokens")

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return np.full(n, self.tokens, dtype=np.int64)


@dataclass(frozen=True)
class Uniform:
    """Each whole number from ``min_tokens`` to ``max_tokens``, both included, is equally likely.

    min_tokens, max_tokens : the limits
    """

    min_tokens: int
    max_tokens: int

    def __post_init__(self) -> None:
        _check_limits(self)

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return rng.integers(self.min_tokens, self.max_tokens, size=n, dtype=np.int64, endpoint=True)


@dataclass(frozen=True)
class Lognormal:
    """exp(normal) with median ``median_tokens`` and ``sigma`` of the logarithm, rounded, clipped to the limits.

    median_tokens : half of the lengths are below
    sigma : standard deviation of the logarithm; 0: always the median
    min_tokens, max_tokens : shorter and longer ones become as long as these
    """

    median_tokens: float
    sigma: float
    min_tokens: int = 1
    max_tokens: int = LONGEST_TOKENS

    def __post_init__(self) -> None:
        _check_limits(self)
        check(self, ABOVE_0, "median_tokens")
        check(self, between(0, 10, "0 (always the median) and 10"), "sigma")

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        drawn = np.exp(log(self.median_tokens) + self.sigma * rng.standard_normal(n))
        clipped: NDArray[np.float64] = np.clip(np.rint(drawn), self.min_tokens, self.max_tokens)
        return clipped.astype(np.int64)


@dataclass(frozen=True)
class Empirical:
    """A table of quantiles: ``tokens[i]`` is the length at percentile ``percentiles[i]`` (0 to 100), linear between.

    Drawn by inverting the table at a uniform number, so sample percentiles converge to it; rounded, at least 1.
    """

    percentiles: tuple[float, ...]
    tokens: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.percentiles, self.percentiles[1:], strict=False))
        if len(self.percentiles) < 2 or self.percentiles[0] != 0 or self.percentiles[-1] != 100 or not rising:
            raise ValueError(f"percentiles {_ends(self.percentiles)}; they must rise from 0 to 100")
        if len(self.tokens) != len(self.percentiles):
            raise ValueError(f"tokens has {len(self.tokens)} values, percentiles {len(self.percentiles)}; give as many")
        if not all(a <= b for a, b in zip(self.tokens, self.tokens[1:], strict=False)):
            raise ValueError(f"tokens {_ends(self.tokens)}; they must not fall")
        if not 1 <= self.tokens[0] <= self.tokens[-1] <= LONGEST_TOKENS:
            raise ValueError(f"tokens {_ends(self.tokens)}; they must lie between 1 and {LONGEST_TOKENS:,}")

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return np.rint(np.interp(100 * rng.random(n), self.percentiles, self.tokens)).astype(np.int64)


@dataclass(frozen=True)
class Independent:
    """Prompt and output lengths drawn each from its own law."""

    prompt_tokens: Law
    output_tokens: Law

    def draw(self, n: int, prompt_rng: np.random.Generator, output_rng: np.random.Generator) -> LengthColumns:
        return LengthColumns(self.prompt_tokens.draw(n, prompt_rng), self.output_tokens.draw(n, output_rng))


@dataclass(frozen=True)
class Pairs:
    """Pairs drawn with replacement from ``columns``, so that prompt and output stay together as they were observed."""

    columns: LengthColumns

    def __post_init__(self) -> None:
        if not len(self.columns.prompt_tokens):
            raise ValueError("there are no pairs to draw from; give at least one")

    def draw(self, n: int, prompt_rng: np.random.Generator, output_rng: np.random.Generator) -> LengthColumns:
        rows = prompt_rng.integers(len(self.columns.prompt_tokens), size=n)
        return LengthColumns(self.columns.prompt_tokens[rows], self.columns.output_tokens[rows])


@cache
def datasets() -> dict[str, Independent]:
    """The length distributions that are shipped, by name.

    Prompt and output are drawn apart: their rank correlation in the source is -0.02 (code) and 0.07 (conversation).
    Source: quantiles of the Azure 2023 traces, CC-BY-4.0; Patel et al., Splitwise, ISCA 2024.
    """
    table = files("servecast.workload").joinpath("azure_2023_quantiles.csv")
    columns = _columns(table.read_text(encoding="utf-8"), table.name)
    names = {trace: f"azure_2023_{trace}" for trace in ("conv", "code")}
    return {
        f"azure-{trace}-2023": _independent(columns, f"{name}_prompt_tokens", f"{name}_output_tokens", table.name)
        for trace, name in names.items()
    }


def dataset(name_or_path: str) -> Independent:
    """The shipped length distributions of that name, or those of a CSV file of quantiles.

    A file has the columns ``percentile`` (0 to 100), ``prompt_tokens`` and ``output_tokens``; lines that start with #
    are comments. An unknown name is an InputError that lists the known ones.
    """
    known = datasets()
    if name_or_path in known:
        return known[name_or_path]
    try:
        text = Path(name_or_path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        near = get_close_matches(name_or_path, known, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise InputError(
            "lengths.name", f"'{name_or_path}' is neither a file nor a known name; {guess}known: {', '.join(known)}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(name_or_path, f"cannot be read as text ({error}); give a CSV file of quantiles") from error
    return _independent(_columns(text, name_or_path), "prompt_tokens", "output_tokens", name_or_path)


def _columns(text: str, place: str) -> dict[str, tuple[float, ...]]:
    """A table of numbers, by the names in its header."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#"]
    if len(lines) < 2:
        raise InputError(place, "has no rows; give a header and a row for each percentile")
    header = [name.strip() for name in lines[0][1].split(",")]
    rows = []
    for number, line in lines[1:]:
        try:
            rows.append(dict(zip(header, map(float, line.split(",")), strict=True)))
        except ValueError as error:
            problem = f"'{line[:80]}' is not {len(header)} numbers; mend the row"
            raise InputError(f"{place}:{number}", problem) from error
    return {name: tuple(row[name] for row in rows) for name in header}


def _independent(columns: dict[str, tuple[float, ...]], prompt: str, output: str, place: str) -> Independent:
    missing = [name for name in ("percentile", prompt, output) if name not in columns]
    if missing:
        raise InputError(place, f"has no column {missing[0]}; it needs percentile, {prompt} and {output}")
    try:
        return Independent(*(Empirical(columns["percentile"], columns[name]) for name in (prompt, output)))
    except ValueError as error:
        raise InputError(place, str(error)) from error


def _check_limits(law: Uniform | Lognormal) -> None:
    check(law, _LENGTH, "min_tokens", "max_tokens")
    if law.min_tokens > law.max_tokens:
        raise ValueError(f"min_tokens is {law.min_tokens}, above max_tokens {law.max_tokens}; swap them")


def _ends(values: tuple[float, ...]) -> str:
    return f"run from {values[0]:g} to {values[-1]:g} ({len(values)} values)" if values else "are empty"


@dataclass(frozen=True)
class RandomLengths:
    """What ``vllm bench serve --dataset-name random`` asks: uniform within ``range_ratio`` of the lengths given.

    Left out: the few tokens by which a tokenizer's round trip changes a prompt. Source: vLLM 0.32
    vllm/benchmarks/datasets, RandomDataset.

    input_tokens : --random-input-len; whole numbers from (1 - r) to (1 + r) of it
    output_tokens : --random-output-len, likewise
    range_ratio : --random-range-ratio r, at least 0 and below 1
    prefix_tokens : --random-prefix-len, on top of the prompt, the same tokens for all requests
    block_size : tokens of a prefix id
    """

    input_tokens: int = 1024
    output_tokens: int = 128
    range_ratio: float = 0.0
    prefix_tokens: int = 0
    block_size: int = 16

    def __post_init__(self) -> None:
        check(self, _LENGTH, "input_tokens", "output_tokens", "block_size")
        check(self, ("be at least 0 and below 1", lambda value: 0 <= value < 1), "range_ratio")
        check(self, ("be at least 0", lambda value: 0 <= value <= LONGEST_TOKENS), "prefix_tokens")

    def draw(self, n: int, prompt_rng: np.random.Generator, output_rng: np.random.Generator) -> LengthColumns:
        prompt = self._around(self.input_tokens, n, prompt_rng) + self.prefix_tokens
        return LengthColumns(prompt, self._around(self.output_tokens, n, output_rng))

    def _around(self, tokens: int, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        low, high = max(1, int(tokens * (1 - self.range_ratio))), int(tokens * (1 + self.range_ratio))
        return rng.integers(low, high, n, np.int64, endpoint=True)

    def shared_prefix(self, n: int) -> PrefixIds:
        """The full blocks of the shared prefix, for each of n requests; what follows is not shared."""
        blocks = self.prefix_tokens // self.block_size
        require_few(n * blocks, "fewer requests, or fewer prefix_tokens")
        return PrefixIds(np.tile(np.arange(blocks), n), np.arange(1, n + 1) * blocks)
