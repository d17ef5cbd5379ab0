"""The kinds of events, against which `webhook.events` is checked."""

KINDS = frozenset((
    "account_renewed", "cancelled", "configured", "ended", "ending", "held", "lending",
    "lending_kept", "lending_resumed", "limited", "loan_closed", "loan_moved", "loan_opened",
    "lost", "maintenance_dropped", "model", "node_back", "node_out", "policy",
    "pool_changed", "preempted", "priority", "progress", "promised", "refused", "rejected",
    "released", "requeued", "resized", "running", "started", "stop_forced", "stopped", "stopping",
    "stray", "submitted", "token_issued", "token_revoked", "token_signed_out", "warned",
    "would_lend",
))  # fmt: skip
"""All kinds of notices that the engine emits."""
