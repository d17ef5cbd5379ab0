"""Job logs in, schedules and reports out: virtual time drives the core."""
