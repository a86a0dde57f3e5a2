"""Models: what the engine asks of one, and those that it brings."""
