"""Which algorithm runs, and why: measurements, a topology and the user's pins become a table of decisions.

``selector`` chooses and explains; ``decisions`` is the table; ``pins`` and ``profile`` go into it;
``group`` is what a group of ranks takes from all of these when it is made.
"""
