"""From a scenario to its runs: one system, every point of a sweep, kept as they are made."""
