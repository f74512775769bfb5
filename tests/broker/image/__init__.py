"""*Blocking.* A stand-in for the official Kafka image, for machines that cannot pull it."""
