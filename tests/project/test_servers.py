"""The servers that other tests stand on."""

import socket


def test_a_postgresql_gives_each_test_a_database_and_keeps_data_over_a_restart(postgres):
    url = postgres.database("first")
    assert url.endswith(f":{postgres.port}/first")
    postgres.run("CREATE TABLE kept AS SELECT 7 AS number", "first")
    postgres.stop()
    postgres.start()
    assert postgres.run("SELECT number FROM kept", "first").stdout.strip() == "7"


def test_a_broker_listens_on_the_loopback_and_can_be_ended(broker):
    with socket.create_connection(("127.0.0.1", broker.port), 5):
        pass
    broker.stop()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", broker.port)) != 0
