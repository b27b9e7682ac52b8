"""The bill of a run shared out between its input and its output tokens, so that the price list gives the bill again.

    price of input x input tokens + price of output x output tokens = bill

by the busy time of prefill and decode, or by a ratio that somebody states. A mixed step is divided as its two parts
would take alone, by the cost model. Idle time, and what padding, slots and preemption wasted, is shared out in the same
proportion: somebody pays for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from servecast.metrics.log import chunks, mean_shapes
from servecast.metrics.waste import ratio

if TYPE_CHECKING:
    from servecast.metrics.log import Columns
    from servecast.metrics.waste import StepCost


class PriceList(NamedTuple):
    """US dollars per million tokens; None where there are none of a kind, or nothing tells how to share."""

    input: float | None = None
    output: float | None = None


def price_list(
    bill: float,
    input_tokens: float,
    output_tokens: float,
    *,
    prefill_share: float | None = None,
    output_over_input: float | None = None,
) -> PriceList:
    """Prices of which these tokens cost ``bill`` US dollars.

    prefill_share : of the busy time; input pays so much of the bill
    output_over_input : an output token costs so many input tokens, whatever the busy time
    """
    if not input_tokens or not output_tokens:  # one kind pays for all
        return PriceList(ratio(bill, input_tokens / 1e6), ratio(bill, output_tokens / 1e6))
    if output_over_input is not None:
        of_input = bill / (input_tokens + output_over_input * output_tokens) * 1e6
        return PriceList(of_input, output_over_input * of_input)
    if prefill_share is None:
        return PriceList()
    return PriceList(prefill_share * bill / input_tokens * 1e6, (1 - prefill_share) * bill / output_tokens * 1e6)


def prefill_share(decisions: Columns, cost: StepCost) -> float | None:
    """Share of the busy seconds that is prefill; None where nothing was busy."""
    prefill = busy = 0.0
    for part in chunks(decisions):
        seconds, rows = part["seconds"], part["decode_rows"]
        busy += float(seconds.sum())
        prefill += float(seconds[rows == 0].sum())
        mixed = (rows > 0) & (part["prefill_rows"] > 0)
        if mixed.any():
            shape = mean_shapes({name: column[mixed] for name, column in part.items()})
            none = 0 * shape.prefill_rows
            first = cost.seconds(shape._replace(decode_rows=none, decode_context=none))
            second = cost.seconds(
                shape._replace(prefill_rows=none, prefill_tokens=none, prefill_pairs=none, prefill_context=none)
            )
            prefill += float((seconds[mixed] * first / (first + second)).sum())
    return ratio(prefill, busy)
