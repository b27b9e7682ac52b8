"""A forecast held against something: a recorded server, a device, another result."""
