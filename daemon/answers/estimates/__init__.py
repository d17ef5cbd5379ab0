"""Estimates of when jobs start and end. They never change what the daemon decides."""
