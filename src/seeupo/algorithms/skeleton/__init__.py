"""A custom algorithm and its test, which `seeupo algorithms new` copies."""
