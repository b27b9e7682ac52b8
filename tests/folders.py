"""Results folders as `servecast run` writes them, from plain rows."""

import pandas as pd
import yaml


def folder(path, rows, **scenario):
    """A results folder as written: rows of policy, swept values, seed and metrics."""
    path.mkdir(parents=True)
    pd.DataFrame(rows).to_csv(path / "summary.csv", index=False)
    (path / "scenario.yaml").write_text(yaml.safe_dump({"name": path.name, **scenario}))
    return path


def seeds(values, policy="continuous", first=0, metric="ttft_p99_s", **swept):
    """A row for each value of a metric, with seeds from ``first`` on."""
    return [{"policy": policy, **swept, "seed": first + at, metric: value} for at, value in enumerate(values)]
