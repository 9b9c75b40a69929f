"""What a run came to, on one page: did it work, can it be trusted, and where did the credit go."""
