"""The queue facade."""
