"""Cell quotas and buddy allocation: locality without fragmentation (HiveD; SIA §5.5)."""
