"""Fits in several threads have the bits of fits one after the other."""

from __future__ import annotations

import threading

import torch

from coterie import FedAvg
from coterie.config.local import LocalSGD, Steps
from federations import dropout, fit


def test_fits_in_two_threads_wait_for_each_other():
    problem, method = dropout(), FedAvg(LocalSGD(lr=0.1, steps=Steps(2), batch_size=4))

    def trained(seed, *callbacks):
        return fit(
            method, problem.clients, problem.model, 2, seed, callbacks=callbacks
        ).x

    alone, threads, other = {seed: trained(seed) for seed in (0, 1)}, [], {}

    def start_another(number):
        if number == 1:
            threads.append(threading.Thread(target=lambda: other.update(x=trained(1))))
            threads[0].start()
            threads[0].join(0.3)
            assert threads[0].is_alive()

    assert torch.equal(trained(0, start_another), alone[0])
    threads[0].join()
    assert torch.equal(other["x"], alone[1])
