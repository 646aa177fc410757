"""Settings: their rules, how they are read and spelled, and the hooks of what a user hands in."""
