"""MQTT interface: jobs and commands come in, events and pool states go out."""
