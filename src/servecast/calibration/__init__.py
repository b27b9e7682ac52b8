"""Fitting: from measured steps, operators, recorded runs or requests to a cost model and its profile."""
