"""Memory and time of a run before it starts, from the shapes of its model."""
