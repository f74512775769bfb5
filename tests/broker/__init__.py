"""*Blocking.* One real Apache Kafka broker for the tests; `obtain` is the door."""
