"""Run a program twice, find where the runs part, say why, and prove it by a rerun.

`launch` runs the unmodified program in a private view of its folder; `inside` is what every process of it
carries, started by ``boot/sitecustomize.py``: it records operators and everything from outside (generators'
first states, entropy, clocks, process numbers, listings), and on request gives the same again as another run
saw. `compare` finds the first difference, `diagnose` proves causes by such reruns, `report` tells.
"""
