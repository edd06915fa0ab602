"""Consumer groups whose partitions the server assigns (KIP-848): members, target assignment, and the way to it.

A member sends ConsumerGroupHeartbeat and is updated what it owns. The group's epoch grows when its members or topics
change; an assignor then makes a target for that epoch, and each member is led there step by step: it gives partitions
up first, and gets a partition only when nobody else has it. Members that speak the older JoinGroup may be in the same
group (`classic_members`), which is how a group moves from one protocol to the other while it runs (`migration`).
"""
