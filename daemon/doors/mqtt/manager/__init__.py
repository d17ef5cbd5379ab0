"""An external cluster manager on MQTT, behind the backend contract.

Imports: doors.mqtt, backends.interface.
"""
