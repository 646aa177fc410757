"""Tools that every room may use: errors, files from outside, random streams, vectors, and clients with their rows."""
