"""The contracts: clients, cohorts, tasks, federations, vectors, randomness and state."""
