"""By which latency targets the requests of a scenario are judged: its own, and those of tenants that have others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servecast.metrics import Slo, Tenants

if TYPE_CHECKING:
    from servecast.scenario import Scenario, schema
    from servecast.scenario.traffic import Traffic


def targets(scenario: Scenario) -> Slo | None:
    """What holds where a tenant says nothing else; None without targets."""
    return None if scenario.slo is None else _slo(scenario.slo)


def tenants(scenario: Scenario, sent: Traffic) -> Tenants | None:
    """The tenants of the traffic with their targets; None where it names nobody."""
    if sent.tenants is None:
        return None
    sections = scenario.workload.tenants or ()
    own = {section.name: _slo(section.slo) for section in sections if section.slo is not None}
    return Tenants.of(sent.tenants, own, [section.name for section in sections])


def _slo(section: schema.Slo) -> Slo:
    return Slo(**section.model_dump())
