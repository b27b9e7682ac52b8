"""What ``vllm bench serve --dataset-name random`` asks: lengths around one value, behind a prefix that all share.

Not modelled: the few tokens by which a tokenizer's round trip changes a prompt, and its special tokens.
Source: vLLM 0.32 vllm/benchmarks/datasets, RandomDataset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from servecast.workload.clients import LengthColumns
from servecast.workload.lengths import LONGEST_TOKENS
from servecast.workload.prefixes import PrefixIds

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class RandomLengths:
    """Prompts and outputs uniform within ``range_ratio`` of the lengths given, behind ``prefix_tokens`` shared ones.

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
        for name in ("input_tokens", "output_tokens", "block_size"):
            if not 1 <= getattr(self, name) <= LONGEST_TOKENS:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie between 1 and {LONGEST_TOKENS:,}")
        if not 0 <= self.range_ratio < 1:
            raise ValueError(f"range_ratio is {self.range_ratio}; it must be at least 0 and below 1")
        if not 0 <= self.prefix_tokens <= LONGEST_TOKENS:
            raise ValueError(f"prefix_tokens is {self.prefix_tokens}; it must be at least 0")

    def draw(self, n: int, prompt_rng: np.random.Generator, output_rng: np.random.Generator) -> LengthColumns:
        """n pairs."""
        prompt = self._around(self.input_tokens, n, prompt_rng) + self.prefix_tokens
        return LengthColumns(prompt, self._around(self.output_tokens, n, output_rng))

    def _around(self, tokens: int, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        low, high = max(1, int(tokens * (1 - self.range_ratio))), int(tokens * (1 + self.range_ratio))
        return rng.integers(low, high, n, np.int64, endpoint=True)

    def shared_prefix(self, n: int) -> PrefixIds:
        """The full blocks of the shared prefix, for each of n requests; what follows is not shared."""
        blocks = self.prefix_tokens // self.block_size
        return PrefixIds(np.tile(np.arange(blocks), n), np.arange(1, n + 1) * blocks)
