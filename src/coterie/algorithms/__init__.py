"""Methods: one file is one paper, and says in its header what `coterie methods` says of it."""
