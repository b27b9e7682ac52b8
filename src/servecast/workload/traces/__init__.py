"""Traces of real requests: one reader a format, recognised by content; slicing and scaling; statistics."""
