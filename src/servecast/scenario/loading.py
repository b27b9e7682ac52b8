"""From a file (or a shipped name) to a checked `Scenario`, to the points of its sweep, and back to plain data with
every default that took effect, which is written beside the results and can be run again.
"""

from __future__ import annotations

import copy
import difflib
import itertools
import json
import math
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from servecast import resources
from servecast.errors import InputError, PointError, SlipError
from servecast.files import plain
from servecast.scenario.bounds import POINTS
from servecast.scenario.document import read as read_document
from servecast.scenario.keypath import assign, parse
from servecast.scenario.remedies import input_error
from servecast.scenario.schema import Scenario
from servecast.scenario.serving import memory_budget, serving, settle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from servecast.scenario.document import Document, KeyPath
    from servecast.scenario.serving import Serving


class Point(NamedTuple):
    """One point of a sweep with one seed: a scenario without sweep and seeds.

    label : ``rate_rps=8`` or, without a sweep, the empty text
    swept : the value of each swept key path
    """

    label: str
    swept: dict[str, Any]
    seed: int
    scenario: Scenario


_GIB = 1 << 30


def load(path: str | Path, overrides: Mapping[str, object] | None = None) -> Scenario:
    """Read and check a scenario. ``overrides`` (key path -> value) win over the file, and the file over the defaults.

    Every point of the sweep is checked too, so that a run does not fail halfway for a typing mistake.
    """
    file = find(path)
    read = read_document(file)
    overrides = overrides or {}
    data = _unswept(changed(read.data, overrides), overrides)
    scenario = check(data, file.parent, read, [parse(key, f"--set {key}") for key in overrides])
    points(scenario)
    return scenario


def changed(data: Mapping[str, Any], overrides: Mapping[str, object]) -> dict[str, Any]:
    """A copy of plain data with the values at some key paths replaced."""
    copied = copy.deepcopy(dict(data))
    for key, value in overrides.items():
        assign(copied, parse(key, f"--set {key}"), value, f"--set {key}")
    return copied


def _unswept(data: dict[str, Any], overrides: Mapping[str, object]) -> dict[str, Any]:
    """Without the axes of the sweep whose very key an override sets: it wins over the file, the sweep included."""
    sweep = data.get("sweep")
    if not isinstance(sweep, dict):
        return data
    given = [parse(key, f"--set {key}") for key in overrides]

    def kept(key: object) -> bool:
        try:
            return parse(str(key), "scenario.sweep") not in given
        except InputError:
            return True  # said when the sweep itself is checked

    return {**data, "sweep": {key: values for key, values in sweep.items() if kept(key)}}


def find(path: str | Path) -> Path:
    """The file of a scenario: the path itself, else the shipped scenario of that name."""
    file = Path(path)
    if file.is_file():
        return file
    shipped = names()
    name = str(path).removesuffix(".yaml").removeprefix("scenarios/")
    if name in shipped:
        return resources.directory("scenarios") / f"{name}.yaml"
    near = difflib.get_close_matches(name, shipped, n=1)
    hint = f"did you mean {near[0]}?" if near else f"give a path, or one of {', '.join(shipped)}"
    folder = "is a folder, not a scenario file"
    problem = folder if file.is_dir() else "no such file, and no shipped scenario of that name"
    raise InputError(str(path), f"{problem}: {hint}")


def names() -> list[str]:
    """Names of the shipped scenarios: those that teach, then those that each answer a question (``questions/NAME``)."""
    folder = resources.directory("scenarios")
    files = [*sorted(folder.glob("*.yaml")), *sorted(folder.glob("questions/*.yaml"))]
    return [file.relative_to(folder).with_suffix("").as_posix() for file in files]


def check(
    data: Mapping[str, Any], folder: Path, source: Document | None = None, overridden: Sequence[KeyPath] = ()
) -> Scenario:
    """A scenario from plain data: of ``source``, but for ``overridden`` key paths; paths are relative to ``folder``."""
    try:
        return Scenario.model_validate(data, context={"folder": folder})
    except ValidationError as error:
        raise input_error(error, Scenario, data, source, overridden) from None


def points(scenario: Scenario) -> list[Point]:
    """The grid of the sweep, the last key fastest, and each point with every seed; made once for a scenario."""
    found: list[Point] | None = getattr(scenario, "expanded", None)
    if found is None:
        found = []
        for _, here in grid(scenario):
            if isinstance(here, InputError):
                raise here
            found += here
        object.__setattr__(scenario, "expanded", found)  # it is frozen
    return found


def grid(
    scenario: Scenario, place: str = "scenario.sweep"
) -> Iterator[tuple[dict[str, Any], list[Point] | InputError]]:
    """The values of each cell of the sweep's grid, with its points (one a seed), or why it cannot be.

    place : where errors say that the sweep stands

    Raises InputError for too many points, and for a value that stands twice.
    """
    count = math.prod([len(values) for values in scenario.sweep.values()]) * scenario.seeds
    if count > POINTS.value:
        problem = f"makes {count:,} points: give a number of at most {POINTS.value:,}, since {POINTS.why}"
        raise InputError(place if scenario.sweep else "scenario.seeds", problem)
    for key, choices in scenario.sweep.items():
        twice = [choice for choice, times in Counter(map(_shown, choices)).items() if times > 1]
        if twice:
            raise InputError(f"{place}.{key}", f"{twice[0]!r} stands twice: give each value once")
    data = scenario.model_dump(mode="python", exclude={"sweep", "seeds"}, exclude_unset=True)
    for values in itertools.product(*scenario.sweep.values()):
        given = dict(zip(scenario.sweep, values, strict=True))
        try:
            yield given, _points_at(scenario, data, given, place)
        except InputError as error:
            yield given, error


def _points_at(scenario: Scenario, data: dict[str, Any], given: dict[str, Any], place: str) -> list[Point]:
    swept = {key: _shown(value) for key, value in given.items()}
    label = label_of(swept)
    at_point = _at(data, given, label, place) if given else scenario.model_copy(update={"sweep": {}, "seeds": 1})
    if any(entry.like is not None for entry in at_point.policies):
        at_point = settle(at_point, serving(at_point).device)
    workload = at_point.workload
    seeds = range(workload.seed, workload.seed + scenario.seeds)
    seeded = [at_point.model_copy(update={"workload": workload.model_copy(update={"seed": seed})}) for seed in seeds]
    return [Point(label, swept, each.workload.seed, each) for each in seeded]


def _shown(value: Any) -> str | int | float | bool:
    """A swept value as a cell of a table: a mapping, a list or null as its text."""
    return value if isinstance(value, str | int | float) else json.dumps(plain(value))


def _at(data: dict[str, Any], swept: dict[str, Any], label: str, above: str) -> Scenario:
    changed = plain(data)
    for key, value in swept.items():
        place = f"{above}.{key}"
        parts = parse(key, place)
        if parts[0] in {"sweep", "seeds", "name", "derived"} or parts[-1] == "name":
            raise SlipError(place, f"{parts[-1]} cannot be swept: take it out")
        if parts == ("policies",):
            raise SlipError(place, "the list of policies cannot be swept: list them all, or sweep policies[0].KEY")
        assign(changed, parts, value, place)
    try:
        return check(changed, Path())
    except InputError as error:
        raise PointError(above, label, error) from None


def label_of(swept: Mapping[str, Any]) -> str:
    """``rate_rps=8, batch_size=16``: the last name of each key path is enough unless two end alike."""
    last = [key.rsplit(".", 1)[-1] for key in swept]
    names = [short if last.count(short) == 1 else key for key, short in zip(swept, last, strict=True)]
    return ", ".join(f"{name}={value}" for name, value in zip(names, swept.values(), strict=True))


def resolved(scenario: Scenario, shown: Scenario | None = None) -> dict[str, Any]:
    """The scenario as plain data, paths absolute. What follows from it stands under ``derived``.

    shown : the point of the sweep that ``derived`` is about; the first by default
    ``derived`` is for people to read: a scenario that is loaded again ignores it and derives it anew.

    Raises InputError where the point's names cannot be. A policy without memory for it there has null instead.
    """
    first = shown or points(scenario)[0].scenario
    served = serving(first)
    scenario = settle(scenario, served.device)
    data: dict[str, Any] = scenario.model_dump(mode="json")
    data["engine"]["gpu_memory_utilization"] = scenario.engine.gpu_memory_utilization or served.memory_share
    data["engine"]["tensor_parallel_size"] = scenario.engine.tensor_parallel_size or served.tensor_parallel
    plans = {
        label: _budget(first, served, entry.build().set_aside)
        for label, entry in zip(scenario.labels(), first.policies, strict=True)
    }
    data["derived"] = {
        "model_parameters": served.model.parameters(),
        "device": served.device.name,
        "cost_model": served.cost.name,
        "calibrated": served.cost.calibrated,
        "memory": plans,
    }
    return data


def _budget(scenario: Scenario, served: Serving, set_aside: tuple[int, int]) -> dict[str, Any] | None:
    """The memory of a policy; None where it cannot be."""
    try:
        budget = memory_budget(scenario, served, set_aside)
    except InputError:
        return None
    sizes = {
        "usable": budget.usable_bytes,
        "weights": budget.weight_bytes,
        "activations": budget.activation_bytes,
        "overhead": budget.overhead_bytes,
        "kv": budget.kv_bytes,
    }
    return {
        "kv_blocks": budget.kv_blocks,
        "kv_tokens": budget.kv_tokens,
        "max_model_len": budget.max_model_len,
        "kv_cache_dtype": budget.kv_dtype,
        **{f"{name}_gib": round(size / _GIB, 3) for name, size in sizes.items()},
    }


def seen_from(folder: Path, data: Any) -> Any:
    """A copy of plain data in which absolute paths are relative to ``folder``."""
    if isinstance(data, dict):
        return {key: seen_from(folder, value) for key, value in data.items()}
    if isinstance(data, list):
        return [seen_from(folder, value) for value in data]
    if isinstance(data, str) and data.startswith("/"):
        path = os.path.relpath(data, folder)
        return path if path.startswith("..") else f"./{path}"
    return data
