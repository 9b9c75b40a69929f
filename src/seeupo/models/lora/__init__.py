"""LoRA adapters: inserting, merging, saving, one per turn."""
