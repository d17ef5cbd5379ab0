"""Answers about what will be, and why: nothing here changes what the daemon decides."""
