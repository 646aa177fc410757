"""The interface of algorithms: methods, tasks, the federation, replies and their checks, filters and messages."""
