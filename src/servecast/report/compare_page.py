"""The folder of a comparison: the table, the requests side by side, figures, and a self-contained page."""

from __future__ import annotations

import base64
from importlib import resources
from typing import TYPE_CHECKING

import servecast
from servecast.files import replacing, scenario_text, write_tables
from servecast.metrics import PERCENTILE_RULE
from servecast.report import compare_words as words
from servecast.report.compare_figures import draw
from servecast.report.verdicts.compare import verdict
from servecast.scenario import resolved, seen_from

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from servecast.against.server.compared import Comparison


def write(compared: Comparison, out: Path) -> Path:
    """Write ``out/<scenario name>-compared/``, whole or not at all, in place of an earlier one; the path of its page.

    Raises InputError: the folder cannot be written, or what is there holds no results.
    """
    import jinja2

    target = out / f"{compared.setting.scenario.name}-compared"
    scenario = seen_from(target.resolve(), as_it_ran(compared))
    plots = draw(compared)
    images = {plot.name: plot.png() for plot in plots}
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    with replacing(target) as folder:
        files = write_tables(folder, scenario, {"summary": compared.table, "requests": compared.requests})
        for plot in plots:
            (folder / f"{plot.name}.png").write_bytes(images[plot.name])
            (folder / f"{plot.name}.svg").write_bytes(plot.svg())
        page = environment.get_template("comparison.html.j2").render(
            name=scenario["name"],
            version=servecast.__version__,
            verdict=verdict(compared),
            settings=words.settings(compared),
            tables=words.tables(compared),
            figures=[(plot, base64.b64encode(images[plot.name]).decode()) for plot in plots],
            scenario=scenario_text(scenario),
            files=files,
            percentile_rule=PERCENTILE_RULE,
        )
        (folder / "report.html").write_text(page, encoding="utf-8")
    return target / "report.html"


def as_it_ran(compared: Comparison) -> dict[str, Any]:
    """The resolved scenario, with the network that was used."""
    data = resolved(compared.setting.scenario)
    data["workload"]["network"] = compared.setting.network._asdict()
    return data


def _template(name: str) -> str:
    return resources.files("servecast.report").joinpath("templates", name).read_text(encoding="utf-8")
