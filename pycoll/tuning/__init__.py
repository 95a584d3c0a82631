"""`pycoll tune`: measures which algorithm is quickest for which size on this machine, and checks the result.

The command is in `pycoll.cli.tune`; `pycoll.tuning.options.TuneOptions` and `pycoll.tuning.measure.run_rank`
are its programmatic face. What it writes is a `pycoll.Profile`.
"""
