"""Gateway: a server in front of a sampler, for programs that call a model through an API."""
