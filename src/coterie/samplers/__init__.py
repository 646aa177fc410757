"""Samplers: which rows a client trains on, for any method (`LocalSGD(sampler=...)`), and the methods that are FedAvg with one."""
