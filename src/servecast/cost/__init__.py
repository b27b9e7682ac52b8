"""What a step costs: the roofline of a datasheet, and models from measurements with their profile file.

`model` is the interface; `roofline`, `fitted` and `tabulated` are its kinds, `domain` says where the last two were
measured. `fit` fits tables of measured steps, read by `steps`, with `physics` for what they do not tell. `assemble`
puts measured operators together, read by `layer_tables` and `kernel_tables` into `operators`, drawn as `curves`, under
the overhead of a `host`. `fit_requests` makes a coarse one of recorded requests. `profile` is the file of either.
"""
