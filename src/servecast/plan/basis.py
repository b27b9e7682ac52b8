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
class Rest:
    """A profile or data sheet that priced steps.

    name : of the profile, or of the device
    profile : errors and provenance as plain values; None of a data sheet
    """

    name: str
    profile: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Basis:
    """The grounds of a plan.

    scenario : as it was searched, as plain data with absolute paths; ``derived`` is of the best configuration
    rests : one a profile (or device), that of the best configuration first
    """

    scenario: Mapping[str, Any] = field(default_factory=dict)
    rests: tuple[Rest, ...] = ()


def basis_of(scenario: Scenario, plan: Plan) -> Basis:
    """The grounds of ``plan``, which was made of ``scenario``."""
    able = [option for option in plan.options if option.capacity is not None]
    first = plan.best.label if plan.best is not None else ""
    able.sort(key=lambda option: option.label != first)
    rests = {rest.name: rest for rest in (_rest(scenario, option) for option in able)}
    return Basis(_data(scenario, able[0] if able else None), tuple(rests.values()))


def _rest(scenario: Scenario, option: Option) -> Rest:
    name = option.changed.get("profile", None if "device" in option.changed else scenario.profile)
    if name is None:
        return Rest(option.device)
    loaded = profiles.load(str(name))
    return Rest(loaded.name, loaded.model_dump(mode="json"))


def _data(scenario: Scenario, best: Option | None) -> dict[str, Any]:
    """As a file can have it; ``derived`` is of the best configuration, where there is one."""
    over = scenario.search.over if scenario.search is not None else {}
    scenario = _placed(scenario)
    unsettled = scenario.model_dump(mode="json", exclude={"derived"})
    # What `like` fills in must not look as if it had been given.
    unsettled["policies"] = [
        {"kind": entry.kind, **entry.model_dump(mode="json", exclude_unset=True)} if entry.like is not None else plain
        for entry, plain in zip(scenario.policies, unsettled["policies"], strict=True)
    ]
    if best is None:
        return unsettled
    point = scenario.model_copy(update={"sweep": _values(over, best), "seeds": 1})
    settled = resolved(scenario, points(point)[0].scenario)
    if any(key.split(".")[0].split("[")[0] in _DECIDING for key in over):
        return {**unsettled, "derived": settled["derived"]}
    return settled


def _placed(scenario: Scenario) -> Scenario:
    """The scenario with searched files by whole paths: a search reads them from the working folder."""
    if scenario.search is None:
        return scenario
    over = {key: tuple(map(_whole, choices)) for key, choices in scenario.search.over.items()}
    return scenario.model_copy(update={"search": scenario.search.model_copy(update={"over": over})})


def _whole(value: Any) -> Any:
    return str(Path(value).resolve()) if isinstance(value, str) and value.startswith(("./", "../")) else value


def _values(over: Mapping[str, Any], option: Option) -> dict[str, Any]:
    """The searched values of an option as the scenario has them: an option tells a mapping as its text."""
    return {
        key: (next(value for value in choices if _told(value) == option.changed[key]),)
        for key, choices in over.items()
        if key in option.changed
    }


def _told(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else json.dumps(value)
