"""`tasks`: tasks of an agent program from a JSONL file."""
