"""What arrives: arrival processes, lengths, the clients that send them, and traces of real requests."""
