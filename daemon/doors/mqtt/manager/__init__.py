"""Backend for an external cluster manager that is connected over MQTT.

Imports: doors.mqtt, backends.interface.
"""
