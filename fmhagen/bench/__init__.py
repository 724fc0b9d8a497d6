"""Bench: kernels and their peers, timed side by side by one protocol.

    workloads   what is timed: a spec with sizes, and the suites
    contest     records: who is timed on a workload, and what came of it
    measure     holds a contest on a device: prepare, check, capture, shuffled rounds
    timing      the rounds themselves, and the numbers made from them
    device      PyTorch as the ground that all stand on: inputs, graphs, events, float64
    monitor     clock and power of the chip while it is timed
    caches      inputs as calls over a key/value cache take them
    peers       the adapters of other people's kernels
    worker      the child process that holds contests; `watch` is its watchdog
    report      ratios, means, tables; `markdown` and `plot` show them

Nothing here is imported by `import fmhagen`, and PyTorch only by what runs on a device.
"""
