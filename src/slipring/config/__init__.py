"""Every setting of a server: flags, variables, and the TOML file with its tables."""
