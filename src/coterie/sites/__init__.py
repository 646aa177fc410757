"""Clients at institutions: the server's half, a site's half, and what they agree on."""
