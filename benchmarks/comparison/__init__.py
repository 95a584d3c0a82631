"""The comparison of pycoll's engine with other libraries' collectives; `benchmarks/peers.py` is its face."""
