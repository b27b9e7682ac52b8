"""What is served and what serves it: models and devices, with their catalogues."""
