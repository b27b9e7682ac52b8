"""What a plan rests on: the scenario as it was searched, and the errors of the profiles that priced its steps.

The scenario has every default written out, as the one beside a run's results has, and gives the same plan again. What
depends on the device is settled only where the search keeps the device: a utilisation that one GPU's engine has by
default would be another's for the next.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servecast.cost import profile as profiles
from servecast.scenario import points, resolved

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servecast.plan.answer import Option, Plan
    from servecast.scenario import Scenario

#: First parts of key paths that decide what an engine's defaults are.
_DECIDING = ("profile", "device", "model", "engine", "policies")


@dataclass(frozen=True)
class Basis:
    """The grounds of a plan.

    scenario : as it was searched, as plain data with absolute paths; ``derived`` is of the best configuration
    rests : what priced steps, that of the best configuration first: errors and provenance of a profile by its name, as
        plain values; None of a data sheet, by its device
    """

    scenario: Mapping[str, Any] = field(default_factory=dict)
    rests: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)


def basis_of(scenario: Scenario, plan: Plan) -> Basis:
    """The grounds of ``plan``, which was made of ``scenario``."""
    able = [option for option in plan.options if option.capacity is not None]
    first = plan.best.label if plan.best is not None else ""
    able.sort(key=lambda option: option.label != first)
    rests: dict[str, Mapping[str, Any] | None] = {}
    for option in able:
        name = option.changed.get("profile", None if "device" in option.changed else scenario.profile)
        profile = None if name is None else profiles.load(str(name))
        rests[option.device if profile is None else profile.name] = (
            None if profile is None else profile.model_dump(mode="json")
        )
    return Basis(_data(scenario, able[0] if able else None), rests)


def _data(scenario: Scenario, best: Option | None) -> dict[str, Any]:
    """As a file can have it; ``derived`` is of the best configuration, where there is one."""
    search, over = scenario.search, {} if scenario.search is None else scenario.search.over
    if search is not None:  # a search reads files from the working folder
        whole = {key: tuple(map(_whole, choices)) for key, choices in over.items()}
        scenario = scenario.model_copy(update={"search": search.model_copy(update={"over": whole})})
    unsettled = scenario.model_dump(mode="json", exclude={"derived"})
    # What `like` fills in must not look as if it had been given.
    unsettled["policies"] = [
        {"kind": entry.kind, **entry.model_dump(mode="json", exclude_unset=True)} if entry.like is not None else plain
        for entry, plain in zip(scenario.policies, unsettled["policies"], strict=True)
    ]
    if best is None:
        return unsettled
    # An option tells a mapping as its text.
    values = {
        key: (next(value for value in choices if _told(value) == best.changed[key]),)
        for key, choices in over.items()
        if key in best.changed
    }
    point = scenario.model_copy(update={"sweep": values, "seeds": 1})
    settled = resolved(scenario, points(point)[0].scenario)
    if any(key.split(".")[0].split("[")[0] in _DECIDING for key in over):
        return {**unsettled, "derived": settled["derived"]}
    return settled


def _whole(value: Any) -> Any:
    return str(Path(value).resolve()) if isinstance(value, str) and value.startswith(("./", "../")) else value


def _told(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else json.dumps(value)
