"""Convert between messages and tokens: chat formats, prompt templates, reasoning."""
