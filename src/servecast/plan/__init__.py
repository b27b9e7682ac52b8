"""The fewest GPUs for a goal: search, capacity, how sure it is; and the worked numbers of batching (`lessons`)."""
