"""Between asyncio and the wire: one protocol for all links, listening, dialling."""
