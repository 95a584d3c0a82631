"""GPUs: what joins them, which ways there are to run an AllReduce on them, and which one is the quickest.

    pycoll topo probe --device cuda -o gpus.yaml      # how this host's GPUs reach each other
    pycoll tune --device cuda                         # which way is the quickest for which size
    pycoll explain allreduce 1MiB --device cuda       # why

``pycoll.cuda.Group.allreduce`` goes by what ``tune`` wrote. docs/gpu.md and docs/selector.md describe it.
"""
