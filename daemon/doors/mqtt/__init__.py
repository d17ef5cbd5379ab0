"""The daemon on an MQTT bus: jobs and commands come in, events and states go out."""
