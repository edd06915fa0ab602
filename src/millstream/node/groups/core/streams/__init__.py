"""Streams groups (KIP-1071): the broker assigns the tasks of a Kafka Streams application.

A member sends its topology with StreamsGroupHeartbeat and gets tasks: active tasks, standby tasks, warm-up tasks. The
group epoch grows when members, the topology's topics or the assignment settings change. The sticky assignor then
computes a target for that epoch. Each member moves to its target step by step: it revokes tasks first, and gets an
active task only when no other member has it. The shape is that of consumer groups (`consumer/`).
"""
