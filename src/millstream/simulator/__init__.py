"""The deterministic simulator: unmodified nodes on virtual time, a virtual network and virtual disks, from one seed."""
