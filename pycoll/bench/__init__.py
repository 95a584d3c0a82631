"""`pycoll bench`: times collectives as nccl-tests does, and checks every element of every result.

The command is in `pycoll.cli.bench`; `pycoll.bench.options.BenchOptions` and `pycoll.bench.runner.run_rank`
are its programmatic face.
"""
