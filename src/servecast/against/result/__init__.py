"""What changed between two results, or two plans."""
