"""Complete recipes as TOML files, which `seeupo.config.loader` finds by name."""
