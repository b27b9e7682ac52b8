"""What a step costs: the roofline of a datasheet, and a model fitted to measured steps with its profile file.

`model` is the interface, `roofline` and `fitted` the two kinds, `domain` where the second was measured, `steps` reads
tables of measured steps, `physics` turns a model and a device into coefficients at the peaks, `fit` fits, and
`profile` is the file that a fit writes.
"""
