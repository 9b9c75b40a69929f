"""Complete recipes as TOML files; `seeupo.training.configuration` finds them by name."""
