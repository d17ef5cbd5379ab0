"""The daemon: pools that share, live and durable; the replay's core decides."""
