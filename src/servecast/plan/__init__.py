"""Questions of capacity: many runs at once (`sweep`), memory and ridge (`explain`), worked numbers (`lessons`)."""
