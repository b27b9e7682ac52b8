"""Makes the reference pages that come from the code: commands, scenario keys, metrics, columns of the tables.

mkdocs runs this as a hook (mkdocs.yml). The pages exist only in the built site, so they cannot be out of date.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those on disk."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def pages() -> dict[str, str]:
    """The generated pages: path below docs/ to text."""
    return {
        "reference/commands.md": commands(),
        "reference/scenario.md": scenario_keys(),
        "reference/metrics.md": metrics(),
        "reference/columns.md": columns(),
        "reference/formats.md": formats(),
        "reference/catalogue.md": catalogue(),
    }


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; a bar inside a cell is escaped."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


# --- scenario keys --------------------------------------------------------------------------------------------------


def scenario_keys() -> str:
    """Every key of a scenario, from the schema that checks it."""
    from servecast.scenario import Scenario

    schema = Scenario.model_json_schema()
    sections = schema["$defs"]
    about = (
        "This page is made from the schema that checks a scenario file. `servecast schema` prints the schema for your "
        "editor. A key without a default must be given. Units stand in the keys: `_s` is seconds, `_rps` requests a "
        "second, `_tokens` tokens. A key path such as `workload.arrivals.rate_rps` or `policies[0].batch_size` names "
        "a key for `--set`, `sweep` and `search.over`; `policies[*].batch_size` is every policy that has the key.\n"
    )
    out = ["# Scenario keys\n", about, "## The file\n", _keys(schema)]
    for name in dict.fromkeys(_sections_below(schema, sections)):
        kind = sections[name]["properties"].get("kind")
        title = f"{name} (`kind: {kind['const']}`)" if kind else name
        first = sections[name].get("description", "").partition("\n\n")[0]
        out += [f"## {title} {{ #{name.lower()} }}\n", _one_line(first) + "\n", _keys(sections[name])]
    return "\n".join(out)


def _sections_below(part: Mapping[str, Any], sections: Mapping[str, Any]) -> Iterator[str]:
    """Names of the sections that a part mentions, each followed by those that it mentions itself."""
    for name in _references(part.get("properties", {})):
        yield name
        yield from _sections_below(sections[name], sections)


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield _section(value)
        for key, below in value.items():
            if key != "discriminator":  # it names the same sections again
                yield from _references(below)
    elif isinstance(value, list):
        for below in value:
            yield from _references(below)


def _section(field: Mapping[str, Any]) -> str:
    return str(field["$ref"].rpartition("/")[2])


def _keys(part: Mapping[str, Any]) -> str:
    required = part.get("required", [])
    rows = [
        [f"`{key}`", _values(field), _default(key, field, required), _one_line(field.get("description", ""))]
        for key, field in part["properties"].items()
        if key != "kind"  # it stands in the title
    ]
    return _table(("key", "value", "default", "meaning"), rows)


def _default(key: str, field: Mapping[str, Any], required: Iterable[str]) -> str:
    """The default as YAML; empty for a key that must be given, and for a section that starts from its own defaults."""
    import yaml

    if key in required or "default" not in field:
        return ""
    text = yaml.safe_dump(field["default"], default_flow_style=True).removesuffix("...\n")
    return f"`{text.strip()}`"


_KINDS = {"integer": "whole number", "string": "text", "boolean": "true or false", "null": "null"}
_SIGNS = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}


def _values(field: Any) -> str:
    """The values a key takes, in words; a section is a link."""
    if not isinstance(field, dict):
        return "any value"
    if "$ref" in field:
        return f"[{_section(field)}](#{_section(field).lower()})"
    for union in ("anyOf", "oneOf"):
        if union in field:
            return " or ".join(dict.fromkeys(_values(each) for each in field[union]))
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    kind = field.get("type", "any value")
    if kind == "array":
        return f"list of {_values(field.get('items'))}"
    if kind == "object":
        return f"mapping to {_values(field.get('additionalProperties'))}"
    limits = [f"{sign} {field[key]:,}" for key, sign in _SIGNS.items() if key in field]
    return " ".join([_KINDS.get(kind, kind), *limits])


# --- metrics and tables ---------------------------------------------------------------------------------------------


def metrics() -> str:
    """Every column of ``summary.csv``, from the table of metrics."""
    from servecast.metrics import LATENCIES, METRICS, PERCENTILES

    statistics = ("mean", *(f"p{rank}" for rank in PERCENTILES))
    of_latency = {f"{name}_{statistic}_s" for name in LATENCIES for statistic in statistics}
    latencies = [
        [f"`{name}_*_s`", each.label, "goal" if each.goal else "", _one_line(each.text)]
        for name, each in LATENCIES.items()
    ]
    others = [
        [f"`{name}`", each.label, each.unit, _BETTER[each.direction], _marks(each), _one_line(each.text)]
        for name, each in METRICS.items()
        if name not in of_latency
    ]
    stars = ", ".join(f"`{each}`" for each in statistics)
    return _METRICS_PAGE.format(
        stars=stars,
        latencies=_table(("column", "heading", "", "meaning"), latencies),
        others=_table(("column", "heading", "unit", "better", "", "meaning"), others),
    )


_METRICS_PAGE = """# Metrics

This page is made from the table of metrics. These are the columns of `summary.csv`, after the policy, the swept keys
and the seed; `tenants.csv` has those marked *tenants* for each tenant. A *goal* can stand in `goal.slo` of a plan. What
has no value is empty, never 0. [Definitions](../explanation/definitions.md) says more about some.

## Latencies

Each has the columns {stars} in the place of the star, in seconds, of the completed requests. Less is better. Tables on
the terminal show some in milliseconds.

{latencies}
## Others

{others}"""
_BETTER = {1: "more", -1: "less", 0: ""}


def _marks(metric: Any) -> str:
    return ", ".join(word for word, holds in (("goal", metric.goal), ("tenants", metric.per_tenant)) if holds)


#: What the columns mean that no class describes.
_COLUMNS = {
    "policy": "name of the policy",
    "seed": "seed of the workload",
    "id": "place in the workload, from 0",
    "arrival_s": "when it arrived at the client [s]",
    "sent_s": "when it reached the server [s]; latencies count from here",
    "prompt_tokens": "tokens of the prompt",
    "output_tokens": "tokens that were asked for",
    "generated_tokens": "tokens that were generated",
    "status": "completed, rejected, oom or unfinished",
    "finish_reason": "`stop`: answered in full; `length`: cut at max_model_len; `abort`: lost as memory ran out",
    "reject_reason": "why it was refused whole: `prompt_too_long`, `answer_too_long`, `exceeds_kv_cache`",
    "scheduled_s": "when it was first part of a step [s]",
    "first_token_s": "when its first token was there [s]",
    "finish_s": "when its last token was there [s]",
    "preemptions": "how often it was preempted",
    "recomputed_tokens": "tokens computed again, after a preemption",
    "slot": "slot of the batch in which it ended",
    "start_s": "when the first step began [s]",
    "iterations": "steps that the decision lasted",
    "seconds": "how long all of them took [s]",
    "step_s": "how long the first of them took [s]",
    "kv_blocks": "KV blocks held at the end",
    "finished": "requests that ended with it",
    "step_flops": "FLOP of its mean step, for each GPU",
    "step_bytes": "bytes moved by its mean step, for each GPU",
}


def columns() -> str:
    """The columns of the tables of requests and of decisions, as a run has them."""
    from servecast.batch import StepShape, Tally
    from servecast.metrics import LATENCIES

    known = {**_COLUMNS, **_described(StepShape), **_described(Tally)}
    known |= {f"{name}_s": f"{each.text} [s]" for name, each in LATENCIES.items()}
    run = _small_run()
    out = ["# Columns of the tables\n", "This page is made from a small run.\n"]
    for name, title in (("requests", "A row a request"), ("decisions", "A row a scheduling decision")):
        found = [[f"`{column}`", known[str(column)]] for column in getattr(run, name).columns]
        out += [f"## {name}\n", f"{title}.\n", _table(("column", "meaning"), found)]
    return "\n".join(out)


def _described(described: type) -> dict[str, str]:
    """``name : meaning`` lines of a docstring."""
    lines = re.findall(r"^ *([\w, ]+) : (.+)$", described.__doc__ or "", flags=re.MULTILINE)
    return {name: text for names, text in lines for name in names.split(", ")}


@functools.cache
def _small_run() -> Any:
    import servecast

    return servecast.simulate(servecast.load("straggler"))


# --- what ships -----------------------------------------------------------------------------------------------------


def formats() -> str:
    """The formats of traces, in the order in which a file is tried."""
    from servecast.workload.traces import plain
    from servecast.workload.traces.readers import FORMATS, PLAIN_READERS, READERS
    from servecast.workload.traces.rows import Reader

    rows = [
        [f"`{reader.name}`", _one_line(reader.signature), _one_line(reader.remark or "")]
        for reader in (*READERS, *PLAIN_READERS)
    ]
    about = (
        "This page is made from the readers. A file is recognised by its content; the plain formats are tried last. "
        "`--format NAME` and `workload.trace.format` name one where the content does not tell.\n"
    )
    meaning = [
        f"### {', '.join(f'`{one.name}`' for one in vars(form).values() if isinstance(one, Reader))}\n\n{form.__doc__}"
        for form in (*FORMATS, plain)
    ]
    table = _table(("format", "recognised by", "remark"), rows)
    return f"# Trace formats\n\n{about}\n{table}\n## Units and meaning\n\n{chr(10).join(meaning)}"


def catalogue() -> str:
    """The models, devices, profiles and scenarios that ship."""
    from servecast.report.listing import listing

    out = ["# Catalogue\n", "This page is made from what ships; `servecast list` prints the same.\n"]
    for what in ("models", "devices", "profiles", "scenarios"):
        found = listing(what)
        out += [f"## {found.title.capitalize()}\n", _table(found.columns, found.rows)]
    return "\n".join(out)


# --- commands -------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Every command with its arguments and options, from the command line itself."""
    import typer

    from servecast.cli.app import app

    group: Any = typer.main.get_command(app)
    out = [
        "# Commands\n",
        "This page is made from the command line itself. `servecast COMMAND --help` says the same.\n",
    ]
    for name, command in group.commands.items():
        prose, _, examples = (command.help or "").partition("Examples:")
        out += [f"## {name}\n", *(f"{_one_line(each)}\n" for each in prose.split("\n\n") if each.strip())]
        lines = [line.strip() for line in examples.splitlines() if line.strip()]
        out += ["```text", *lines, "```\n", _table(("argument or option", "meaning"), _parameters(command))]
    return "\n".join(out)


def _parameters(command: Any) -> Iterator[list[str]]:
    for parameter in command.params:
        argument = parameter.param_type_name == "argument"
        names = [parameter.name.upper()] if argument else parameter.opts
        default = parameter.default
        given = default not in (None, False, "", []) and not callable(default)
        shown = f" Default: `{default}`." if given else ""
        yield [", ".join(f"`{each}`" for each in names), _one_line(parameter.help or "") + shown]
