"""Everything that imports Ray: FSDP2 ranks, remote samplers, vLLM, and environment workers on other nodes."""
