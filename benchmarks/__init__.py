"""What an operation costs, as ratios inside one run.

    python -m benchmarks                   # every part, about ten minutes on a quiet machine
    python -m benchmarks --quick           # a smoke run of about a minute: does every part still work
    python -m benchmarks --full            # longer slices, more rounds, ten million records: about 45 minutes
    python -m benchmarks web growth        # only these parts; they replace their share of the day's file
    python -m benchmarks web --name 2026-11-16     # … or of another file
    python -m benchmarks --page            # the docs' page and charts, from the newest file

Every figure is a ratio against a named baseline that ran in the same round, the modes taking turns; the median of the
rounds with [least .. most]. Absolute numbers are kept in the result file and mean something on one machine only.
Nothing is asserted: a benchmark that fails a build on a busy machine is soon switched off.
"""
