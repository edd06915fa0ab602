"""What all coordinators share: the coordinator runtime, replay of its log, timers."""
