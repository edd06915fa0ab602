"""The deterministic simulator: real nodes on virtual time, a virtual network and virtual disks, from one seed.

`simulation` runs one seed. `invariants` checks the cluster all the time; `history` checks what clients saw at the end.
"""
