"""Many runs: every method and seed of an experiment, the files of a run directory, and what is done with them afterwards."""
