"""Training on several processes: Ray places them, FSDP2 shards the weights."""
