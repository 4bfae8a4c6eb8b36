"""One small program per contender. Each is started as a process by the driver; nothing here imports it."""
