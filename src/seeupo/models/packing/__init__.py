"""Tree packing: shared prefixes of trajectories pass through a model once."""
