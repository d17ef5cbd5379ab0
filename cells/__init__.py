"""Locality without fragmentation: quota in cells, allocated by buddies (HiveD; SIA §5.5)."""
