"""Work where the rows are: cohorts, local training, kernels, the workspace of a model, metrics."""
