"""Filters: what changes a reply between a client's task and the wire. One file is one filter."""
