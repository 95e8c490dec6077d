"""The facade over MQTT, by way of a broker."""
