"""What all coordinators share: the runtime of a shard, its log, timers."""
