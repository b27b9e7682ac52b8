"""Feed-forwards: dense ones of two or three matrices, and mixtures of experts with what every token passes beside them.

Of E experts, t tokens that take k each touch E (1 - (1 - k/E)^t) distinct ones, if routing is uniform and independent:
an upper bound, real routing is skewed.
"""

from __future__ import annotations

from dataclasses import dataclass

from servecast.specs.layers.layer import Split, Sum, Weights, named


@dataclass(frozen=True, slots=True)
class Dense:
    """A feed-forward that every token passes: three matrices if ``gated`` (SwiGLU, GeGLU), else two."""

    intermediate: int
    gated: bool = True
    bias: bool = False

    @property
    def kind(self) -> str:
        """What it is called in tables."""
        return f"dense of {self.intermediate:,}"

    @property
    def matrices(self) -> int:
        """Matrices of hidden x intermediate."""
        return 3 if self.gated else 2

    def weights(self, hidden: int, split: Split) -> Weights:
        """The matrices, and their biases."""
        width = split.share("intermediate columns", self.intermediate)
        plain = (self.matrices - 1) * width + hidden if self.bias else 0
        one = hidden * width
        return Weights(named(gate=one, up=one, down=one) if self.gated else named(up=one, down=one), plain)

    def width(self, hidden: int, split: Split) -> int:
        """Values per token alive at one time: gate, up and their product."""
        return self.matrices * split.share("intermediate columns", self.intermediate)


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: ``total`` routed ones of which a token takes ``active``.

    shared : intermediate width of what every token passes beside them (0: nothing); shared_gate : a learned scalar
        weighs it (Qwen2-MoE)
    router_bias, biases : whether router and experts have biases; router_extra : other small parameters of the router
    latent : width that the routed experts compute in, with a projection down to it and one back (None: the hidden size)
    """

    total: int
    active: int
    intermediate: int
    shared: int = 0
    gated: bool = True
    shared_gate: bool = False
    router_bias: bool = False
    biases: bool = False
    router_extra: int = 0
    latent: int | None = None

    @property
    def kind(self) -> str:
        """What it is called in tables."""
        shared = f" and a shared one of {self.shared:,}" if self.shared else ""
        return f"{self.active} of {self.total} experts of {self.intermediate:,}{shared}"

    @property
    def matrices(self) -> int:
        """Matrices of an expert."""
        return 3 if self.gated else 2

    def expert(self, hidden: int, split: Split) -> Weights:
        """One routed expert."""
        width = split.share("expert columns", self.intermediate)
        inner = self.latent or hidden
        return Weights(
            named(experts=self.matrices * inner * width), ((self.matrices - 1) * width + inner) * self.biases
        )

    def shared_weights(self, hidden: int, split: Split) -> Weights:
        """What every token passes beside the routed experts."""
        width = split.share("shared expert columns", self.shared)
        matrices = named(shared=self.matrices * hidden * width)
        if self.latent:
            matrices += named(latent=2 * hidden * self.latent)
        return Weights(matrices, hidden * self.shared_gate)

    def router(self, hidden: int) -> Weights:
        """The router: whole on every GPU, never quantised."""
        return Weights(named(router=hidden * self.total), self.total * self.router_bias + self.router_extra)

    def touched(self, tokens: Sum) -> Sum:
        """Distinct experts that so many tokens take."""
        return self.total * (1.0 - (1.0 - self.active / self.total) ** tokens)

    def width(self, hidden: int, split: Split) -> int:
        """Values per token alive at one time.

        One buffer serves gate-up outputs and the results, another their product (vLLM, `fused_experts`).
        """
        width = split.share("expert columns", self.intermediate)
        inner = self.active * (max(2 * width, hidden) + width)
        return max(inner, self.matrices * split.share("shared expert columns", self.shared))
