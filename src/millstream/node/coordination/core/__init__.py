"""Pure parts that all coordinators share: results of operations, record formats, timers, the topics of the cluster."""
