"""What an algorithm talks to: methods, tasks, the federation, replies and their checks, filters and messages."""
