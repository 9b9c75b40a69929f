"""Complete recipes as TOML files; `seeupo.config.loader` finds them by name."""
