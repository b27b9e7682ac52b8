"""Which runs of two results belong together: policies by name, then by parameters, then by place; seeds by number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servecast.text import listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Seeds without a value that are told one by one.
_TOLD = 3


def renamed(
    before: Sequence[str], after: Sequence[str], scenarios: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> tuple[dict[str, str], list[str]]:
    """What the first calls those policies of the second (``after``) that it does not know, and what to tell of them.

    before, after : names of the policies, in their order
    scenarios : of both, as they are written beside the results

    Those with equal parameters belong together; what is left is taken in order, if it is as many.
    """
    old = [name for name in before if name not in after]
    new = [name for name in after if name not in before]
    parameters = [_parameters(names, scenario) for names, scenario in zip((before, after), scenarios, strict=True)]
    found, notes = {}, []
    for name in list(new):
        own = parameters[1].get(name)
        same = next((other for other in old if own is not None and parameters[0].get(other) == own), None)
        if same is not None:
            found[name] = same
            old.remove(same)
            new.remove(name)
            notes.append(f"{name} is held against {same}, which has the same parameters.")
    if len(old) == len(new):
        found |= dict(zip(new, old, strict=True))
        notes += [f"{name} is held against {other}." for name, other in zip(new, old, strict=True)]
    return found, notes


def _parameters(names: Sequence[str], scenario: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The parameters of each policy by its name; empty where the scenario does not say which is which."""
    entries = scenario.get("policies")
    if not isinstance(entries, list) or len(entries) != len(names):
        return {}
    found = {}
    for name, entry in zip(names, entries, strict=True):
        if not isinstance(entry, dict):
            return {}
        # A policy without a name is called by its kind, with what tells it from others of that kind.
        if (name != entry["name"]) if entry.get("name") else (name.split(" ")[0] != entry.get("kind")):
            return {}
        found[name] = {key: value for key, value in entry.items() if key != "name"}
    return found


def paired(before: int, after: int, shared: int) -> bool:
    """Whether runs are compared by their common seeds alone; else all of them are, as separate draws.

    One common seed has no interval, and says little where both have more; where one side has a single seed there is
    none in any case, and the same requests are the better comparison.
    """
    return shared >= 2 or (shared == 1 and min(before, after) < 2)


def seeds_told(seeds: Sequence[tuple[frozenset[int], frozenset[int]]], names: tuple[object, object]) -> Iterator[str]:
    """What to tell of seeds that one side alone has, of the policies and points that both have.

    seeds : of both sides, for each policy and point
    names : of the two results
    """
    for one in dict.fromkeys(seeds):
        a, b = one
        if a == b:
            continue
        where = "" if len(set(seeds)) == 1 else f" At {seeds.count(one)} of {len(seeds)} policies and points."
        if paired(len(a), len(b), len(a & b)):
            left = [f"{_numbers(only)} of {name}" for only, name in zip((a - b, b - a), names, strict=True) if only]
            yield f"Compared by the common seeds ({_numbers(a & b)}) alone; left out: {listed(left)}.{where}"
        else:
            sides = [f"{name} has {_numbers(side)}" for side, name in zip(one, names, strict=True)]
            yield (
                f"Fewer than two common seeds ({'; '.join(sides)}): all are compared, as separate draws (Welch's "
                f"interval), which is wider than with common seeds.{where}"
            )


def missing_told(gone: Sequence[tuple[str, str, int]]) -> Iterator[str]:
    """What to tell of seeds that have a metric on one side alone: metric, policy and point, and seed."""
    if gone:
        told = [f"{metric} of {where}, seed {seed}" for metric, where, seed in gone[:_TOLD]]
        more = f" and {len(gone) - _TOLD} more" if len(gone) > _TOLD else ""
        yield f"Left out, because one side alone has a value: {'; '.join(told)}{more}."


def _numbers(seeds: frozenset[int]) -> str:
    """``0 to 3``, or ``1, 5 and 7``."""
    each = sorted(seeds)
    if len(each) > 2 and each[-1] - each[0] == len(each) - 1:
        return f"{each[0]} to {each[-1]}"
    return listed([str(seed) for seed in each])
