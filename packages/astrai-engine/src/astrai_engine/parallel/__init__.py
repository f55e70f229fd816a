"""Tensor parallelism: one model, run together by several processes.

Rank 0 is the process that the user started; it schedules, samples and talks to others. It starts a
worker process for each other rank, tells all of them about a step, and runs the step as they do.
"""
