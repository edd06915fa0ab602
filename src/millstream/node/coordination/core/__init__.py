"""Pure parts that all coordinators share: timers, results of operations, the catalog of topics."""
