"""What an operation costs, as ratios inside one run.

    python -m benchmarks                 # everything that takes minutes, not hours
    python -m benchmarks --quick         # a smoke run: does every part still work
    python -m benchmarks stores web      # only these parts
    python -m benchmarks growth --full   # ten million records as well

Every figure is a ratio against a named baseline that ran in the same round, the modes taking turns; the median of the
rounds with [least .. most]. Absolute numbers are kept in the result file and mean something on one machine only.
Nothing is asserted: a benchmark that fails a build on a busy machine is soon switched off.
"""
