"""What a step costs: the roofline of a datasheet, and models from measurements with their profile file.

`model` is the interface and says where a model was measured; `roofline`, `fitted` and `tabulated` are its kinds.
`physics` gives the coefficients at a device's peaks, `host` the overhead of an engine, `curves` the lines through
measured times. `profile` is the file of a fitted or a tabulated model.
"""
