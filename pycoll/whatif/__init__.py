"""What-if: break a machine on paper, and see what that does to collectives and to whole iterations.

    from pycoll import whatif
    print(whatif.compare("two_racks", [whatif.Slow("tor0-tor1", 0.5)], "allreduce", "25MiB"))
    print(whatif.each("two_racks", "link"))
    print(whatif.sweep("two_racks", "tor0-tor1=0.25..4"))
    whatif.time("hgx-h100-16-rail", "allreduce", "1GiB", group=64)          # seconds

docs/whatif.md answers six questions with it.
"""

from pycoll.whatif.changes import (
    Add,
    Busy,
    Change,
    Ecmp,
    Fail,
    Flows,
    Late,
    LateDist,
    Latency,
    Oversubscribe,
    Place,
    Remove,
    Slow,
    Spread,
    apply,
)
from pycoll.whatif.check import Check, Checked, check, known_check
from pycoll.whatif.compare import Comparison, Row, compare, time
from pycoll.whatif.each import Harm, Harms, each
from pycoll.whatif.evaluate import Outcome
from pycoll.whatif.iteration import Iteration, Steps, iterate
from pycoll.whatif.scale import Scale, ScalePoint, scale
from pycoll.whatif.scenario import Disconnected, Lateness, Scenario
from pycoll.whatif.studies import Store, Study
from pycoll.whatif.sweep import Sweep, sweep
from pycoll.whatif.workload import Layer, Workload

__all__ = [
    "Add",
    "Busy",
    "Change",
    "Check",
    "Checked",
    "Comparison",
    "Disconnected",
    "Ecmp",
    "Fail",
    "Flows",
    "Harm",
    "Harms",
    "Iteration",
    "Late",
    "LateDist",
    "Latency",
    "Lateness",
    "Layer",
    "Outcome",
    "Oversubscribe",
    "Place",
    "Remove",
    "Row",
    "Scale",
    "ScalePoint",
    "Scenario",
    "Slow",
    "Spread",
    "Steps",
    "Store",
    "Study",
    "Sweep",
    "Workload",
    "apply",
    "check",
    "compare",
    "each",
    "iterate",
    "known_check",
    "scale",
    "sweep",
    "time",
]
