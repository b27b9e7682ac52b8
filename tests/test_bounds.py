"""Every number of a scenario has a largest value with a reason, and what is too large in all is refused before it is made."""

import json

import pytest

from servecast.cli import app
from servecast.errors import InputError
from servecast.scenario import Scenario, load
from servecast.scenario.document import value

#: Numbers without a largest value of the schema: ``.inf`` is a rate, a burstiness; percentiles and lengths are checked
#: where their tables are built.
_FREE = {"rate_rps", "burstiness", "percentiles", "tokens", "prompt_tokens", "output_tokens", "slo"}


def _numbers(schema, node, key):
    """Each number that a JSON Schema allows, with the key it stands at."""
    if node.get("type") in ("integer", "number"):
        yield key, node
    if "$ref" in node:
        yield from _numbers(schema, schema["$defs"][node["$ref"].rsplit("/", 1)[-1]], key)
    for part in ("anyOf", "oneOf"):
        for one in node.get(part, ()):
            yield from _numbers(schema, one, key)
    for name, child in node.get("properties", {}).items():
        yield from _numbers(schema, child, name)
    for part in ("items", "additionalProperties"):
        if isinstance(node.get(part), dict):
            yield from _numbers(schema, node[part], key)


def test_every_number_of_the_schema_is_bounded():
    schema = Scenario.model_json_schema()
    numbers = list(_numbers(schema, schema, ""))
    assert len(numbers) > 100
    assert {key for key, node in numbers if "maximum" not in node} <= _FREE


@pytest.mark.parametrize(
    ("key", "given", "says"),
    [
        ("engine.block_size", 1 << 63, "9223372036854775808 is out of range: give a number of at most 65,536, since a"),
        ("replicas", 10**9, "1000000000 is out of range: give a number of at most 4,096, since each is"),
        ("replicas", 1 << 70, "give a number of at most 4,096"),
        ("engine.kv_blocks", 10**40, "at most 1,000,000,000, since"),
        ("engine.restart_s", 1e300, "at most 100,000,000, since three years"),
        ("workload.seed", 1 << 70, "at most 9,007,199,254,740,992"),
        ("workload.requests", 10**9, "at most 20,000,000, since their tables"),
        ("policies[0].batch_size", 10**7, "at most 1,000,000, since no engine"),
        ("goal", {"slo": {"ttft_p99_s": 1e300}}, "can never be missed: give at most 100,000,000"),
        ("model", "x" * 10_000, "has 10,000 characters: give at most 4096"),
    ],
)
def test_what_is_too_large_is_refused_with_bound_and_reason(key, given, says):
    with pytest.raises(InputError) as refused:
        load("quickstart", {key: given})
    assert refused.value.place.startswith(f"scenario.{key}")
    assert says in refused.value.problem and len(str(refused.value)) < 400


#: Ten lines that hold ten billion values.
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\n", None),
        (BOMB, "111,111 values"),
        ("a: &a [*a]\n", "levels deep"),
        ("a: " + "[" * 100 + "]" * 100, "levels deep"),
        ("a: !!binary aGk=\n", "constructor for the tag"),
        ("a: !!set {x}\n", "constructor for the tag"),
    ],
    ids=["ordinary", "bomb", "itself", "deep", "bytes", "set"],
)  # fmt: skip
def test_aliases_cannot_blow_up_and_data_is_plain(tmp_path, text, says):
    file = tmp_path / "bomb.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as refused:
        load(file)
    assert (says or "unknown key") in refused.value.problem
    if says is not None:
        with pytest.raises(InputError, match="is not a YAML value"):
            value("{" + text.replace("\n", ", ") + "}", "--set a")
    assert json.dumps(str(refused.value)).count("\\n") == 0


@pytest.mark.parametrize(
    "arguments", [("explain", "--model", "llama-3.1-8b", "--device"), ("explain", "--model", "qwen3-14b", "--profile")]
)
@pytest.mark.parametrize(
    "text", [BOMB, "a: &a [*a]\n", "a: " + "[" * 3000, "a: " + "9" * 6000, "a: !!timestamp 2020-13-45\n"]
)
def test_every_yaml_file_is_read_as_plain_data(tmp_path, capsys, arguments, text):
    file = tmp_path / "file.yaml"
    file.write_text(text)
    with pytest.raises(SystemExit) as end:
        app.main([*arguments, str(file)])
    said = capsys.readouterr().err
    assert end.value.code == 2 and len(said.splitlines()) == 1
    assert said.startswith(f"{file}: is not YAML of plain data (")
