"""Prices of a goal that a plan has no use for: said, so that a slip in a device's name does not pass for a price."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.text import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servecast.plan.answer import Option
    from servecast.scenario.goals import Goal


def unused(goal: Goal, options: Sequence[Option]) -> tuple[str, ...]:
    """The note on prices of devices that no option is on; none where each has its use."""
    devices = list(dict.fromkeys(option.device for option in options))
    idle = [name for name in goal.usd_per_gpu_hour if name not in devices]
    if not idle:
        return ()
    its, is_ = ("its price", "is") if len(idle) == 1 else ("their prices", "are")
    return (f"No option is on {listed(idle)}: {its} {is_} not used. The options are on {listed(devices)}.",)
