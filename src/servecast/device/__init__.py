"""Real steps on a real device: the only folder that imports torch, and only in the files that compute.

`model` computes a transformer step, `serving` is a step of rows on their KV cache, `timing` the clock, `executor` the
engine's executor (`recorded` its playback, without torch), `calibrate` the measuring of a profile with `grid` its plan
and `ceilings` the roofs, `cliff` the memory limit found by running out.
"""
